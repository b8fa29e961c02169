//! What holds for the whole command line: JSON, exit statuses, the server that is asked.

use std::process::Output;
use std::time::{Duration, Instant};

use clap::CommandFactory;
use quell_server::cli::program::Cli;
use serde_json::Value;

use crate::binary::{Process, quell};

/// A task that succeeds, one that fails, and one that waits.
const TASKS: &str = r#"
[queues.paused]
paused = true

[tasks.good]
exec = { command = ["true"] }

[tasks.bad]
retry = { max_attempts = 1 }
exec = { command = ["false"] }

[tasks.waits]
queue = "paused"
exec = { command = ["true"] }
"#;

/// A server process on a store of its own.
struct Site {
    folder: tempfile::TempDir,
    process: Process,
}

fn serve() -> Site {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("quell.toml");
    let store = folder.path().join("q.db");
    let tokens = folder.path().join("tokens.json");
    let made = quell(&["tokens", "add", "all", "--scope", "admin", "--file"]).arg(&tokens).output();
    assert!(made.as_ref().unwrap().status.success(), "{made:?}");
    let text = format!(
        "[server]\nlisten = \"127.0.0.1:0\"\n[store]\nurl = \"sqlite://{}\"\n{TASKS}",
        store.display()
    );
    std::fs::write(&config, text).unwrap();
    let process = Process::serve(&config, &[]);
    Site { folder, process }
}

impl Site {
    fn store(&self) -> String {
        format!("sqlite://{}", self.folder.path().join("q.db").display())
    }
}

fn parts(output: &Output) -> (i32, String, String) {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    (output.status.code().unwrap_or(-1), text(&output.stdout), text(&output.stderr))
}

/// Commands without `--json`, each with the reason.
const WITHOUT_JSON: [(&str, &str); 7] = [
    ("quell completions", "a script for a shell"),
    ("quell demo", "a picture for people"),
    ("quell help", "made by the parser"),
    ("quell man", "writes files"),
    ("quell openapi", "prints JSON as it is"),
    ("quell serve", "runs: its log is JSON by QUELL_LOG_FORMAT"),
    ("quell settings", "a page of the documentation"),
];

#[test]
fn every_command_prints_json_or_has_a_reason_not_to() {
    let mut without = Vec::new();
    let mut rest = vec![(Cli::command(), "quell".to_owned())];
    while let Some((command, name)) = rest.pop() {
        let below = command.get_subcommands().filter(|one| one.get_name() != "help");
        let below: Vec<_> =
            below.map(|one| (one.clone(), format!("{name} {}", one.get_name()))).collect();
        let has_json = command.get_arguments().any(|arg| arg.get_long() == Some("json"));
        if below.is_empty() && !has_json {
            without.push(name);
        }
        rest.extend(below);
    }
    for name in &without {
        assert!(WITHOUT_JSON.iter().any(|(known, _)| known == name), "{name} has no --json");
    }
    let named = WITHOUT_JSON.iter().filter(|(name, _)| *name != "quell help");
    for (name, _) in named {
        assert!(without.iter().any(|one| one == name), "{name} has --json, or is gone");
    }
}

#[test]
fn lists_checks_and_health_print_json() {
    let site = serve();
    let history = site.folder.path().join("history");
    std::fs::write(&history, "").unwrap();
    let history = history.to_str().unwrap();
    let table: [(&[&str], &str); 10] = [
        (&["health"], "/status"),
        (&["sources"], "/sources"),
        (&["actions", "list"], "/actions"),
        (&["audit"], "/entries"),
        (&["alerts"], "/alerts"),
        (&["workers"], "/workers"),
        (&["queue", "list"], "/queues"),
        (&["task", "list"], "/tasks"),
        (&["schedule", "list"], "/schedules"),
        (&["check", history], "/properties/0/judged"),
    ];
    for (args, member) in table {
        let (code, out, err) = parts(&site.process.ask(&[args, &["--json"]].concat()));
        assert_eq!(code, 0, "{args:?}: {err}");
        let read: Value = serde_json::from_str(&out).unwrap_or_else(|e| panic!("{e}: {out}"));
        assert!(read.pointer(member).is_some(), "{args:?}: {out}");
    }
}

#[test]
fn a_check_that_finds_a_broken_promise_shows_it_as_json_and_fails() {
    let folder = tempfile::tempdir().unwrap();
    let history = folder.path().join("history");
    let lines = "{\"event\":\"stamp\",\"op\":1,\"key\":\"a\",\"value\":1}\n\
                 {\"event\":\"stamp_ok\",\"op\":1}\n{\"event\":\"read\",\"run\":1,\"key\":\"a\",\"value\":1}\n";
    std::fs::write(&history, lines).unwrap();
    let (code, out, err) =
        parts(&quell(&["check", "--json", history.to_str().unwrap()]).output().unwrap());
    let read: Value = serde_json::from_str(&out).unwrap_or_else(|e| panic!("{e}: {out}"));
    assert_eq!((code, &read["violations"][0]["property"]), (1, &Value::from("P2")), "{out}");
    assert!(read["violations"][0]["lines"][0]["event"].is_string(), "{out}");
    assert!(err.contains("breaks 1 promises"), "{err}");
}

#[test]
fn each_exit_status_means_what_the_page_says() {
    let site = serve();
    let ask = |args: &[&str]| parts(&site.process.ask(args));
    for task in ["good", "bad", "waits"] {
        assert_eq!(ask(&["trigger", task]).0, 0);
    }
    let store = site.store();
    let nowhere = "sqlite:///no/such/store.db";
    let table: [(&[&str], i32); 22] = [
        (&["result", "1", "--wait", "20s"], 0),
        (&["result", "2", "--wait", "20s"], 1),
        (&["result", "3"], 0),
        (&["result", "3", "--wait", "10ms"], 3),
        (&["result", "3", "--wait", "10ms", "--json"], 3),
        (&["result", "3", "--wait", "10ms", "--store", &store], 3),
        (&["jobs"], 0),
        (&["jobs", "--server", "http://127.0.0.1:1"], 1),
        (&["jobs", "--store", nowhere], 1),
        (&["job", "777"], 1),
        (&["health"], 0),
        (&["health", "--server", "http://127.0.0.1:1"], 1),
        (&["doctor", "--store", nowhere], 1),
        (&["nosuch"], 2),
        (&["jobs", "--limit", "201"], 2),
        (&["jobs", "--late", "1m", "--state", "dead"], 2),
        (&["jobs", "--payload"], 2),
        (&["jobs", "--server", "mailto:a@example.com"], 2),
        (&["dead", "redrive", "2", "--task", "bad"], 2),
        (&["actions", "begin", "cancel"], 2),
        (&["actions", "begin", "cancel", "--state", "dead"], 1),
        (&["actions", "begin", "cancel", "--task", "waits", "--dry-run", "--wait"], 0),
    ];
    for (args, expected) in table {
        let (code, out, err) = ask(args);
        assert_eq!(code, expected, "{args:?}: {out}{err}");
        assert_eq!(err.contains("error: "), expected != 0, "{args:?}: {err}");
    }
    let mut wrong = quell(&["jobs"]);
    let (code, _, err) = parts(&wrong.env("QUELL_SERVER", "no url").output().unwrap());
    assert!(code == 2 && err.contains("QUELL_SERVER"), "{code}: {err}");
}

#[test]
fn a_file_or_a_store_is_used_although_the_variable_names_a_server() {
    let site = serve();
    let tokens = site.folder.path().join("tokens.json");
    let tokens = tokens.to_str().unwrap();
    let store = site.store();
    let here: [&[&str]; 4] = [
        &["tokens", "list", "--file", tokens],
        &["tokens", "add", "ci", "--scope", "read", "--file", tokens],
        &["queue", "list", "--store", &store],
        &["dead", "list", "--store", &store],
    ];
    for args in here {
        let mut command = quell(args);
        let (code, out, err) =
            parts(&command.env("QUELL_SERVER", "http://127.0.0.1:1").output().unwrap());
        assert_eq!(code, 0, "{args:?}: {out}{err}");
        let both = [args, &["--server", &site.process.url]].concat();
        let (code, _, err) = parts(&quell(&both).output().unwrap());
        assert!(code == 2 && err.contains("cannot be used with"), "{args:?}: {err}");
    }
}

#[test]
fn plain_http_needs_no_certificates_and_https_says_what_is_missing() {
    let site = serve();
    let empty = tempfile::tempdir().unwrap();
    let ask = |server: &str| {
        let mut command = quell(&["health", "--server", server]);
        command.env("SSL_CERT_DIR", empty.path()).env("SSL_CERT_FILE", empty.path().join("none"));
        parts(&command.output().unwrap())
    };
    let (code, out, err) = ask(&site.process.url);
    assert_eq!((code, out.as_str(), err.as_str()), (0, "ok\n", ""));
    let (code, _, err) = ask("https://127.0.0.1:1");
    assert!(code == 1 && err.contains("SSL_CERT_FILE"), "{err}");
}

#[test]
fn a_redirect_to_https_names_the_address_to_ask() {
    use std::io::{Read, Write};
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let answering = std::thread::spawn(move || {
        let (mut caller, _) = listener.accept().unwrap();
        let _read = caller.read(&mut [0; 4096]).unwrap();
        let answer = "HTTP/1.1 308 Permanent Redirect\r\nlocation: https://quell.example.com/\r\n\
                      content-length: 0\r\nconnection: close\r\n\r\n";
        caller.write_all(answer.as_bytes()).unwrap();
    });
    let (code, _, err) =
        parts(&quell(&["health", "--server", &format!("http://{address}")]).output().unwrap());
    answering.join().unwrap();
    assert!(code == 1 && err.contains("https://quell.example.com"), "{err}");
}

#[test]
fn actions_are_begun_followed_listed_and_stopped_from_the_command_line() {
    let site = serve();
    let ask = |args: &[&str]| parts(&site.process.ask(args));
    for _ in 0..5 {
        assert_eq!(ask(&["trigger", "waits"]).0, 0);
    }
    let begin = ["actions", "begin"];
    let of_task = ["--task", "waits"];
    let (code, out, err) =
        ask(&[&begin[..], &["cancel"], &of_task, &["--dry-run", "--wait", "--name", "try"]]
            .concat());
    assert_eq!(code, 0, "{err}");
    assert!(out.contains("5 match; nothing was changed"), "{out}");
    let raise = [&begin[..], &["reprioritise", "--priority", "-3", "--wait", "--json"], &of_task];
    let (code, out, err) = ask(&raise.concat());
    assert_eq!(code, 0, "{err}");
    let done: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((&done["state"], &done["done"]), (&Value::from("done"), &Value::from(5)), "{out}");

    let slow = ["cancel", "--rate", "1", "--name", "slow", "--reason", "a wrong import"];
    let (code, out, err) = ask(&[&begin[..], &slow, &of_task].concat());
    assert!(code == 0 && out.contains("quell actions show slow"), "{out}{err}");
    let (code, out, err) = ask(&["actions", "stop", "slow", "--wait", "--json"]);
    assert_eq!(code, 0, "{err}");
    let stopped: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(stopped["state"], "stopped", "{out}");
    let (code, out, err) = ask(&["actions", "show", "slow", "--wait"]);
    assert!(code == 1 && err.contains("is stopped, not done"), "{out}{err}");
    assert!(out.contains("cancel of task=waits"), "{out}");
    let (_, listed, _) = ask(&["actions", "list"]);
    let names: Vec<&str> = listed.lines().filter_map(|line| line.split(' ').next()).collect();
    assert!(names.len() == 4 && names[1] == "slow" && names[3] == "try", "{listed}");
    assert!(ask(&["actions", "stop", "slow"]).1.contains("is forgotten"));
    assert_eq!(ask(&["actions", "show", "slow"]).0, 1);
    let (code, _, err) = ask(&[&begin[..], &["discard", "--task", "bad"]].concat());
    assert!(code == 1 && err.contains("reason"), "{err}");
}

#[test]
fn jobs_have_payloads_where_they_are_asked_for() {
    let site = serve();
    assert_eq!(parts(&site.process.ask(&["trigger", "bad", r#"{"n": 1.50}"#])).0, 0);
    assert_eq!(parts(&site.process.ask(&["result", "1", "--wait", "20s"])).0, 1);
    let store = site.store();
    for from in [&[][..], &["--store", &store]] {
        for listed in [&["jobs", "--json"][..], &["dead", "list", "--json"]] {
            let list = |more: &[&str]| parts(&site.process.ask(&[listed, more, from].concat())).1;
            assert!(list(&["--payload"]).contains(r#"{"n": 1.50}"#), "{}", list(&["--payload"]));
            assert!(!list(&[]).contains("1.50"));
        }
    }
}

/// Waits until a condition holds, and fails with what was seen last.
pub(crate) fn wait_for(mut look: impl FnMut() -> (bool, String)) -> String {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let (holds, seen) = look();
        if holds {
            return seen;
        }
        assert!(Instant::now() < deadline, "never: {seen}");
    }
}
