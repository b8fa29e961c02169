//! Workers in Python and TypeScript among servers and workers that are killed: nothing that was accepted
//! is lost, and the histories of the servers keep every promise (R1, R2, R11, R21).

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde::Deserialize;
use serde_json::{Value, json};

use super::{folder, python};
use crate::binary::{Process, quell};
use crate::served::free_port;

const TASKS: &str = r#"
[tasks.stamp]
pull = true
key = "{{ key }}"
debounce = { min = "20ms", max = "500ms" }
payload = "collect"
retry = { min_backoff = "50ms", max_attempts = 1000, max_crashes = 1000 }
"#;

/// Kills of servers and workers, in turn.
const KILLS: usize = 12;
/// Keys of triggers.
const KEYS: u64 = 16;
/// Attempts that end between two kills.
const WORK: usize = 12;
/// Nothing takes longer, however loaded the machine is.
const PATIENCE: Duration = Duration::from_secs(90);

/// A line that a worker stamps.
#[derive(Debug, Deserialize)]
struct Stamp {
    job: String,
    fencing_token: String,
    starts: u64,
    payload: Vec<Value>,
    event: String,
}

/// The workers, each with the file that it stamps.
struct Workers {
    folder: PathBuf,
    url: String,
    running: Vec<Child>,
    started: usize,
}

impl Workers {
    /// The program of a worker's place: threads, asyncio, Node.js.
    fn program(place: usize) -> Command {
        match place % 3 {
            2 => {
                let mut node = quell_services::node().unwrap();
                node.arg(folder("typescript").join("test/witness.mjs"));
                node
            }
            place => {
                let mut python = python();
                python.arg(folder("python").join("tests/witness.py"));
                python.args((place == 1).then_some("--asyncio"));
                python
            }
        }
    }

    fn start(&mut self, place: usize) {
        self.started += 1;
        let mut worker = Workers::program(place);
        worker.arg(self.folder.join(format!("stamps-{}", self.started)));
        worker.env("QUELL_SERVER", &self.url).stdout(Stdio::null()).stderr(Stdio::null());
        let child = worker.spawn().unwrap();
        if place < self.running.len() {
            self.running[place] = child;
        } else {
            self.running.push(child);
        }
    }

    /// Kills a worker, and starts another in its place.
    fn kill(&mut self, place: usize) {
        self.running[place].kill().unwrap();
        self.running[place].wait().unwrap();
        self.start(place);
    }

    fn stamps(&self) -> Vec<Stamp> {
        let mut stamps = Vec::new();
        for number in 1..=self.started {
            let path = self.folder.join(format!("stamps-{number}"));
            let text = std::fs::read_to_string(path).unwrap_or_default();
            // A kill may leave half a line.
            stamps.extend(text.lines().filter_map(|line| serde_json::from_str(line).ok()));
        }
        stamps
    }

    fn ended(&self) -> usize {
        self.stamps().iter().filter(|stamp| stamp.event == "end").count()
    }

    /// Waits until the server lists all workers that run: then they handle signals.
    async fn all_up(&self) {
        let deadline = Instant::now() + PATIENCE;
        let pids: BTreeSet<u64> = self.running.iter().map(|worker| worker.id().into()).collect();
        loop {
            let answer = reqwest::get(format!("{}/v1/workers", self.url)).await.unwrap();
            let workers: Value = answer.json().await.unwrap();
            let rows = workers["workers"].as_array().unwrap().iter();
            let up: BTreeSet<u64> = rows.filter_map(|row| row["pid"].as_u64()).collect();
            if pids.is_subset(&up) {
                return;
            }
            assert!(Instant::now() < deadline, "of {pids:?} only {up:?} are up");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Ends all by SIGTERM; each must end in order.
    async fn stop(&mut self) {
        self.all_up().await;
        for worker in &self.running {
            let status = Command::new("kill").arg(worker.id().to_string()).status();
            assert!(status.unwrap().success());
        }
        for worker in &mut self.running {
            let deadline = Instant::now() + PATIENCE;
            let status = loop {
                match worker.try_wait().unwrap() {
                    Some(status) => break status,
                    None => assert!(Instant::now() < deadline, "a worker does not end"),
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            };
            assert!(status.success(), "a worker ended with {status}");
        }
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        for worker in &mut self.running {
            // It may have ended by itself.
            let _ended = worker.kill();
            let _reaped = worker.wait();
        }
    }
}

/// A server on one port and store, with a history for each of its processes.
struct Servers {
    folder: PathBuf,
    running: Option<Process>,
    started: usize,
}

impl Servers {
    fn start(&mut self) -> String {
        self.started += 1;
        let history = self.folder.join(format!("history-{}.jsonl", self.started));
        let config = self.folder.join("quell.toml");
        let server = Process::serve(&config, &["--history", history.to_str().unwrap()]);
        let url = server.url.clone();
        self.running = Some(server);
        url
    }

    fn kill(&mut self) {
        // Dropping it kills it.
        self.running = None;
        self.start();
    }
}

fn write_config(folder: &Path, port: u16) {
    let text = format!(
        "[server]\nlisten = \"127.0.0.1:{port}\"\n[store]\nurl = \"sqlite://{}\"\n\
         synchronous = \"normal\"\n{TASKS}",
        folder.join("q.db").display()
    );
    std::fs::write(folder.join("quell.toml"), text).unwrap();
}

/// Triggers until the deadline of the run; returns the numbers that were accepted.
async fn trigger_until(url: String, stop: tokio_util::sync::CancellationToken) -> BTreeSet<u64> {
    let client = reqwest::Client::new();
    let mut accepted = BTreeSet::new();
    for number in 0_u64.. {
        if stop.is_cancelled() {
            break;
        }
        let key = number % KEYS;
        let payload = json!({"key": format!("k{key}"), "n": number, "ms": number % 7});
        let body = json!({"payload": payload, "dedup": format!("n{number}")}).to_string();
        let deadline = Instant::now() + PATIENCE;
        loop {
            let request = client.post(format!("{url}/v1/tasks/stamp/triggers"));
            let request = request.header("content-type", "application/json").body(body.clone());
            // A repeat of a trigger whose answer got lost is a duplicate.
            if request.send().await.is_ok_and(|answer| answer.status() == 202) {
                accepted.insert(number);
                break;
            }
            assert!(Instant::now() < deadline, "the server does not accept {number}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        tokio::time::sleep(Duration::from_millis(4)).await;
    }
    accepted
}

/// Waits until all jobs have ended.
async fn settled(url: &str) {
    let client = reqwest::Client::new();
    let deadline = Instant::now() + PATIENCE;
    loop {
        let mut open = 0;
        for state in ["scheduled", "running"] {
            let page = client.get(format!("{url}/v1/jobs?state={state}")).send().await.unwrap();
            let page: Value = page.json().await.unwrap();
            open += page["jobs"].as_array().unwrap().len();
        }
        if open == 0 {
            return;
        }
        assert!(Instant::now() < deadline, "{open} jobs do not end");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn r01_r02_r21_pull_workers_lose_nothing_under_kills() {
    let temporary = tempfile::tempdir().unwrap();
    let folder = temporary.path();
    write_config(folder, free_port());
    let mut servers = Servers { folder: folder.to_owned(), running: None, started: 0 };
    let url = servers.start();
    let mut workers =
        Workers { folder: folder.to_owned(), url: url.clone(), running: Vec::new(), started: 0 };
    (0..3).for_each(|place| workers.start(place));
    let stop = tokio_util::sync::CancellationToken::new();
    let mut callers = tokio::task::JoinSet::new();
    callers.spawn(trigger_until(url.clone(), stop.clone()));
    for kill in 0..KILLS {
        let (before, deadline) = (workers.ended(), Instant::now() + PATIENCE);
        while workers.ended() < before + WORK {
            assert!(Instant::now() < deadline, "no work is done after {kill} kills");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        match kill % 4 {
            0 => servers.kill(),
            place => workers.kill(place - 1),
        }
    }
    stop.cancel();
    let accepted = callers.join_next().await.unwrap().unwrap();
    settled(&url).await;
    workers.stop().await;
    let stamps = workers.stamps();
    every_trigger_ran(&accepted, &stamps);
    attempts_are_told_apart(&stamps);
    let store = format!("sqlite://{}", folder.join("q.db").display());
    drop(servers.running.take());
    let histories = (1..=servers.started).map(|n| folder.join(format!("history-{n}.jsonl")));
    let histories: Vec<String> = histories.map(|path| path.display().to_string()).collect();
    let mut check = quell(&["check", "--store", &store]);
    let output = check.args(&histories).output().unwrap();
    let text =
        String::from_utf8_lossy(&[&output.stdout[..], &output.stderr[..]].concat()).into_owned();
    assert!(output.status.success(), "{text}");
    eprintln!("{} triggers, {} stamps\n{text}", accepted.len(), stamps.len());
}

/// Every accepted trigger is in the payload of an attempt that ended.
fn every_trigger_ran(accepted: &BTreeSet<u64>, stamps: &[Stamp]) {
    let ended = stamps.iter().filter(|stamp| stamp.event == "end");
    let ran: BTreeSet<u64> =
        ended.flat_map(|stamp| &stamp.payload).filter_map(|one| one["n"].as_u64()).collect();
    let lost: Vec<_> = accepted.difference(&ran).collect();
    assert!(lost.is_empty(), "accepted and never run: {lost:?}");
    assert!(accepted.len() > KILLS * WORK, "{} triggers", accepted.len());
}

/// No two attempts have one fencing token, and a token begins with the number of the start.
fn attempts_are_told_apart(stamps: &[Stamp]) {
    let mut tokens: BTreeMap<(&str, u64), BTreeSet<&str>> = BTreeMap::new();
    for stamp in stamps {
        assert!(stamp.fencing_token.starts_with(&format!("{}-", stamp.starts)), "{stamp:?}");
        tokens.entry((&stamp.job, stamp.starts)).or_default().insert(&stamp.fencing_token);
    }
    let twice: Vec<_> = tokens.iter().filter(|(_, tokens)| tokens.len() > 1).collect();
    assert!(twice.is_empty(), "one start, two tokens: {twice:?}");
    let runs = stamps.iter().filter(|stamp| stamp.event == "start").count();
    let distinct: BTreeSet<_> = stamps.iter().map(|one| (&one.job, &one.fencing_token)).collect();
    assert_eq!(runs, distinct.len(), "an attempt was run twice");
}
