//! Bulk actions over HTTP: on any filter, at a rate, counted, stopped, and bounded.

use std::time::{Duration, Instant};

use quell::JobState;
use reqwest::Method;
use serde_json::{Value, json};

use crate::served::{Served, answer, serve};

const TASKS: &str = r#"
[queues.paused]
paused = true

[tasks.waits]
queue = "paused"
partition = "{{ customer }}"
exec = { command = ["true"] }

[tasks.refused]
retry = { max_attempts = 1 }
exec = { command = ["false"] }
"#;

/// Jobs of a paused queue, of one customer.
async fn waiting(served: &Served, customer: &str, jobs: usize) -> Vec<Value> {
    let mut all = Vec::new();
    for _ in 0..jobs {
        let payload = format!(r#"{{"customer":"{customer}"}}"#);
        all.push(served.trigger("waits", &payload).await["job"].clone());
    }
    all
}

async fn begin(served: &Served, body: &Value) -> (u16, Value) {
    served.post("/v1/actions", &body.to_string()).await
}

/// The action of this name, once it has ended.
async fn ended(served: &Served, name: &str) -> Value {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        let (status, shown) = served.get(&format!("/v1/actions/{name}")).await;
        assert_eq!(status, 200, "{shown}");
        if shown["state"] != "running" {
            return shown;
        }
        assert!(Instant::now() < deadline, "never ended: {shown}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// What it did: matched, done, skipped and failed.
fn counts(shown: &Value) -> [u64; 4] {
    ["matched", "done", "skipped", "failed"].map(|count| shown[count].as_u64().unwrap())
}

async fn states(served: &Served, jobs: &[Value]) -> Vec<(String, i64)> {
    let mut all = Vec::new();
    for job in jobs {
        let path = format!("/v1/jobs/{}", job.as_str().unwrap());
        let shown = served.get(&path).await.1["job"].clone();
        let state = shown["state"].as_str().unwrap().to_owned();
        all.push((state, shown["priority"].as_i64().unwrap()));
    }
    all
}

#[tokio::test]
async fn r26_an_action_changes_the_jobs_that_match_and_no_other() {
    let served = serve(TASKS).await;
    let (acme, other) = (waiting(&served, "acme", 3).await, waiting(&served, "other", 2).await);
    let filter = json!({"partition": "acme"});

    let dry = json!({"name": "try", "action": "cancel", "filter": filter, "dry_run": true});
    let request = served.request(Method::POST, "/v1/actions");
    let request = request.header("content-type", "application/json").body(dry.to_string());
    let response = request.send().await.unwrap();
    assert_eq!(response.headers()["location"], "/v1/actions/try");
    let (status, begun) = answer(response).await;
    assert_eq!(
        (status, &begun["name"], &begun["url"]),
        (202, &json!("try"), &json!("/v1/actions/try"))
    );
    assert_eq!(begun["by"], json!({"name": null, "peer": "127.0.0.1", "token": false}));
    assert_eq!(counts(&ended(&served, "try").await), [3, 0, 0, 0]);

    let raise = json!({
        "name": "raise", "action": "reprioritise", "filter": filter, "priority": 5, "rate": 10_000
    });
    assert_eq!(begin(&served, &raise).await.0, 202);
    let shown = ended(&served, "raise").await;
    assert_eq!((&shown["state"], counts(&shown)), (&json!("done"), [3, 3, 0, 0]), "{shown}");
    assert_eq!(shown["total"], 3);
    assert!(shown["ended_at"].as_str().unwrap() >= shown["started_at"].as_str().unwrap());
    assert!(states(&served, &acme).await.iter().all(|job| *job == ("scheduled".to_owned(), 5)));

    let cancel = json!({
        "name": "cancel", "action": "cancel", "filter": filter, "reason": "a wrong import"
    });
    assert_eq!(begin(&served, &cancel).await.0, 202);
    assert_eq!(counts(&ended(&served, "cancel").await), [3, 3, 0, 0]);
    assert!(states(&served, &acme).await.iter().all(|(state, _)| state == "cancelled"));
    let path = format!("/v1/jobs/{}", acme[0].as_str().unwrap());
    assert_eq!(served.get(&path).await.1["job"]["error"], "a wrong import");
    assert!(states(&served, &other).await.iter().all(|job| *job == ("scheduled".to_owned(), 0)));

    // Asked for again, it goes on with what still matches: nothing.
    let again = json!({"name": "again", "action": "cancel", "filter": filter});
    assert_eq!(begin(&served, &again).await.0, 202);
    assert_eq!(counts(&ended(&served, "again").await), [0, 0, 0, 0]);
    let listed = served.get("/v1/actions").await.1;
    let names: Vec<&Value> =
        listed["actions"].as_array().unwrap().iter().map(|one| &one["name"]).collect();
    assert_eq!(names, ["again", "cancel", "raise", "try"]);
    served.server.stop().await.unwrap();
}

#[tokio::test]
async fn r15_r26_waiting_jobs_are_run_and_dead_ones_redriven_and_discarded() {
    let served = serve(TASKS).await;
    let delayed =
        served.post("/v1/tasks/refused/triggers", r#"{"payload":{},"delay":"1h"}"#).await.1;
    let of_task = json!({"task": "refused"});
    let run = json!({"name": "run", "action": "run", "filter": of_task});
    assert_eq!(begin(&served, &run).await.0, 202);
    served.ended(&delayed["job"], JobState::Dead).await;
    let redrive = json!({"name": "redrive", "action": "redrive", "filter": of_task});
    assert_eq!(begin(&served, &redrive).await.0, 202);
    assert_eq!(counts(&ended(&served, "redrive").await), [1, 1, 0, 0]);
    let died = served.ended(&delayed["job"], JobState::Dead).await;
    assert_eq!(died["attempts"].as_array().unwrap().len(), 2, "{died:#}");
    let then = async |dead: u64, gone: u64| {
        let expected = json!({
            "jobs": 1, "waiting": 0, "running": 0, "succeeded": 0, "dead": dead, "gone": gone
        });
        // A look holds for a second.
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            let shown = served.get("/v1/actions/redrive").await.1;
            assert_eq!(shown["total"], 1);
            if shown["then"] == expected {
                break;
            }
            assert!(Instant::now() < deadline, "{shown}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    then(1, 0).await;
    let discard =
        json!({"name": "discard", "action": "discard", "filter": of_task, "reason": "a test"});
    assert_eq!(begin(&served, &discard).await.0, 202);
    assert_eq!(counts(&ended(&served, "discard").await), [1, 1, 0, 0]);
    let path = format!("/v1/jobs/{}", delayed["job"].as_str().unwrap());
    assert_eq!(served.get(&path).await.0, 404);
    then(0, 1).await;
    served.server.stop().await.unwrap();
}

#[tokio::test]
async fn an_action_keeps_its_rate_and_is_stopped_and_forgotten_by_its_name() {
    let served = serve(TASKS).await;
    let jobs = waiting(&served, "acme", 20).await;
    let slow = json!({
        "name": "slow", "action": "cancel", "filter": {"task": "waits"}, "rate": 1
    });
    assert_eq!(begin(&served, &slow).await.0, 202);
    let (status, taken) = begin(&served, &slow).await;
    assert_eq!((status, &taken["error"]["field"]), (409, &json!("name")), "{taken}");
    let path = "/v1/actions/slow";
    let (status, _) = answer(served.request(Method::DELETE, path).send().await.unwrap()).await;
    assert_eq!(status, 200);
    let shown = ended(&served, "slow").await;
    assert_eq!(shown["state"], "stopped");
    let done = usize::try_from(counts(&shown)[1]).unwrap();
    let states = states(&served, &jobs).await;
    let cancelled = states.iter().filter(|(state, _)| state == "cancelled").count();
    assert!(cancelled == done && done < 20, "{shown}");
    // It has ended: now it is forgotten.
    let (status, _) = answer(served.request(Method::DELETE, path).send().await.unwrap()).await;
    assert_eq!((status, served.get(path).await.0), (200, 404));
    served.server.stop().await.unwrap();
}

#[tokio::test]
async fn actions_are_bounded_and_end_with_the_server() {
    let served = serve(TASKS).await;
    waiting(&served, "acme", 20).await;
    let slow = |name: &str| {
        json!({
            "name": name, "action": "run", "filter": {"task": "waits"}, "rate": 1
        })
    };
    for name in ["a", "b", "c", "d"] {
        assert_eq!(begin(&served, &slow(name)).await.0, 202, "{name}");
    }
    let (status, reply) = begin(&served, &slow("e")).await;
    assert_eq!((status, &reply["error"]["kind"]), (429, &json!("busy")), "{reply}");
    let began = Instant::now();
    served.server.stop().await.unwrap();
    assert!(began.elapsed() < Duration::from_secs(15), "it waits for no rate");
}

#[tokio::test]
async fn r40_an_action_that_cannot_be_meant_names_the_field_and_begins_nothing() {
    let served = serve(TASKS).await;
    let good = json!({"name": "x", "action": "cancel", "filter": {"task": "waits"}});
    let with = |member: &str, value: Value| {
        let mut body = good.clone();
        body[member] = value;
        body
    };
    let discard = |reason: Value| {
        let mut body = with("action", json!("discard"));
        body["reason"] = reason;
        body
    };
    let table = [
        (with("name", json!("")), "name"),
        (with("name", json!("..")), "name"),
        (with("name", json!("a/b")), "name"),
        (with("filter", json!({})), "filter"),
        (with("filter", json!({"tsak": "waits"})), "body"),
        (with("filter", json!({"task": "a b"})), "filter.task"),
        (with("filter", json!({"age": "soon"})), "filter.age"),
        (with("filter", json!({"state": "dead"})), "filter.state"),
        (with("filter", json!({"state": "running", "late": "1m"})), "filter.late"),
        (with("action", json!("destroy")), "body"),
        (with("action", json!("reprioritise")), "priority"),
        (with("priority", json!(3)), "priority"),
        (with("rate", json!(0)), "rate"),
        (discard(Value::Null), "reason"),
        (discard(json!(" ")), "reason"),
        (with("unknown", json!(1)), "body"),
    ];
    for (body, field) in table {
        let (status, reply) = begin(&served, &body).await;
        assert_eq!((status, &reply["error"]["field"]), (422, &json!(field)), "{body}: {reply}");
    }
    assert_eq!(served.get("/v1/actions").await.1["actions"], json!([]));
    let (status, reply) = served.get("/v1/actions/x").await;
    assert_eq!((status, &reply["error"]["field"]), (404, &json!("name")));
    served.server.stop().await.unwrap();
}
