//! What declared tasks return: the JSON that a command prints or a target answers (R19).

use quell::{JobResult, JobState};
use serde_json::{Value, json};

use crate::handlers::target;
use crate::served::{Served, serve};

const MOST: usize = JobResult::MAX_OUTPUT_BYTES;

/// Runs the task once, well, and returns what is kept of its output.
async fn output_of(served: &Served, task: &str) -> Value {
    let job = served.trigger(task, r#"{"a":1}"#).await["job"].clone();
    served.ended(&job, JobState::Succeeded).await;
    let path = format!("/v1/jobs/{}/result", job.as_str().unwrap());
    served.get(&path).await.1["output"].clone()
}

#[tokio::test]
async fn r19_json_that_a_command_prints_is_its_output() {
    let letters =
        |n: usize| format!("printf '\\\"'; head -c {n} /dev/zero | tr '\\\\0' a; echo '\\\"'");
    let table = [
        (r#"echo '{\"n\": [1]}'"#.to_owned(), json!({"n": [1]})),
        ("echo; echo ' 42 '; echo '{}' >&2".to_owned(), json!(42)),
        ("cat".to_owned(), json!({"a": 1})),
        ("echo null".to_owned(), Value::Null),
        ("true".to_owned(), Value::Null),
        ("echo done".to_owned(), Value::Null),
        ("echo 1; echo 2".to_owned(), Value::Null),
        ("printf '\\\\377'".to_owned(), Value::Null),
        (letters(MOST - 3), json!("a".repeat(MOST - 3))),
        (letters(MOST - 2), Value::Null),
        // The end of it would be JSON as well.
        (format!("head -c {} /dev/zero | tr '\\\\0' 7", 3 * MOST), Value::Null),
    ];
    let tasks = table.iter().enumerate().map(|(n, (script, _))| {
        format!("[tasks.t{n}]\nexec = {{ command = [\"sh\", \"-c\", \"{script}\"] }}\n")
    });
    let served = serve(&tasks.collect::<String>()).await;
    for (n, (script, expected)) in table.iter().enumerate() {
        let output = output_of(&served, &format!("t{n}")).await;
        assert!(output == *expected, "{script}: {output:.80}");
    }
    served.server.stop().await.unwrap();
}

#[tokio::test]
async fn r19_the_json_body_of_a_good_answer_is_the_output() {
    let answer = |kind: &str, length: usize, body: &str| {
        format!("HTTP/1.1 200 OK\r\n{kind}content-length: {length}\r\n\r\n{body}")
    };
    let whole = |kind: &str, body: &str| answer(kind, body.len(), body);
    let json = "content-type: application/json\r\n";
    let letters = |n: usize| format!("\"{}\"", "a".repeat(n));
    let table = [
        (whole(json, r#"{"n": [1]}"#), json!({"n": [1]})),
        (whole("content-type: Application/X+JSON; charset=utf-8\r\n", " 42\n"), json!(42)),
        (whole(json, "null"), Value::Null),
        (whole(json, ""), Value::Null),
        (whole(json, "done"), Value::Null),
        (whole("content-type: text/plain\r\n", "42"), Value::Null),
        (whole("", "42"), Value::Null),
        ("HTTP/1.1 204 No Content\r\n\r\n".to_owned(), Value::Null),
        // It breaks off.
        (answer(json, 9, "42"), Value::Null),
        (whole(json, &letters(MOST - 2)), json!("a".repeat(MOST - 2))),
        (whole(json, &letters(MOST - 1)), Value::Null),
    ];
    let (mut tasks, mut targets) = (String::new(), Vec::new());
    for (n, (answer, _)) in table.iter().enumerate() {
        let target = target(answer.clone().leak()).await;
        tasks.push_str(&format!(
            "[tasks.t{n}]\nhttp = {{ url = \"{}\", allow = [\"127.0.0.0/8\"] }}\n",
            target.0
        ));
        targets.push(target);
    }
    let served = serve(&tasks).await;
    for (n, (answer, expected)) in table.iter().enumerate() {
        let output = output_of(&served, &format!("t{n}")).await;
        assert!(output == *expected, "{answer:.160}: {output:.80}");
    }
    served.server.stop().await.unwrap();
}

/// Neither what a producer sends nor what a command prints takes the API away: numbers are kept as they are,
/// and what nests deeper than most programs read is shown as text.
#[tokio::test]
async fn r19_json_that_few_programs_can_hold_is_answered() {
    let served = serve(
        r#"
[tasks.cat]
exec = { command = ["cat"] }
[tasks.nest]
exec = { command = ["sh", "-c", "printf '[%.0s' $(seq 500); printf ']%.0s' $(seq 500)"] }
"#,
    )
    .await;
    let nested = "[".repeat(500) + &"]".repeat(500);
    let nested = format!("\"{nested}\"");
    for (task, output) in [("cat", "1e999"), ("nest", nested.as_str())] {
        let body = r#"{"payload":1e999,"idempotency_key":"k"}"#;
        let path = format!("/v1/tasks/{task}/triggers");
        let (_, first) = served.post(&path, body).await;
        let id = first["job"].as_str().unwrap();
        served.ended_by_number(id, JobState::Succeeded).await;
        let shown = served.text(&format!("/v1/jobs/{id}")).await;
        assert!(shown.contains("\"payload\":1e999"), "{shown}");
        let again = served.request(reqwest::Method::POST, &path);
        let again =
            again.header("content-type", "application/json").body(body).send().await.unwrap();
        let result = served.text(&format!("/v1/jobs/{id}/result")).await;
        for shown in [shown, result, again.text().await.unwrap()] {
            assert!(shown.contains(&format!("\"output\":{output}")), "{shown}");
        }
    }
    served.server.stop().await.unwrap();
}
