//! Every page suits everybody.

use crate::world::World;

/// The pages by the name of their pictures. `{…}` is a job.
const PAGES: [(&str, &str); 5] = [
    ("start", "/"),
    ("tasks", "/tasks"),
    ("task", "/tasks/build"),
    ("jobs", "/jobs"),
    ("jobs-matching", "/jobs?state=dead&error=text"),
];

/// The pages of a world by name.
pub(crate) fn all_pages(world: &World) -> Vec<(String, String)> {
    let jobs = [
        ("{waiting}", &world.waiting),
        ("{dead}", &world.dead),
        ("{succeeded}", &world.succeeded),
        ("{running}", &world.running),
        ("{trigger}", &world.trigger),
    ];
    let path =
        |path: &str| jobs.iter().fold(path.to_owned(), |path, (name, id)| path.replace(name, id));
    PAGES.iter().map(|(name, of)| ((*name).to_owned(), path(of))).collect()
}

#[test]
fn every_page_suits_everybody() {
    let world = World::new("acme/shop");
    let page = world.login("admin");
    let mut flaws = Vec::new();
    for (name, path) in all_pages(&world) {
        world.visit(&page, &path);
        flaws.extend(page.flaws(&name));
        page.has_no_faults();
    }
    assert!(flaws.is_empty(), "{} flaws:\n{}", flaws.len(), flaws.join("\n\n"));
}
