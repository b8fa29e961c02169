//! The keyboard, the theme and motion.

use crate::page::Theme;
use crate::world::World;

#[test]
fn keys_lead_everywhere_and_the_theme_is_remembered() {
    let world = World::new("acme/shop");
    let page = world.login("admin");
    world.visit(&page, "/tasks");
    // The first stop skips the navigation.
    page.press("Tab");
    assert_eq!(page.focused(), ("link".to_owned(), "Skip to the content".to_owned()));
    page.press("Enter");
    page.wait("location.hash === '#content'");
    page.press("?");
    page.wait("document.querySelector('#help').open");
    page.screenshot("keys");
    // Who speaks to the browser has no use for single keys.
    page.css("#use-keys").click();
    page.press("Escape");
    page.wait("!document.querySelector('#help').open");
    world.visit(&page, "/tasks");
    page.press("?");
    assert_eq!(page.eval("document.querySelector('#help').open"), false);
    page.role("button", "Keys").click();
    page.css("#use-keys").click();
    page.press("Escape");
    page.wait("!document.querySelector('#help').open");
    page.press("g");
    page.follow(|| page.press("j"));
    assert_eq!(page.path(), "/jobs");
    page.press("/");
    page.wait("document.activeElement.id === 'f-task'");
    page.write("import");
    page.follow(|| page.press("Enter"));
    assert!(page.path().starts_with("/jobs?task=import"), "{}", page.path());
    page.press("j");
    page.press("j");
    page.press("k");
    let first = page.css("tbody tr:first-child a").text();
    assert_eq!(page.focused(), ("link".to_owned(), first));
    let dark = "getComputedStyle(document.body).backgroundColor";
    let before = page.eval(dark);
    page.role("button", "Theme").click();
    let after = page.eval(dark);
    assert_ne!(before, after);
    page.follow(|| page.role("link", "Tasks").click());
    assert_eq!(page.eval(dark), after);
    page.theme(Theme::Dark);
    assert_eq!(page.eval(dark), after, "the choice counts, not the system");
    page.calm(true);
    let moves = "document.getAnimations().length + [...document.querySelectorAll('*')].filter(
        (one) => parseFloat(getComputedStyle(one).transitionDuration) > 0).length";
    assert_eq!(page.eval(moves), 0);
    page.print(true);
    let hidden = "['.side', '.top'].every((part) => !document.querySelector(part).offsetHeight)";
    assert_eq!(page.eval(hidden), true);
    assert_eq!(page.eval(dark), "rgb(255, 255, 255)");
    assert_eq!(page.violations(), Vec::<String>::new());
    page.screenshot("print");
}

#[test]
fn pages_work_without_scripts() {
    let world = World::new("acme/shop");
    let page = world.scene.page();
    page.scripts(false);
    world.visit(&page, "/jobs");
    page.wait("location.pathname === '/login'");
    page.css("#token").fill(world.scene.token("operator"));
    page.press("Enter");
    page.wait("location.pathname === '/jobs'");
    page.css("#f-task").fill("import");
    page.press("Enter");
    page.wait("location.search.includes('task=import') && document.readyState === 'complete'");
    assert!(!page.has("button", "Theme"), "a button that would do nothing");
    world.visit(&page, "/tasks/mail");
    page.role("button", "Pause").click();
    page.role("button", "Resume");
    page.wait("document.querySelector('#notice').textContent !== ''");
    page.screenshot("without-scripts");
}
