//! Pages that are live: numbers and pictures that follow what happens, and thresholds that are moved.

use reqwest::Method;
use serde_json::{Value, json};

use crate::page::Page;
use crate::world::World;

/// The number that an element shows.
fn number(selector: &str) -> String {
    format!("Number(document.querySelector('{selector}').textContent.replace(/\\D/g, ''))")
}

fn burst(world: &World, triggers: usize) {
    let batch = vec![json!({ "payload": { "repo": "live" } }); triggers];
    world.call("admin", Method::POST, "/v1/tasks/build/triggers", &Value::Array(batch));
}

/// Says to the page that it is hidden, or shown again.
fn hide(page: &Page, hidden: bool) {
    page.eval(&format!(
        "Object.defineProperty(document, 'hidden', {{ get: () => {hidden}, configurable: true }});
         document.dispatchEvent(new Event('visibilitychange'))"
    ));
}

#[test]
fn a_live_burst_shows_on_the_overview_and_pauses_while_it_is_hidden() {
    let world = World::new("acme/shop");
    let page = world.login("operator");
    world.visit(&page, "/");
    page.wait("document.querySelector('#live').textContent === 'Live.'");
    page.eval("window.isSamePage = true");
    let shown = number("[data-live=\"hour.triggers\"]");
    let before = page.eval(&shown).as_u64().unwrap();
    burst(&world, 37);
    page.wait(&format!("{shown} >= {}", before + 37));
    let spark = "#activity tr[data-task=\"build\"] .spark-triggers";
    page.wait(&format!("document.querySelector('{spark}').getAttribute('d').includes('V0.0')"));
    hide(&page, true);
    page.wait("document.querySelector('#live').textContent === 'Paused.'");
    burst(&world, 3);
    hide(&page, false);
    page.wait(&format!("{shown} >= {}", before + 40));
    assert_eq!(page.eval("window.isSamePage"), true, "it was not loaded again");
}

#[test]
fn the_timeline_follows_a_burst_and_is_moved_by_keys() {
    let world = World::new("acme/shop");
    let page = world.login("operator");
    world.visit(&page, "/timeline?task=build");
    let shown = number("#summary [data-count=triggers]");
    page.wait(&format!("{shown} === 11"));
    burst(&world, 5_000);
    page.wait(&format!("{shown} === 5011"));
    let pressed = "document.querySelector('[data-view=now]').getAttribute('aria-pressed')";
    assert_eq!(page.eval(pressed), "true");
    page.eval("document.querySelector('#picture').focus()");
    page.press("ArrowLeft");
    assert_eq!(page.eval(pressed), "false");
    page.wait("document.querySelector('#span').textContent !== ''");
    let span = page.eval("document.querySelector('#span').textContent");
    page.press("-");
    page.wait(&format!("document.querySelector('#span').textContent !== {span}"));
    page.press("Home");
    assert_eq!(page.eval(pressed), "true");
    // Something is drawn.
    let colours = "new Set(document.querySelector('#picture').getContext('2d')
        .getImageData(0, 0, 600, 200).data).size > 8";
    page.wait(colours);
    page.screenshot("timeline-live");
}

#[test]
fn thresholds_are_moved_by_keys_and_their_cost_is_shown() {
    let world = World::new("acme/shop");
    burst(&world, 50);
    let page = world.login("admin");
    world.visit(&page, "/what-if?task=build&min=30m&max=2h");
    let min = "document.querySelector('#chosen [data-of=min]').textContent";
    assert_eq!(page.eval(min), "30m");
    page.eval("document.querySelector('#r-min').focus()");
    page.press("ArrowLeft");
    page.wait(&format!("{min} === '15m'"));
    assert_eq!(page.eval("document.querySelector('#f-min').value"), "15m");
    let setting = "document.querySelector('#apply pre').textContent";
    assert_eq!(page.eval(setting), "debounce = { min = \"15m\", max = \"2h\" }");
    page.screenshot("what-if-moved");

    // They are set for the task, with before and after, and the undo is on its page.
    page.follow(|| page.css("[data-do=apply]").click());
    page.wait_for_text("15m (changed)");
    page.screenshot("thresholds-review");
    page.follow(|| page.css("[data-do=save]").click());
    let set = "document.querySelector('#set')?.textContent";
    page.wait(&format!("{set}?.includes('min 15m and max 2h')"));
    page.screenshot("thresholds-set");
    page.follow(|| page.css("[data-do=undo]").click());
    page.wait(&format!("location.search.includes('undone') && !{set}"));
}

#[test]
fn lists_follow_what_happens_unless_someone_uses_them() {
    let world = World::new("acme/shop");
    let page = world.login("operator");
    world.visit(&page, "/jobs?task=mail");
    page.wait("document.querySelector('#fresh')?.textContent === 'Live.'");
    page.eval("window.isSamePage = true");
    let rows = "document.querySelectorAll('#list tbody tr').length";
    let before = page.eval(rows).as_u64().unwrap();
    let trigger = |count: u64| {
        for _ in 0..count {
            world.call("admin", Method::POST, "/v1/tasks/mail/triggers", &json!({ "payload": 1 }));
        }
    };
    trigger(3);
    page.wait(&format!("{rows} === {}", before + 3));
    // Who has chosen a row keeps it.
    page.eval(
        "document.querySelector('#list tbody a').focus(); window.kept = document.activeElement",
    );
    trigger(2);
    let counted = "document.querySelector('#fresh').textContent === 'Live.'";
    page.wait(counted);
    assert_eq!(
        page.eval("window.kept === document.activeElement && window.kept.isConnected"),
        true
    );
    page.eval("document.activeElement.blur()");
    page.wait(&format!("{rows} === {}", before + 5));
    assert_eq!(page.eval("window.isSamePage"), true, "it was not loaded again");
    hide(&page, true);
    page.wait("document.querySelector('#fresh').textContent === 'Paused.'");
}

#[test]
fn a_job_shows_its_attempts_as_they_come() {
    let world = World::new("acme/shop");
    let page = world.login("operator");
    let receipt = world.call(
        "admin",
        Method::POST,
        "/v1/tasks/build/triggers",
        &json!({ "payload": { "repo": "seen" } }),
    );
    let job = receipt["job"].as_str().unwrap().to_owned();
    world.visit(&page, &format!("/jobs/{job}"));
    page.wait("document.querySelector('#fresh')?.textContent === 'Live.'");
    let state = "document.querySelector('#state').textContent.trim()";
    assert_eq!(page.eval(state), "scheduled");
    world.call("admin", Method::POST, &format!("/v1/jobs/{job}/run"), &Value::Null);
    page.wait(&format!("{state} !== 'scheduled'"));
    // Texts can be copied after it was replaced.
    page.wait("document.querySelectorAll('#story .copy > button').length === 1");
}
