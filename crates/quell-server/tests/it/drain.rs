//! An operator drains one worker, and resumes it (R29).

use std::time::{Duration, Instant};

use quell::JobState;
use serde_json::{Value, json};

use crate::binary::quell;
use crate::served::{Served, serve};

/// The table of the worker comes first.
const TASKS: &str = r#"
lease = "2s"
[tasks.now]
exec = { command = ["true"] }
[tasks.echo]
pull = true
"#;

/// Waits until this is so.
async fn until(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !is_so().await {
        assert!(Instant::now() < deadline, "never so: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn worker(served: &Served, name: &str) -> Value {
    let (_, listed) = served.get("/v1/workers").await;
    let all = listed["workers"].as_array().unwrap();
    all.iter().find(|worker| worker["worker"] == name).cloned().unwrap_or_default()
}

/// Waits until the worker has sent two heartbeats: the answer to the first has arrived by then.
async fn beats_twice(served: &Served, name: &str) {
    for _ in 0..2 {
        let before = worker(served, name).await["seen_at"].clone();
        until("a heartbeat", async || worker(served, name).await["seen_at"] != before).await;
    }
}

#[tokio::test]
async fn r29_a_worker_is_drained_and_resumed_over_http_and_by_the_command_line() {
    let served = serve(TASKS).await;
    let mut name = String::new();
    until("the server's own worker is listed", async || {
        let (_, listed) = served.get("/v1/workers").await;
        name = listed["workers"][0]["worker"].as_str().unwrap_or_default().to_owned();
        !name.is_empty()
    })
    .await;
    let path = format!("/v1/workers/{name}/drain");
    let (status, drained) = served.post(&path, r#"{"by":"ann"}"#).await;
    let shown = &drained["workers"][0];
    assert_eq!(
        (status, &shown["state"], &shown["drained_by"]),
        (200, &json!("drained"), &json!("ann"))
    );
    assert!(shown["drained_since"].is_string(), "{drained}");
    beats_twice(&served, &name).await;
    let job = served.trigger("now", "{}").await["job"].clone();
    beats_twice(&served, &name).await;
    let shown = served.get(&format!("/v1/jobs/{}", job.as_str().unwrap())).await.1;
    assert_eq!(shown["job"]["state"], "scheduled", "{shown}");

    let server = format!("http://{}", served.server.address());
    let ask = async |args: &[&str]| {
        let mut command = quell(args);
        let output = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
        (output.status.success(), String::from_utf8(output.stdout).unwrap())
    };
    let (_, listed) = ask(&["workers", "--server", &server]).await;
    assert!(listed.contains("drained"), "{listed}");
    let resumed = ask(&["workers", "resume", &name, "--server", &server]).await;
    assert_eq!(resumed, (true, format!("worker {name} claims again\n")));
    served.ended(&job, JobState::Succeeded).await;
    assert_eq!(worker(&served, &name).await["state"], "seen");
    let store = format!("sqlite://{}", served.folder.path().join("q.db").display());
    let drained = ask(&["workers", "drain", &name, "--by", "bob", "--store", &store]).await;
    assert_eq!(drained, (true, format!("worker {name} claims nothing more\n")));
    assert_eq!(worker(&served, &name).await["drained_by"], "bob");

    assert!(!ask(&["workers", "drain", "nosuch", "--server", &server]).await.0);
    let (status, refused) = served.post("/v1/workers/nosuch/drain", "").await;
    assert_eq!((status, &refused["error"]["field"]), (404, &json!("worker")), "{refused}");
    let long = json!({ "by": "x".repeat(256) }).to_string();
    let (status, refused) = served.post(&path, &long).await;
    assert_eq!((status, &refused["error"]["field"]), (422, &json!("by")), "{refused}");
    let (_, audit) = served.get("/v1/audit").await;
    let entries = audit["entries"].as_array().unwrap();
    assert!(entries.iter().any(|entry| entry["operation"] == "workers_drain"), "{audit}");
    served.server.stop().await.unwrap();
}

#[tokio::test]
async fn r29_a_drained_worker_gets_no_jobs_until_it_is_resumed() {
    let served = serve(TASKS).await;
    let claim = async |name: &str| {
        let process = json!({ "incarnation": 5, "slots": 4 });
        let body = json!({ "tasks": ["echo"], "wait": "0s", "lease": "1s", "process": process });
        let path = format!("/v1/workers/{name}/claim");
        let (status, answer) = served.post(&path, &body.to_string()).await;
        assert_eq!(status, 200, "{answer}");
        answer
    };
    assert_eq!(claim("w").await["drained"], Value::Null);
    assert_eq!(served.post("/v1/workers/w/drain", "").await.0, 200);
    until("its claims say so", async || claim("w").await["drained"] == true).await;
    served.trigger("echo", "1").await;
    let answer = claim("w").await;
    assert_eq!((&answer["drained"], &answer["jobs"]), (&json!(true), &json!([])));
    assert_eq!(worker(&served, "w").await["state"], "drained");
    assert_eq!(served.post("/v1/workers/w/resume", "").await.0, 200);
    until("it gets the job", async || !claim("w").await["jobs"].as_array().unwrap().is_empty())
        .await;
    served.server.stop().await.unwrap();
}
