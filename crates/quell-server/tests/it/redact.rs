//! Members of payloads that people do not see: in the API, errors and logs. Handlers and callers get them.

use quell::JobState;
use quell_server::redact::MASK;
use reqwest::Method;
use serde_json::{Value, json};

use crate::logged::Logged;
use crate::served::{Served, answer, serve};

/// What people do not see: a card, and a password with characters that JSON and URLs spell in another way.
const CARD: &str = "canary-4111";
const PASSWORD: &str = "canary \"p&w\"";

const TASKS: &str = r#"
[tasks.charge]
redact = ["/card/number", "/**/password"]
retry = { max_attempts = 1 }
exec = { command = ["sh", "-c", "cat >&2; exit 1"] }
[tasks.echo]
redact = ["/card/number", "/**/password"]
exec = { command = ["cat"] }
[tasks.pulled]
redact = ["/card/number", "/**/password"]
retry = { max_attempts = 1 }
pull = true
"#;

fn payload(amount: u32) -> Value {
    json!({ "amount": amount, "card": { "number": CARD, "of": "ann" }, "to": [{ "password": PASSWORD }] })
}

fn expect_hidden(text: &str, what: &str) {
    let spelt = [CARD, PASSWORD, "canary \\\"p&w\\\"", "canary+%22p%26w%22"];
    let found = spelt.iter().find(|spelt| text.contains(**spelt));
    assert!(found.is_none(), "{what} shows {found:?}: {text}");
}

async fn expect_hidden_everywhere(served: &Served, id: &str) {
    for path in [
        format!("/v1/jobs/{id}"),
        format!("/v1/explain?id={id}"),
        "/v1/jobs?payload=true".to_owned(),
        "/v1/dead?payload=true".to_owned(),
        "/v1/dead/causes".to_owned(),
        "/v1/alerts".to_owned(),
        "/v1/audit".to_owned(),
        "/metrics".to_owned(),
    ] {
        expect_hidden(&served.text(&path).await, &path);
    }
}

/// The payload that the store has.
async fn stored(served: &Served, id: &str) -> Value {
    let job = served.server.quell().job(id.parse().unwrap()).await.unwrap().unwrap();
    serde_json::from_str(job.payload.as_str()).unwrap()
}

#[tokio::test]
async fn what_a_rule_hides_is_in_no_answer_error_or_log() {
    let (logged, _guard) = Logged::start(tracing::Level::TRACE);
    let served = serve(TASKS).await;
    let job = served.trigger("charge", &payload(5).to_string()).await["job"].clone();
    let shown = served.ended(&job, JobState::Dead).await;
    let id = job.as_str().unwrap();
    let card = json!({ "number": MASK, "of": "ann" });
    assert_eq!(
        shown["job"]["payload"],
        json!({ "amount": 5, "card": card, "to": [{ "password": MASK }] })
    );
    let error = shown["job"]["error"].as_str().unwrap();
    assert!(error.contains(MASK) && error.contains("\"amount\":5"), "the rest is shown: {error}");
    expect_hidden_everywhere(&served, id).await;
    // Not in the store's record of the attempt either: a backup or another tool would show it.
    let found = served.server.quell().attempts(id.parse().unwrap()).await.unwrap();
    expect_hidden(&format!("{found:?}"), "the attempt");
    assert_eq!(stored(&served, id).await, payload(5), "the handler needs it");
    served.server.stop().await.unwrap();
    let lines = logged.with("").join("\n");
    assert!(lines.contains("charge"), "{lines}");
    expect_hidden(&lines, "the log");
}

#[tokio::test]
async fn callers_and_handlers_get_what_people_do_not_see() {
    let served = serve(TASKS).await;
    let job = served.trigger("echo", &payload(5).to_string()).await["job"].clone();
    let shown = served.ended(&job, JobState::Succeeded).await;
    assert_eq!(shown["job"]["output"]["card"]["number"], MASK, "by the same paths");
    expect_hidden_everywhere(&served, job.as_str().unwrap()).await;
    let result = format!("/v1/jobs/{}/result", job.as_str().unwrap());
    assert_eq!(served.get(&result).await.1["output"], payload(5), "the caller's own");
    served.server.stop().await.unwrap();
}

#[tokio::test]
async fn what_workers_elsewhere_report_does_not_show_it() {
    let (logged, _guard) = Logged::start(tracing::Level::TRACE);
    let served = serve(TASKS).await;
    served.trigger("pulled", &payload(5).to_string()).await;
    let job = served.claim("pulled", "5s").await.remove(0);
    assert_eq!(job["payload"], payload(5), "the worker gets it");
    let id = job["id"].as_str().unwrap();
    let lines = json!([format!("card {CARD}"), format!("paid with {PASSWORD}")]);
    let beat = json!({ "lease": job["lease"], "progress": { "card": CARD }, "log": lines });
    let (status, reply) =
        served.work("renew", &json!({ "leases": [beat], "process": { "incarnation": 5 } })).await;
    assert_eq!(status, 200, "{reply}");
    let (_, shown) = served.get(&format!("/v1/jobs/{id}")).await;
    assert_eq!(shown["running"]["log"][0], format!("card {MASK}"), "{shown:#}");
    expect_hidden_everywhere(&served, id).await;
    let failed =
        json!({ "lease": job["lease"], "outcome": "failed", "error": format!("declined: {CARD}") });
    assert_eq!(served.settle(failed).await["became"], "dead");
    let error = served.get(&format!("/v1/jobs/{id}")).await.1["job"]["error"].clone();
    assert!(error.as_str().unwrap().starts_with(&format!("declined: {MASK}")), "{error}");
    expect_hidden_everywhere(&served, id).await;
    served.server.stop().await.unwrap();
    expect_hidden(&logged.with("").join("\n"), "the log");
}

/// R26: an operator changes what is shown, and what is not shown stays.
#[tokio::test]
async fn r26_an_edited_payload_keeps_the_values_that_its_editor_did_not_see() {
    let served = serve(TASKS).await;
    let job = served.trigger("charge", &payload(5).to_string()).await["job"].clone();
    let mut shown = served.ended(&job, JobState::Dead).await["job"]["payload"].clone();
    shown["amount"] = json!(7);
    let id = job.as_str().unwrap();
    let path = format!("/v1/jobs/{id}/redrive");
    let (status, reply) = served.post(&path, &json!({ "payload": shown }).to_string()).await;
    assert_eq!(status, 200, "{reply}");
    served.ended(&job, JobState::Dead).await;
    assert_eq!(stored(&served, id).await, payload(7));
    expect_hidden(&served.text(&format!("/v1/jobs/{id}")).await, "the original payload");
    // A mask where there was nothing cannot be meant.
    shown["to"] = json!([{ "password": MASK }, { "password": MASK }]);
    let (status, reply) = served.post(&path, &json!({ "payload": shown }).to_string()).await;
    assert_eq!((status, &reply["error"]["field"]), (422, &json!("payload")), "{reply}");
    assert_eq!(stored(&served, id).await, payload(7));
    served.server.stop().await.unwrap();
}

#[tokio::test]
async fn a_schedule_does_not_show_it() {
    let served = serve(TASKS).await;
    let body = json!({ "task": "charge", "every": "24h", "payload": payload(5) }).to_string();
    let put = served.request(Method::PUT, "/v1/schedules/daily");
    let put = put.header("content-type", "application/json").body(body).send().await.unwrap();
    let (status, reply) = answer(put).await;
    assert_eq!(status, 200, "{reply}");
    expect_hidden(&reply.to_string(), "the answer");
    for path in ["/v1/schedules", "/v1/schedules/daily", "/v1/audit"] {
        expect_hidden(&served.text(path).await, path);
    }
    // What is shown can be sent back.
    let body = json!({ "task": "charge", "every": "12h", "payload": reply["payload"] }).to_string();
    for (name, expected) in [("daily", 200), ("other", 422)] {
        let put = served.request(Method::PUT, &format!("/v1/schedules/{name}"));
        let put = put.header("content-type", "application/json").body(body.clone());
        assert_eq!(put.send().await.unwrap().status().as_u16(), expected, "{name}");
    }
    let kept = served.server.quell().schedules().await.unwrap();
    let kept: Value = serde_json::from_str(kept[0].schedule.trigger.payload.as_str()).unwrap();
    assert_eq!(kept, payload(5));
    served.server.stop().await.unwrap();
}

/// R10: a job that collects has an array of payloads.
#[tokio::test]
async fn r10_rules_hold_for_each_payload_of_a_window() {
    let served = serve(
        r#"
[tasks.gather]
redact = ["/secret"]
key = "all"
payload = "collect"
debounce = { min = "1h", max = "2h" }
exec = { command = ["true"] }
"#,
    )
    .await;
    for secret in [CARD, PASSWORD] {
        served.trigger("gather", &json!({ "secret": secret }).to_string()).await;
    }
    let (_, shown) = served.get("/v1/tasks/gather/windows?payload=true").await;
    let hidden = json!({ "secret": MASK });
    assert_eq!(shown["jobs"][0]["payload"], json!([hidden, hidden]), "{shown:#}");
    served.server.stop().await.unwrap();
}
