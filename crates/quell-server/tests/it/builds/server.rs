//! A server of one build, and short words for what tests ask of it.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use quell::history::Event;
use quell::job::AttemptOutcome;
use quell_check::Line;
use quell_server::history::host_time;
use reqwest::{Client, Method};
use serde_json::{Value, json};

use super::build::Build;
use crate::binary::Process;
use crate::served::answer;

/// Nothing takes longer, however loaded the machine is.
const PATIENCE: Duration = Duration::from_secs(120);

/// A server with one slot. Its handlers say which build ran them.
pub(super) struct Server {
    pub(super) build: Build,
    process: Process,
    folder: PathBuf,
    client: Client,
}

impl Server {
    /// Starts `quell serve` of a build on a store. Its history is in the folder.
    pub(super) fn start(build: Build, folder: &Path, url: &str) -> Server {
        let (config, history) = files(build, folder, url);
        let args = ["serve", "--config", &config, "--history", &history];
        let process = Process::start(&mut build.quell(&args));
        // A server ends idle connections, which a client notices too late.
        let client = Client::builder().pool_max_idle_per_host(0).build().unwrap();
        Server { build, process, folder: folder.to_owned(), client }
    }

    pub(super) fn pid(&self) -> u32 {
        self.process.child.id()
    }

    pub(super) fn url(&self) -> &str {
        &self.process.url
    }

    pub(super) async fn ask(&self, method: Method, path: &str, body: &Value) -> (u16, Value) {
        let request = self.client.request(method, format!("{}{path}", self.process.url));
        let request = request.header("content-type", "application/json").body(body.to_string());
        answer(request.send().await.unwrap()).await
    }

    pub(super) async fn get(&self, path: &str) -> Value {
        let (status, reply) = self.ask(Method::GET, path, &Value::Null).await;
        assert_eq!(status, 200, "{path}: {reply:#}");
        reply
    }

    pub(super) async fn post(&self, path: &str, body: &Value) -> Value {
        let (status, reply) = self.ask(Method::POST, path, body).await;
        assert!(status < 300, "{path} {body}: {reply:#}");
        reply
    }

    /// Triggers as the body says; the receipt.
    pub(super) async fn trigger(&self, task: &str, body: Value) -> Value {
        self.post(&format!("/v1/tasks/{task}/triggers"), &body).await
    }

    /// Triggers with this payload; the job.
    pub(super) async fn job(&self, task: &str, payload: Value) -> String {
        let receipt = self.trigger(task, json!({ "payload": payload })).await;
        receipt["job"].as_str().unwrap().to_owned()
    }

    /// Waits until a job is in this state; what is known of it.
    pub(super) async fn is(&self, job: &str, state: &str) -> Value {
        let path = format!("/v1/jobs/{job}");
        self.until(&path, |reply| reply["job"]["state"] == state).await
    }

    /// Waits until a job has succeeded, by the hands of this build; what its handler got. Where a lease
    /// expired before, on a machine too busy to renew it, either build may have run the job again.
    pub(super) async fn ran_by(&self, job: &str, build: Build) -> Value {
        let reply = self.is(job, "succeeded").await;
        let output = &reply["job"]["output"];
        let attempts = reply["attempts"].as_array().unwrap();
        let expired = AttemptOutcome::LeaseExpired.name();
        if !attempts.iter().any(|attempt| attempt["outcome"] == expired) {
            assert_eq!(output["by"], build.name(), "{reply:#}");
        }
        output["got"].clone()
    }

    /// Waits until what is at a path is so.
    pub(super) async fn until(&self, path: &str, is_so: impl Fn(&Value) -> bool) -> Value {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let (status, reply) = self.ask(Method::GET, path, &Value::Null).await;
            // A store may be slow on a busy machine.
            assert!([200, 408].contains(&status), "{path}: {reply:#}");
            if status == 200 && is_so(&reply) {
                return reply;
            }
            assert!(Instant::now() < deadline, "{path} of {:?}: {reply:#}", self.build);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Takes its slot, so that only others run anything until [`Slot::free`].
    pub(super) async fn take_slot(&self) -> Slot<'_> {
        let file = self.file();
        let task = format!("hold-{}", self.build.name());
        let job = self.job(&task, json!(file)).await;
        self.is(&job, "running").await;
        Slot { server: self, job, file }
    }

    /// The name of a file that is not there yet.
    pub(super) fn file(&self) -> PathBuf {
        self.folder.join(format!("file-{:016x}", fastrand::u64(..)))
    }

    /// Waits until its history is so.
    pub(super) async fn until_recorded(&self, what: &str, is_so: impl Fn(&[Value]) -> bool) {
        let history = self.folder.join(format!("{}.jsonl", self.build.name()));
        let deadline = Instant::now() + PATIENCE;
        loop {
            let text = std::fs::read_to_string(&history).unwrap();
            // The last line may not be whole yet.
            let lines: Vec<Value> =
                text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
            if is_so(&lines) {
                return;
            }
            assert!(Instant::now() < deadline, "{:?} never recorded {what}", self.build);
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// What the command prints, asking this server with the program of a build.
    pub(super) fn command(&self, build: Build, args: &[&str]) -> String {
        printed(build, &[args, &["--server", self.url()]].concat())
    }

    /// Ends it in order.
    pub(super) fn stop(mut self) {
        self.process.signal("-TERM");
        let status = self.process.child.wait().unwrap();
        assert!(status.success(), "{:?} ended with {status}", self.build);
    }

    /// Kills it, and says so in a history, as the checker wants to know.
    pub(super) fn kill(mut self) {
        self.process.child.kill().unwrap();
        self.process.child.wait().unwrap();
        let whom = self.process.child.id().to_string();
        let line =
            Line::new("test", Event::Fault { t: host_time(), what: "kill".to_owned(), whom });
        let text = format!("{}\n", serde_json::to_string(&line).unwrap());
        let file = self.folder.join("deaths.jsonl");
        let file = File::options().create(true).append(true).open(file);
        file.unwrap().write_all(text.as_bytes()).unwrap();
    }
}

/// A server's slot that is taken.
pub(super) struct Slot<'s> {
    server: &'s Server,
    job: String,
    file: PathBuf,
}

impl Slot<'_> {
    pub(super) async fn free(self) {
        std::fs::write(&self.file, "").unwrap();
        self.server.is(&self.job, "succeeded").await;
    }
}

/// What a command of a build prints; it must succeed.
pub(super) fn printed(build: Build, args: &[&str]) -> String {
    let output = build.quell(args).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{build:?} {args:?}: {said}");
    String::from_utf8(output.stdout).unwrap()
}

/// What the server of a build that is refused says.
pub(super) fn refused(build: Build, folder: &Path, url: &str) -> String {
    let (config, history) = files(build, folder, url);
    let args = ["serve", "--config", &config, "--history", &history];
    let output = build.quell(&args).output().unwrap();
    assert!(!output.status.success(), "{build:?} serves a store that it should refuse");
    String::from_utf8(output.stderr).unwrap()
}

/// Writes the configuration of a build's server; the names of that and of the history.
fn files(build: Build, folder: &Path, url: &str) -> (String, String) {
    let config = folder.join(format!("{}.toml", build.name()));
    // Azurite is slow on a busy machine, and a lease that expires by chance repeats a run.
    let lease = if url.starts_with("azure") { "15s" } else { "5s" };
    let text = include_str!("quell.toml").replace("{url}", url).replace("{build}", build.name());
    let text = text.replace("{lease}", lease);
    std::fs::write(&config, text).unwrap();
    let text = |path: PathBuf| path.into_os_string().into_string().unwrap();
    (text(config), text(folder.join(format!("{}.jsonl", build.name()))))
}
