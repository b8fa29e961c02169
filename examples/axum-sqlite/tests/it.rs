//! The program as its users see it: over HTTP, with a signal, and started again on its file.
#![expect(clippy::unwrap_used, reason = "these are tests")]

use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use reqwest::StatusCode;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

const PATIENCE: Duration = Duration::from_secs(60);

/// A running service.
struct Service {
    process: Child,
    lines: Lines<BufReader<ChildStdout>>,
    url: String,
    http: reqwest::Client,
}

impl Service {
    async fn start(folder: &TempDir) -> Service {
        let file = folder.path().join("app.db");
        let mut process = Command::new(env!("CARGO_BIN_EXE_axum-sqlite"))
            .args([file.as_path(), Path::new("127.0.0.1:0")])
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let line = tokio::time::timeout(PATIENCE, lines.next_line()).await.unwrap().unwrap();
        let url = line.unwrap().strip_prefix("listening on ").unwrap().to_owned();
        Service { process, lines, url, http: reqwest::Client::new() }
    }

    async fn order(&self, customer: i64, cents: i64) {
        let order = json!({ "customer": customer, "cents": cents });
        let request = self.http.post(format!("{}/orders", self.url)).json(&order);
        assert_eq!(request.send().await.unwrap().status(), StatusCode::ACCEPTED);
    }

    async fn get(&self, path: &str) -> (StatusCode, String) {
        let response = self.http.get(format!("{}{path}", self.url)).send().await.unwrap();
        (response.status(), response.text().await.unwrap())
    }

    async fn statement(&self, customer: i64, key: &str) -> (StatusCode, String) {
        let path = format!("{}/customers/{customer}/statements", self.url);
        let request = self.http.post(path).header("idempotency-key", key);
        let response = request.send().await.unwrap();
        (response.status(), response.text().await.unwrap())
    }

    /// Waits until a response has one of these bodies.
    async fn wait_for(&self, path: &str, bodies: &[String]) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let (_, now) = self.get(path).await;
            if bodies.contains(&now) {
                return;
            }
            assert!(Instant::now() < deadline, "{path} stays at {now}, not {bodies:?}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Sends SIGTERM and waits for the end of the process.
    async fn terminate(mut self) {
        let id = self.process.id().unwrap().to_string();
        assert!(Command::new("kill").args(["-TERM", &id]).status().await.unwrap().success());
        let ended = tokio::time::timeout(PATIENCE, self.process.wait()).await.unwrap().unwrap();
        assert!(ended.success(), "{ended}");
        assert_eq!(self.lines.next_line().await.unwrap().as_deref(), Some("stopped"));
    }
}

/// Requires that the README shows this response, where the job has the number 2.
fn is_in_the_readme(body: &str, job: &str) {
    let shown = body.replace(&format!(r#""job":"{job}""#), r#""job":"2""#);
    let is_shown = include_str!("../README.md").lines().any(|line| line == shown);
    assert!(is_shown, "the README does not show {shown}");
}

fn job_of(body: &str) -> String {
    serde_json::from_str::<Value>(body).unwrap()["job"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn the_session_in_the_readme() {
    let folder = tempfile::tempdir().unwrap();
    let service = Service::start(&folder).await;
    assert_eq!(service.get("/customers/7").await.0, StatusCode::NOT_FOUND);
    for cents in [100, 200, 300] {
        service.order(7, cents).await;
    }
    // On a machine that is busy enough, a pause between two orders may end the burst.
    let totals = [1, 2, 3].map(|runs| format!(r#"{{"cents":600,"runs":{runs}}}"#));
    service.wait_for("/customers/7", &totals).await;
    is_in_the_readme(&totals[0], "none");

    let requested = service.statement(7, "statement-2026-11").await;
    assert_eq!(requested.0, StatusCode::ACCEPTED);
    let job = job_of(&requested.1);
    is_in_the_readme(&requested.1, &job);
    assert_eq!(service.statement(7, "statement-2026-11").await, requested, "the same job");
    assert_eq!(service.statement(8, "statement-2026-11").await.0, StatusCode::CONFLICT);
    let (_, result) = service.get(&format!("/jobs/{job}?seconds=10")).await;
    is_in_the_readme(&result, &job);
    assert_eq!(service.get("/jobs/99").await.0, StatusCode::NOT_FOUND);
    assert_eq!(service.statement(7, "").await.0, StatusCode::BAD_REQUEST);
    service.terminate().await;
}

#[tokio::test]
async fn r29_sigterm_lets_the_running_attempt_finish_and_results_stay() {
    let folder = tempfile::tempdir().unwrap();
    let service = Service::start(&folder).await;
    service.order(7, 100).await;
    let requested = service.statement(7, "s").await.1;
    let job = job_of(&requested);
    let path = format!("/jobs/{job}");
    let deadline = Instant::now() + PATIENCE;
    while service.get(&path).await.1.contains("scheduled") {
        assert!(Instant::now() < deadline, "the statement does not start");
    }
    service.terminate().await;
    let again = Service::start(&folder).await;
    let (status, result) = again.get(&path).await;
    assert_eq!(status, StatusCode::OK);
    assert!(result.contains(r#""state":"succeeded""#), "{result}");
    // The total may not have been due before the stop: the next start updates it.
    again.wait_for("/customers/7", &[r#"{"cents":100,"runs":1}"#.to_owned()]).await;
    again.terminate().await;
}
