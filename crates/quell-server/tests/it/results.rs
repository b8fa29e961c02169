//! Idempotency keys and results over HTTP (R19, R20).

use quell::JobState;
use reqwest::Method;
use serde_json::{Value, json};

use crate::served::{Served, answer, serve};

const TASKS: &str = r#"
[tasks.now]
exec = { command = ["true"] }
idempotency = { retention = "2h" }

[tasks.derived]
exec = { command = ["true"] }
idempotency = { key = ["user"], window = "8760h" }
"#;

async fn with_header(served: &Served, header: &str, body: &str) -> (u16, Value) {
    let request = served.request(Method::POST, "/v1/tasks/now/triggers");
    let request = request.header("content-type", "application/json");
    let request = request.header("Idempotency-Key", header).body(body.to_owned());
    answer(request.send().await.unwrap()).await
}

#[tokio::test]
async fn r19_a_repeat_over_http_gets_the_first_ones_job() {
    let served = serve(TASKS).await;
    let path = "/v1/tasks/now/triggers";
    let (_, first) = served.post(path, r#"{"payload":{"n":1},"idempotency_key":"a"}"#).await;
    served.ended(&first["job"], JobState::Succeeded).await;
    for (header, body) in [
        ("\"a\"", r#"{"payload":{"n":1.0}}"#),
        ("a", r#"{"payload":{"n":1},"idempotency_key":"a"}"#),
    ] {
        let (status, again) = with_header(&served, header, body).await;
        assert_eq!((status, &again["receipt"]), (202, &json!("existing")), "{again}");
        assert_eq!((&again["job"], &again["state"]), (&first["job"], &json!("succeeded")));
    }
    let table = [
        ("a", r#"{"payload":{"n":2}}"#, "idempotency_key"),
        ("b", r#"{"payload":1,"idempotency_key":"a"}"#, "idempotency_key"),
        ("b", r#"[{"payload":1},{"payload":2}]"#, "idempotency-key"),
        ("\"\"", r#"{"payload":1}"#, "idempotency_key"),
    ];
    for (header, body, field) in table {
        let (status, reply) = with_header(&served, header, body).await;
        assert_eq!((status, &reply["error"]["field"]), (422, &json!(field)), "{body}: {reply}");
    }
    let (_, conflict) = served.post(path, r#"{"payload":0,"idempotency_key":"a"}"#).await;
    assert_eq!(conflict["error"]["kind"], "idempotency_conflict", "{conflict}");
    let derived = r#"{"payload":{"user":7,"n":1}}"#;
    for receipt in ["accepted", "existing"] {
        let (_, reply) = served.post("/v1/tasks/derived/triggers", derived).await;
        assert_eq!(reply["receipt"], receipt, "{reply}");
    }
    served.server.stop().await.unwrap();
}

#[tokio::test]
async fn r19_a_result_is_waited_for_within_a_bound() {
    let served = serve(TASKS).await;
    let later = r#"{"payload":1,"delay":"1h"}"#;
    let (_, job) = served.post("/v1/tasks/now/triggers", later).await;
    let path = format!("/v1/jobs/{}/result", job["job"].as_str().unwrap());
    let (status, reply) = served.get(&format!("{path}?wait=10ms")).await;
    assert_eq!(
        (status, &reply["state"], &reply["ended"]),
        (200, &json!("scheduled"), &json!(false))
    );
    let job = served.trigger("now", "1").await;
    let path = format!("/v1/jobs/{}/result", job["job"].as_str().unwrap());
    let (status, reply) = served.get(&format!("{path}?wait=20s")).await;
    assert_eq!(
        (status, &reply["state"], &reply["ended"]),
        (200, &json!("succeeded"), &json!(true))
    );
    for (path, status) in
        [(format!("{path}?wait=21s"), 422), ("/v1/jobs/999/result".to_owned(), 404)]
    {
        assert_eq!(served.get(&path).await.0, status, "{path}");
    }
    served.server.stop().await.unwrap();
}
