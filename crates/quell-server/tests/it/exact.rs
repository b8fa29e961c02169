//! Payloads and outputs on their way through the API and the command line: byte for byte. Lists that stay small.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::process::Output;

use quell::JobState;
use serde_json::json;

use crate::binary::{Process, quell, text};
use crate::served::{file_says, serve};

/// Payloads that a JSON value of most programs would change, or could not hold.
const ODD: [&str; 4] = [
    r#"{"id":123456789012345678901234567890,"p":1.10}"#,
    r#"{"b":1,"a":2,"b":3}"#,
    r#"{"z":1e400}"#,
    r#"{"s":"\ud800"}"#,
];

const TASKS: &str = r#"
[tasks.keep]
exec = { cwd = ".", command = ["sh", "-c", "cat > input; cat input"] }
[tasks.fail]
retry = { max_attempts = 1 }
exec = { command = ["false"] }
[tasks.build]
key = "{{ customer }}"
debounce = { min = "1h", max = "2h" }
exec = { command = ["true"] }
"#;

fn start(folder: &Path) -> Process {
    let config = folder.join("quell.toml");
    let store = folder.join("q.db");
    let server = format!(
        "[server]\nlisten = \"127.0.0.1:0\"\n[store]\nurl = \"sqlite://{}\"\n{TASKS}",
        store.display()
    );
    std::fs::write(&config, server).unwrap();
    Process::serve(&config, &[])
}

fn printed(output: &Output) -> String {
    let (succeeded, shown) = text(output);
    assert!(succeeded, "{shown}");
    shown
}

#[tokio::test]
async fn r10_payloads_and_outputs_are_answered_byte_for_byte() {
    let served = serve(TASKS).await;
    for payload in ODD {
        let job = served.trigger("keep", payload).await["job"].clone();
        let id = job.as_str().unwrap().to_owned();
        served.ended_by_number(&id, JobState::Succeeded).await;
        for (path, parts) in [
            (format!("/v1/jobs/{id}"), vec!["payload", "output"]),
            (format!("/v1/jobs/{id}/result"), vec!["output"]),
            ("/v1/jobs?payload=true&limit=1".to_owned(), vec!["payload", "output"]),
        ] {
            let body = served.text(&path).await;
            for part in parts {
                assert!(body.contains(&format!("\"{part}\":{payload}")), "{path}: {body}");
            }
        }
    }
    served.server.stop().await.unwrap();
}

/// One such job made every export fail, and the others' numbers were rounded.
#[tokio::test]
async fn r26_odd_dead_jobs_are_exported_and_imported_byte_for_byte() {
    let served = serve(TASKS).await;
    for payload in ODD {
        let job = served.trigger("fail", payload).await["job"].clone();
        served.ended_by_number(job.as_str().unwrap(), JobState::Dead).await;
    }
    let exports = served.text("/v1/dead/exports").await;
    let listed = served.text("/v1/dead?payload=true").await;
    for payload in ODD {
        assert!(exports.contains(payload), "{payload} is not in {exports}");
        assert!(listed.contains(payload), "{payload} is not in {listed}");
    }
    served.server.stop().await.unwrap();
}

#[tokio::test]
async fn r26_the_command_line_keeps_every_byte() {
    let folder = tempfile::tempdir().unwrap();
    let process = start(folder.path());
    for (index, payload) in ODD.into_iter().enumerate() {
        printed(&process.ask(&["trigger", "keep", payload]));
        file_says(&folder.path().join("input"), |input| input == payload).await;
        let id = (index + 1).to_string();
        printed(&process.ask(&["result", &id, "--wait", "20s"]));
        let shown = printed(&process.ask(&["job", &id]));
        assert!(shown.contains(&format!("payload    {payload}")), "{shown}");
        let shown = printed(&process.ask(&["result", &id, "--json"]));
        assert!(shown.contains(&format!("\"output\":{payload}")), "{shown}");
    }
    for payload in ODD {
        printed(&process.ask(&["trigger", "fail", payload]));
    }
    for id in 5..=8 {
        let (succeeded, shown) = text(&process.ask(&["result", &id.to_string(), "--wait", "20s"]));
        assert!(!succeeded && shown.contains("is dead"), "{shown}");
    }
    let exported = printed(&process.ask(&["dead", "export"]));
    assert!(ODD.iter().all(|payload| exported.contains(payload)), "{exported}");
    // What an export has, an import takes, into another store.
    let file = folder.path().join("dead.jsonl");
    std::fs::write(&file, &exported).unwrap();
    let elsewhere = tempfile::tempdir().unwrap();
    let other = start(elsewhere.path());
    let imported = printed(&other.ask(&["dead", "import", file.to_str().unwrap()]));
    assert_eq!(imported, "4 imported\n");
    let again = printed(&other.ask(&["dead", "export"]));
    assert!(ODD.iter().all(|payload| again.contains(payload)), "{again}");
    let first = printed(&process.ask(&["dead", "list"]));
    assert!(first.contains("4 of 4"), "{first}");
}

/// An operator asks for the customer 4711, and gets no other customer's job.
#[test]
fn r15_a_key_that_looks_like_an_id_is_explained_before_the_job() {
    let folder = tempfile::tempdir().unwrap();
    let process = start(folder.path());
    for customer in ["7", "3", "1.1"] {
        let payload = json!({ "customer": customer }).to_string();
        printed(&process.ask(&["trigger", "build", &payload]));
    }
    let store = format!("sqlite://{}", folder.path().join("q.db").display());
    for source in [vec![], vec!["--store", &store]] {
        let explain = |what: &str| {
            let mut args = vec!["explain", what];
            args.extend(&source);
            printed(&process.ask(&args))
        };
        let key = explain("3");
        assert!(key.starts_with("job 2 of task build") && key.contains("quell job 3"), "{key}");
        assert!(explain("1.1").starts_with("job 3 "), "a key that looks like a trigger");
        assert!(explain("2").starts_with("job 2 "), "no key is called so");
        assert!(explain("2.1").contains("job 2 "));
        let mut args = vec!["explain", "nosuch"];
        args.extend(&source);
        let (succeeded, shown) = text(&process.ask(&args));
        assert!(!succeeded && shown.contains("nothing is known of it"), "{shown}");
    }
}

#[test]
fn r15_keys_of_each_kind_are_explained_by_the_command() {
    let folder = tempfile::tempdir().unwrap();
    let process = start(folder.path());
    let payload = json!({ "customer": "a" }).to_string();
    let keys = ["--idempotency-key", "order-7", "--dedup", "d-7"];
    printed(&process.ask(&[&["trigger", "build", &payload], &keys[..]].concat()));
    let store = format!("sqlite://{}", folder.path().join("q.db").display());
    for source in [vec![], vec!["--store", &store]] {
        let ask = |args: &[&str]| process.ask(&[&["explain"], args, &source[..]].concat());
        for args in [
            &["--idempotency-key", "order-7", "--task", "build"][..],
            &["--idempotency-key", "order-7"],
            &["--dedup-key", "d-7"],
        ] {
            let shown = printed(&ask(args));
            assert!(shown.starts_with("job 1 of task build"), "{args:?}: {shown}");
        }
        for args in [&["--dedup-key", "order-7"][..], &["--idempotency-key", "x"]] {
            let (succeeded, shown) = text(&ask(args));
            assert!(!succeeded && shown.contains("free again"), "{args:?}: {shown}");
        }
    }
    let both = process.ask(&["explain", "1", "--dedup-key", "d-7"]);
    assert_eq!(both.status.code(), Some(2), "{both:?}");
}

#[test]
fn r31_partitions_are_listed_by_the_command() {
    let folder = tempfile::tempdir().unwrap();
    let process = start(folder.path());
    let store = format!("sqlite://{}", folder.path().join("q.db").display());
    let payload = json!({ "customer": "a" }).to_string();
    printed(&process.ask(&["trigger", "build", &payload]));
    for source in [vec![], vec!["--store", &store]] {
        let ask =
            |args: &[&str]| process.ask(&[&["queue", "partitions"], args, &source[..]].concat());
        let shown = printed(&ask(&["default"]));
        assert!(shown.starts_with("PARTITION") && shown.contains("FIRST_DUE"), "{shown}");
        let (succeeded, shown) = text(&ask(&["none"]));
        assert!(!succeeded && shown.contains("no"), "{shown}");
    }
}

/// A proxy's login page is no answer, whatever its status.
#[test]
fn a_server_that_is_not_quells_is_an_error() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let commands: [&[&str]; 6] = [
        &["trigger", "keep", "1"],
        &["jobs"],
        &["explain", "x"],
        &["dead", "list"],
        &["dead", "redrive", "1"],
        &["result", "1"],
    ];
    let pages = std::thread::spawn(move || {
        for status in ["200 OK", "404 Not Found"] {
            for _ in 0..commands.len() {
                let (mut stream, _) = listener.accept().unwrap();
                let mut request = [0; 4_096];
                let _some = stream.read(&mut request).unwrap();
                let page = "<html>log in</html>";
                let head = format!("HTTP/1.1 {status}\r\nconnection: close\r\n");
                let length = page.len();
                write!(stream, "{head}content-length: {length}\r\n\r\n{page}").unwrap();
            }
        }
    });
    for expected in ["not as a Quell server", "the server answered 404"] {
        for command in commands {
            let output = quell(command).env("QUELL_SERVER", &url).output().unwrap();
            let (succeeded, shown) = text(&output);
            assert!(!succeeded && shown.contains(expected), "{command:?}: {shown}");
        }
    }
    pages.join().unwrap();
}

/// 200 jobs with payloads of 1 MB, as an operator lists them.
#[tokio::test]
async fn a_page_of_large_jobs_is_small_unless_payloads_are_wanted() {
    let served = serve(TASKS).await;
    let large = format!("{{\"payload\":\"{}\",\"delay\":\"1h\"}}", "x".repeat(1_000_000));
    for _ in 0..200 {
        let (status, reply) = served.post("/v1/tasks/keep/triggers", &large).await;
        assert_eq!(status, 202, "{reply}");
    }
    let page = served.text("/v1/jobs?limit=200").await;
    assert_eq!(page.matches("\"id\"").count(), 200);
    assert!(page.len() <= 1 << 20, "{} bytes", page.len());
    assert!(!page.contains("\"payload\"") && !page.contains("\"output\""));
    assert!(served.text("/v1/jobs?limit=1&payload=true").await.len() > 1_000_000);
    assert_eq!(served.get("/v1/jobs?payload=yes").await.0, 422);
    served.server.stop().await.unwrap();
}

/// R17 over HTTP: one key for the whole batch.
#[tokio::test]
async fn r17_a_batch_has_a_dedup_key_of_its_own() {
    let served = serve(TASKS).await;
    let path = "/v1/tasks/keep/triggers";
    let batch = |count: usize| {
        let triggers: Vec<_> = (0..count).map(|n| json!({ "payload": n })).collect();
        json!({ "triggers": triggers, "dedup": "once", "dedup_ttl": "1h" }).to_string()
    };
    let (status, first) = served.post(path, &batch(2)).await;
    assert_eq!((status, first.as_array().unwrap().len()), (202, 2), "{first}");
    assert!(first.as_array().unwrap().iter().all(|one| one["receipt"] == "accepted"), "{first}");
    // The second batch is dropped whole, though it is longer.
    let (status, second) = served.post(path, &batch(5)).await;
    assert_eq!(status, 202);
    assert!(second.as_array().unwrap().iter().all(|one| one["receipt"] == "duplicate"), "{second}");
    for (body, field) in [
        (r#"{"triggers":[{"payload":1}],"dedup_ttl":"1h"}"#, "dedup_ttl"),
        (r#"{"triggers":[{"payload":1}],"payload":2}"#, "body"),
        (r#"{"triggers":[{"payload":1,"delay":"0s"}]}"#, "triggers[0].delay"),
    ] {
        let (status, reply) = served.post(path, body).await;
        assert_eq!((status, &reply["error"]["field"]), (422, &json!(field)), "{reply}");
    }
    served.server.stop().await.unwrap();
}
