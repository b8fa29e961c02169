//! A server at one glance: what it counts, what it shows live, the bursts of a task, and the bounds of all that.

use std::time::{Duration, Instant};

use axum::body::Body;
use axum::http::Request;
use futures_util::StreamExt;
use quell::JobState;
use quell::worker::pull::PullTasks;
use quell_server::config::Config;
use quell_server::http::{self, Api};
use reqwest::Method;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

use crate::served::{Served, answer, serve, serve_with};

const TASKS: &str = r#"
[tasks.bursts]
key = "{{ k }}"
debounce = { min = "1h", max = "2h" }
exec = { command = ["true"] }

[tasks.fails]
retry = { max_attempts = 2, min_backoff = "1ms", max_backoff = "1ms" }
exec = { command = ["false"] }

[tasks.once]
exec = { command = ["true"] }
"#;

async fn until(served: &Served, path: &str, is_so: impl Fn(&Value) -> bool) -> Value {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let (status, found) = served.get(path).await;
        assert_eq!(status, 200, "{found:#}");
        if is_so(&found) {
            return found;
        }
        assert!(Instant::now() < deadline, "{path}: {found:#}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// A burst of 5 that ran, one of 2 that waits, and a job that died at its second attempt.
async fn busy() -> Served {
    let served = serve(TASKS).await;
    for _ in 0..5 {
        served.trigger("bursts", r#"{"k":"a"}"#).await;
    }
    let (status, flushed) = served.post("/v1/tasks/bursts/windows/flush", r#"{"key":"a"}"#).await;
    assert_eq!(status, 200, "{flushed}");
    served.ended(&flushed["job"], JobState::Succeeded).await;
    for _ in 0..2 {
        served.trigger("bursts", r#"{"k":"b"}"#).await;
    }
    let dies = served.trigger("fails", "{}").await["job"].clone();
    served.ended(&dies, JobState::Dead).await;
    let body = r#"{"payload":{},"dedup":"d"}"#;
    for status in [202, 200] {
        let (got, answer) = served.post("/v1/tasks/once/triggers", body).await;
        assert!(got == status || got == 202, "{answer}");
    }
    served
}

fn task<'v>(overview: &'v Value, name: &str) -> &'v Value {
    let tasks = overview["tasks"].as_array().unwrap();
    tasks.iter().find(|one| one["task"] == name).unwrap_or_else(|| panic!("{name}: {overview:#}"))
}

#[tokio::test]
async fn an_overview_counts_what_was_accepted_run_saved_and_lost() {
    let served = busy().await;
    let seen = until(&served, "/v1/overview", |seen| {
        seen["hour"]["succeeded"] == 2 && seen["hour"]["dead"] == 1
    });
    let seen = seen.await;
    let hour = &seen["hour"];
    let of = |name: &str| hour[name].as_u64().unwrap();
    assert_eq!((of("triggers"), of("joined"), of("duplicates")), (9, 5, 1), "{seen:#}");
    assert_eq!((of("starts"), of("runs"), of("saved"), of("failed")), (4, 3, 4, 2), "{seen:#}");
    assert_eq!(hour["triggers"], seen["week"]["triggers"]);
    assert!(hour["late_p50_ms"].as_f64() <= hour["late_p99_ms"].as_f64(), "{hour}");
    let now = &seen["now"];
    assert_eq!((&now["waiting"], &now["dead"], &now["windows"]), (&json!(1), &json!(1), &json!(1)));
    assert_eq!((&now["windows_complete"], &now["workers"]), (&json!(true), &json!(1)), "{now:#}");
    let bursts = task(&seen, "bursts");
    assert_eq!((&bursts["hour"]["triggers"], &bursts["waiting"]), (&json!(7), &json!(1)));
    assert_eq!(bursts["minutes"].as_array().unwrap().len(), 60);
    let sum: u64 =
        bursts["minutes"].as_array().unwrap().iter().map(|m| m[0].as_u64().unwrap()).sum();
    assert_eq!(sum, 7, "{bursts:#}");
    assert_eq!(seen["troubles"], json!([{ "kind": "dead", "text": "1 dead job" }]));
    served.server.stop().await.unwrap();
}

#[tokio::test]
async fn an_overview_names_what_is_paused_and_what_is_late() {
    let served = serve(TASKS).await;
    let (_, quiet) = served.get("/v1/overview").await;
    assert_eq!(quiet["troubles"], json!([]));
    served.post("/v1/tasks/once/pause", "{}").await;
    served.trigger("once", "{}").await;
    served.post("/v1/queues/default/pause", "{}").await;
    let seen =
        until(&served, "/v1/overview", |seen| seen["troubles"].as_array().unwrap().len() == 2);
    let texts: Vec<_> =
        seen.await["troubles"].as_array().unwrap().iter().map(|one| one["text"].clone()).collect();
    assert_eq!(texts, ["queue default is paused", "task once is paused"]);
    let (_, by_ann) = served.post("/v1/tasks/fails/pause", r#"{"by":"ann"}"#).await;
    assert_eq!(by_ann["paused"], true, "{by_ann}");
    let is_there = |seen: &Value| seen["troubles"].as_array().unwrap().len() == 3;
    let seen = until(&served, "/v1/overview", is_there).await;
    let ann = seen["troubles"].as_array().unwrap().iter().find(|one| one["task"] == "fails");
    assert_eq!(ann.unwrap()["text"], "task fails is paused by ann");
    served.server.stop().await.unwrap();
}

#[tokio::test]
async fn an_overview_names_tasks_that_only_fail_and_workers_that_are_drained() {
    let tasks = "[tasks.broken]\nretry = { max_attempts = 1 }\nexec = { command = [\"false\"] }\n\
                 [tasks.fine]\nexec = { command = [\"true\"] }\n";
    let served = serve(tasks).await;
    for _ in 0..5 {
        let job = served.trigger("broken", "{}").await["job"].clone();
        served.ended(&job, JobState::Dead).await;
    }
    let job = served.trigger("fine", "{}").await["job"].clone();
    served.ended(&job, JobState::Succeeded).await;
    let of = |seen: &Value, kind: &str| -> Vec<Value> {
        let all = seen["troubles"].as_array().unwrap().iter();
        all.filter(|one| one["kind"] == kind).cloned().collect()
    };
    let seen = until(&served, "/v1/overview", |seen| !of(seen, "failing").is_empty()).await;
    let failing = of(&seen, "failing");
    assert_eq!((failing.len(), &failing[0]["task"]), (1, &json!("broken")), "{failing:?}");
    let workers = until(&served, "/v1/workers", |all| all["workers"][0].is_object()).await;
    let worker = workers["workers"][0]["worker"].as_str().unwrap().to_owned();
    let (status, _) = served.post(&format!("/v1/workers/{worker}/drain"), "{}").await;
    assert_eq!(status, 200);
    served.post("/v1/tasks/fine/triggers", r#"{"payload":1,"delay":"1h"}"#).await;
    let seen = until(&served, "/v1/overview", |seen| !of(seen, "workers").is_empty()).await;
    assert_eq!(of(&seen, "workers")[0]["text"], "jobs wait and the one worker is drained");
    assert_eq!((&seen["now"]["workers"], &seen["now"]["drained"]), (&json!(1), &json!(1)));
    served.server.stop().await.unwrap();
}

#[tokio::test]
async fn a_timeline_has_the_triggers_windows_and_runs_of_a_task() {
    let served = busy().await;
    let path = "/v1/tasks/bursts/timeline";
    let is_done = |seen: &Value| {
        seen["bars"].as_array().unwrap().iter().any(|bar| bar["ended"] != Value::Null)
    };
    let seen = until(&served, path, is_done).await;
    let ticks = |of: &Value| -> u64 {
        of.as_array().unwrap().iter().map(|tick| tick[1].as_u64().unwrap()).sum()
    };
    assert_eq!((&seen["triggers"], ticks(&seen["ticks"])), (&json!(7), 7));
    assert_eq!((&seen["keys"][0]["key"], ticks(&seen["keys"][0]["ticks"])), (&json!("a"), 5));
    assert_eq!((&seen["distinct_keys"], &seen["runs"]), (&json!(2), &json!(1)));
    let bar = &seen["bars"][0];
    assert_eq!(
        (&bar["key"], &bar["outcome"], &bar["triggers"]),
        (&json!("a"), &json!("succeeded"), &json!(5))
    );
    let at = |name: &str| bar[name].as_f64().unwrap();
    assert!(
        at("opened") <= at("due") && at("due") <= at("started") && at("started") <= at("ended"),
        "{bar}"
    );
    let window = &seen["windows"][0];
    assert_eq!((&window["key"], &window["triggers"]), (&json!("b"), &json!(2)));
    assert!(window["due"].as_f64() < window["bound"].as_f64(), "{window}");

    let (_, of_key) = served.get("/v1/tasks/bursts/timeline?key=b&steps=7").await;
    assert_eq!(
        (&of_key["triggers"], &of_key["runs"], &of_key["keys"]),
        (&json!(2), &json!(0), &json!([]))
    );
    let (_, before) = served
        .get("/v1/tasks/bursts/timeline?from=2001-01-01T00:00:00Z&to=2001-01-01T01:00:00Z")
        .await;
    assert_eq!((&before["triggers"], &before["step_ms"]), (&json!(0), &json!(6_000.0)));

    let died =
        until(&served, "/v1/tasks/fails/timeline", |seen| seen["bars"][1]["outcome"] == "dead")
            .await;
    assert_eq!(
        (&died["bars"][0]["outcome"], &died["bars"][0]["attempt"]),
        (&json!("failed"), &json!(1))
    );

    for (query, field) in [
        ("steps=0", "steps"),
        ("steps=2001", "steps"),
        ("from=yesterday", "from"),
        ("from=2026-01-02T00:00:00Z&to=2026-01-01T00:00:00Z", "from"),
        ("from=2001-01-01T00:00:00Z", "from"),
        ("nosuch=1", "nosuch"),
    ] {
        let (status, refused) = served.get(&format!("{path}?{query}")).await;
        assert_eq!(
            (status, &refused["error"]["field"]),
            (422, &json!(field)),
            "{query}: {refused:#}"
        );
    }
    assert_eq!(served.get(&format!("{path}?steps=2000")).await.0, 200);
    served.server.stop().await.unwrap();
}

/// The events of a stream until one is so.
async fn event(
    response: reqwest::Response,
    mut is_so: impl FnMut(&Value) -> bool,
) -> Option<Value> {
    let (mut stream, mut text) = (response.bytes_stream(), String::new());
    while let Some(Ok(bytes)) = stream.next().await {
        text.push_str(std::str::from_utf8(&bytes).unwrap());
        while let Some((event, rest)) = text.split_once("\n\n") {
            let data = event.lines().find_map(|line| line.strip_prefix("data: ")).unwrap_or("null");
            let value: Value = serde_json::from_str(data).unwrap();
            let rest = rest.to_owned();
            if is_so(&value) {
                return Some(value);
            }
            text = rest;
        }
    }
    None
}

#[tokio::test]
async fn events_follow_the_overview_and_end_with_the_server() {
    let served = serve(TASKS).await;
    let follow = || served.request(Method::GET, "/v1/events").send();
    served.trigger("bursts", r#"{"k":"a"}"#).await;
    let first = follow().await.unwrap();
    assert_eq!(first.headers()["content-type"], "text/event-stream");
    assert_eq!(first.headers()["cache-control"], "no-store");
    // The first event has all minutes, the next one the last two.
    let minutes = |seen: &Value| task(seen, "bursts")["minutes"].as_array().unwrap().len();
    let mut known = Vec::new();
    let is_second = |seen: &Value| {
        known.push(minutes(seen));
        known.len() == 2
    };
    let seen = event(first, is_second).await.unwrap();
    assert_eq!((known, &seen["hour"]["triggers"]), (vec![60, 2], &json!(1)));
    let other = follow().await.unwrap();
    let (ended, stopped) = tokio::join!(event(other, |_| false), served.server.stop());
    stopped.unwrap();
    assert_eq!(ended, None);
}

#[tokio::test]
async fn marks_are_kept_up_to_a_hundred_and_named_in_the_overview() {
    let served = serve(TASKS).await;
    for number in 0..101 {
        let (status, mark) = served
            .post("/v1/marks", &json!({ "name": format!("deploy {number}") }).to_string())
            .await;
        assert_eq!(status, 201, "{mark}");
    }
    let (_, listed) = served.get("/v1/marks").await;
    let marks = listed["marks"].as_array().unwrap();
    assert_eq!(
        (marks.len(), &marks[0]["name"], &marks[99]["name"]),
        (100, &json!("deploy 100"), &json!("deploy 1"))
    );
    assert_eq!(served.get("/v1/overview").await.1["marks"][0]["name"], "deploy 100");
    for (length, status) in [(0, 422), (200, 201), (201, 422)] {
        let body = json!({ "name": "n".repeat(length) }).to_string();
        assert_eq!(served.post("/v1/marks", &body).await.0, status, "{length}");
    }
    served.server.stop().await.unwrap();
}

#[tokio::test]
async fn a_token_that_is_limited_sees_only_its_tasks_in_overviews_timelines_and_events() {
    let folder = tempfile::tempdir().unwrap();
    let tokens = folder.path().join("tokens.json");
    let mut made = Vec::new();
    for args in [&["all", "--scope", "admin"][..], &["one", "--scope", "read", "--task", "once"]] {
        let file = tokens.to_str().unwrap();
        let args = [&["tokens", "add"], args, &["--file", file, "--json"]].concat();
        let output = crate::binary::quell(&args).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
        made.push(answer["token"].as_str().unwrap().to_owned());
    }
    let served = serve_with(&format!("tokens = {:?}", tokens.to_str().unwrap()), TASKS).await;
    let ask = async |token: &str, path: &str| {
        let request = served.request(Method::GET, path).bearer_auth(token);
        answer(request.send().await.unwrap()).await
    };
    for task in ["once", "bursts"] {
        let request = served.request(Method::POST, &format!("/v1/tasks/{task}/triggers"));
        let request = request.bearer_auth(&made[0]).json(&json!({ "payload": { "k": "a" } }));
        assert_eq!(request.send().await.unwrap().status(), 202);
    }
    let (_, all) = ask(&made[0], "/v1/overview").await;
    assert_eq!(
        (&all["hour"]["triggers"], &all["now"]["workers"]),
        (&json!(2), &json!(1)),
        "{all:#}"
    );
    let (_, own) = ask(&made[1], "/v1/overview").await;
    assert_eq!(
        (&own["hour"]["triggers"], &own["now"]["workers"]),
        (&json!(1), &Value::Null),
        "{own:#}"
    );
    assert_eq!(own["tasks"].as_array().unwrap().len(), 1, "{own:#}");
    assert_eq!(ask(&made[1], "/v1/tasks/bursts/timeline").await.0, 404);
    assert_eq!(ask(&made[1], "/v1/tasks/once/timeline").await.1["triggers"], 1);
    let events =
        served.request(Method::GET, "/v1/events").bearer_auth(&made[1]).send().await.unwrap();
    let seen = event(events, |seen| seen["tasks"] != Value::Null).await.unwrap();
    assert_eq!(seen["tasks"].as_array().unwrap().len(), 1, "{seen:#}");

    // Who marked a moment is not for it.
    let mark = served.request(Method::POST, "/v1/marks").bearer_auth(&made[0]);
    assert_eq!(mark.json(&json!({ "name": "deploy" })).send().await.unwrap().status(), 201);
    assert_eq!(ask(&made[0], "/v1/marks").await.1["marks"][0]["by"]["name"], "all");
    assert_eq!(ask(&made[1], "/v1/marks").await.1["marks"][0]["by"]["name"], Value::Null);

    // A stream ends with its token.
    let events =
        served.request(Method::GET, "/v1/events").bearer_auth(&made[1]).send().await.unwrap();
    let revoke = served.request(Method::DELETE, "/v1/tokens/one").bearer_auth(&made[0]);
    let (ended, revoked) = tokio::join!(event(events, |_| false), revoke.send());
    assert_eq!((ended, revoked.unwrap().status().as_u16()), (None, 200));
    served.server.stop().await.unwrap();
}

#[tokio::test]
async fn a_thousand_callers_follow_and_one_more_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let quell = quell::Quell::open("memory:").await.unwrap();
    let config = Config::parse("[tasks.t]\npull = true\n", folder.path()).unwrap();
    let tasks = PullTasks::new(quell.clone());
    let api = Api::alone(quell, config, tasks.clone(), tasks, CancellationToken::new()).unwrap();
    let app = http::router(api);
    let follow = || {
        let request = Request::get("/v1/events").header("host", "localhost");
        app.clone().oneshot(request.body(Body::empty()).unwrap())
    };
    let mut followers = Vec::new();
    for _ in 0..1_000 {
        let answer = follow().await.unwrap();
        assert_eq!(answer.status(), 200);
        followers.push(answer);
    }
    assert_eq!(follow().await.unwrap().status(), 429);
    followers.pop();
    assert_eq!(follow().await.unwrap().status(), 200);
}

#[tokio::test]
async fn a_job_that_is_redriven_or_snoozes_is_one_run_and_saves_once() {
    let tasks = r#"
[tasks.bursts]
key = "{{ k }}"
debounce = { min = "1h", max = "2h" }
retry = { max_attempts = 1 }
exec = { command = ["false"] }
"#;
    let served = serve(tasks).await;
    for _ in 0..5 {
        served.trigger("bursts", r#"{"k":"a"}"#).await;
    }
    let (_, flushed) = served.post("/v1/tasks/bursts/windows/flush", r#"{"key":"a"}"#).await;
    served.ended(&flushed["job"], JobState::Dead).await;
    let job = flushed["job"].as_str().unwrap();
    for _ in 0..2 {
        let (status, redriven) = served.post(&format!("/v1/jobs/{job}/redrive"), "").await;
        assert_eq!(status, 200, "{redriven}");
        served.ended(&flushed["job"], JobState::Dead).await;
    }
    let seen = until(&served, "/v1/overview", |seen| seen["hour"]["failed"] == 3).await;
    let hour = &seen["hour"];
    let counts = ["starts", "runs", "saved"].map(|name| hour[name].as_u64().unwrap());
    assert_eq!(counts, [3, 1, 4], "{hour}");
    served.server.stop().await.unwrap();
}

#[tokio::test]
async fn r12_triggers_of_an_absorbed_job_are_saved_once() {
    let tasks = r#"
[tasks.bursts]
key = "{{ k }}"
debounce = { min = "1h", max = "2h" }
retry = { max_attempts = 2, min_backoff = "1ms", max_backoff = "1ms" }
exec = { command = ["sh", "-c", "while ! [ -e FILE ]; do sleep 0.02; done; exit 1"] }
"#;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("go");
    let served = serve(&tasks.replace("FILE", file.to_str().unwrap())).await;
    let burst = async |count: usize| {
        for _ in 0..count {
            served.trigger("bursts", r#"{"k":"a"}"#).await;
        }
    };
    burst(5).await;
    let (_, first) = served.post("/v1/tasks/bursts/windows/flush", r#"{"key":"a"}"#).await;
    let running = format!("/v1/jobs/{}", first["job"].as_str().unwrap());
    until(&served, &running, |job| job["job"]["state"] == "running").await;
    burst(3).await;
    std::fs::write(&file, "").unwrap();
    served.ended(&first["job"], JobState::Absorbed).await;
    let (_, second) = served.post("/v1/tasks/bursts/windows/flush", r#"{"key":"a"}"#).await;
    assert_ne!(second["job"], first["job"], "{second}");
    let seen = until(&served, "/v1/overview", |seen| seen["hour"]["runs"] == 2).await;
    // Two runs for eight triggers.
    assert_eq!((&seen["hour"]["runs"], &seen["hour"]["saved"]), (&json!(2), &json!(6)), "{seen:#}");
    served.server.stop().await.unwrap();
}

#[tokio::test]
async fn r21_an_attempt_whose_end_is_not_known_here_is_lost_and_ends() {
    let tasks = "[tasks.slow]\nexec = { command = [\"sleep\", \"60\"] }\n";
    let served = serve(tasks).await;
    let job = served.trigger("slow", "{}").await["job"].clone();
    let path = format!("/v1/jobs/{}", job.as_str().unwrap());
    until(&served, &path, |job| job["job"]["state"] == "running").await;
    let (status, _) = served.post(&format!("{path}/cancel"), "").await;
    assert_eq!(status, 200);
    let is_over = |seen: &Value| seen["bars"][0]["ended"] != Value::Null;
    let seen = until(&served, "/v1/tasks/slow/timeline", is_over).await;
    assert!(
        ["lost", "cancelled"].contains(&seen["bars"][0]["outcome"].as_str().unwrap()),
        "{seen:#}"
    );
    served.server.stop().await.unwrap();
}
