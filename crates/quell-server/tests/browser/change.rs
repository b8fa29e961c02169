//! Operators change things by mouse, and by keyboard alone.

use reqwest::Method;
use serde_json::Value;

use crate::world::World;

#[test]
fn a_task_is_triggered_and_its_windows_are_run_and_cancelled() {
    let world = World::new("acme/shop");
    let page = world.login("operator");
    world.visit(&page, "/tasks/build");
    page.css("#t-payload").fill("{\"repo\": ");
    page.expect("422");
    page.follow(|| page.css("[data-do=trigger]").click());
    page.css("[role=alert]");
    page.has_no_faults();
    page.screenshot("trigger-refused");
    world.visit(&page, "/tasks/build");
    page.css("#t-payload").fill("{\"repo\": \"by-hand\"}");
    page.follow(|| page.css("[data-do=trigger]").click());
    page.wait("document.querySelector('#notice').textContent !== ''");
    page.wait_for_text("by-hand");
    page.screenshot("triggered");
    world.visit(&page, "/tasks/build");
    page.follow(|| page.role("button", "Run now acme/shop").click());
    world.reach(&world.waiting, "succeeded");
    world.visit(&page, "/tasks/build");
    assert!(!page.css("#jobs").text().contains("acme/shop"));
    page.tab_to("button", "Cancel by-hand");
    page.follow(|| page.press("Enter"));
    assert!(!page.css("#jobs").text().contains("by-hand"));
    let cancelled = "/v1/jobs?task=build&state=cancelled";
    let jobs = world.call("operator", Method::GET, cancelled, &Value::Null);
    assert_eq!(jobs["jobs"][0]["key"], "by-hand", "{jobs}");
}

#[test]
fn a_filter_and_an_action_on_all_that_match_work_by_mouse() {
    let world = World::new("acme/shop");
    let page = world.login("operator");
    page.role("link", "Jobs").click();
    page.wait("document.querySelector('#f-task')");
    page.css("#f-task").click();
    page.write("import");
    page.follow(|| page.role("button", "Filter").click());
    assert_eq!(page.eval("document.querySelectorAll('#jobs tbody tr').length"), 12);
    page.follow(|| page.css("#select-all").click());
    page.css("#a-action").choose("redrive");
    page.css("#a-name").fill("again");
    page.follow(|| page.css("[data-do=dry-run]").click());
    page.wait("document.querySelector('#action[data-state=done]')");
    assert_eq!((page.css("#matched").text(), page.css("#done").text()), ("12".into(), "0".into()));
    page.follow(|| page.css("#for-real").click());
    page.css("#a-name").fill("again-for-real");
    page.css("#a-rate").fill("1000");
    page.follow(|| page.css("[data-do=begin]").click());
    page.wait("document.querySelector('#action[data-state=done]')");
    page.screenshot("action-done");
    assert_eq!((page.css("#matched").text(), page.css("#done").text()), ("12".into(), "12".into()));
    world.attempts(&world.dead, 2);
}

#[test]
fn an_action_on_all_that_match_is_stopped_by_keyboard_alone() {
    let world = World::new("acme/shop");
    let page = world.login("operator");
    world.visit(&page, "/dead");
    page.press("/");
    page.wait("document.activeElement.id === 'd-task'");
    page.write("import");
    page.follow(|| page.press("Enter"));
    page.tab_to("link", "Discard…");
    page.follow(|| page.press("Enter"));
    page.wait("document.querySelector('#a-action').value === 'discard'");
    page.tab_to("textbox", "Name");
    page.press("Control+a");
    page.write("slowly");
    page.tab_to("spinbutton", "Jobs a second, at most");
    page.press("Control+a");
    page.write("1");
    page.tab_to("textbox", "Reason, to discard or cancel");
    page.write("a test");
    page.tab_to("button", "Begin");
    page.follow(|| page.press("Enter"));
    page.wait("document.querySelector('#action[data-state=running]')");
    page.tab_to("button", "Stop");
    page.press("Enter");
    page.wait("document.querySelector('[data-state=stopped]')");
    let left = world.call("operator", Method::GET, "/v1/dead?task=import", &Value::Null);
    let left = left["matching"].as_u64().unwrap();
    assert!((1..12).contains(&left), "{left} of 12 are left");
}

#[test]
fn one_job_is_redriven_with_an_edited_payload() {
    let world = World::new("acme/shop");
    let page = world.login("operator");
    world.visit(&page, "/dead");
    let first = page.css("#jobs tbody th a");
    let job = first.text();
    page.follow(|| first.click());
    page.css("#payload summary").click();
    page.wait_for_text("\"acme/shop\"");
    page.role("DisclosureTriangle", "Redrive with an edited payload…").click();
    page.css("#edited").fill("{\"text\": \"edited by hand\"}");
    page.follow(|| page.css("[data-do=redrive-edited]").click());
    page.wait("document.querySelector('#notice').textContent !== ''");
    world.attempts(&job, 2);
    world.visit(&page, &format!("/jobs/{job}"));
    page.wait_for_text("Payload before it was edited");
    page.wait_for_text("edited by hand");
    page.suits_everybody("job-edited");
}

#[test]
fn settings_of_a_queue_are_shown_before_and_after_and_undone() {
    let world = World::new("acme/shop");
    let page = world.login("admin");
    let concurrency = || {
        let queue = world.call("admin", Method::GET, "/v1/queues/builds", &Value::Null);
        queue["concurrency"].as_u64()
    };
    world.visit(&page, "/queues/builds");
    page.css("#q-concurrency").fill("7");
    page.follow(|| page.css("[data-do=review]").click());
    let changed = page.css("tr.changed").text();
    assert!(changed.contains('4') && changed.contains('7'), "{changed}");
    assert_eq!(concurrency(), Some(4), "only shown");
    page.suits_everybody("queue-review");
    page.follow(|| page.css("[data-do=save]").click());
    assert_eq!(concurrency(), Some(7));
    page.suits_everybody("queue-undo");
    page.tab_to("button", "Undo: set the former settings");
    page.follow(|| page.press("Enter"));
    assert_eq!(concurrency(), Some(4));
    // Another operator changes them meanwhile: nothing is overwritten.
    page.css("#q-concurrency").fill("9");
    page.follow(|| page.css("[data-do=review]").click());
    let other = serde_json::json!({ "concurrency": 5 });
    world.call("admin", Method::PATCH, "/v1/queues/builds", &other);
    page.expect("412");
    page.follow(|| page.css("[data-do=save]").click());
    assert_eq!(concurrency(), Some(5));
    page.css("[role=alert]");
    page.has_no_faults();
}

#[test]
fn schedules_are_fired_paused_and_resumed() {
    let world = World::new("acme/shop");
    let page = world.login("operator");
    world.visit(&page, "/schedules");
    page.follow(|| page.role("link", "nightly").click());
    page.follow(|| page.css("[data-do=run]").click());
    let of_mail = "/v1/jobs?task=mail&limit=10";
    let jobs = world.call("operator", Method::GET, of_mail, &Value::Null);
    assert_eq!(jobs["jobs"].as_array().map(Vec::len), Some(2), "{jobs}");
    page.follow(|| page.css("[data-do=pause]").click());
    page.wait("document.querySelector('#state').innerText === 'paused'");
    page.follow(|| page.css("[data-do=resume]").click());
    page.wait("document.querySelector('#state').innerText === 'active'");
}
