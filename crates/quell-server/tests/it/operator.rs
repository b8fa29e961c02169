//! A day of an operator by the commands of the docs, on an embedded store and on a shared one: a set-up with
//! tokens, keys and an audit; an incident; a restart; a reload; a copy of the store.

use std::path::{Path, PathBuf};
use std::process::Output;
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

use crate::binary::{Process, quell, text};

const DEADLINE: Duration = Duration::from_secs(60);

/// The files of one server, and the token of each person.
struct Site {
    folder: TempDir,
    store: String,
    server: Option<Process>,
}

impl Site {
    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn file(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    fn write(&self, concurrency: u32, more: &str) {
        let (store, tokens) = (&self.store, self.file("tokens.json"));
        let text = format!(
            r#"
[server]
listen = "127.0.0.1:0"
tokens = {tokens:?}
audit_file = {:?}
[store]
url = {store:?}
[encryption]
keys_file = {:?}
[worker]
grace = "1s"
keep_succeeded = "24h"
[queues.billing]
concurrency = {concurrency}
[tasks.bill]
queue = "billing"
redact = ["/card"]
retry = {{ max_attempts = 1 }}
exec = {{ command = ["sh", "-c", "test -e {} || {{ echo the bank is away >&2; exit 1; }}"] }}
[tasks.report]
key = "{{{{ customer }}}}"
debounce = {{ min = "1h", max = "2h" }}
pull = true
[schedules.nightly]
task = "bill"
every = "24h"
{more}
"#,
            self.file("audit.jsonl"),
            self.file("keys"),
            self.file("bank"),
        );
        // At once: a reload may be on its way, and half of a file is another configuration.
        std::fs::write(self.path("next.toml"), text).unwrap();
        std::fs::rename(self.path("next.toml"), self.path("quell.toml")).unwrap();
    }

    /// Makes a token and keeps what it is.
    fn token(&self, name: &str, more: &[&str]) {
        let tokens = self.file("tokens.json");
        let made = quell(&[&["tokens", "add", name, "--file", &tokens], more].concat());
        let made = well(made_by(made));
        std::fs::write(self.path(name), made.lines().next().unwrap()).unwrap();
    }

    fn start(&mut self) {
        self.server = Some(Process::serve(&self.path("quell.toml"), &[]));
    }

    fn server(&self) -> &Process {
        self.server.as_ref().unwrap()
    }

    /// A command of a person against the server: its status and what it printed.
    fn ask(&self, who: &str, args: &[&str]) -> (bool, String) {
        let token = std::fs::read_to_string(self.path(who)).unwrap();
        let mut command = quell(args);
        command.env("QUELL_SERVER", &self.server().url).env("QUELL_TOKEN", token);
        text(&command.output().unwrap())
    }

    /// As [`Site::ask`] of the operator, which has to go well.
    fn say(&self, args: &[&str]) -> String {
        let (ok, printed) = self.ask("ann", args);
        assert!(ok, "{args:?}: {printed}");
        printed
    }

    fn json(&self, args: &[&str]) -> Value {
        serde_json::from_str(&self.say(&[args, &["--json"]].concat())).unwrap()
    }

    /// How many jobs there are in a state.
    fn count(&self, state: &str) -> usize {
        let jobs = self.json(&["jobs", "--task", "bill", "--state", state, "--limit", "200"]);
        jobs["jobs"].as_array().unwrap().len()
    }

    fn until(&self, what: &str, done: impl Fn() -> bool) {
        let deadline = Instant::now() + DEADLINE;
        while !done() {
            assert!(Instant::now() < deadline, "never: {what}");
            std::thread::park_timeout(Duration::from_millis(20));
        }
    }

    fn limit(&self) -> Value {
        let queues = self.json(&["queue", "list"]);
        let all = queues["queues"].as_array().unwrap().iter();
        all.clone()
            .find(|queue| queue["queue"] == "billing" || queue["name"] == "billing")
            .unwrap()
            .clone()
    }
}

fn made_by(mut command: std::process::Command) -> Output {
    command.output().unwrap()
}

fn well(output: Output) -> String {
    let (ok, printed) = text(&output);
    assert!(ok, "{printed}");
    printed
}

/// Set up as docs/security-model.md says.
fn set_up(store: String, folder: TempDir) -> Site {
    let mut site = Site { folder, store, server: None };
    well(made_by(quell(&["keys", "add", "2026-11", "--file", &site.file("keys")])));
    site.token("ann", &["--scope", "operate", "--scope", "payload"]);
    site.token("ben", &["--scope", "read"]);
    site.token("ci", &["--scope", "trigger:bill"]);
    site.token("root", &["--scope", "admin"]);
    site.write(4, "");
    let config = site.file("quell.toml");
    well(made_by(quell(&["serve", "--check", "--config", &config])));
    site.start();
    site
}

/// Triggers fail, the queue is paused, and one cause is redriven at a rate.
fn incident(site: &Site) {
    for number in 0..5 {
        let payload = format!("{{\"n\":{number},\"card\":\"canary-card\"}}");
        let (ok, printed) = site.ask("ci", &["trigger", "bill", &payload]);
        assert!(ok, "{printed}");
    }
    site.until("all are dead", || site.count("dead") == 5);
    let causes = site.say(&["dead", "causes"]);
    assert!(causes.contains("the bank is away"), "{causes}");
    let shown = site.say(&["dead", "list", "--json", "--payload"]);
    assert!(!shown.contains("canary-card") && shown.contains("[redacted]"), "{shown}");
    site.say(&["queue", "pause", "billing", "--by", "ann: the bank is away"]);
    let (ok, refused) = site.ask("ben", &["queue", "resume", "billing"]);
    assert!(!ok && refused.contains("operate"), "{refused}");
    site.ask("ci", &["trigger", "bill", "{\"n\":9}"]);
    let frame = site.say(&["top", "--once"]);
    assert!(frame.contains("billing") && frame.contains("paused"), "{frame}");
    std::fs::write(site.path("bank"), "open").unwrap();
    let dry = site.say(&["dead", "redrive", "--all", "--error", "BANK IS AWAY", "--dry-run"]);
    assert!(dry.contains('5'), "{dry}");
    site.say(&["dead", "redrive", "--all", "--error", "bank is away", "--rate", "100"]);
}

/// What an operator did by hand holds over a restart and a reload.
fn restart_and_reload(site: &mut Site) {
    site.server.take();
    site.start();
    let waits = site.json(&["jobs", "--task", "bill", "--state", "scheduled"]);
    assert_eq!(waits["jobs"].as_array().unwrap().len(), 6, "{waits:#}");
    let id = waits["jobs"][0]["id"].as_str().unwrap().to_owned();
    let why = site.say(&["explain", &id]);
    assert!(why.contains("paused") && why.contains("ann: the bank is away"), "{why}");
    // A broken file leaves everything; a fixed one applies.
    std::fs::write(site.path("quell.toml"), "[queue").unwrap();
    site.server().signal("-HUP");
    site.write(2, "[tasks.more]\npull = true\n");
    site.server().signal("-HUP");
    site.until("the limit is new", || site.limit()["concurrency"] == 2);
    assert_eq!(site.limit()["paused"], true);
    site.say(&["queue", "resume", "billing"]);
    site.until("all have run", || site.count("succeeded") == 6);
}

/// Tokens and keys are replaced while the server runs; the audit has who did what.
fn rotation(site: &Site) {
    let tokens = site.file("tokens.json");
    well(made_by(quell(&["tokens", "revoke", "ci", "--file", &tokens])));
    site.until("the token is refused", || {
        let (ok, printed) = site.ask("ci", &["trigger", "bill", "{}"]);
        !ok && printed.contains("token")
    });
    for command in [["add", "2026-12"], ["use", "2026-12"]] {
        well(made_by(quell(&[&["keys"], &command[..], &["--file", &site.file("keys")]].concat())));
    }
    let (ok, audit) = site.ask("root", &["audit"]);
    assert!(ok && audit.contains("ann") && !audit.contains("canary-card"), "{audit}");
    let kept = std::fs::read_to_string(site.path("audit.jsonl")).unwrap();
    assert!(kept.contains("queues_pause") && !kept.contains("canary-card"), "{kept}");
    well(made_by(quell(&["doctor", "--config", &site.file("quell.toml")])));
    let metrics = site.ask("ben", &["health"]);
    assert!(metrics.0, "{}", metrics.1);
}

#[test]
fn the_day_of_an_operator_on_sqlite() {
    let folder = tempfile::tempdir().unwrap();
    let store = format!("sqlite://{}", folder.path().join("q.db").display());
    let mut site = set_up(store.clone(), folder);
    incident(&site);
    restart_and_reload(&mut site);
    rotation(&site);
    let copy = site.file("copy.db");
    well(made_by(quell(&["backup", "--store", &store, &copy])));
    let (ok, refused) = text(&made_by(quell(&["restore", "--store", &store, &copy])));
    assert!(!ok && refused.contains("in another process"), "a store in use: {refused}");
    site.server.take();
    well(made_by(quell(&["restore", "--store", &store, &copy])));
    assert!(!has(&site.path("q.db"), "canary-card"));
    site.start();
    assert!(site.count("succeeded") >= 6);
}

#[test]
fn the_day_of_an_operator_on_postgres() {
    let folder = tempfile::tempdir().unwrap();
    let mut site = set_up(quell_services::url_for_tests(), folder);
    incident(&site);
    restart_and_reload(&mut site);
    rotation(&site);
}

fn has(file: &Path, text: &str) -> bool {
    let bytes = std::fs::read(file).unwrap();
    bytes.windows(text.len()).any(|part| part == text.as_bytes())
}
