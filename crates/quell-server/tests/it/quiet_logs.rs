//! What a log does not have, at any level: payloads, keys, tokens, headers and secrets.

use std::path::Path;
use std::time::{Duration, Instant};

use reqwest::{Client, Method};
use serde_json::{Value, json};

use crate::binary::{Process, quell};
use crate::handlers::target;

/// A server that logs everything, with secrets wherever there may be some.
fn start(folder: &Path, url: &str) -> Process {
    let config = folder.join("quell.toml");
    let text = format!(
        "[server]\nlisten = \"127.0.0.1:0\"\ntoken_env = \"TOKEN\"\naudit_file = \"audit\"\n\
         [store]\nurl = \"sqlite://{}\"\nsynchronous = \"normal\"\n\
         [tasks.build]\nkey = \"{{{{ repo }}}}\"\ndebounce = {{ min = \"50ms\", max = \"5s\" }}\n\
         exec = {{ command = [\"cat\"] }}\n\
         [tasks.prints]\nexec = {{ command = [\"echo\", \"CANARY-output\"] }}\n\
         [tasks.call.http]\nurl = \"{url}/hook?secret=CANARY-query\"\nallow = [\"127.0.0.0/8\"]\n\
         secret_env = \"SIGNS\"\nheaders = {{ authorization = \"CANARY-header\" }}\n\
         [tasks.elsewhere]\npull = true\n\
         [sources.hook]\nverify = \"token\"\nsecret_env = \"HOOK\"\ntask = \"build\"\n",
        folder.join("q.db").display()
    );
    std::fs::write(&config, text).unwrap();
    let mut command = quell(&["serve", "--config", config.to_str().unwrap()]);
    command.env("QUELL_LOG", "trace").env("TOKEN", "CANARY-token").env("HOOK", "CANARY-hook");
    command.env("SIGNS", "CANARY-signs").stderr(std::fs::File::create(folder.join("log")).unwrap());
    Process::start(&mut command)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_at_any_level_has_no_payload_key_token_or_secret() {
    let (url, _requests, _target) = target("HTTP/1.1 204 No Content\r\n\r\n").await;
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    let mut process = start(folder.path(), &url);
    let client = Client::new();
    let ask = async |method: Method, path: &str, token: &str, body: &str| {
        let request = client.request(method, format!("{}{path}", process.url));
        let request = request.bearer_auth(token).header("content-type", "application/json");
        let answer = request.body(body.to_owned()).send().await.unwrap();
        serde_json::from_str(&answer.text().await.unwrap()).unwrap_or(Value::Null)
    };
    let payload = r#"{"repo":"CANARY-key","text":"CANARY-payload"}"#;
    let body = format!("{{\"payload\":{payload}}}");
    let mut jobs = Vec::new();
    for task in ["build", "prints", "call"] {
        let path = format!("/v1/tasks/{task}/triggers");
        jobs.push(ask(Method::POST, &path, "CANARY-token", &body).await["job"].clone());
    }
    for (path, token, body) in [
        ("/v1/tasks/build/triggers", "CANARY-wrong", body.as_str()),
        ("/v1/tasks/build/triggers", "CANARY-token", r#"{"payload":{"repo":"CANARY-cut"#),
        ("/v1/tasks/build/triggers", "CANARY-token", r#"{"payload":1,"delay":"CANARY-delay"}"#),
        ("/v1/tasks/elsewhere/triggers", "CANARY-token", body.as_str()),
        ("/in/hook", "CANARY-hook", payload),
        ("/in/hook", "CANARY-forged", payload),
    ] {
        ask(Method::POST, path, token, body).await;
    }
    let worker = json!({ "incarnation": 1 });
    let claim = json!({ "tasks": ["elsewhere"], "wait": "10s", "process": worker }).to_string();
    let claimed = ask(Method::POST, "/v1/workers/w/claim", "CANARY-token", &claim).await;
    let lease = claimed["jobs"][0]["lease"].clone();
    let settlement = json!({ "lease": lease, "outcome": "succeeded", "output": "CANARY-output" });
    let settle = json!({ "settlements": [settlement], "process": worker }).to_string();
    ask(Method::POST, "/v1/workers/w/settle", "CANARY-token", &settle).await;
    let deadline = Instant::now() + Duration::from_secs(40);
    for job in jobs {
        let path = format!("/v1/jobs/{}", job.as_str().unwrap());
        while ask(Method::GET, &path, "CANARY-token", "").await["job"]["state"] != "succeeded" {
            assert!(Instant::now() < deadline, "{job} never ended");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    ask(Method::GET, "/v1/tasks/build/windows?key=CANARY-key", "CANARY-token", "").await;
    process.signal("-TERM");
    assert!(process.child.wait().unwrap().success());
    let text = std::fs::read_to_string(&log).unwrap();
    assert!(text.contains("TRACE") && text.contains("attempt succeeded"), "{text}");
    let shown: Vec<&str> = text.lines().filter(|line| line.contains("CANARY")).collect();
    assert!(shown.is_empty(), "{}", shown.join("\n"));
}
