//! `quell top`: one frame, one snapshot, and the live view in a pseudo terminal.

use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, Command};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::binary::{Process, quell, text};
use crate::program::wait_for;
use crate::served::free_port;

const TASKS: &str = r#"
[queues.paused]
paused = true
concurrency = 3

[tasks.build]
key = "{{ repo }}"
debounce = { min = "1h", max = "2h" }
exec = { command = ["true"] }

[tasks.bad]
retry = { max_attempts = 1 }
exec = { command = ["false"] }

[tasks.long]
exec = { command = ["sleep", "77781"] }

[alerts.dead]
on = "dead"
threshold = 10
"#;

fn configure(folder: &Path, port: u16) -> std::path::PathBuf {
    let config = folder.join("quell.toml");
    let store = folder.join("q.db");
    let text = format!(
        "[server]\nlisten = \"127.0.0.1:{port}\"\n[worker]\ngrace = \"1ms\"\n[store]\n\
         url = \"sqlite://{}\"\n{TASKS}",
        store.display()
    );
    std::fs::write(&config, text).unwrap();
    config
}

#[test]
fn one_frame_and_one_snapshot_show_a_server_and_a_store() {
    let folder = tempfile::tempdir().unwrap();
    let process = Process::serve(&configure(folder.path(), 0), &[]);
    for trigger in [&["build", r#"{"repo":"acme/shop"}"#][..], &["bad"], &["long"]] {
        assert!(process.ask(&[&["trigger"], trigger].concat()).status.success());
    }
    wait_for(|| {
        let (_, shown) = text(&process.ask(&["jobs"]));
        (shown.contains("dead") && shown.contains("running"), shown)
    });
    let store = format!("sqlite://{}", folder.path().join("q.db").display());
    for from in [["--server", &process.url], ["--store", &store]] {
        let once = quell(&[&["top", "--once"], &from[..]].concat()).output().unwrap();
        let (succeeded, shown) = text(&once);
        assert!(succeeded, "{shown}");
        for needle in [
            "open windows 1, next due first",
            "acme/shop",
            "build  acme/shop  1         in ",
            "running 1",
            "dead 1",
            "exit status: 1",
            "workers 1",
            "1 running, 1 waiting, 1 dead",
        ] {
            assert!(shown.contains(needle), "{needle:?} is missing in\n{shown}");
        }
        let snapshot = quell(&[&["top", "--json"], &from[..]].concat()).output().unwrap();
        let snapshot: Value = serde_json::from_slice(&snapshot.stdout).unwrap();
        let queues = snapshot["queues"].as_array().unwrap();
        let paused = queues.iter().find(|queue| queue["name"] == "paused").unwrap();
        assert_eq!((&paused["paused"], &paused["concurrency"]), (&true.into(), &3.into()));
        let default = queues.iter().find(|queue| queue["name"] == "default").unwrap();
        assert_eq!(
            ["waiting", "running", "dead"].map(|name| default[name].as_u64().unwrap()),
            [1, 1, 1]
        );
        assert_eq!(snapshot["windows"]["next_due"][0]["key"], "acme/shop");
        assert_eq!(snapshot["dead"]["causes"]["causes"][0]["jobs"], 1);
        assert_eq!(snapshot["workers"].as_array().unwrap().len(), 1);
    }
    let (_, shown) = text(&process.ask(&["top", "--once"]));
    assert!(shown.contains("alerts 1, raised 0"), "{shown}");
    let piped = quell(&["top", "--server", &process.url]).output().unwrap();
    assert_eq!(piped.status.code(), Some(2), "{piped:?}");
    assert!(text(&piped).1.contains("--once"));
}

/// A server that always has more jobs, and counts its requests. Lists of jobs are full pages of new ids.
pub(crate) async fn endless() -> (String, Arc<AtomicU64>, JoinSet<()>) {
    let (count, newest) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(1_000_000)));
    let counter = Arc::clone(&count);
    let answer = move |uri: axum::http::Uri| {
        counter.fetch_add(1, Relaxed);
        let newest = Arc::clone(&newest);
        async move { axum::Json(page(&uri, &newest)) }
    };
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let router = axum::Router::new().fallback(answer);
    let mut serving = JoinSet::new();
    serving.spawn(async { axum::serve(listener, router).await.unwrap() });
    (url, count, serving)
}

fn page(uri: &axum::http::Uri, newest: &AtomicU64) -> Value {
    let row = |id: u64| {
        json!({
            "id": id.to_string(), "task": "t", "queue": "default", "partition": null, "key": "k",
            "state": "scheduled", "priority": 0, "triggers": 1, "not_run": 0,
            "first_at": "2026-11-28T00:00:00Z", "last_at": null, "due_at": null,
            "due_because": "", "not_before": null, "waits_for_its_key": false, "attempt": 0,
            "failures": 0, "starts": 0, "lapses": 0, "worker": null, "started_at": null,
            "ended_at": null, "absorbed_by": null, "error": null, "traces": [],
        })
    };
    match uri.path() {
        "/v1/jobs" => {
            let top = newest.fetch_add(10_000, Relaxed);
            let jobs: Vec<Value> = (0..200).map(|place| row(top - place)).collect();
            json!({ "jobs": jobs, "next_before": (top - 199).to_string() })
        }
        "/v1/counts" => {
            let count = json!({ "queue": "default", "task": "t", "state": "dead", "jobs": 9_000 });
            json!({ "counts": [count] })
        }
        "/v1/dead/causes" => json!({ "causes": [], "distinct": 0, "jobs": 0, "next_before": null }),
        path => json!({ (path.rsplit('/').next().unwrap()): [] }),
    }
}

#[tokio::test]
async fn a_reading_is_seven_requests_however_many_jobs_there_are() {
    let (url, count, _serving) = endless().await;
    let mut command = quell(&["top", "--once", "--server", &url]);
    let printed = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
    let (succeeded, shown) = text(&printed);
    assert!(succeeded && shown.contains("dead 9,000"), "{shown}");
    assert!(shown.contains("200 of the newest jobs that wait"), "{shown}");
    assert_eq!(count.load(Relaxed), 7);
}

/// The program in a pseudo terminal of its own.
struct Terminal {
    child: Child,
    keys: File,
    slave: File,
    shown: Arc<Mutex<String>>,
}

impl Terminal {
    fn start(args: &[&str]) -> Terminal {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap().into_string().unwrap();
        let slave = File::options().read(true).write(true).open(name).unwrap();
        resize(&slave, 100, 50);
        let end = || slave.try_clone().unwrap();
        // The terminal has to be that of its session, so that a new size is a signal.
        let mut command = Command::new("setsid");
        command.args(["--ctty", env!("CARGO_BIN_EXE_quell")]).args(args).env("TERM", "xterm");
        command.env_remove("QUELL_SERVER").env_remove("NO_COLOR");
        let child = command.stdin(end()).stdout(end()).stderr(end()).spawn().unwrap();
        let keys = File::from(master);
        let mut screen = keys.try_clone().unwrap();
        let shown = Arc::new(Mutex::new(String::new()));
        let kept = Arc::clone(&shown);
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            // The end is an error: the other side is closed.
            while let Ok(read @ 1..) = screen.read(&mut bytes) {
                kept.lock().unwrap().push_str(&String::from_utf8_lossy(&bytes[..read]));
            }
        });
        Terminal { child, keys, slave, shown }
    }

    fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
    }

    /// How much was shown so far.
    fn mark(&self) -> usize {
        self.shown.lock().unwrap().len()
    }

    /// Waits until this was shown after a mark.
    fn wait_for(&self, mark: usize, needle: &str) {
        let deadline = Instant::now() + Duration::from_secs(30);
        loop {
            let shown = self.shown.lock().unwrap()[mark..].to_owned();
            if shown.contains(needle) {
                return;
            }
            let last = shown.len().saturating_sub(2_000);
            let last = &shown[shown.ceil_char_boundary(last)..];
            assert!(Instant::now() < deadline, "{needle:?} never came: {last:?}");
            std::thread::park_timeout(Duration::from_millis(5));
        }
    }

    fn is_raw(&self) -> bool {
        !tcgetattr(&self.slave).unwrap().local_modes.contains(LocalModes::ICANON | LocalModes::ECHO)
    }

    /// Waits for its end: the exit status. The terminal is as it was.
    fn ended(&mut self) -> Option<i32> {
        let status = self.child.wait().unwrap();
        assert!(!self.is_raw(), "the terminal is not restored");
        self.wait_for(0, "\u{1b}[?1049l");
        status.code()
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ended = self.child.kill();
        let _reaped = self.child.wait();
    }
}

fn resize(terminal: &File, columns: u16, rows: u16) {
    let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(terminal, size).unwrap();
}

#[test]
fn the_live_view_obeys_keys_and_sizes_and_restores_the_terminal_on_each_way_out() {
    let folder = tempfile::tempdir().unwrap();
    let process = Process::serve(&configure(folder.path(), 0), &[]);
    let args = ["top", "--every", "100ms", "--server", &process.url];
    let mut terminal = Terminal::start(&args);
    terminal.wait_for(0, "queues 1");
    terminal.wait_for(0, "alerts 1, raised 0");
    assert!(terminal.is_raw());
    // New jobs come by themselves.
    let mark = terminal.mark();
    let build = ["trigger", "build", r#"{"repo":"acme/shop"}"#];
    assert!(process.ask(&build).status.success());
    terminal.wait_for(mark, "acme/shop");
    // Another size is drawn again, in two columns.
    let mark = terminal.mark();
    resize(&terminal.slave, 160, 40);
    terminal.wait_for(mark, "quell top  http://127.0.0.1");
    terminal.press("\t\u{1b}[B\u{1b}[Aq");
    assert_eq!(terminal.ended(), Some(0));

    for way in ["\u{3}", "-TERM", "-INT", "-HUP", "-QUIT"] {
        let mut terminal = Terminal::start(&args);
        terminal.wait_for(0, "open windows");
        if way.starts_with('-') {
            let id = terminal.child.id().to_string();
            assert!(Command::new("kill").args([way, &id]).status().unwrap().success());
        } else {
            terminal.press(way);
        }
        assert_eq!(terminal.ended(), Some(0), "{way:?}");
    }
}

#[test]
fn the_live_view_shows_that_its_server_is_away_and_goes_on_when_it_is_back() {
    let folder = tempfile::tempdir().unwrap();
    let config = configure(folder.path(), free_port());
    let mut process = Process::serve(&config, &[]);
    let mut terminal = Terminal::start(&["top", "--every", "100ms", "--server", &process.url]);
    terminal.wait_for(0, "queues 1");
    let mark = terminal.mark();
    process.child.kill().unwrap();
    process.child.wait().unwrap();
    terminal.wait_for(mark, "away s");
    let mark = terminal.mark();
    let _process = Process::serve(&config, &[]);
    terminal.wait_for(mark, "http://1");
    terminal.press("q");
    assert_eq!(terminal.ended(), Some(0));
    let refused = quell(&["top", "--once", "--server", "http://127.0.0.1:1"]).output().unwrap();
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
}
