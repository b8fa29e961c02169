//! That this test library sees what is wrong: each page here has one thing wrong, or one to find.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use quell_services::Chromium;

use crate::page::{Page, Theme};

/// A page of this body, by a policy that permits the script with this number only.
fn show(page: &Page, body: &str) {
    let html = format!(
        "<!doctype html><html lang=en><meta name=viewport content='width=device-width'>\
         <meta http-equiv=Content-Security-Policy content=\"script-src 'nonce-1'\">\
         <title>x</title><main><h1>x</h1>{body}</main>"
    );
    let encoded: String = form_urlencoded::byte_serialize(html.as_bytes()).collect();
    page.goto(&format!("data:text/html,{}", encoded.replace('+', "%20")));
}

/// What a check says that fails.
fn refusal(check: impl FnOnce()) -> String {
    let panic = catch_unwind(AssertUnwindSafe(check)).expect_err("the check passes");
    panic.downcast_ref::<String>().cloned().unwrap_or_default()
}

#[test]
fn each_thing_that_is_wrong_is_seen() {
    let browser = Arc::new(Chromium::start().unwrap());
    for (body, fault) in [
        ("<script>window.ran = 1</script>", "Content Security Policy"),
        ("<script nonce=1>console.error('a complaint')</script>", "a complaint"),
        ("<script nonce=1>nothing()</script>", "nothing is not defined"),
    ] {
        let page = Page::open(&browser);
        show(&page, body);
        let refusal = refusal(|| page.has_no_faults());
        assert!(refusal.contains(fault), "{body}: {refusal}");
        page.forgive();
    }
    let page = Page::open(&browser);
    show(&page, "<p style='color: #aaa; background: #fff'>pale</p><input name=x>");
    let found = page.violations();
    let rules: Vec<&str> = found.iter().filter_map(|one| Some(one.split_once(':')?.0)).collect();
    assert_eq!(rules, ["color-contrast", "label"], "{found:?}");
    page.size(360);
    show(&page, "<pre>a text that is much wider than the window of a phone can ever be</pre>");
    assert!(page.sideways_scroll().is_some_and(|flaw| flaw.contains("is too wide")));
    show(&page, "<p>fits</p>");
    assert_eq!(page.sideways_scroll(), None);
    assert_eq!(page.violations(), Vec::<String>::new());
}

#[test]
fn a_page_is_used_as_a_person_uses_it() {
    let browser = Arc::new(Chromium::start().unwrap());
    let page = Page::open(&browser);
    show(
        &page,
        "<a href='#a'>first</a><button id=b>second</button><label>name<input id=i></label>\
         <style>@media print { h1 { color: red } } @media (prefers-reduced-motion: reduce) { h1 { \
         width: 7px } } @media (prefers-color-scheme: dark) { h1 { height: 9px } }</style>\
         <script nonce=1>b.onclick = (e) => { b.textContent = e.detail ? 'mouse' : 'keys' };\
         onkeydown = (e) => { document.title = e.key + e.shiftKey }</script>",
    );
    page.role("button", "second").click();
    assert_eq!(page.css("#b").text(), "mouse");
    page.tab_to("textbox", "name");
    page.write("é<b>");
    assert_eq!(page.eval("i.value"), "é<b>");
    page.press("Shift+Tab");
    assert_eq!(page.focused(), ("button".to_owned(), "mouse".to_owned()));
    page.press("Space");
    assert_eq!(page.css("#b").text(), "keys");
    page.press("?");
    assert_eq!(page.eval("document.title"), "?false");
    assert!(page.has("button", "keys") && !page.has("button", "mouse"));
    let style =
        |name: &str| page.eval(&format!("getComputedStyle(document.querySelector('h1')).{name}"));
    page.calm(true);
    page.print(true);
    page.theme(Theme::Dark);
    assert_eq!(
        (style("color"), style("width"), style("height")),
        ("rgb(255, 0, 0)".into(), "7px".into(), "9px".into())
    );
    page.css("#b").call("function () { this.disabled = true; }");
    page.css("#i").fill("other");
    assert_eq!(page.eval("i.value"), "other");
}
