//! The page of the API's description.

use crate::scene::Scene;

#[test]
fn the_reference_suits_everybody() {
    let scene = Scene::start("");
    let page = scene.page();
    page.goto(&scene.url("/v1/reference"));
    page.suits_everybody("reference");
    page.tab_to("link", "Schemas");
    page.press("Enter");
    page.wait("location.hash === '#schemas'");
}
