//! One filter language, over HTTP and on the command line; and what operators do to a job that waits.

use std::path::Path;

use quell::JobState;
use reqwest::Method;
use serde_json::{Value, json};

use crate::binary::quell;
use crate::served::{Served, answer, serve};

const TASKS: &str = r#"
[queues.paused]
paused = true

[tasks.build]
key = "{{ repo }}"
partition = "{{ customer }}"
debounce = { min = "1h", max = "2h" }
exec = { command = ["true"] }

[tasks.waits]
queue = "paused"
exec = { command = ["true"] }

[tasks.refused]
retry = { max_attempts = 1 }
exec = { command = ["sh", "-c", "echo Connection Refused >&2; exit 1"] }
"#;

fn ids(listed: &Value) -> Vec<Value> {
    let jobs = listed["jobs"].as_array().unwrap_or_else(|| panic!("a list: {listed}"));
    jobs.iter().map(|job| job["id"].clone()).collect()
}

fn store(served: &Served) -> String {
    let path: &Path = served.folder.path();
    format!("sqlite://{}", path.join("q.db").display())
}

async fn run(args: Vec<String>) -> (bool, String) {
    let mut command = quell(&args.iter().map(String::as_str).collect::<Vec<_>>());
    let output = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
    let text = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
    (output.status.success(), text.concat())
}

/// A job of each task; the three jobs.
async fn three(served: &Served) -> [Value; 3] {
    let build = served.trigger("build", r#"{"repo":"a","customer":"acme"}"#).await["job"].clone();
    let waits = served.trigger("waits", "{}").await["job"].clone();
    let refused = served.trigger("refused", "{}").await["job"].clone();
    served.ended(&refused, JobState::Dead).await;
    // Late by more than the millisecond that is asked for.
    let deadline = tokio::time::Instant::now() + std::time::Duration::from_secs(20);
    while ids(&served.get("/v1/jobs?late=1ms").await.1).is_empty() {
        assert!(tokio::time::Instant::now() < deadline, "never late");
    }
    [build, waits, refused]
}

#[tokio::test]
async fn r40_a_filter_means_the_same_over_http_and_on_the_command_line() {
    let served = serve(TASKS).await;
    let [build, waits, refused] = three(&served).await;
    let table = [
        ("task", "build", vec![&build]),
        ("queue", "paused", vec![&waits]),
        ("state", "dead", vec![&refused]),
        ("key", "a", vec![&build]),
        ("partition", "acme", vec![&build]),
        ("error", "connection refused", vec![&refused]),
        ("age", "1ms", vec![&refused, &waits, &build]),
        ("age", "1h", vec![]),
        ("late", "1ms", vec![&waits]),
        ("late", "1h", vec![]),
    ];
    for (member, value, expected) in table {
        let path = format!("/v1/jobs?{member}={}", value.replace(' ', "%20"));
        let (_, listed) = served.get(&path).await;
        assert_eq!(ids(&listed).iter().collect::<Vec<_>>(), expected, "{path}");
        let option = format!("--{member}={value}");
        let server = format!("--server=http://{}", served.server.address());
        for from in [server, format!("--store={}", store(&served))] {
            let args = vec!["jobs".to_owned(), "--json".to_owned(), option.clone(), from];
            let (_, printed) = run(args).await;
            let listed: Value = serde_json::from_str(&printed).unwrap();
            assert_eq!(ids(&listed).iter().collect::<Vec<_>>(), expected, "{option}: {printed}");
        }
    }
    for (query, field) in [
        ("age=soon", "age"),
        ("late=-1s", "late"),
        ("late=1m&state=dead", "late"),
        ("partition=", "partition"),
        ("error=", "error"),
        ("eror=x", "eror"),
    ] {
        let (status, reply) = served.get(&format!("/v1/jobs?{query}")).await;
        assert_eq!((status, &reply["error"]["field"]), (422, &json!(field)), "{query}: {reply}");
    }
    let (ok, text) = run(vec!["jobs".to_owned(), "--age=soon".to_owned()]).await;
    assert!(!ok && text.contains("--age") && text.contains("is not a duration"), "{text}");
    served.server.stop().await.unwrap();
}

#[tokio::test]
async fn r15_a_job_that_waits_is_run_now_and_reprioritised() {
    let served = serve(TASKS).await;
    let [build, waits, refused] = three(&served).await;
    let path = |job: &Value, verb: &str| format!("/v1/jobs/{}{verb}", job.as_str().unwrap());
    let patch = async |job: &Value, body: &str| {
        let request = served.request(Method::PATCH, &path(job, ""));
        let request = request.header("content-type", "application/json").body(body.to_owned());
        answer(request.send().await.unwrap()).await
    };
    let (status, reply) = patch(&waits, r#"{"priority":-7}"#).await;
    assert_eq!((status, &reply["priority"], &reply["job"]), (200, &json!(-7), &waits), "{reply}");
    let shown = served.get(&path(&waits, "")).await.1;
    assert_eq!(shown["job"]["priority"], -7);
    for body in ["{}", r#"{"priority":40000}"#, r#"{"priority":1,"run":true}"#] {
        assert_eq!(patch(&waits, body).await.0, 422, "{body}");
    }
    let server = format!("--server=http://{}", served.server.address());
    let number = |job: &Value| job.as_str().unwrap().to_owned();
    let args = vec!["reprioritise".to_owned(), number(&waits), "-9".to_owned(), server.clone()];
    let (ok, text) = run(args).await;
    assert!(ok && text.contains("has priority -9"), "{text}");

    let (status, reply) = served.post(&path(&build, "/run"), "").await;
    assert_eq!((status, &reply["waits_for_its_key"]), (200, &json!(false)), "{reply}");
    let ran = served.ended(&build, JobState::Succeeded).await;
    assert!(ran["text"].as_str().unwrap().contains("run now"), "{ran:#}");
    let build = served.trigger("build", r#"{"repo":"a","customer":"acme"}"#).await["job"].clone();
    let (ok, text) = run(vec!["run".to_owned(), number(&build), server]).await;
    assert!(ok && text.contains("is due at"), "{text}");
    served.ended(&build, JobState::Succeeded).await;

    for (job, status) in [(&build, 409), (&refused, 409), (&json!("777"), 404)] {
        let (got, reply) = served.post(&path(job, "/run"), "").await;
        assert_eq!((got, &reply["error"]["field"]), (status, &json!("job")), "{reply}");
    }
    let of_store = format!("--store={}", store(&served));
    let (ok, text) = run(vec!["run".to_owned(), number(&refused), of_store]).await;
    assert!(!ok && text.contains("only a job that waits"), "{text}");
    served.server.stop().await.unwrap();
}
