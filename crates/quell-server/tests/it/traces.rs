//! Trace contexts, from requests that trigger to what tasks run (R42).

use quell::JobState;
use reqwest::Method;
use serde_json::{Value, json};

use crate::binary::quell;
use crate::handlers::target;
use crate::served::{Served, answer, file_says, serve};

const TRACE: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736";

fn parent(span: u64) -> String {
    format!("{TRACE}-{span:016x}-01")
}

async fn trigger(served: &Served, task: &str, headers: &[(&str, &str)], body: Value) -> Value {
    let request = served.request(Method::POST, &format!("/v1/tasks/{task}/triggers"));
    let request =
        headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
    let (status, reply) = answer(request.json(&body).send().await.unwrap()).await;
    assert_eq!(status, 202, "{reply:#}");
    reply
}

#[tokio::test]
async fn r42_a_command_has_the_traces_of_the_requests_that_triggered() {
    let served = serve(
        r#"
[tasks.build]
key = "{{ repo }}"
debounce = { min = "200ms", max = "5s" }
exec = { command = ["sh", "-c", "echo $QUELL_TRACES/$TRACEPARENT/$TRACESTATE/$(cat) >> $QUELL_KEY"], cwd = "." }
"#,
    )
    .await;
    let body = |repo: &str| json!({ "payload": { "repo": repo } });
    let header = parent(7);
    let headers = [("traceparent", header.as_str()), ("tracestate", "a=1"), ("tracestate", "b=2")];
    let one = trigger(&served, "build", &headers, body("one")).await;
    // In the body, of each member; the header counts for those without.
    let named = json!({ "payload": { "repo": "two" }, "trace": { "traceparent": parent(8) } });
    trigger(&served, "build", &headers, json!([body("two"), named])).await;
    trigger(&served, "build", &[("traceparent", "malformed")], body("none")).await;

    let says = |name: &'static str| {
        let file = served.folder.path().join(name);
        async move { file_says(&file, |text| text.ends_with('\n')).await.trim().to_owned() }
    };
    let (seventh, eighth) = (parent(7), parent(8));
    assert_eq!(says("one").await, format!("{seventh}/{seventh}/a=1,b=2/{{\"repo\":\"one\"}}"));
    assert_eq!(says("two").await, format!("{seventh} {eighth}///{{\"repo\":\"two\"}}"));
    assert_eq!(says("none").await, "///{\"repo\":\"none\"}");

    let shown = served.ended(&one["job"], JobState::Succeeded).await;
    assert_eq!(
        shown["job"]["traces"],
        json!([{ "traceparent": seventh, "tracestate": "a=1,b=2" }])
    );
    served.server.stop().await.unwrap();
}

#[tokio::test]
async fn r40_r42_a_malformed_trace_in_a_body_is_refused() {
    let served = serve("[tasks.a]\nexec = { command = [\"true\"] }\n").await;
    let body = json!({ "payload": 1, "trace": { "traceparent": "00-0-0-00" } });
    let request = served.request(Method::POST, "/v1/tasks/a/triggers").json(&body);
    let (status, reply) = answer(request.send().await.unwrap()).await;
    assert_eq!(status, 422, "{reply:#}");
    assert!(reply.to_string().contains("is no trace context"), "{reply:#}");
    served.server.stop().await.unwrap();
}

#[tokio::test]
async fn r42_an_http_call_goes_on_with_the_trace_of_its_trigger() {
    let (url, mut requests, _target) = target("HTTP/1.1 204 No Content\r\n\r\n").await;
    let served =
        serve(&format!("[tasks.hook]\nhttp = {{ url = \"{url}\", allow = [\"127.0.0.0/8\"] }}\n"))
            .await;
    let header = parent(7);
    let headers = [("traceparent", header.as_str()), ("tracestate", "a=1")];
    let job = trigger(&served, "hook", &headers, json!({ "payload": { "k": "a" } })).await;
    served.ended(&job["job"], JobState::Succeeded).await;
    let request = requests.recv().await.unwrap().to_lowercase();
    for needle in [
        format!("traceparent: {header}\r\n"),
        "tracestate: a=1\r\n".to_owned(),
        format!("quell-traces: {header}\r\n"),
    ] {
        assert!(request.contains(&needle), "{needle:?} is missing in:\n{request}");
    }
    served.server.stop().await.unwrap();
}

#[tokio::test]
async fn r42_a_command_that_triggers_goes_on_with_a_trace() {
    let served = serve("[tasks.a]\nexec = { command = [\"true\"] }\n").await;
    let url = format!("http://{}", served.server.address());
    let triggered = async |args: &[&str], environment: [(&'static str, &'static str); 2]| {
        let mut command = quell(&["trigger", "a", "--json", "--server", &url]);
        command.args(args).envs(environment);
        let run = tokio::task::spawn_blocking(move || command.output());
        let output = run.await.unwrap().unwrap();
        let reply: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
        (output.status.success(), reply["job"].clone())
    };
    const CALLER: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000007-01";
    let (seventh, eighth) = (parent(7), parent(8));
    let well_formed = [("TRACEPARENT", CALLER), ("TRACESTATE", "a=1")];
    let malformed = [("TRACEPARENT", "x"), ("TRACESTATE", "a=1")];
    let cases: [(&[&str], _, Value); 3] = [
        (&[], well_formed, json!([{ "traceparent": seventh, "tracestate": "a=1" }])),
        (&[], malformed, json!([])),
        (&["--traceparent", &eighth], well_formed, json!([{ "traceparent": eighth }])),
    ];
    for (args, environment, expected) in cases {
        let (accepted, job) = triggered(args, environment).await;
        assert!(accepted, "{args:?}");
        let shown = served.ended(&job, JobState::Succeeded).await;
        assert_eq!(shown["job"]["traces"], expected, "{args:?}");
    }
    let (accepted, _) = triggered(&["--traceparent", "x"], well_formed).await;
    assert!(!accepted, "a malformed flag is refused");
    served.server.stop().await.unwrap();
}
