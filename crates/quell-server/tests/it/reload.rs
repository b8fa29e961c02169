//! SIGHUP, logs that cannot be written, and notifications of systemd: a server process that is left running.

use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use sqlx::Connection as _;
use tempfile::TempDir;

use crate::binary::{Process, quell, text};

/// A folder with a configuration and a log.
struct Place {
    folder: TempDir,
    config: PathBuf,
    log: PathBuf,
}

impl Place {
    fn new(tasks: &str) -> Place {
        let folder = tempfile::tempdir().unwrap();
        let (config, log) = (folder.path().join("quell.toml"), folder.path().join("log"));
        let place = Place { folder, config, log };
        place.write(tasks);
        place
    }

    fn write(&self, tasks: &str) {
        let store = self.folder.path().join("q.db");
        let text = format!(
            "[server]\nlisten = \"127.0.0.1:0\"\n[store]\nurl = \"sqlite://{}\"\n{tasks}",
            store.display()
        );
        std::fs::write(&self.config, text).unwrap();
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A server whose log is the file.
    fn serve(&self) -> Process {
        let file = std::fs::OpenOptions::new().create(true).append(true).open(&self.log).unwrap();
        let mut command = quell(&["serve", "--config", self.config.to_str().unwrap()]);
        Process::start(command.env("QUELL_LOG", "info").stderr(file))
    }

    fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Waits until the log has this text.
    fn logged(&self, needle: &str) -> String {
        within(|| Some(self.log()).filter(|text| text.contains(needle)))
    }
}

/// The status and the text of an answer.
fn get(process: &Process, path: &str) -> (u16, String) {
    let url = format!("{}{path}", process.url);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let answer = reqwest::get(url).await.unwrap();
        (answer.status().as_u16(), answer.text().await.unwrap())
    })
}

/// What a condition yields once it holds.
fn within<T>(mut condition: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        if let Some(found) = condition() {
            return found;
        }
        assert!(Instant::now() < deadline, "it never holds");
        std::thread::park_timeout(Duration::from_millis(5));
    }
}

fn run(process: &Process, args: &[&str]) -> String {
    let (succeeded, shown) = text(&process.ask(args));
    assert!(succeeded, "{args:?}: {shown}");
    shown
}

fn shown(process: &Process, path: &str) -> Value {
    let url = format!("{}{path}", process.url);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { reqwest::get(url).await.unwrap().json().await.unwrap() })
}

fn exists(path: &Path) {
    within(|| path.exists().then_some(()));
}

/// R29: attempts go on over a reload, and what is declared from then on holds for all others.
#[test]
fn r29_a_reload_applies_the_file_while_attempts_go_on() {
    let place = Place::new("");
    let (begun, end, done) = (place.path("begun"), place.path("end"), place.path("done"));
    let wait = format!(
        "touch {}; while [ ! -e {} ]; do sleep 0.01; done; touch {}",
        begun.display(),
        end.display(),
        done.display()
    );
    let slow = format!("[tasks.slow]\nexec = {{ command = [\"sh\", \"-c\", \"{wait}\"] }}\n");
    place.write(&format!("{slow}[queues.default]\nconcurrency = 4\n"));
    let process = place.serve();
    run(&process, &["trigger", "slow", "1"]);
    exists(&begun);

    let ran = place.path("ran");
    let second =
        format!("[tasks.second]\nexec = {{ command = [\"touch\", \"{}\"] }}\n", ran.display());
    place.write(&format!("{second}[queues.default]\nconcurrency = 5\n"));
    process.signal("-HUP");
    let log = place.logged("configuration reloaded");
    for needle in
        ["queues.default.concurrency", "before=\"4\"", "after=\"5\"", "tasks.slow.exec.command"]
    {
        assert!(log.contains(needle), "{needle} is missing in:\n{log}");
    }
    run(&process, &["trigger", "second", "1"]);
    exists(&ran);
    let (succeeded, refused) = text(&process.ask(&["trigger", "slow", "1"]));
    assert!(!succeeded && refused.contains("no such task"), "{refused}");
    assert_eq!(shown(&process, "/v1/queues/default")["concurrency"], 5);
    assert_eq!(shown(&process, "/v1/jobs/1")["job"]["state"], "running", "it goes on");
    std::fs::write(&end, "").unwrap();
    exists(&done);
    within(|| (shown(&process, "/v1/jobs/1")["job"]["state"] == "succeeded").then_some(()));
}

/// A broken file changes nothing, and the log has every mistake of it.
#[test]
fn r40_a_reload_of_a_broken_file_leaves_everything_as_it_was() {
    let place = Place::new("[tasks.a]\nexec = { command = [\"true\"] }\n");
    let process = place.serve();
    place.write("[tasks.a]\nexec = { comand = [\"true\"] }\n[queues.q]\nconcurency = 1\n");
    process.signal("-HUP");
    let log = place.logged("stays as it was");
    assert!(log.contains("comand") && log.contains("concurency"), "{log}");
    run(&process, &["trigger", "a", "1"]);
    std::fs::remove_file(&place.config).unwrap();
    process.signal("-HUP");
    place.logged("cannot be read");
    run(&process, &["trigger", "a", "1"]);
    place.write("[tasks.b]\nexec = { command = [\"true\"] }\n");
    process.signal("-HUP");
    place.logged("configuration reloaded");
    run(&process, &["trigger", "b", "1"]);
}

/// A store that takes no declaration leaves the server as it was: its tasks and its audit, which goes on in
/// a file that was rotated.
#[test]
fn r39_r40_a_reload_that_the_store_does_not_take_changes_nothing_in_the_server() {
    let task = |name: &str| format!("[tasks.{name}]\nexec = {{ command = [\"true\"] }}\n");
    let place = Place::new("");
    let write = |audit: &str, rest: &str| {
        place.write(rest);
        let text = std::fs::read_to_string(&place.config).unwrap();
        let audit = format!("audit_file = \"{}\"\n[store]", place.path(audit).display());
        std::fs::write(&place.config, text.replace("[store]", &audit)).unwrap();
    };
    let entries =
        |name: &str| std::fs::read_to_string(place.path(name)).unwrap_or_default().lines().count();
    write("audit", &task("a"));
    let process = place.serve();
    let declared = format!("{}[queues.q]\nconcurrency = 1\n", task("b"));

    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let url = format!("sqlite://{}", place.path("q.db").display());
    let mut other = runtime.block_on(sqlx::SqliteConnection::connect(&url)).unwrap();
    let locked = runtime.block_on(other.begin_with("begin immediate")).unwrap();
    write("other", &declared);
    process.signal("-HUP");
    let log = place.logged("cannot be applied");
    assert!(log.contains("stays as it was") && log.contains("may have taken some"), "{log}");
    std::fs::rename(place.path("audit"), place.path("audit.1")).unwrap();
    write("audit", &declared);
    process.signal("-HUP");
    within(|| (place.log().matches("cannot be applied").count() == 2).then_some(()));
    runtime.block_on(locked.rollback()).unwrap();
    run(&process, &["trigger", "a", "1"]);
    run(&process, &["queue", "pause", "default"]);
    assert_eq!(["audit", "audit.1", "other"].map(entries), [1, 0, 0]);

    write("other", &declared);
    process.signal("-HUP");
    place.logged("configuration reloaded");
    run(&process, &["trigger", "b", "1"]);
    run(&process, &["queue", "resume", "default"]);
    assert_eq!(["audit", "audit.1", "other"].map(entries), [1, 0, 1]);
}

/// A file without tokens, as an editor that empties it first leaves it, opens no server that asks for them.
#[test]
fn a_reload_never_takes_away_that_tokens_are_asked_for() {
    let place = Place::new("");
    let open = std::fs::read_to_string(&place.config).unwrap();
    let token = place.path("token");
    crate::served::write_secret(&token, "a-token");
    let line = format!("[server]\ntoken_file = \"{}\"\n", token.display());
    let guarded = open.replace("[server]\n", &line);
    std::fs::write(&place.config, &guarded).unwrap();
    let process = place.serve();
    let status = || get(&process, "/v1/jobs").0;
    assert_eq!(status(), 401);
    for (round, text) in ["", &open].into_iter().enumerate() {
        std::fs::write(&place.config, text).unwrap();
        process.signal("-HUP");
        within(|| (place.log().matches("cannot be applied").count() > round).then_some(()));
        assert_eq!(status(), 401, "{text:?}");
    }
    assert!(place.log().contains("restart the server"), "{}", place.log());
    std::fs::write(&place.config, &guarded).unwrap();
    process.signal("-HUP");
    place.logged("configuration reloaded");
    assert_eq!(status(), 401);
}

/// A file that was read half-written, or that a task was taken out of, shows nothing of the jobs that it left.
#[test]
fn r40_what_a_rule_hides_stays_hidden_where_a_reload_leaves_its_task_out() {
    const TASK: &str = "[tasks.charge]\npull = true\n";
    const OTHER: &str = "[tasks.other]\npull = true\n";
    let place = Place::new(&format!("{TASK}redact = [\"/card\"]\n{OTHER}"));
    let process = place.serve();
    run(&process, &["trigger", "charge", r#"{"card":"canary-4111","amount":5}"#]);
    let expect = |is_shown: bool| {
        let (_, shown) = get(&process, "/v1/jobs?payload=true");
        assert!(shown.contains("\"amount\":5"), "{shown}");
        assert_eq!(shown.contains("canary-4111"), is_shown, "{shown}");
    };
    expect(false);
    for (round, (text, is_shown)) in
        [(OTHER, false), ("", false), (TASK, true)].into_iter().enumerate()
    {
        place.write(text);
        process.signal("-HUP");
        let reloaded = || place.log().matches("configuration reloaded").count();
        within(|| (reloaded() > round).then_some(()));
        expect(is_shown);
    }
    assert!(place.log().contains("stays hidden until a restart"), "{}", place.log());
}

/// Jobs of workers elsewhere stay theirs over a reload.
#[test]
fn r21_a_lease_of_a_worker_elsewhere_holds_over_a_reload() {
    let place = Place::new("[tasks.pulled]\npull = true\n");
    let process = place.serve();
    run(&process, &["trigger", "pulled", "1"]);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let post = |path: &str, body: Value| -> Value {
        let url = format!("{}{path}", process.url);
        runtime.block_on(async {
            let client = reqwest::Client::new();
            client.post(url).json(&body).send().await.unwrap().json().await.unwrap()
        })
    };
    let worker = json!({ "incarnation": 1 });
    let claim = json!({ "tasks": ["pulled"], "wait": "10s", "process": worker });
    let lease = post("/v1/workers/w/claim", claim)["jobs"][0]["lease"].clone();
    place.write("[tasks.pulled]\npull = true\nretry = { max_attempts = 2 }\n");
    process.signal("-HUP");
    place.logged("configuration reloaded");
    let renew = json!({ "leases": [{ "lease": lease }], "process": worker });
    let renewed = post("/v1/workers/w/renew", renew);
    assert!(renewed["leases"][0]["until"].is_string(), "{renewed}");
    let settle = json!({ "settlements": [{ "lease": lease, "outcome": "succeeded" }] });
    let settled = post("/v1/workers/w/settle", settle);
    assert_eq!(shown(&process, "/v1/jobs/1")["job"]["state"], "succeeded", "{settled}");
}

/// A log on a full disk, and one that its reader has left, end nothing and hold nothing up.
#[test]
fn a_log_that_cannot_be_written_harms_nothing() {
    let failing = "[tasks.a]\nretry = { max_attempts = 1 }\nexec = { command = [\"false\"] }\n";
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    for log in [Stdio::from(full), Stdio::piped()] {
        let place = Place::new(failing);
        let mut command = quell(&["serve", "--config", place.config.to_str().unwrap()]);
        let mut process = Process::start(command.env("QUELL_LOG", "debug").stderr(log));
        // The reader of the pipe goes.
        drop(process.child.stderr.take());
        for _ in 0..3 {
            run(&process, &["trigger", "a", "1"]);
        }
        within(|| {
            let jobs = shown(&process, "/v1/jobs?state=dead");
            (jobs["jobs"].as_array().unwrap().len() == 3).then_some(())
        });
        run(&process, &["dead", "discard", "--all", "--yes", "--reason", "test"]);
        process.signal("-TERM");
        assert!(process.child.wait().unwrap().success());
    }
}

/// A pipe that stays open and that its reader does not read is full after 64 KiB.
#[test]
fn a_log_that_is_not_read_holds_up_no_request() {
    let place = Place::new("[tasks.a]\nexec = { command = [\"true\"] }\n");
    let mut command = quell(&["serve", "--config", place.config.to_str().unwrap()]);
    let process = Process::start(command.env("QUELL_LOG", "trace").stderr(Stdio::piped()));
    for _ in 0..20 {
        run(&process, &["trigger", "a", "1"]);
    }
    assert_eq!(shown(&process, "/v1/jobs")["jobs"].as_array().unwrap().len(), 20);
}

#[test]
fn log_lines_are_json_where_that_is_asked_for_and_a_success_is_one_of_them() {
    let place = Place::new("[tasks.a]\nexec = { command = [\"true\"] }\n");
    let file = std::fs::File::create(&place.log).unwrap();
    let mut command = quell(&["serve", "--config", place.config.to_str().unwrap()]);
    let command = command.env("QUELL_LOG", "info").env("QUELL_LOG_FORMAT", "json").stderr(file);
    let process = Process::start(command);
    run(&process, &["trigger", "a", "1"]);
    let log = place.logged("attempt succeeded");
    let lines: Vec<Value> = log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let is_of_run = |line: &&Value| line["target"] == "quell::attempt";
    let of_runs: Vec<&Value> = lines.iter().filter(is_of_run).collect();
    assert_eq!(of_runs.len(), 1, "{log}");
    let one = of_runs[0];
    let shown = [&one["task"], &one["queue"], &one["job"], &one["outcome"]];
    assert_eq!(shown, ["a", "default", "1", "succeeded"], "{one}");
    let (_, refused) = text(&quell(&["jobs"]).env("QUELL_LOG_FORMAT", "xml").output().unwrap());
    assert!(refused.contains("QUELL_LOG_FORMAT") && refused.contains("text or json"), "{refused}");
}

/// systemd waits for these, by sd_notify(3).
#[test]
fn systemd_is_notified_of_the_start_a_reload_and_the_end() {
    let place = Place::new("[tasks.a]\nexec = { command = [\"true\"] }\n");
    let path = place.path("notify");
    let socket = UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let read = || {
        let mut buffer = [0; 512];
        let bytes = socket.recv(&mut buffer).unwrap();
        String::from_utf8_lossy(&buffer[..bytes]).into_owned()
    };
    let mut command = quell(&["serve", "--config", place.config.to_str().unwrap()]);
    let mut process = Process::start(command.env("NOTIFY_SOCKET", &path));
    assert_eq!(read().trim(), "READY=1");
    process.signal("-HUP");
    let reloading = read();
    assert!(
        reloading.contains("RELOADING=1") && reloading.contains("MONOTONIC_USEC="),
        "{reloading}"
    );
    assert_eq!(read().trim(), "READY=1");
    process.signal("-TERM");
    assert_eq!(read().trim(), "STOPPING=1");
    assert!(process.child.wait().unwrap().success());
}
