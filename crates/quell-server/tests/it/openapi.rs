//! The API's description: complete, checked in, and true of what the server answers.

use std::collections::BTreeMap;

use quell::JobState;
use quell::schedule::CatchUp;
use quell_core::attempt::AttemptOutcome;
use quell_server::http::description;
use quell_services::schemathesis;
use reqwest::Method;
use serde_json::{Value, json};

use crate::served::{answer, serve};

const TASKS: &str = r#"
[tasks.build]
key = "{{ repo }}"
debounce = { min = "10s", max = "60s" }
exec = { command = ["true"] }
[tasks.now]
exec = { command = ["true"] }
[tasks.dies]
retry = { max_attempts = 1 }
exec = { command = ["false"] }
[queues.default]
concurrency = 8
[schedules.nightly]
task = "now"
cron = "0 3 * * *"
[alerts.dead]
on = "dead"
threshold = 10
"#;

fn described() -> Value {
    serde_json::to_value(description()).unwrap()
}

/// The methods of each path.
fn operations(document: &Value) -> BTreeMap<String, Vec<String>> {
    let paths = document["paths"].as_object().unwrap().iter();
    paths
        .map(|(path, item)| (path.clone(), item.as_object().unwrap().keys().cloned().collect()))
        .collect()
}

#[test]
fn the_description_in_docs_is_the_one_of_the_code() {
    let place = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/openapi.json");
    let written = std::fs::read_to_string(place).unwrap_or_default();
    let made = description().to_pretty_json().unwrap() + "\n";
    assert!(made == written, "write it again: cargo run -- openapi > docs/openapi.json");
}

/// What is not described has no route, and what is described has one: every other method is 405, and every
/// operation answers something else than that and than the 404 of an unknown path.
#[tokio::test]
async fn every_route_is_described_and_every_description_has_a_route() {
    let served = serve(TASKS).await;
    let document = described();
    for (path, methods) in operations(&document) {
        let asked =
            path.replace("{task}", "nosuch").replace("{name}", "nosuch").replace("{id}", "77");
        let asked = asked.replace("{source}", "nosuch");
        for method in ["get", "put", "post", "patch", "delete"] {
            let name = Method::from_bytes(method.to_uppercase().as_bytes()).unwrap();
            let (status, reply) = answer(served.request(name, &asked).send().await.unwrap()).await;
            if methods.iter().any(|known| known == method) {
                assert!(status != 405, "{method} {path}: {reply}");
                assert!(reply["error"]["field"] != "path", "{method} {path}: {reply}");
            } else {
                assert_eq!(status, 405, "{method} {path} is not described: {reply}");
            }
        }
    }
    // The page of the API has the same paths, as people read them.
    let page = include_str!("../../../../docs/api.md");
    for path in operations(&document).keys() {
        let path = path.replace("/v1/queues/{name}", "/v1/queues/{queue}");
        let last = path.rsplit('/').next().unwrap();
        assert!(
            page.contains(&path) || page.contains(&format!("…/{last}")),
            "{path} is not in docs/api.md"
        );
    }
    served.server.stop().await.unwrap();
}

#[test]
fn codes_are_described_by_the_names_that_answers_have() {
    let document = described();
    let named = |schema: &str| document["components"]["schemas"][schema]["enum"].clone();
    let names = |all: Vec<&str>| json!(all);
    assert_eq!(named("State"), names(JobState::ALL.map(JobState::name).to_vec()));
    assert_eq!(named("Outcome"), names(AttemptOutcome::ALL.map(AttemptOutcome::name).to_vec()));
    let all = [CatchUp::None, CatchUp::Latest, CatchUp::All];
    assert_eq!(named("MissedTicks"), names(all.map(CatchUp::name).to_vec()));
}

#[tokio::test]
async fn the_description_and_its_page_are_served_without_a_token() {
    let served = serve(TASKS).await;
    let response = served.request(Method::GET, "/v1/openapi.json").send().await.unwrap();
    assert_eq!(response.headers()["content-type"], "application/json");
    let shown: Value = serde_json::from_str(&response.text().await.unwrap()).unwrap();
    assert_eq!(shown, described());
    assert_eq!(shown["openapi"], "3.1.0");
    let response = served.request(Method::GET, "/v1/reference").send().await.unwrap();
    let policy = response.headers()["content-security-policy"].to_str().unwrap().to_owned();
    assert!(policy.starts_with("default-src 'none'"), "{policy}");
    let page = response.text().await.unwrap().replace("&#x2f;", "/");
    assert!(page.contains("/v1/tasks/{task}/triggers"), "{page}");
    served.server.stop().await.unwrap();
}

/// RFC 9457, beside the fields that programs know.
#[tokio::test]
async fn errors_are_problem_details() {
    let served = serve(TASKS).await;
    let request = served.request(Method::GET, "/v1/jobs/99");
    let response = request.send().await.unwrap();
    assert_eq!(response.headers()["content-type"], "application/problem+json");
    let (status, reply) = answer(response).await;
    assert_eq!(
        (status, &reply["status"], &reply["title"]),
        (404, &json!(404), &json!("Not Found"))
    );
    assert_eq!(
        (&reply["type"], &reply["detail"]),
        (&json!("about:blank"), &reply["error"]["message"])
    );
    assert_eq!(reply["error"]["kind"], "not_found");
    served.server.stop().await.unwrap();
}

/// A stranger's tool calls every operation, with what the description allows and with what it forbids: no server
/// error, and no answer whose status, type or shape is not described.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn schemathesis_finds_no_server_error_and_no_answer_that_is_not_described() {
    let served = serve(TASKS).await;
    let dead = served.trigger("dies", "1").await["job"].clone();
    served.ended(&dead, JobState::Dead).await;
    let url = format!("http://{}/v1/openapi.json", served.server.address());
    let judged = tokio::task::spawn_blocking(move || {
        let checks = "not_a_server_error,status_code_conformance,content_type_conformance,\
                      response_headers_conformance,response_schema_conformance";
        let mut command = schemathesis().unwrap();
        command.args(["run", &url, "--checks", checks, "--phases", "examples,coverage,fuzzing"]);
        command.args([
            "--max-examples",
            "10",
            "--seed",
            "1",
            "--no-shrink",
            "--continue-on-failure",
        ]);
        // Its answer has no end.
        command.args(["--exclude-path", "/v1/events"]);
        command.args(["--warnings", "off", "--suppress-health-check", "all"]);
        command.output().unwrap()
    });
    let judged = judged.await.unwrap();
    let said = String::from_utf8_lossy(&judged.stdout).into_owned();
    let tail: String =
        said.chars().rev().take(20_000).collect::<Vec<_>>().into_iter().rev().collect();
    assert!(judged.status.success(), "{tail}\n{}", String::from_utf8_lossy(&judged.stderr));
    served.server.stop().await.unwrap();
}
