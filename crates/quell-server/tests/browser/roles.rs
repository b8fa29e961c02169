//! Readers see what they may, and a session that ends leads to a login and back.

use reqwest::Method;
use serde_json::Value;

use crate::pages::all_pages;
use crate::world::World;

#[test]
fn a_reader_sees_every_page_and_no_control_that_is_not_permitted() {
    let world = World::new("acme/shop");
    let page = world.login("reader");
    for (name, path) in all_pages(&world) {
        if name == "audit" {
            assert!(!page.has("link", "Audit"));
            page.expect("403");
        }
        world.visit(&page, &path);
        let controls = page.eval(
            "[...document.querySelectorAll('main form[method=post], main button[data-do]')]
                .map((one) => one.outerHTML.slice(0, 200))",
        );
        assert_eq!(controls, Value::Array(vec![]), "{path}");
    }
    world.visit(&page, "/tasks/build");
    page.wait_for_text("Your token does not have the scope operate.");
}

#[test]
fn a_session_that_ends_leads_to_a_login_and_back() {
    let world = World::new("acme/shop");
    let page = world.login("reader");
    // The stream of a live page ends with the session, and is asked for again.
    page.tolerate("/live");
    world.visit(&page, "/jobs?state=dead");
    world.call("admin", Method::DELETE, "/v1/tokens/reader", &Value::Null);
    page.follow(|| page.role("link", "Tasks").click());
    page.wait("location.pathname === '/login'");
    page.css("#token").fill(world.scene.token("operator"));
    page.follow(|| page.press("Enter"));
    assert_eq!(page.path(), "/tasks");
    // A form whose session has ended comes back to its page, and does nothing.
    world.visit(&page, "/tasks/mail");
    world.call("admin", Method::DELETE, "/v1/tokens/operator", &Value::Null);
    page.follow(|| page.role("button", "Pause").click());
    page.wait("location.pathname === '/login'");
    page.css("#token").fill(world.scene.token("admin"));
    page.follow(|| page.press("Enter"));
    assert_eq!(page.path(), "/tasks/mail");
    let task = world.call("admin", Method::GET, "/v1/tasks/mail", &Value::Null);
    assert_eq!(task["paused"], false, "{task}");
}
