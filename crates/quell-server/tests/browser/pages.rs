//! Every page suits everybody.

use crate::world::World;

/// The pages by the name of their pictures. A name in braces is a job. The last is for administrators.
const PAGES: [(&str, &str); 30] = [
    ("overview", "/"),
    ("timeline", "/timeline?task=build"),
    ("timeline-empty", "/timeline?task=nothing"),
    ("what-if", "/what-if?task=build&min=1m&max=5m"),
    ("what-if-choose", "/what-if"),
    ("jobs", "/jobs"),
    ("jobs-matching", "/jobs?state=dead&error=stderr"),
    ("jobs-none", "/jobs?task=nothing"),
    ("job-waiting", "/jobs/{waiting}"),
    ("job-dead", "/jobs/{dead}"),
    ("job-succeeded", "/jobs/{succeeded}"),
    ("job-running", "/jobs/{running}"),
    ("tasks", "/tasks"),
    ("task", "/tasks/build"),
    ("task-paused", "/tasks/resize"),
    ("queues", "/queues"),
    ("queue", "/queues/builds"),
    ("queue-paused", "/queues/remote"),
    ("dead", "/dead"),
    ("schedules", "/schedules"),
    ("schedule", "/schedules/nightly"),
    ("workers", "/workers"),
    ("sources", "/sources"),
    ("actions", "/actions"),
    ("action", "/actions/count"),
    ("action-new", "/actions/new?state=scheduled&task=build"),
    ("find", "/triggers"),
    ("proof", "/proof"),
    ("settings", "/settings"),
    ("audit", "/audit"),
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
