//! The program itself: started, asked, killed.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

/// The program with these arguments.
pub(crate) fn quell(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_quell"));
    command.args(args).env_remove("QUELL_SERVER").env("QUELL_LOG", "warn");
    command
}

/// A server process that dies with the test.
pub(crate) struct Process {
    pub(crate) child: Child,
    pub(crate) url: String,
}

impl Process {
    /// Starts `quell serve` and waits until it says where it listens.
    pub(crate) fn serve(config: &Path, more: &[&str]) -> Process {
        let config = config.to_str().unwrap();
        Process::start(&mut quell(&[&["serve", "--config", config], more].concat()))
    }

    /// As [`Process::serve`], by the whole command.
    pub(crate) fn start(command: &mut Command) -> Process {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let url = line.trim().strip_prefix("listening on ").unwrap_or_else(|| panic!("{line:?}"));
        Process { url: url.to_owned(), child }
    }

    /// Runs a client command against it.
    pub(crate) fn ask(&self, args: &[&str]) -> Output {
        quell(args).env("QUELL_SERVER", &self.url).output().unwrap()
    }

    /// Sends a signal by name.
    pub(crate) fn signal(&self, name: &str) {
        let id = self.child.id().to_string();
        assert!(Command::new("kill").args([name, &id]).status().unwrap().success());
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ended = self.child.kill();
        let _reaped = self.child.wait();
    }
}

pub(crate) fn text(output: &Output) -> (bool, String) {
    let shown = [&output.stdout[..], &output.stderr[..]].concat();
    (output.status.success(), String::from_utf8(shown).unwrap())
}

#[test]
fn a_newcomers_first_minutes() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("quell.toml");
    let store = format!("sqlite://{}", folder.path().join("q.db").display());
    std::fs::write(
        &config,
        format!(
            "[server]\nlisten = \"127.0.0.1:0\"\n[store]\nurl = \"{store}\"\n[tasks.build]\n\
             key = \"{{{{ repo }}}}\"\ndebounce = {{ min = \"20s\", max = \"60s\" }}\n\
             exec = {{ command = [\"true\"] }}\n"
        ),
    )
    .unwrap();
    let mut process = Process::serve(&config, &[]);
    let table: [(&[&str], bool, &str); 9] = [
        (
            &["trigger", "build", r#"{"repo":"acme/shop"}"#],
            true,
            "accepted as trigger 1.1 of job 1",
        ),
        (&["trigger", "build", r#"{"repo":"acme/shop"}"#], true, "which has 2 triggers"),
        (&["trigger", "build", "{"], false, "payload is not JSON"),
        (&["trigger", "nosuch", "1"], false, "no such task"),
        (&["jobs"], true, "acme/shop"),
        (&["job", "1"], true, r#"{"repo":"acme/shop"}"#),
        (&["explain", "acme/shop"], true, "2 (1.1 to 1.2)"),
        (&["explain", "1.1", "--json"], true, r#""trigger":"1.1""#),
        (&["explain", "nosuch"], false, "nothing is known"),
    ];
    for (args, succeeds, needle) in table {
        let (succeeded, shown) = text(&process.ask(args));
        assert!(succeeded == succeeds && shown.contains(needle), "{args:?}: {shown}");
    }
    let (succeeded, shown) = text(&quell(&["jobs", "--store", &store]).output().unwrap());
    assert!(succeeded && shown.contains("scheduled"), "a store can be read directly: {shown}");

    let taken = process.url.trim_start_matches("http://");
    std::fs::write(
        folder.path().join("second.toml"),
        format!("[server]\nlisten = \"{taken}\"\n[store]\nurl = \"{store}\"\n"),
    )
    .unwrap();
    let second = folder.path().join("second.toml");
    let refused = quell(&["serve", "--config", second.to_str().unwrap()]).output().unwrap();
    let (succeeded, shown) = text(&refused);
    assert!(!succeeded && shown.contains("server.listen: cannot listen on"), "{shown}");

    process.signal("-TERM");
    assert!(process.child.wait().unwrap().success(), "a signal ends it in order");
    let (succeeded, shown) = text(&process.ask(&["jobs"]));
    assert!(!succeeded && shown.contains("no server answers there"), "{shown}");
}

#[test]
fn the_demo_ends_by_itself_and_shows_what_to_try_next() {
    let folder = tempfile::tempdir().unwrap();
    let args = ["demo", "--for", "3s", "--headless", "--history", folder.path().to_str().unwrap()];
    let (succeeded, shown) = text(&quell(&args).output().unwrap());
    assert!(succeeded, "{shown}");
    for needle in ["made-up stream", "Watch it at http://127.0.0.1:", "fewer", "What to try next"] {
        assert!(shown.contains(needle), "{needle:?} is missing in:\n{shown}");
    }
}

/// The state of each worker that the store knows, by its process.
fn worker_states(store: &str) -> std::collections::BTreeMap<u64, String> {
    let output = quell(&["workers", "--json", "--store", store]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let answer: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let rows = answer["workers"].as_array().unwrap().iter();
    rows.map(|row| (row["pid"].as_u64().unwrap(), row["state"].as_str().unwrap().to_owned()))
        .collect()
}

/// Waits until the workers are these.
fn wait_for_workers(store: &str, expected: &[(u32, &str)]) {
    let expected = expected.iter().map(|(pid, state)| (u64::from(*pid), (*state).to_owned()));
    let expected = expected.collect();
    let begun = std::time::Instant::now();
    loop {
        let states = worker_states(store);
        if states == expected {
            return;
        }
        assert!(begun.elapsed().as_secs() < 60, "{states:?}, not {expected:?}");
    }
}

#[test]
fn r25_a_killed_worker_is_unseen_and_one_that_stops_leaves_the_list() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("quell.toml");
    let store = format!("sqlite://{}", folder.path().join("q.db").display());
    let text_of_config = format!(
        "[server]\nlisten = \"127.0.0.1:0\"\n[worker]\nlease = \"3s\"\n[store]\nurl = \"{store}\"\n\
         [tasks.t]\nexec = {{ command = [\"true\"] }}\n"
    );
    std::fs::write(&config, text_of_config).unwrap();
    let mut stops = Process::serve(&config, &[]);
    let mut dies = Process::serve(&config, &[]);
    let (first, second) = (stops.child.id(), dies.child.id());
    wait_for_workers(&store, &[(first, "seen"), (second, "seen")]);
    let (succeeded, shown) = text(&stops.ask(&["workers"]));
    assert!(succeeded && shown.contains("SLOTS") && shown.contains(&first.to_string()), "{shown}");
    dies.child.kill().unwrap();
    dies.child.wait().unwrap();
    wait_for_workers(&store, &[(first, "seen"), (second, "unseen")]);
    stops.signal("-TERM");
    assert!(stops.child.wait().unwrap().success());
    wait_for_workers(&store, &[(second, "unseen")]);
}
