//! The forms of queues, schedules, dead jobs and actions do what they say.

use std::time::{Duration, Instant};

use quell::JobState;
use reqwest::Method;
use serde_json::{Value, json};

use super::{Page, Scene};

/// The fields of a form that are hidden or filled in, as a browser sends them.
fn filled(page: &Page, names: &[&str]) -> Vec<(String, String)> {
    let value = |name: &&str| Some(((*name).to_owned(), page.field(name)?.to_owned()));
    names.iter().filter_map(value).collect()
}

fn pairs(fields: &[(String, String)]) -> Vec<(&str, &str)> {
    fields.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect()
}

#[tokio::test]
async fn r32_settings_of_a_queue_are_changed_with_before_and_after_and_undone() {
    const NAMES: [&str; 8] = [
        "tag",
        "concurrency",
        "worker_concurrency",
        "partition_concurrency",
        "partition_order",
        "rate",
        "partition_rate",
        "debounce",
    ];
    let scene = Scene::new().await;
    let before = scene.get("/v1/queues/default").await;
    let page = scene.page("admin", "/queues/default").await.page;
    assert!(page.by_id("undo").is_none(), "nothing is to be undone yet");
    let mut form = filled(&page, &NAMES);
    assert!(form.contains(&("rate".to_owned(), "100/1m".to_owned())), "{form:?}");
    for (name, value) in &mut form {
        match name.as_str() {
            "concurrency" => *value = "9".to_owned(),
            "rate" => value.clear(),
            "debounce" => *value = "1s/10s".to_owned(),
            _ => {}
        }
    }
    let review = scene.send("admin", "/queues/default/review", &pairs(&form)).await.page;
    let text = review.text();
    assert!(text.contains("4 9 (changed)") && text.contains("100/1m not set (changed)"), "{text}");
    assert_eq!(scene.get("/v1/queues/default").await, before, "a review changes nothing");
    let form = filled(&review, &NAMES);
    assert_eq!(scene.send("operate", "/queues/default/save", &pairs(&form)).await.status, 403);
    scene.done("/queues/default/save", &pairs(&form)).await;
    let after = scene.get("/v1/queues/default").await;
    assert_eq!((&after["concurrency"], &after["rate"]), (&json!(9), &Value::Null));
    assert_eq!(after["debounce"], json!({ "min": "1s", "max": "10s" }));
    // The same once more: the tag is that of settings that are gone.
    let stale = scene.send("admin", "/queues/default/save", &pairs(&form)).await;
    assert_eq!(stale.status, 412, "{}", stale.page.text());
    let undo = filled(&scene.page("admin", "/queues/default").await.page, &["former", "tag"]);
    assert_eq!(undo.len(), 2);
    scene.done("/queues/default/undo", &pairs(&undo)).await;
    assert_eq!(scene.get("/v1/queues/default").await, before);
    assert_eq!(scene.send("admin", "/queues/default/undo", &pairs(&undo)).await.status, 412);
    // What a link says is no former setting.
    let link = "/queues/quiet?former=%7B%22concurrency%22%3A1%7D";
    scene.api("admin", Method::PUT, "/v1/queues/quiet", Some(json!({}))).await;
    scene.api("admin", Method::DELETE, "/v1/queues/quiet", None).await;
    scene.api("admin", Method::PUT, "/v1/queues/quiet", Some(json!({ "concurrency": 3 }))).await;
    assert!(scene.page("admin", link).await.page.by_id("undo").is_none());
    for (name, value) in [("concurrency", "many"), ("rate", "7"), ("debounce", "10s")] {
        let wrong = scene.send("admin", "/queues/default/review", &[(name, value)]).await;
        assert_eq!(wrong.status, 422, "{name}: {}", wrong.page.text());
    }
    scene.stop().await;
}

#[tokio::test]
async fn r33_a_queue_is_paused_and_resumed_by_its_page() {
    let scene = Scene::new().await;
    scene.done("/queues/default/pause", &[]).await;
    let queue = scene.get("/v1/queues/default").await;
    assert_eq!((&queue["paused"], &queue["paused_by"]), (&json!(true), &json!("admin")));
    let text = scene.page("read", "/queues").await.page.text();
    assert!(text.contains("paused by admin"), "{text}");
    scene.done("/queues/default/resume", &[]).await;
    assert_eq!(scene.get("/v1/queues/default").await["paused"], false);
    scene.stop().await;
}

#[tokio::test]
async fn r31_the_page_of_a_queue_shows_its_partitions_by_what_waits() {
    let scene = Scene::new().await;
    let limits =
        json!({ "partition_concurrency": 2, "partition_rate": { "limit": 7, "period": "1m" } });
    let (status, reply) =
        scene.api("admin", Method::PATCH, "/v1/queues/default", Some(limits)).await;
    assert_eq!(status, 200, "{reply}");
    for repo in ["a/b", "a/b", "c"] {
        let body = json!({ "payload": { "repo": repo }, "debounce": false, "delay": "1h" });
        scene.post("/v1/tasks/build/triggers", body).await;
    }
    let page = scene.page("read", "/queues/default").await.page;
    let rows: Vec<_> = page.tags("tr").filter_map(|tag| tag.get("data-partition")).collect();
    assert_eq!(rows, ["a/b", "c"]);
    let link = "/jobs?queue=default&partition=a%2Fb";
    assert!(page.tags("a").any(|tag| tag.get("href") == Some(link)), "{}", page.text());
    let text = page.text();
    assert!(text.contains("0 of 2") && text.contains("7 in 1m"), "{text}");
    let listed = scene.page("read", link).await.page;
    let jobs = listed.tags("tr").filter(|tag| tag.get("data-job").is_some());
    assert_eq!(jobs.count(), 2, "the link leads to the jobs of the partition");
    scene.stop().await;
}

#[tokio::test]
async fn r36_a_schedule_is_fired_backfilled_and_paused_by_its_page() {
    let scene = Scene::new().await;
    let page = scene.page("admin", "/schedules/nightly").await.page;
    let text = page.text();
    assert!(
        text.contains("06:00:00 +0") && text.contains("in Europe/Berlin"),
        "its own zone: {text}"
    );
    scene.done("/schedules/nightly/run", &[]).await;
    let jobs = scene.get("/v1/jobs?task=puts").await;
    assert_eq!(jobs["jobs"].as_array().unwrap().len(), 1);
    let range = [("from", "2026-01-01T00:00:00Z"), ("to", "2026-01-03T12:00:00Z")];
    let location = scene.done("/schedules/nightly/backfill", &range).await;
    let text = scene.page("admin", &location).await.page.text();
    assert!(text.contains("Ticks that were fired: 3."), "{text}");
    let page = scene.page("read", "/schedules/nightly").await.page;
    let fired = page.tags("tr").filter_map(|tag| tag.get("data-tick"));
    let fired: Vec<&str> = fired.map(|tick| &tick[..10]).collect();
    assert_eq!(fired, ["2026-01-03", "2026-01-02", "2026-01-01"], "the newest first");
    assert_eq!(
        scene.send("admin", "/schedules/nightly/backfill", &[("from", "soon")]).await.status,
        422
    );
    for (what, state) in [("pause", "paused"), ("resume", "active")] {
        scene.done(&format!("/schedules/nightly/{what}"), &[]).await;
        assert_eq!(scene.get("/v1/schedules/nightly").await["state"], state);
    }
    scene.stop().await;
}

/// Waits for the end of an action.
async fn ended(scene: &Scene, name: &str) -> Value {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        let action = scene.get(&format!("/v1/actions/{name}")).await;
        if action["state"] != "running" {
            return action;
        }
        assert!(Instant::now() < deadline, "{action}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn r26_one_cause_is_counted_and_then_redriven_at_a_rate_and_no_other() {
    const FIELDS: [&str; 7] = ["task", "queue", "state", "cause", "name", "rate", "priority"];
    let scene = Scene::new().await;
    let mut jobs = Vec::new();
    for n in 0..3 {
        jobs.push(scene.ended("dies", &json!(n), JobState::Dead).await);
    }
    let other = scene.ended("breaks", &json!(0), JobState::Dead).await;
    let page = scene.page("operate", "/dead").await.page;
    let rows: Vec<_> = page.tags("tr").filter_map(|tag| tag.get("data-cause")).collect();
    assert_eq!(rows.len(), 2, "{rows:?}");
    let links: Vec<String> =
        page.links().filter(|link| link.contains("action=redrive")).map(str::to_owned).collect();
    let form = scene.page("operate", &links[0]).await.page;
    let mut fields = filled(&form, &FIELDS);
    fields.extend([
        ("action".to_owned(), "redrive".to_owned()),
        ("dry_run".to_owned(), "1".to_owned()),
    ]);
    let begun = scene.send("operate", "/actions/new", &pairs(&fields)).await;
    assert_eq!(begun.status, 303, "{}", begun.page.text());
    let name = begun.location().strip_prefix("/actions/").unwrap().to_owned();
    let counted = ended(&scene, &name).await;
    assert_eq!((&counted["matched"], &counted["done"]), (&json!(3), &json!(0)), "{counted}");
    let result = scene.page("operate", begun.location()).await.page;
    let real = result.by_id("for-real").unwrap().get("href").unwrap().to_owned();
    let form = scene.page("operate", &real).await.page;
    let mut fields = filled(&form, &FIELDS);
    fields.retain(|(name, _)| name != "name");
    fields.extend([
        ("action".to_owned(), "redrive".to_owned()),
        ("name".to_owned(), "again".to_owned()),
    ]);
    assert!(fields.contains(&("rate".to_owned(), "100".to_owned())), "{fields:?}");
    let begun = scene.send("operate", "/actions/new", &pairs(&fields)).await;
    assert_eq!(begun.location(), "/actions/again", "{}", begun.page.text());
    let done = ended(&scene, "again").await;
    assert_eq!((&done["done"], &done["rate"]), (&json!(3), &json!(100)), "{done}");
    let starts = |job: Value| job["job"]["starts"].as_u64().unwrap();
    for job in jobs {
        scene.served.ended_by_number(&job, JobState::Dead).await;
        assert_eq!(starts(scene.get(&format!("/v1/jobs/{job}")).await), 2);
    }
    assert_eq!(starts(scene.get(&format!("/v1/jobs/{other}")).await), 1, "another cause");
    scene.stop().await;
}

#[tokio::test]
async fn all_jobs_that_match_are_changed_by_an_action_that_can_be_stopped() {
    let scene = Scene::new().await;
    for n in 0..5 {
        scene.trigger("build", &json!({ "repo": format!("r{n}") })).await;
    }
    let page = scene.page("operate", "/jobs?task=build&state=scheduled").await.page;
    let link = page.by_id("select-all").unwrap().get("href").unwrap().to_owned();
    let form = scene.page("operate", &link).await.page;
    assert!(form.text().contains("5 jobs match now."), "{}", form.text());
    let filter = [("task", "build"), ("state", "scheduled")];
    let with = |more: &[(&'static str, &'static str)]| [&filter, more].concat();
    // Fields of other actions that the form also has are left out.
    let slow = with(&[
        ("name", "slow"),
        ("action", "reprioritise"),
        ("priority", "4"),
        ("rate", "1"),
        ("reason", "x"),
    ]);
    assert_eq!(scene.send("operate", "/actions/new", &slow).await.status, 303);
    let shown = scene.page("read", "/actions/slow").await;
    assert!(!shown.page.does("stop"), "only who may operate stops it");
    assert_eq!(scene.send("operate", "/actions/slow/stop", &[]).await.status, 303);
    let stopped = ended(&scene, "slow").await;
    assert_eq!(stopped["state"], "stopped", "{stopped}");
    assert!(stopped["done"].as_u64().unwrap() < 5, "{stopped}");
    let all =
        with(&[("name", "all"), ("action", "cancel"), ("reason", "a test"), ("priority", "")]);
    assert_eq!(scene.send("operate", "/actions/new", &all).await.status, 303);
    assert_eq!(ended(&scene, "all").await["done"], 5);
    let list = scene.page("read", "/actions").await.page.text();
    assert!(list.contains("slow") && list.contains("stopped") && list.contains("all"), "{list}");
    let location = scene.done("/actions/all/stop", &[("ended", "1")]).await;
    assert_eq!(location, "/actions?done=forgotten");
    assert_eq!(scene.page("read", "/actions/all").await.status, 404);
    // Without a filter, and without what the action needs.
    assert_eq!(scene.page("operate", "/actions/new").await.status, 422);
    for more in [
        &[("name", "x"), ("action", "discard")][..],
        &[("name", "x"), ("action", "run"), ("rate", "-1")],
    ] {
        assert_eq!(
            scene.send("operate", "/actions/new", &with(more)).await.status,
            422,
            "{more:?}"
        );
    }
    scene.stop().await;
}

#[tokio::test]
async fn a_task_shows_how_long_it_takes_its_busiest_keys_and_its_causes_of_death() {
    let scene = Scene::new().await;
    for repo in ["a", "a", "a", "b"] {
        scene.trigger("build", &json!({ "repo": repo })).await;
    }
    scene.ended("breaks", &json!(1), JobState::Dead).await;
    let build = scene.page("admin", "/tasks/build").await.page;
    let keys: Vec<&str> = build.tags.iter().filter_map(|tag| tag.get("data-of-key")).collect();
    assert_eq!(keys, ["a", "b"], "the busiest first");
    assert!(build.by_id("took").is_none(), "nothing has run");
    let breaks = scene.page("read", "/tasks/breaks").await.page;
    assert!(breaks.by_id("took").is_some());
    let causes = breaks.tags.iter().filter_map(|tag| tag.get("data-cause")).count();
    assert_eq!(causes, 1, "{}", breaks.text());
    assert!(breaks.text().contains("other cause"), "{}", breaks.text());
    let habits = scene.get("/v1/tasks/breaks/habits").await;
    let failed: u64 = habits["took"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|group| group["failed"].as_u64())
        .sum();
    assert_eq!((failed, &habits["week"]["dead"]), (1, &json!(1)), "{habits:#}");
    // What each saved is on one page.
    let savings = scene.page("read", "/what-if").await.page;
    let rows: Vec<&str> = savings.tags("tr").filter_map(|tag| tag.get("data-task")).collect();
    assert!(rows.contains(&"build") && savings.by_id("savings").is_some(), "{rows:?}");
    scene.stop().await;
}

#[tokio::test]
async fn a_timeline_has_the_marks_of_its_span() {
    let scene = Scene::new().await;
    scene.trigger("build", &json!({ "repo": "a" })).await;
    scene.post("/v1/marks", json!({ "name": "deploy 1.4.2" })).await;
    let page = scene.page("read", "/timeline?task=build").await.page;
    assert!(page.by_id("marks").is_some() && page.text().contains("deploy 1.4.2"));
    let past = "/timeline?task=build&from=2026-01-01T00:00:00Z&to=2026-01-02T00:00:00Z";
    assert!(scene.page("read", past).await.page.by_id("marks").is_none());
    scene.stop().await;
}

#[tokio::test]
async fn r29_a_worker_is_drained_and_resumed_by_its_page() {
    let scene = Scene::new().await;
    let deadline = Instant::now() + Duration::from_secs(20);
    let worker = loop {
        let listed = scene.get("/v1/workers").await;
        if let Some(name) = listed["workers"][0]["worker"].as_str() {
            break name.to_owned();
        }
        assert!(Instant::now() < deadline, "no worker is listed");
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    let path = format!("/workers/{worker}");
    let list = scene.page("admin", "/workers").await.page;
    assert!(list.links().any(|link| link == path), "{}", list.text());
    let ask = scene.page("operate", &path).await.page;
    assert!(ask.does("drain") && ask.text().contains("go on until they end"), "{}", ask.text());
    let drain = format!("{path}/drain");
    assert_eq!(scene.send("read", &drain, &[]).await.status, 403);
    assert!(scene.page("read", &path).await.page.lacks().contains(&"operate"));
    assert_eq!(scene.done(&drain, &[]).await, format!("{path}?done=drained"));
    let shown = scene.get("/v1/workers").await["workers"][0].clone();
    assert_eq!((&shown["state"], &shown["drained_by"]), (&json!("drained"), &json!("admin")));
    assert!(scene.page("read", "/workers").await.page.text().contains("drained"));
    let page = scene.page("admin", &path).await.page;
    assert!(page.does("resume") && page.text().contains("by admin"), "{}", page.text());
    scene.done(&format!("{path}/resume"), &[]).await;
    assert_eq!(scene.get("/v1/workers").await["workers"][0]["state"], "seen");
    scene.stop().await;
}
