//! The login page.

use reqwest::Method;
use serde_json::Value;

use crate::page::Page;
use crate::scene::Scene;

const TOKENS: [(&str, &str); 1] = [("ann", "operate")];

#[test]
fn a_login_works_by_keyboard_alone_and_suits_everybody() {
    let scene = Scene::guarded("", &TOKENS);
    let page = scene.page();
    page.goto(&scene.url("/login?next=/v1/reference"));
    page.suits_everybody("login");
    refuses_a_wrong_token(&page);
    page.suits_everybody("login-refused");
    // The field has the focus, as at the first time.
    page.write(scene.token("ann"));
    page.follow(|| page.press("Enter"));
    assert_eq!(page.path(), "/v1/reference");
    page.goto(&scene.url("/login"));
    page.wait_for_text("logged in as ann");
    page.suits_everybody("login-again");
    page.tab_to("button", "Log out");
    page.follow(|| page.press("Enter"));
    assert_eq!(page.path(), "/login");
    assert!(!page.text().contains("logged in"), "{}", page.text());
}

fn refuses_a_wrong_token(page: &Page) {
    assert_eq!(page.focused(), ("textbox".to_owned(), "Token".to_owned()));
    page.write("<img src=x onerror=alert(1)>");
    page.tab_to("button", "Log in");
    page.expect("401");
    page.follow(|| page.press("Enter"));
    page.role("alert", "");
    page.wait_for_text("the token is wrong");
}

#[test]
fn a_login_works_without_scripts() {
    let scene = Scene::guarded("", &TOKENS);
    let page = scene.page();
    page.scripts(false);
    page.goto(&scene.url("/login"));
    page.css("#token").fill(scene.token("ann"));
    page.role("button", "Log in").click();
    page.wait("location.pathname !== '/login' && document.readyState === 'complete'");
    let session = scene.call("ann", Method::GET, "/v1/session", &Value::Null);
    assert_eq!(session["name"], "ann");
}
