//! Requirement 7: callers that are slow, or many, and a limit of open files that is reached.

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::binary::{Process, quell};
use crate::served::{answer, raise_open_files};

struct Scene {
    folder: TempDir,
    process: Process,
    client: reqwest::Client,
}

/// A server with a task that runs at once and one that ends when its file is there.
fn serve(program: impl FnOnce(&str) -> Command) -> Scene {
    // Of this process: it has the other end of each connection.
    raise_open_files();
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("quell.toml");
    let end = folder.path().join("end");
    let text = format!(
        "[server]\nlisten = \"127.0.0.1:0\"\n[store]\nurl = \"sqlite://{}\"\nsynchronous = \"normal\"\n\
         [tasks.now]\nretry = {{ min_backoff = \"10ms\", max_backoff = \"50ms\", max_attempts = 1000 }}\n\
         exec = {{ command = [\"true\"] }}\n\
         [tasks.slow]\nexec = {{ command = [\"sh\", \"-c\", \"until [ -e {} ]; do sleep 0.02; done\"] }}\n",
        folder.path().join("q.db").display(),
        end.display(),
    );
    std::fs::write(&config, text).unwrap();
    let log = std::fs::File::create(folder.path().join("log")).unwrap();
    let process = Process::start(program(config.to_str().unwrap()).stderr(log));
    let client = reqwest::Client::builder().pool_max_idle_per_host(0).no_proxy().build().unwrap();
    Scene { folder, process, client }
}

fn plain(config: &str) -> Command {
    quell(&["serve", "--config", config])
}

impl Scene {
    async fn connect(&self) -> TcpStream {
        let address = self.process.url.strip_prefix("http://").unwrap();
        TcpStream::connect(address).await.unwrap()
    }

    async fn healthy(&self) -> bool {
        let asked = self.client.get(format!("{}/v1/healthz", self.process.url)).send().await;
        asked.is_ok_and(|response| response.status() == 200)
    }

    async fn trigger(&self, task: &str) -> String {
        let url = format!("{}/v1/tasks/{task}/triggers", self.process.url);
        let request = self.client.post(url).header("content-type", "application/json");
        let (status, reply) = answer(request.body(r#"{"payload":1}"#).send().await.unwrap()).await;
        assert_eq!(status, 202, "{reply}");
        reply["job"].as_str().unwrap().to_owned()
    }

    async fn reaches(&self, job: &str, state: &str) {
        let url = format!("{}/v1/jobs/{job}", self.process.url);
        let deadline = Instant::now() + Duration::from_secs(40);
        loop {
            let (_, shown) = answer(self.client.get(&url).send().await.unwrap()).await;
            if shown["job"]["state"] == state {
                return;
            }
            assert!(Instant::now() < deadline, "never {state}: {shown:#}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap()
    }

    fn end(&self) -> PathBuf {
        self.folder.path().join("end")
    }
}

/// Twice as many as there may be at once.
#[tokio::test]
async fn two_thousand_slow_callers_hold_up_no_other() {
    let scene = serve(plain);
    let pages = "GET /v1/openapi.json HTTP/1.1\r\nhost: localhost\r\n\r\n".repeat(40);
    let mut slow = Vec::new();
    for n in 0..2_000 {
        let mut stream = scene.connect().await;
        let sent: &[u8] = match n % 4 {
            0 => b"",
            1 => b"GET /v1/jobs HTTP/1.1\r\nhost: loc",
            2 => {
                b"POST /v1/tasks/now/triggers HTTP/1.1\r\nhost: localhost\r\n\
                   content-type: application/json\r\ncontent-length: 1000\r\n\r\n{"
            }
            // It reads none of its responses.
            _ => pages.as_bytes(),
        };
        stream.write_all(sent).await.unwrap();
        slow.push(stream);
        if n % 200 == 199 {
            assert!(scene.healthy().await, "{n}");
            scene.trigger("now").await;
        }
    }
    let job = scene.trigger("now").await;
    scene.reaches(&job, "succeeded").await;
    // The first were closed for the last.
    let mut rest = Vec::new();
    let ended = slow[0].read_to_end(&mut rest);
    let ended = tokio::time::timeout(Duration::from_secs(5), ended).await;
    assert!(ended.is_ok() && rest.is_empty(), "{ended:?}");
}

#[tokio::test]
async fn open_files_that_run_out_stop_no_job_and_no_request_for_long() {
    let scene = serve(plain);
    let running = scene.trigger("slow").await;
    scene.reaches(&running, "running").await;
    let pid = scene.process.child.id();
    let files = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count();
    let limit = |files: usize| {
        let set = ["--pid".to_owned(), pid.to_string(), format!("--nofile={files}:")];
        assert!(Command::new("prlimit").args(set).status().unwrap().success());
    };
    let begun = Instant::now();
    limit(files + 4);
    let mut open = Vec::new();
    let deadline = Instant::now() + Duration::from_secs(30);
    while !scene.log().contains("cannot accept connections, retrying") {
        assert!(Instant::now() < deadline, "it never fails");
        let connected = tokio::time::timeout(Duration::from_millis(50), scene.connect()).await;
        open.extend(connected.ok());
    }
    // Idle connections are closed, so requests go on meanwhile.
    while !scene.healthy().await {
        assert!(Instant::now() < deadline, "no answer");
    }
    std::fs::write(scene.end(), "").unwrap();
    scene.reaches(&running, "succeeded").await;
    let lines = scene.log().matches("cannot accept connections").count();
    // One in 10 s: accepting goes on in between without a line.
    let most = begun.elapsed().as_secs() / 10 + 2;
    assert!(lines as u64 <= most, "the log has {lines} lines of it");
    drop(open);
    limit(files + 200);
    let job = scene.trigger("now").await;
    scene.reaches(&job, "succeeded").await;
}

#[tokio::test]
async fn connections_leave_open_files_to_jobs() {
    let scene = serve(|config| {
        let mut command = Command::new("prlimit");
        command.args(["--nofile=120", env!("CARGO_BIN_EXE_quell"), "serve", "--config", config]);
        command.env("QUELL_LOG", "warn");
        command
    });
    let mut open = Vec::new();
    for _ in 0..300 {
        open.push(scene.connect().await);
    }
    for _ in 0..5 {
        let job = scene.trigger("now").await;
        scene.reaches(&job, "succeeded").await;
        let url = format!("{}/v1/jobs/{job}", scene.process.url);
        let (_, shown) = answer(scene.client.get(url).send().await.unwrap()).await;
        let attempts: &Value = &shown["attempts"];
        assert_eq!(attempts.as_array().map(Vec::len), Some(1), "{shown:#}");
    }
    assert!(!scene.log().contains("cannot accept"), "{}", scene.log());
}
