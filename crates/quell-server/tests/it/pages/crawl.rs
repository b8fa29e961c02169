//! Every page that a link leads to: hostile texts in all fields, sound HTML, no dead ends.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use quell::JobState;
use reqwest::Method;
use serde_json::{Value, json};

use super::html::Page;
use super::{HOSTILE, Scene, Shown};

/// The tags that pages have.
const TAGS: &str = "!doctype a body br button canvas caption circle code datalist dd del details dialog \
                    div dl dt fieldset form \
                    h1 h2 h3 head header html img input ins kbd label legend li link main meta meter nav \
                    ol option p path pre progress script section select span strong summary svg table \
                    tbody td text textarea th thead time title tr ul";
/// The policy of every page.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
                      form-action 'self'; base-uri 'none'; frame-ancestors 'none'; \
                      require-trusted-types-for 'script'";
/// The most pages that are looked at.
const MOST: usize = 600;

/// A job in each state, with the hostile text wherever a caller can put one.
async fn plant(scene: &Scene) -> Vec<String> {
    let hostile = json!({ "repo": HOSTILE, HOSTILE: [HOSTILE] });
    let mut jobs = vec![
        scene.ended("dies", &hostile, JobState::Dead).await,
        scene.ended("puts", &hostile, JobState::Succeeded).await,
        scene.trigger("odd%2Fname:1", &hostile).await,
        scene.trigger("build", &hostile).await,
    ];
    let trace = json!({
        "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "tracestate": "a=b",
    });
    let more = json!({
        "payload": hostile, "debounce": false, "partition": HOSTILE, "dedup": HOSTILE,
        "idempotency_key": HOSTILE, "delay": "1h", "trace": trace,
    });
    let made = scene.post("/v1/tasks/build/triggers", more).await;
    jobs.push(made["job"].as_str().unwrap().to_owned());
    for path in ["/v1/queues/default/pause", "/v1/tasks/build/pause"] {
        scene.post(path, json!({ "by": HOSTILE })).await;
    }
    scene.post("/v1/queues/default/resume", json!({})).await;
    jobs.push(running(scene, &hostile).await);
    let cancelled = scene.trigger("build", &json!({ "repo": "cancelled" })).await;
    let action = json!({
        "name": "stop-it", "action": "cancel", "filter": { "key": "cancelled" }, "reason": HOSTILE,
    });
    scene.post("/v1/actions", action).await;
    let dry = json!({
        "name": "count", "action": "redrive", "dry_run": true,
        "filter": { "error": HOSTILE, "partition": HOSTILE },
    });
    scene.post("/v1/actions", dry).await;
    scene.served.ended_by_number(&cancelled, JobState::Cancelled).await;
    jobs.push(cancelled);
    jobs
}

/// A job that a worker elsewhere runs, with its progress and its log.
async fn running(scene: &Scene, payload: &Value) -> String {
    let job = scene.trigger("pulled", payload).await;
    let process = json!({ "incarnation": 5, "host": HOSTILE, "version": HOSTILE, "slots": 4 });
    let claim = json!({ "tasks": ["pulled"], "wait": "10s", "process": process });
    let claimed = scene.post("/v1/workers/w/claim", claim).await;
    let lease = &claimed["jobs"][0]["lease"];
    let lease = json!({ "lease": lease, "progress": { "at": HOSTILE }, "log": [HOSTILE] });
    scene.post("/v1/workers/w/renew", json!({ "leases": [lease], "process": process })).await;
    job
}

/// All pages that can be reached from these, by path.
async fn crawl(scene: &Scene, name: &str, begin: Vec<String>) -> BTreeMap<String, Shown> {
    let (mut all, mut waiting) = (BTreeMap::new(), VecDeque::from(begin));
    let mut known: BTreeSet<String> = waiting.iter().cloned().collect();
    while let Some(path) = waiting.pop_front() {
        assert!(all.len() < MOST, "links lead to ever more pages: {path}");
        let shown = scene.page(name, &path).await;
        let mut next: Vec<String> = shown.page.links().map(str::to_owned).collect();
        if shown.status == 303 {
            next.push(shown.location().to_owned());
        }
        for link in next {
            let link = link.split('#').next().unwrap_or_default().to_owned();
            if link.starts_with('/') && known.insert(link.clone()) {
                waiting.push_back(link);
            }
        }
        all.insert(path, shown);
    }
    all
}

/// What must hold of a page whatever is on it.
fn check(path: &str, shown: &Shown) {
    let Shown { headers, page, .. } = shown;
    assert_eq!(headers["content-security-policy"], POLICY, "{path}");
    assert_eq!(headers["x-content-type-options"], "nosniff", "{path}");
    assert_eq!(headers["cache-control"], "no-store", "{path}");
    assert!(!page.text().contains("cannot be shown"), "{path}: {}", page.text());
    let allowed: BTreeSet<&str> = TAGS.split_whitespace().collect();
    let mut ids = BTreeSet::new();
    for tag in &page.tags {
        let name = tag.name.trim_start_matches('/');
        assert!(allowed.contains(name), "{path}: <{name}> in {}", page.source);
        for (key, _) in &tag.attributes {
            assert!(!key.starts_with("on") && key != "style" && key != "srcdoc", "{path}: {tag:?}");
        }
        if let Some(id) = tag.get("id") {
            assert!(ids.insert(id), "{path}: the id {id} is there twice");
        }
        for value in [tag.get("href"), tag.get("src"), tag.get("action")].into_iter().flatten() {
            let is_trace = value.starts_with("https://traces.test/") && tag.name == "a";
            let is_own = value.starts_with('/') && !value.starts_with("//");
            assert!(is_own || is_trace || value == "#content", "{path}: {tag:?}");
        }
    }
    assert_eq!(page.tags("script").count(), 1, "{path}: {}", page.source);
    fields(path, page);
    headings(path, page);
}

/// Each field has a label, each table a caption.
fn fields(path: &str, page: &Page) {
    let labels: BTreeSet<&str> = page.tags("label").filter_map(|tag| tag.get("for")).collect();
    let inputs = page.tags.iter().filter(|tag| {
        let is_field = matches!(tag.name.as_str(), "input" | "select" | "textarea");
        is_field && tag.get("type") != Some("hidden")
    });
    for input in inputs {
        let id = input.get("id").unwrap_or_default();
        assert!(labels.contains(id), "{path}: {input:?} has no label");
    }
    assert_eq!(page.tags("table").count(), page.tags("caption").count(), "{path}");
    for head in page.tags("th") {
        assert!(matches!(head.get("scope"), Some("row" | "col")), "{path}: {head:?}");
    }
}

/// One heading of the first level, and none that leaves a level out.
fn headings(path: &str, page: &Page) {
    let levels: Vec<u32> = page
        .tags
        .iter()
        .filter_map(|tag| tag.name.strip_prefix('h').and_then(|level| level.parse().ok()))
        .collect();
    assert_eq!(levels.first(), Some(&1), "{path}: {levels:?}");
    assert_eq!(levels.iter().filter(|level| **level == 1).count(), 1, "{path}: {levels:?}");
    assert!(levels.windows(2).all(|two| two[1] <= two[0] + 1), "{path}: {levels:?}");
}

#[tokio::test]
async fn r40_hostile_markup_in_every_field_is_only_text() {
    let scene = Scene::new().await;
    let jobs = plant(&scene).await;
    let encoded: String = form_urlencoded::byte_serialize(HOSTILE.as_bytes()).collect();
    let mut begin = vec!["/".to_owned()];
    for path in [
        "/jobs?key",
        "/jobs?error",
        "/jobs?state",
        "/dead?error",
        "/triggers?id",
        "/triggers?find",
        "/jobs?done",
    ] {
        begin.push(format!("{path}={encoded}"));
    }
    begin.extend([format!("/tasks/{encoded}"), format!("/actions/new?error={encoded}")]);
    begin.extend(jobs.iter().map(|job| format!("/jobs/{job}")));
    let all = crawl(&scene, "admin", begin).await;
    let pages = all.iter().filter(|(path, _)| !path.starts_with("/v1/"));
    let mut with_text = BTreeSet::new();
    for (path, shown) in pages {
        assert!(shown.status < 500, "{path}: {}", shown.status);
        if shown.status == 303 {
            continue;
        }
        check(path, shown);
        let squeezed = HOSTILE.split_whitespace().collect::<Vec<_>>().join(" ");
        if shown.page.text().contains(&squeezed) {
            with_text.insert(path.split('?').next().unwrap_or_default().to_owned());
        }
    }
    // The text is there, so it was escaped and not left out.
    let expected =
        ["/jobs", "/dead", "/tasks/build", "/workers", "/actions/stop-it", "/actions/count"];
    let of_jobs = jobs.iter().map(|job| format!("/jobs/{job}"));
    for path in expected
        .map(str::to_owned)
        .into_iter()
        .chain(of_jobs)
        .chain(["/schedules/nightly".to_owned()])
    {
        assert!(with_text.contains(&path), "{path} does not show the text: {with_text:?}");
    }
    scene.stop().await;
}

#[tokio::test]
async fn every_link_leads_somewhere_and_every_form_to_a_route() {
    let scene = Scene::new().await;
    plant(&scene).await;
    for name in ["admin", "read"] {
        let all = crawl(&scene, name, vec!["/".to_owned()]).await;
        assert!(all.len() > 30, "{name}: {:?}", all.keys());
        let mut actions = BTreeSet::new();
        for (path, shown) in &all {
            assert!(matches!(shown.status, 200 | 303), "{name} {path}: {}", shown.status);
            for form in shown.page.tags("form") {
                let action = form.get("action").unwrap_or_default();
                if form.get("method") == Some("post") && !action.is_empty() {
                    actions.insert(action.to_owned());
                }
            }
        }
        assert_eq!(actions.is_empty(), name == "read", "{actions:?}");
        for action in actions {
            // A method that no form has: the route is there and does not take it.
            let shown = super::shown(scene.request(name, Method::PUT, &action)).await;
            assert_eq!(shown.status, 405, "{action}");
        }
    }
    scene.stop().await;
}
