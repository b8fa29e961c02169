//! `quell tail`: lines of what happens, from a server and from a store.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use serde_json::Value;

use crate::binary::{Process, quell};
use crate::program::wait_for;
use crate::served::free_port;

const TASKS: &str = r#"
[queues.paused]
paused = true

[tasks.good]
key = "{{ k }}"
partition = "{{ p }}"
exec = { command = ["true"] }

[tasks.bad]
retry = { max_attempts = 2, min_backoff = "1ms", max_backoff = "1ms" }
exec = { command = ["sh", "-c", "echo no luck >&2; exit 1"] }

[tasks.waits]
queue = "paused"
exec = { command = ["true"] }
"#;

fn configure(folder: &Path, port: u16) -> std::path::PathBuf {
    let config = folder.join("quell.toml");
    let store = folder.join("q.db");
    let text = format!(
        "[server]\nlisten = \"127.0.0.1:{port}\"\n[store]\nurl = \"sqlite://{}\"\n{TASKS}",
        store.display()
    );
    std::fs::write(&config, text).unwrap();
    config
}

fn store(folder: &Path) -> String {
    format!("sqlite://{}", folder.join("q.db").display())
}

/// A running `quell tail`, which dies with the test.
struct Tail {
    child: Child,
    lines: Receiver<String>,
    notes: Receiver<String>,
}

fn lines_of(out: impl std::io::Read + Send + 'static) -> Receiver<String> {
    let (send, receive) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(out).lines().map_while(Result::ok) {
            if send.send(line).is_err() {
                return;
            }
        }
    });
    receive
}

impl Tail {
    /// Starts it and waits until it follows.
    fn start(command: &mut Command) -> Tail {
        let command = command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let lines = lines_of(child.stdout.take().unwrap());
        let notes = lines_of(child.stderr.take().unwrap());
        let tail = Tail { child, lines, notes };
        assert_eq!(tail.note(), "following");
        tail
    }

    fn of(args: &[&str]) -> Tail {
        Tail::start(&mut quell(&[&["tail", "--every", "100ms"], args].concat()))
    }

    fn line(&self) -> String {
        self.lines.recv_timeout(Duration::from_secs(30)).expect("a line")
    }

    fn note(&self) -> String {
        self.notes.recv_timeout(Duration::from_secs(30)).expect("a note")
    }

    /// The next line as JSON: what happened to which job, and the whole line.
    fn json(&self) -> (String, String, Value) {
        let line = self.line();
        let read: Value = serde_json::from_str(&line).unwrap_or_else(|e| panic!("{e}: {line}"));
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        (text(&read["event"]), text(&read["job"]["id"]), read)
    }

    fn interrupt(&mut self) -> Option<i32> {
        let id = self.child.id().to_string();
        assert!(Command::new("kill").args(["-INT", &id]).status().unwrap().success());
        self.child.wait().unwrap().code()
    }
}

impl Drop for Tail {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ended = self.child.kill();
        let _reaped = self.child.wait();
    }
}

fn trigger(process: &Process, args: &[&str]) {
    let done = process.ask(&[&["trigger"], args].concat());
    assert!(done.status.success(), "{done:?}");
}

/// The next events until this one of this job, by job.
fn until(tail: &Tail, event: &str, job: &str) -> Vec<(String, String)> {
    let mut all = Vec::new();
    loop {
        let (what, id, _) = tail.json();
        all.push((what.clone(), id.clone()));
        if (what.as_str(), id.as_str()) == (event, job) {
            return all;
        }
    }
}

fn of_job<'e>(events: &'e [(String, String)], job: &str) -> Vec<&'e str> {
    let own = events.iter().filter(|(_, id)| id == job);
    own.map(|(event, _)| event.as_str()).collect()
}

#[test]
fn jobs_are_followed_from_their_trigger_to_their_end_at_a_server_and_on_a_store() {
    let folder = tempfile::tempdir().unwrap();
    let process = Process::serve(&configure(folder.path(), 0), &[]);
    // What was there before is no news.
    trigger(&process, &["waits"]);
    let store = store(folder.path());
    let tails =
        [Tail::of(&["--json", "--server", &process.url]), Tail::of(&["--json", "--store", &store])];
    trigger(&process, &["good", r#"{"k":"a","p":"acme"}"#]);
    trigger(&process, &["bad"]);
    for mut tail in tails {
        let mut events = until(&tail, "died", "3");
        if of_job(&events, "2").last() != Some(&"succeeded") {
            events.extend(until(&tail, "succeeded", "2"));
        }
        assert_eq!(of_job(&events, "2"), ["accepted", "started", "succeeded"]);
        let bad = of_job(&events, "3");
        assert!(bad.first() == Some(&"accepted") && bad.contains(&"started"), "{bad:?}");
        assert!(of_job(&events, "1").is_empty(), "{events:?}");
        assert_eq!(tail.interrupt(), Some(0));
    }
}

#[test]
fn filters_choose_jobs_and_events() {
    let folder = tempfile::tempdir().unwrap();
    let process = Process::serve(&configure(folder.path(), 0), &[]);
    let table: [(&[&str], &[&str]); 6] = [
        (&["--task", "waits"], &["accepted waits"]),
        (&["--queue", "paused"], &["accepted waits"]),
        (&["--key", "a"], &["accepted good", "started good", "succeeded good"]),
        (&["--partition", "acme", "--state", "succeeded"], &["succeeded good"]),
        (&["--state", "dead", "--error", "NO LUCK"], &["died bad"]),
        (&["--late", "1ms", "--task", "waits"], &["late waits"]),
    ];
    let tails: Vec<Tail> = table
        .iter()
        .map(|(filter, _)| Tail::of(&[&["--server", &process.url], *filter].concat()))
        .collect();
    trigger(&process, &["good", r#"{"k":"a","p":"acme"}"#]);
    trigger(&process, &["good", r#"{"k":"b","p":"other"}"#]);
    trigger(&process, &["bad"]);
    trigger(&process, &["waits"]);
    for (tail, (filter, expected)) in tails.iter().zip(table) {
        for event in expected {
            let line = tail.line();
            let words: Vec<&str> = line.split_whitespace().collect();
            assert_eq!(format!("{} {}", words[1], words[4]), *event, "{filter:?}: {line}");
        }
    }
    for wrong in [["--every", "1ms"], ["--cause", "no luck"]] {
        let refused = quell(&[&["tail"][..], &wrong].concat()).output().unwrap();
        assert_eq!(refused.status.code(), Some(2), "{refused:?}");
    }
}

#[test]
fn more_jobs_than_a_page_between_two_looks_are_all_followed() {
    let folder = tempfile::tempdir().unwrap();
    let process = Process::serve(&configure(folder.path(), 0), &[]);
    let tail = Tail::start(&mut quell(&[
        "tail",
        "--every",
        "500ms",
        "--json",
        "--state",
        "scheduled",
        "--server",
        &process.url,
    ]));
    let batch = vec![r#"{"payload":{}}"#; 700].join(",");
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let accepted = runtime.block_on(async {
        let url = format!("{}/v1/tasks/waits/triggers", process.url);
        let request = reqwest::Client::new().post(url).header("content-type", "application/json");
        request.body(format!("[{batch}]")).send().await.unwrap().status()
    });
    assert_eq!(accepted, 202);
    let mut ids: Vec<u64> = (0..700).map(|_| tail.json().1.parse().unwrap()).collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), 700, "each once");
}

#[tokio::test]
async fn a_look_has_a_bound_and_says_what_it_leaves_out() {
    let (url, count, _serving) = crate::top::endless().await;
    let args = ["tail", "--for", "200ms", "--every", "200ms", "--json", "--server", &url];
    let mut command = quell(&args);
    let printed = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
    assert!(printed.status.success(), "{printed:?}");
    let notes = String::from_utf8(printed.stderr).unwrap();
    assert!(notes.contains("more than 2000 jobs came at once"), "{notes}");
    // The first look, and the only one after it.
    assert!((21..=21 + 20).contains(&count.load(Relaxed)), "{count:?}");
}

#[test]
fn a_tail_ends_after_its_time_and_where_nothing_reads_it() {
    let folder = tempfile::tempdir().unwrap();
    let process = Process::serve(&configure(folder.path(), 0), &[]);
    let args = ["tail", "--for", "300ms", "--every", "100ms", "--server", &process.url];
    let ended = quell(&args).output().unwrap();
    assert_eq!((ended.status.code(), ended.stdout.len()), (Some(0), 0), "{ended:?}");
    let mut command = Command::new("sh");
    let line = format!("{} tail --every 100ms | head -n 1", env!("CARGO_BIN_EXE_quell"));
    let child = command.args(["-c", &line]).env("QUELL_SERVER", &process.url);
    let mut child = child.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let notes = lines_of(child.stderr.take().unwrap());
    assert_eq!(notes.recv_timeout(Duration::from_secs(30)).unwrap(), "following");
    wait_for(|| {
        trigger(&process, &["waits"]);
        let ended = child.try_wait().unwrap();
        (ended.is_some_and(|status| status.success()), format!("{ended:?}"))
    });
    assert!(notes.recv().is_err(), "no error");
}

#[test]
fn a_tail_goes_on_when_its_server_is_back() {
    let folder = tempfile::tempdir().unwrap();
    let config = configure(folder.path(), free_port());
    let mut process = Process::serve(&config, &[]);
    let tail = Tail::of(&["--json", "--server", &process.url]);
    process.child.kill().unwrap();
    process.child.wait().unwrap();
    assert!(tail.note().contains("the lines go on when it answers again"));
    let process = Process::serve(&config, &[]);
    assert_eq!(tail.note(), "it answers again");
    trigger(&process, &["waits"]);
    let (event, _, line) = tail.json();
    assert_eq!((event.as_str(), &line["job"]["task"]), ("accepted", &Value::from("waits")));
    let refused = quell(&["tail", "--server", "http://127.0.0.1:1"]).output().unwrap();
    assert_eq!(refused.status.code(), Some(1), "the first look must succeed: {refused:?}");
}
