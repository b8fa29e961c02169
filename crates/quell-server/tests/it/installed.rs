//! The commands that packages use: completions, manual pages, the check of a container's health.

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::binary::{Process, quell, text};

/// The commands that `quell --help` lists.
fn listed_commands() -> BTreeSet<String> {
    let (succeeded, help) = text(&quell(&["--help"]).output().unwrap());
    assert!(succeeded, "{help}");
    let (_, commands) = help.split_once("Commands:\n").unwrap();
    let (commands, _) = commands.split_once("\n\n").unwrap();
    let indented = commands.lines().filter_map(|line| line.strip_prefix("  "));
    let names = indented.filter(|line| !line.starts_with(' '));
    names.filter_map(|line| line.split(' ').next()).map(str::to_owned).collect()
}

#[test]
fn completions_for_each_shell_name_every_command() {
    let commands = listed_commands();
    assert!(commands.contains("serve") && commands.contains("completions"), "{commands:?}");
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let (succeeded, script) = text(&quell(&["completions", shell]).output().unwrap());
        assert!(succeeded, "{shell}: {script}");
        for command in &commands {
            assert!(script.contains(command.as_str()), "{shell}: {command} is missing");
        }
    }
    let refused = quell(&["completions", "tcsh"]).output().unwrap();
    assert_eq!(refused.status.code(), Some(2), "a wrong argument");
    assert!(text(&refused).1.contains("possible values: bash, elvish, fish, powershell, zsh"));
}

#[test]
fn bash_completes_commands_and_options_by_the_script() {
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("quell");
    std::fs::write(&script, quell(&["completions", "bash"]).output().unwrap().stdout).unwrap();
    // What bash does at a tab: the words of the line, the word that is completed, the function.
    let complete = r#"
        . "$1"; shift
        COMP_WORDS=(quell "$@"); COMP_CWORD=$#
        _quell quell "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD-1]}"
        printf '%s\n' "${COMPREPLY[@]}"
    "#;
    let completed = |words: &[&str]| {
        let mut bash = Command::new("bash");
        bash.args(["--norc", "-c", complete, "bash"]).arg(&script).args(words);
        let (succeeded, shown) = text(&bash.output().unwrap());
        assert!(succeeded, "{words:?}: {shown}");
        shown.lines().map(str::to_owned).collect::<BTreeSet<_>>()
    };
    assert_eq!(completed(&["que"]), BTreeSet::from(["queue".to_owned()]));
    assert_eq!(completed(&["queue", "pau"]), BTreeSet::from(["pause".to_owned()]));
    assert_eq!(completed(&["serve", "--conf"]), BTreeSet::from(["--config".to_owned()]));
}

#[test]
fn every_command_has_a_manual_page_with_its_options() {
    let folder = tempfile::tempdir().unwrap();
    let pages = folder.path().join("new/man1");
    let (succeeded, shown) =
        text(&quell(&["man", "--out", pages.to_str().unwrap()]).output().unwrap());
    assert!(succeeded && shown.contains("man1"), "{shown}");
    let page = |name: &str| {
        let page = std::fs::read_to_string(pages.join(format!("{name}.1")));
        // A hyphen is escaped in roff.
        page.unwrap_or_else(|error| panic!("{name}.1: {error}")).replace("\\-", "-")
    };
    let whole = page("quell");
    assert!(whole.contains(".TH quell 1"), "{whole}");
    for command in listed_commands().iter().filter(|command| *command != "help") {
        assert!(whole.contains(&format!("quell-{command}(1)")), "{command}: {whole}");
        page(&format!("quell-{command}"));
    }
    for (name, needle) in [
        ("quell-serve", "--config"),
        ("quell-queue-set", "--concurrency"),
        ("quell-dead-redrive", "--rate"),
        ("quell-health", "QUELL_SERVER"),
    ] {
        assert!(page(name).contains(needle), "{name}: no {needle}:\n{}", page(name));
    }
}

#[test]
fn manual_pages_that_cannot_be_written_are_an_error_with_the_place() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let place = file.path().to_str().unwrap();
    let (succeeded, shown) = text(&quell(&["man", "--out", place]).output().unwrap());
    assert!(!succeeded && shown.contains(&format!("--out {place}")), "{shown}");
}

fn configure(folder: &Path) -> std::path::PathBuf {
    let config = folder.join("quell.toml");
    let store = folder.join("q.db");
    let token = folder.join("token");
    std::fs::write(&token, "a token that the health check does not have").unwrap();
    std::fs::set_permissions(&token, std::fs::Permissions::from_mode(0o600)).unwrap();
    let text = format!(
        "[server]\nlisten = \"127.0.0.1:0\"\ntoken_file = \"{}\"\n[store]\nurl = \"sqlite://{}\"\n\
         [worker]\ngrace = \"60s\"\n[tasks.slow]\nexec = {{ command = [\"sleep\", \"60\"] }}\n",
        token.display(),
        store.display()
    );
    std::fs::write(&config, text).unwrap();
    config
}

#[test]
fn health_fails_once_the_server_stops_and_where_none_answers() {
    let folder = tempfile::tempdir().unwrap();
    let mut process = Process::serve(&configure(folder.path()), &[]);
    let (succeeded, shown) = text(&process.ask(&["health"]));
    assert!(succeeded && shown == "ok\n", "it needs no token: {shown}");
    let (succeeded, shown) = text(&quell(&["health", "--server", &process.url]).output().unwrap());
    assert!(succeeded, "{shown}");

    // An attempt that runs on keeps the server: it answers, and is not healthy.
    let token = std::fs::read_to_string(folder.path().join("token")).unwrap();
    let mut trigger = quell(&["trigger", "slow", "1", "--server", &process.url]);
    let (succeeded, shown) = text(&trigger.env("QUELL_TOKEN", &token).output().unwrap());
    assert!(succeeded, "{shown}");
    let mut job = quell(&["job", "1", "--server", &process.url]);
    wait_until(|| text(&job.env("QUELL_TOKEN", &token).output().unwrap()), "running");
    process.signal("-TERM");
    wait_until(|| text(&process.ask(&["health"])), "the server stops");
    assert_eq!(process.ask(&["health"]).status.code(), Some(1));

    // The second signal ends it at once.
    process.signal("-TERM");
    process.child.wait().unwrap();
    let (succeeded, shown) = text(&process.ask(&["health"]));
    assert!(!succeeded && shown.contains("no server answers there"), "{shown}");
}

/// Asks again until the answer has this text.
fn wait_until(ask: impl FnMut() -> (bool, String), needle: &str) {
    let mut ask = ask;
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let (_, shown) = ask();
        if shown.contains(needle) {
            return;
        }
        assert!(Instant::now() < deadline, "never {needle:?}: {shown}");
    }
}
