//! A server that encrypts what its store keeps (R43): its files, its commands, and the rotation of keys.

use std::path::Path;
use std::time::{Duration, Instant};

use quell::JobState;
use quell_server::config::Config;
use quell_server::serve::Server;
use serde_json::json;

use crate::binary::{quell, text};
use crate::served::{Served, serve};

const CANARY: &str = "canary-4711";

/// Runs `quell keys` on a file.
fn keys(command: &[&str], file: &Path) -> (bool, String) {
    let mut all = vec!["keys"];
    all.extend(command);
    all.extend(["--file", file.to_str().unwrap()]);
    text(&quell(&all).output().unwrap())
}

/// A server with a file of keys, which is in a folder of its own.
async fn encrypted(tasks: &str) -> (Served, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("keys");
    assert!(keys(&["add", "k1"], &file).0);
    let served = serve(&format!("{tasks}\n[encryption]\nkeys_file = {file:?}\n")).await;
    (served, folder)
}

/// Whether a file of the store has the canary. Another process reads it: a process that closes a file loses its
/// locks, those of SQLite too.
fn stored(served: &Served) -> bool {
    let files = std::fs::read_dir(served.folder.path()).unwrap();
    let has = |path: std::path::PathBuf| {
        let bytes = std::process::Command::new("cat").arg(path).output().unwrap().stdout;
        bytes.windows(CANARY.len()).any(|part| part == CANARY.as_bytes())
    };
    files.map(|file| file.unwrap().path()).filter(|path| path.is_file()).any(has)
}

const TASKS: &str = r#"
[tasks.echo]
exec = { command = ["cat"] }
[tasks.plain]
encrypt = false
exec = { command = ["true"] }
"#;

#[tokio::test]
async fn r43_the_files_of_a_server_have_ciphertext_and_its_api_has_not() {
    let (served, folder) = encrypted(TASKS).await;
    let payload = json!({ "name": CANARY }).to_string();
    let job = served.trigger("echo", &payload).await["job"].clone();
    let shown = served.ended(&job, JobState::Succeeded).await;
    assert_eq!(shown["job"]["payload"]["name"], CANARY);
    assert_eq!(shown["job"]["output"]["name"], CANARY);
    assert!(!stored(&served));
    // A command on the store itself decrypts with the keys.
    let url = format!("sqlite://{}", served.folder.path().join("q.db").display());
    let asked = ["job", job.as_str().unwrap(), "--store", &url];
    let shown = text(&quell(&asked).output().unwrap()).1;
    assert!(!shown.contains(CANARY) && shown.contains("$sealed"), "{shown}");
    let shown =
        text(&quell(&asked).env("QUELL_KEYS_FILE", folder.path().join("keys")).output().unwrap());
    assert!(shown.0 && shown.1.contains(CANARY), "{}", shown.1);
    served.trigger("plain", &payload).await;
    assert!(stored(&served), "of a task that is left out");
    served.server.stop().await.unwrap();
}

/// R32, R36: encryption that begins on a store with declared schedules takes them in, and the digest of a declaration
/// does not show what is in it.
#[tokio::test]
async fn r43_declared_schedules_are_encrypted_once_there_are_keys() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("keys");
    assert!(keys(&["add", "k1"], &file).0);
    let url = format!("sqlite://{}", folder.path().join("q.db").display());
    let text = format!(
        "[server]\nlisten = \"127.0.0.1:0\"\n[store]\nurl = \"{url}\"\n[tasks.t]\npull = true\n\
         [schedules.s]\ntask = \"t\"\nevery = \"24h\"\npayload = {{ pin = \"{CANARY}\" }}\n"
    );
    let encrypted = format!("{text}[encryption]\nkeys_file = {file:?}\n");
    let mut digests = Vec::new();
    for (text, is_plain) in [(&text, true), (&encrypted, false), (&encrypted, false)] {
        let config = Config::parse(text, &folder.path().join("quell.toml")).unwrap();
        let server = Server::start(config, None).await.unwrap();
        let plain = quell::Quell::open(&url).await.unwrap();
        let kept = plain.schedules().await.unwrap().remove(0).schedule;
        assert_eq!(kept.trigger.payload.as_str().contains(CANARY), is_plain, "{kept:?}");
        digests.push(kept.declared.unwrap());
        server.stop().await.unwrap();
    }
    assert_ne!(digests[0], digests[1]);
    assert_eq!(digests[1], digests[2]);
}

/// A key is added, used and removed while the server runs; what the old one encrypted is read until then.
#[tokio::test]
async fn r43_keys_rotate_without_a_restart() {
    let (served, folder) = encrypted(TASKS).await;
    let file = folder.path().join("keys");
    let payload = json!({ "name": CANARY }).to_string();
    let old = served.trigger("echo", &payload).await["job"].clone();
    served.ended(&old, JobState::Succeeded).await;
    let (ok, said) = keys(&["add", "k2"], &file);
    assert!(ok && said.contains("k1  encrypts\nk2  decrypts"), "{said}");
    assert!(keys(&["use", "k2"], &file).0);
    let shows = async |id: &serde_json::Value| {
        served.get(&format!("/v1/jobs/{}", id.as_str().unwrap())).await.1["job"]["payload"].clone()
    };
    assert_eq!(shows(&old).await["name"], CANARY);
    // Within a second, new ones are encrypted by the new key: with the old one removed, they open.
    let new = serve_until_by(&served, &payload, "k2").await;
    assert!(keys(&["remove", "k1"], &file).0);
    let kept = std::fs::read_to_string(&file).unwrap();
    assert!(kept.contains("# removed: k1 "), "it can be taken back");
    let deadline = Instant::now() + Duration::from_secs(20);
    while shows(&old).await["$sealed"]["key"] != "k1" {
        assert!(Instant::now() < deadline, "the old key is never forgotten");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(shows(&new).await["name"], CANARY);
    served.server.stop().await.unwrap();
}

/// Triggers until the store has a job by this key; that job.
async fn serve_until_by(served: &Served, payload: &str, key: &str) -> serde_json::Value {
    let file = served.folder.path().join("q.db");
    let plain = quell::Quell::open(&format!("sqlite://{}", file.display())).await.unwrap();
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        let job = served.trigger("echo", payload).await["job"].clone();
        let row = plain.job(job.as_str().unwrap().parse().unwrap()).await.unwrap().unwrap();
        if row.payload.as_str().contains(&format!("\"key\":\"{key}\"")) {
            return job;
        }
        assert!(Instant::now() < deadline, "{key} never encrypts");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[test]
fn r40_keys_that_cannot_be_meant_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("keys");
    let (ok, said) = keys(&["list"], &file);
    assert!(!ok && said.contains("cannot be read"), "{said}");
    assert!(keys(&["add", "k1"], &file).0);
    for (command, why) in [
        (["add", "k1"], "the name of an earlier one"),
        (["add", "fingerprint"], "choose another"),
        (["remove", "k1"], "use another one first"),
        (["remove", "k2"], "there are k1"),
        (["use", "fingerprint"], "there is no key"),
    ] {
        let (ok, said) = keys(&command, &file);
        assert!(!ok && said.contains(why), "{command:?}: {said}");
    }
    let (ok, said) = keys(&["list", "--json"], &file);
    assert!(ok && said.contains("\"encrypts\":true"), "{said}");
    let secret = std::fs::read_to_string(&file).unwrap();
    let secret = secret.lines().next().unwrap().split_once(' ').unwrap().1;
    assert!(!said.contains(secret), "{said}");
}

/// What is wrong with a configuration.
fn problems(text: &str) -> String {
    let parsed = Config::parse(text, Path::new("quell.toml"));
    parsed.err().map(|error| error.to_string()).unwrap_or_default()
}

#[test]
fn r40_settings_of_the_encryption_are_refused_by_field() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("keys");
    assert!(keys(&["add", "k1"], &file).0);
    let merges = |more: &str| {
        format!(
            "[encryption]\nkeys_file = {file:?}\n[tasks.t]\nkey = \"k\"\npayload = \"merge\"\n{more}\n\
             debounce = {{ min = \"1s\", max = \"2s\" }}\npull = true\n"
        )
    };
    assert!(problems(&merges("")).contains("tasks.t.payload"), "{}", problems(&merges("")));
    assert_eq!(problems(&merges("encrypt = false")), "");
    let missing = "[encryption]\nkeys_file = \"/nosuch/keys\"\n";
    assert!(problems(missing).contains("encryption.keys_file"), "{}", problems(missing));
    for (rules, why) in [("\"card\"", "does not begin with /"), ("\"/a/**\"", "ends with **")] {
        let text = format!("[tasks.t]\nredact = [{rules}]\npull = true\n");
        let found = problems(&text);
        assert!(found.contains("tasks.t.redact") && found.contains(why), "{found}");
    }
}
