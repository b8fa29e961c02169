//! What the server says of the history that it records.

use std::path::Path;
use std::time::{Duration, Instant};

use quell_check::{check, elsewhere, merge, parse};
use serde_json::{Value, json};

use crate::binary::Process;
use crate::served::{answer, serve};

const TASKS: &str = r#"
[tasks.bursts]
key = "{{ k }}"
debounce = { min = "100ms", max = "1s" }
exec = { command = ["true"] }

[tasks.fails]
retry = { max_attempts = 2, min_backoff = "10ms", max_backoff = "20ms" }
exec = { command = ["false"] }
"#;

/// A server that records its history in `folder`.
fn recorded(folder: &Path) -> Process {
    let url = folder.join("q.db");
    let text = format!(
        "[server]\nlisten = \"127.0.0.1:0\"\n[store]\nurl = \"sqlite://{}\"\n{TASKS}",
        url.display()
    );
    let config = folder.join("quell.toml");
    std::fs::write(&config, text).unwrap();
    Process::serve(&config, &["--history", folder.join("h.jsonl").to_str().unwrap()])
}

async fn until(process: &Process, path: &str, is_so: impl Fn(&Value) -> bool) -> Value {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let response = reqwest::get(format!("{}{path}", process.url)).await.unwrap();
        let (status, found) = answer(response).await;
        assert_eq!(status, 200, "{found:#}");
        if is_so(&found) {
            return found;
        }
        assert!(Instant::now() < deadline, "{path}: {found:#}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Bursts of three keys, and jobs that die.
async fn busy(process: &Process) {
    let client = reqwest::Client::new();
    for round in 0..4 {
        for key in ["a", "b", "c"] {
            let url = format!("{}/v1/tasks/bursts/triggers", process.url);
            let body =
                json!([{ "payload": { "k": key } }, { "payload": { "k": key, "n": round } }]);
            assert_eq!(client.post(url).json(&body).send().await.unwrap().status(), 202);
        }
        let url = format!("{}/v1/tasks/fails/triggers", process.url);
        let sent = client.post(url).json(&json!({ "payload": round })).send().await.unwrap();
        assert_eq!(sent.status(), 202);
    }
    let is_idle = |counts: &Value| {
        let counts = counts["counts"].as_array().unwrap();
        counts.iter().all(|count| count["state"] == "succeeded" || count["state"] == "dead")
    };
    until(process, "/v1/counts", is_idle).await;
}

fn of<'v>(proof: &'v Value, property: &str) -> &'v Value {
    let mut all = proof["properties"].as_array().into_iter().flatten();
    all.find(|one| one["property"] == property).unwrap_or(&Value::Null)
}

#[tokio::test]
async fn the_history_of_a_server_is_judged_and_a_broken_promise_is_shown() {
    let folder = tempfile::tempdir().unwrap();
    let process = recorded(folder.path());
    busy(&process).await;
    let proof = until(&process, "/v1/proof", |proof| proof["attempts"].as_u64() >= Some(11)).await;
    assert_eq!((&proof["violations"], &proof["cut"]), (&json!([]), &json!(false)), "{proof:#}");
    assert_eq!(proof["accepted"], 28, "{proof:#}");
    for property in ["P4", "P6", "P10", "P11", "P12", "P13"] {
        assert!(of(&proof, property)["judged"].as_u64() > Some(0), "{property}: {proof:#}");
    }
    assert_eq!(of(&proof, "P9")["promise"], "one attempt of a key at a time");

    // An end that counted twice.
    let file = folder.path().join("h.jsonl");
    let text = std::fs::read_to_string(&file).unwrap();
    let settled = text.lines().rfind(|line| line.contains(r#""event":"settle""#)).unwrap();
    std::fs::write(&file, format!("{text}{settled}\n")).unwrap();
    let proof = until(&process, "/v1/proof", |proof| proof["violations"] != json!([])).await;
    assert_eq!(proof["violations"][0]["property"], "P10", "{proof:#}");
    assert!(proof["violations"][0]["events"].to_string().contains("settle"), "{proof:#}");
    assert!(of(&proof, "P10")["broken"].as_u64() > Some(0), "{proof:#}");
    let request = reqwest::Client::new().get(format!("{}/proof", process.url));
    let page = request.header("accept", "text/html").send().await.unwrap().text().await.unwrap();
    assert!(
        page.contains("of a broken promise</h2>") && page.contains("data-property=\"P34\""),
        "{page}"
    );
}

#[tokio::test]
async fn a_history_that_lost_its_beginning_breaks_no_promise() {
    let folder = tempfile::tempdir().unwrap();
    let process = recorded(folder.path());
    busy(&process).await;
    process.signal("-TERM");
    drop(process);
    let text = std::fs::read_to_string(folder.path().join("h.jsonl")).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines.len() > 100, "{}", lines.len());
    for begin in 0..lines.len() {
        let kept = lines[begin..].join("\n");
        let events = merge(vec![parse("cut", &kept).unwrap(), vec![elsewhere()]]);
        let report = check(&events);
        assert_eq!(report.violations, [], "without the first {begin} lines");
    }
}

#[tokio::test]
async fn without_a_history_there_is_nothing_to_judge() {
    let served = serve(TASKS).await;
    let (status, refused) = served.get("/v1/proof").await;
    assert_eq!((status, &refused["error"]["field"]), (404, &json!("history")), "{refused}");
    let request = served.request(reqwest::Method::GET, "/proof").header("accept", "text/html");
    let page = request.send().await.unwrap();
    assert_eq!(page.status(), 200);
    assert!(page.text().await.unwrap().contains("There is no history to judge"));
    served.server.stop().await.unwrap();
}
