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
    crate::served::write_secret(folder.path().join("token"), canary);
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

#[test]
fn r40_a_log_level_that_is_none_is_refused_as_a_wrong_option() {
    for value in ["nonsense", "quell_server=loud"] {
        let refused = shown(&quell(&["settings"]).env("QUELL_LOG", value).output().unwrap());
        assert_eq!((refused.0, refused.1.as_str()), (2, ""), "{refused:?}");
        let expected = format!("error: invalid value {value:?} for 'QUELL_LOG': give error, warn");
        assert!(refused.2.starts_with(&expected), "{}", refused.2);
    }
    for value in ["", "debug", "warn,quell_server=trace"] {
        let fine = shown(&quell(&["settings"]).env("QUELL_LOG", value).output().unwrap());
        assert_eq!(fine.0, 0, "{value}: {fine:?}");
    }
}

#[test]
fn explain_without_an_argument_says_what_to_give() {
    let (code, _, err) = shown(&quell(&["explain"]).output().unwrap());
    assert!(code == 2 && err.contains("KEY|JOB|TRIGGER"), "{err}");
}

#[test]
fn r40_a_check_finds_what_would_fail_at_run_time_and_names_the_setting() {
    let (folder, config) = written("", "");
    let script = folder.path().join("run.sh");
    std::fs::write(&script, "#!/no/such/interpreter\n").unwrap();
    crate::served::write_secret(folder.path().join("secret"), "short");
    let text = format!(
        "[server]\nlisten = \"192.0.2.1:7777\"\ntoken_file = \"secret\"\nurl = \"https://q.example.com\"\n\
         [store]\nurl = \"sqlite://{0}/nosuch/q.db\"\n\
         [tasks.gone]\nexec = {{ command = [\"./nosuch.sh\"] }}\n\
         [tasks.plain]\nexec = {{ command = [\"./run.sh\"] }}\n\
         [tasks.path]\nexec = {{ command = [\"quell-no-such-program\"] }}\n\
         [tasks.folder]\nexec = {{ command = [\"true\"], cwd = \"nosuch\" }}\n\
         [tasks.inside]\nhttp = {{ url = \"http://127.0.0.1:9/\" }}\n\
         [tasks.named]\nhttp = {{ url = \"http://localhost:9/\" }}\n\
         [tasks.later]\nhttp = {{ url = \"https://example.com/\", secret_file = \"secret\", \
         completion = \"1h\" }}\n\
         [alerts.a]\non = \"dead\"\nthreshold = 1\nexec = {{ command = [\"./nosuch.sh\"] }}\n",
        folder.path().display()
    );
    std::fs::write(&config, text).unwrap();
    let (code, out, err) = check(&config);
    assert_eq!((code, out.as_str()), (1, ""), "{err}");
    for needle in [
        "quell.toml:2: server.listen: cannot listen on 192.0.2.1:7777: ",
        "quell.toml:6: store.url: the folder ",
        "tasks.gone.exec.command: ",
        "run.sh may not be executed",
        "tasks.path.exec.command: \"quell-no-such-program\" is in no folder of PATH",
        "tasks.folder.exec.cwd: ",
        "tasks.inside.http.url: host \"127.0.0.1\" has no public address",
        "tasks.named.http.url: host \"localhost\" has no public address",
        "tasks.later.http.completion: the secret has 5 bytes, and can be guessed: give 16 or more",
        "alerts.a.exec.command: ",
    ] {
        assert!(err.contains(needle), "{needle:?} is missing in {err}");
    }
}

#[test]
fn a_check_beside_a_running_server_notes_that_its_address_is_in_use() {
    let (folder, config) = written("", PLAIN);
    let process = Process::serve(&config, &[]);
    let taken = process.url.trim_start_matches("http://");
    let text = std::fs::read_to_string(&config).unwrap().replace("127.0.0.1:0", taken);
    let second = folder.path().join("second.toml");
    std::fs::write(&second, text).unwrap();
    let (code, out, err) = check(&second);
    assert_eq!((code, err.as_str()), (0, ""), "{out}");
    assert!(out.contains(&format!("note: server.listen: {taken} is in use")), "{out}");
}

#[test]
fn r25_a_command_that_cannot_be_started_is_logged_with_its_path_and_the_reason() {
    let tasks = ["gone", "plain", "bad"].map(|name| {
        format!(
            "[tasks.{name}]\nretry = {{ max_attempts = 1 }}\nexec = {{ command = [\"./{name}.sh\"] }}\n"
        )
    });
    let (folder, config) = written("", &tasks.concat());
    let script = |name: &str, text: &str, mode: u32| {
        use std::os::unix::fs::PermissionsExt;
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    script("plain.sh", "#!/bin/sh\n", 0o644);
    script("bad.sh", "#!/no/such/sh\n", 0o755);
    let log = std::fs::File::create(folder.path().join("log")).unwrap();
    let args = ["serve", "--config", config.to_str().unwrap()];
    let process = Process::start(quell(&args).stderr(log));
    for name in ["gone", "plain", "bad"] {
        let (_, id, _) = shown(&process.ask(&["trigger", name, "1", "--json"]));
        let receipt: serde_json::Value = serde_json::from_str(&id).unwrap();
        let ended =
            shown(&process.ask(&["result", receipt["job"].as_str().unwrap(), "--wait", "20s"]));
        assert_eq!(ended.0, 1, "{ended:?}");
    }
    let log = std::fs::read_to_string(folder.path().join("log")).unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    for (name, reasons) in [
        ("gone.sh", ["cannot be run: No such file or directory", ""]),
        ("plain.sh", ["cannot be run: Permission denied", "chmod +x"]),
        ("bad.sh", ["cannot be run: No such file or directory", "/no/such/sh"]),
    ] {
        let dead = |line: &&str| line.contains("job is dead") && line.contains(&path(name));
        let lines: Vec<&str> = log.lines().filter(dead).collect();
        assert_eq!(lines.len(), 1, "{name}: {log}");
        assert!(
            reasons.iter().all(|reason| lines[0].contains(reason)),
            "{reasons:?}: {}",
            lines[0]
        );
        let warned = log.lines().filter(|line| line.contains("until this is fixed"));
        assert!(warned.clone().any(|line| line.contains(&path(name))), "at the start, too: {log}");
    }
}
