//! The command line's manners: exit codes, what goes to which output, secrets, signals.

use std::path::{Path, PathBuf};
use std::process::Output;
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

use crate::binary::{Process, quell};

/// A configuration in a folder of its own, with a store beside it.
fn written(server: &str, tasks: &str) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().join("q.db");
    let text = format!(
        "[server]\nlisten = \"127.0.0.1:0\"\n{server}\n[store]\nurl = \"sqlite://{}\"\n{tasks}",
        store.display()
    );
    let config = folder.path().join("quell.toml");
    std::fs::write(&config, text).unwrap();
    (folder, config)
}

fn shown(output: &Output) -> (i32, String, String) {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    (output.status.code().unwrap_or(-1), text(&output.stdout), text(&output.stderr))
}

fn check(config: &Path) -> (i32, String, String) {
    let args = ["serve", "--check", "--config", config.to_str().unwrap()];
    shown(&quell(&args).output().unwrap())
}

const PLAIN: &str = "[tasks.plain]\nexec = { command = [\"true\"] }\n";

#[test]
fn exit_codes_distinguish_done_failed_and_misused() {
    let (_folder, config) = written("", PLAIN);
    let (code, out, err) = check(&config);
    assert_eq!((code, err.as_str()), (0, ""), "{out}");
    assert!(out.contains("fine, 1 tasks"), "{out}");

    let (_folder, config) = written("", "[tasks.plain]\nexec = { comand = [\"true\"] }\n");
    let (code, out, err) = check(&config);
    assert_eq!((code, out.as_str()), (1, ""), "{err}");
    assert!(err.contains("quell.toml:7: tasks.plain.exec.comand: "), "{err}");

    for args in [&["nosuch"][..], &["jobs", "--limit", "201"], &["jobs", "--state", "deaf"]] {
        let (code, out, err) = shown(&quell(args).output().unwrap());
        assert_eq!((code, out.as_str()), (2, ""), "{args:?}: {err}");
    }
}

#[test]
fn r19_the_exit_status_of_a_result_says_whether_the_job_succeeded() {
    let bad = "[tasks.bad]\nretry = { max_attempts = 1 }\nexec = { command = [\"false\"] }\n";
    let (folder, config) = written("", &format!("{PLAIN}{bad}"));
    let process = Process::serve(&config, &[]);
    let store = format!("sqlite://{}", folder.path().join("q.db").display());
    let triggers: [&[&str]; 3] = [&["plain"], &["bad"], &["plain", "--delay", "1h"]];
    for trigger in triggers {
        assert_eq!(shown(&process.ask(&[&["trigger"], trigger].concat())).0, 0);
    }
    let table = [("1", "succeeded", 0), ("2", "dead", 1), ("3", "scheduled", 0)];
    for (job, state, expected) in table {
        let wait: &[&str] = if state == "scheduled" { &[] } else { &["--wait", "20s"] };
        let ways: [&[&str]; 4] =
            [&[], &["--json"], &["--store", &store], &["--store", &store, "--json"]];
        for way in ways {
            let (code, out, err) = shown(&process.ask(&[&["result", job], wait, way].concat()));
            assert_eq!(code, expected, "{job} {way:?}: {out}{err}");
            assert!(out.contains(state), "{job} {way:?}: {out}");
            assert_eq!(err.contains("not succeeded"), expected == 1, "{job} {way:?}: {err}");
        }
    }
}

#[test]
fn another_address_without_a_token_refuses_to_start() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("quell.toml");
    std::fs::write(&config, "[server]\nlisten = \"0.0.0.0:0\"\n").unwrap();
    let args = ["serve", "--config", config.to_str().unwrap()];
    let (code, _, err) = shown(&quell(&args).current_dir(folder.path()).output().unwrap());
    assert_eq!(code, 1, "{err}");
    assert!(err.contains("quell.toml:2: server.listen: ") && err.contains("token"), "{err}");
    assert!(!folder.path().join("quell.db").exists(), "it touched the store");
}

#[test]
fn a_token_lets_in_and_shows_nowhere() {
    let (folder, config) = written("token_file = \"token\"", PLAIN);
    let canary = "qll_canary_of_the_command_line";
    std::fs::write(folder.path().join("token"), canary).unwrap();
    let process = Process::serve(&config, &[]);
    let ask = |token: &str| {
        let args = ["trigger", "plain", "1", "--json"];
        let mut asked = quell(&args);
        asked.env("QUELL_SERVER", &process.url).env("QUELL_TOKEN", token);
        shown(&asked.env("QUELL_LOG", "trace").output().unwrap())
    };
    let (code, out, err) = ask(canary);
    assert_eq!(code, 0, "{err}");
    let receipt: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(receipt["receipt"], "accepted");
    assert!(!err.contains(canary) && !out.contains(canary));
    let (code, _, err) = ask("qll_canary_that_is_wrong");
    assert_eq!(code, 1);
    assert!(err.contains("token is missing or wrong") && !err.contains("canary"), "{err}");
    for file in ["q.db", "q.db-wal"] {
        let bytes = std::fs::read(folder.path().join(file)).unwrap_or_default();
        let found = bytes.windows(canary.len()).any(|window| window == canary.as_bytes());
        assert!(!found, "the token is in {file}");
    }
}

#[test]
fn keys_and_outputs_cannot_steer_the_terminal() {
    let tasks = "[tasks.build]\nkey = \"{{ k }}\"\nretry = { max_attempts = 1 }\n\
                 debounce = { min = \"1ms\", max = \"1s\" }\n\
                 exec = { command = [\"sh\", \"-c\", \"printf '\\\\033]0;owned\\\\007'; exit 1\"] }\n";
    let (_folder, config) = written("", tasks);
    let process = Process::serve(&config, &[]);
    let (code, _, err) =
        shown(&process.ask(&["trigger", "build", r#"{"k":"\u001b[31mred\nline"}"#]));
    assert_eq!(code, 0, "{err}");
    let deadline = Instant::now() + Duration::from_secs(20);
    let reply = loop {
        let (_, reply, _) = shown(&process.ask(&["job", "1"]));
        if reply.contains(": dead") {
            break reply;
        }
        assert!(Instant::now() < deadline, "{reply}");
    };
    let (_, listed, _) = shown(&process.ask(&["jobs"]));
    assert!(listed.contains("red\\nline") && listed.lines().count() == 2, "{listed}");
    for text in [reply, listed] {
        assert!(!text.contains(['\u{1b}', '\u{7}']), "{text:?}");
    }
}

#[tokio::test]
async fn r29_a_second_signal_does_not_wait_for_attempts() {
    let tasks = "[worker]\ngrace = \"10m\"\n[tasks.long]\n\
                 exec = { command = [\"sh\", \"-c\", \"echo up > up; exec sleep 77779\"], cwd = \".\" }\n";
    let (folder, config) = written("", tasks);
    let mut process = Process::serve(&config, &[]);
    assert_eq!(shown(&process.ask(&["trigger", "long"])).0, 0);
    let deadline = Instant::now() + Duration::from_secs(20);
    while !folder.path().join("up").exists() {
        assert!(Instant::now() < deadline, "the command never started");
    }
    process.signal("-INT");
    // Load balancers see that the shutdown has begun, and workers elsewhere are still answered.
    let health = format!("{}/v1/healthz", process.url);
    while reqwest::get(&health).await.unwrap().status() != 503 {
        assert!(Instant::now() < deadline, "the shutdown does not begin");
    }
    assert_eq!(shown(&process.ask(&["jobs"])).0, 0);
    assert!(process.child.try_wait().unwrap().is_none(), "it did not wait for the attempt");
    process.signal("-INT");
    let ended = process.child.wait().unwrap();
    assert_eq!(ended.code(), Some(1));
    assert!(Instant::now() < deadline, "it waited");
}
