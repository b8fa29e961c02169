//! `quell backup` and `quell restore` as operators run them, beside a server (R1, R21).

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

use crate::binary::{Process, quell, text};

const DEADLINE: Duration = Duration::from_secs(60);

/// A folder with a store and the configuration of its server.
struct Place {
    folder: TempDir,
}

impl Place {
    fn new() -> Place {
        let place = Place { folder: tempfile::tempdir().unwrap() };
        let text = format!(
            "[server]\nlisten = \"127.0.0.1:0\"\n[store]\nurl = \"{}\"\n[worker]\nlease = \"3s\"\n\
             [tasks.run]\nexec = {{ command = [\"true\"] }}\n\
             [tasks.later]\nkey = \"{{{{ k }}}}\"\ndebounce = {{ min = \"1h\", max = \"2h\" }}\n\
             exec = {{ command = [\"true\"] }}\n",
            place.url()
        );
        std::fs::write(place.path("quell.toml"), text).unwrap();
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn url(&self) -> String {
        format!("sqlite://{}", self.path("q.db").display())
    }

    fn serve(&self, more: &[&str]) -> Process {
        Process::serve(&self.path("quell.toml"), more)
    }

    /// Runs a command on the store.
    fn run(&self, command: &str, more: &[&str]) -> (bool, String) {
        let url = self.url();
        text(&quell(&[&[command, "--store", &url], more].concat()).output().unwrap())
    }

    fn backup(&self, name: &str, more: &[&str]) -> (bool, String) {
        let file = self.path(name);
        self.run("backup", &[&[file.to_str().unwrap()], more].concat())
    }

    fn restore(&self, name: &str) -> (bool, String) {
        self.run("restore", &[self.path(name).to_str().unwrap()])
    }

    fn names(&self) -> Vec<String> {
        let folder = std::fs::read_dir(self.folder.path()).unwrap();
        let mut names: Vec<String> =
            folder.map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

fn ends_well(mut process: Process) {
    process.signal("-TERM");
    assert!(process.child.wait().unwrap().success());
}

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().permissions().mode() & 0o777
}

/// The ids of the jobs of a store.
fn jobs(url: &str) -> Vec<u64> {
    let (mut ids, mut before) = (Vec::new(), i64::MAX.to_string());
    loop {
        let args = ["jobs", "--store", url, "--json", "--limit", "200", "--before", &before];
        let listed = quell(&args).output().unwrap();
        let Output { status, stdout, .. } = &listed;
        assert!(status.success(), "{listed:?}");
        let answer: Value = serde_json::from_slice(stdout).unwrap();
        let jobs = answer["jobs"].as_array().unwrap().iter();
        ids.extend(jobs.map(|job| job["id"].as_str().unwrap().parse::<u64>().unwrap()));
        let Some(next) = answer["next_before"].as_str() else { return ids };
        next.clone_into(&mut before);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r01_r21_a_backup_beside_a_loaded_server_is_restored_and_passes_the_checker() {
    let place = Place::new();
    let before = place.path("before.jsonl");
    let process = place.serve(&["--history", before.to_str().unwrap()]);
    let stop = AtomicBool::new(false);
    let url = format!("{}/v1/tasks/run/triggers", process.url);
    let client = reqwest::Client::new();
    // One trigger after the other, by several callers.
    let caller = async || {
        let mut acknowledged = Vec::new();
        while !stop.load(Ordering::Relaxed) {
            let request = client.post(&url).header("content-type", "application/json");
            let answer = request.body(r#"{"payload":1}"#).send().await.unwrap();
            let (status, answer) = crate::served::answer(answer).await;
            assert_eq!(status, 202, "{answer}");
            let job: u64 = answer["job"].as_str().unwrap().parse().unwrap();
            acknowledged.push(job);
        }
        acknowledged
    };
    let backup = async {
        let begun = Instant::now();
        while jobs(&place.url()).len() < 50 {
            assert!(begun.elapsed() < DEADLINE, "the load never begins");
            tokio::task::yield_now().await;
        }
        let there = jobs(&place.url());
        let cut = std::fs::read(&before).unwrap();
        let (place, file) = (place.url(), place.path("q.bak"));
        let made = tokio::task::spawn_blocking(move || {
            text(&quell(&["backup", "--store", &place, file.to_str().unwrap()]).output().unwrap())
        });
        let made = made.await.unwrap();
        stop.store(true, Ordering::Relaxed);
        assert!(made.0 && made.1.contains("bytes in"), "{}", made.1);
        (there, cut)
    };
    let (one, two, three, (there, cut)) = tokio::join!(caller(), caller(), caller(), backup);
    let newest = [one, two, three].concat().into_iter().max().unwrap();

    let (done, said) = place.restore("q.bak");
    assert!(!done && said.contains("stop all processes of the store"), "{said}");
    ends_well(process);
    let (done, said) = place.restore("q.bak");
    assert!(done && said.contains("left out 100000000 ids"), "{said}");
    assert!(said.contains("q.db.before-restore-"), "{said}");
    let restored = jobs(&place.url());
    for job in &there {
        assert!(restored.contains(job), "job {job} was accepted before the backup");
    }

    let after = place.path("after.jsonl");
    let process = place.serve(&["--history", after.to_str().unwrap()]);
    let (done, said) = text(&process.ask(&["trigger", "run", "1"]));
    assert!(done, "{said}");
    let begun = Instant::now();
    loop {
        let answer = client.get(format!("{}/v1/counts", process.url)).send().await.unwrap();
        let (_, counts) = crate::served::answer(answer).await;
        let shown = counts.to_string();
        if !shown.contains("\"scheduled\"") && !shown.contains("\"running\"") {
            break;
        }
        assert!(begun.elapsed() < DEADLINE, "{shown}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    ends_well(process);
    assert!(jobs(&place.url()).into_iter().max().unwrap() > newest + 99_000_000);
    // What happened before the backup and after the restore is one history. What came between is lost.
    std::fs::write(place.path("cut.jsonl"), cut).unwrap();
    let history = [place.path("cut.jsonl"), after];
    let files = history.each_ref().map(|file| file.to_str().unwrap());
    let checked = quell(&["check", files[0], files[1], "--partial"]).output().unwrap();
    let (passes, said) = text(&checked);
    assert!(passes, "{said}");
}

#[test]
fn a_killed_backup_leaves_no_file_under_its_name() {
    let place = Place::new();
    let process = place.serve(&[]);
    std::fs::write(place.path("payload"), format!("\"{}\"", "x".repeat(200_000))).unwrap();
    for _ in 0..20 {
        let argument = format!("@{}", place.path("payload").display());
        let (done, said) = text(&process.ask(&["trigger", "run", &argument]));
        assert!(done, "{said}");
    }
    let (file, url) = (place.path("q.bak"), place.url());
    let slow = ["backup", "--store", &url, file.to_str().unwrap(), "--rate", "1"];
    for signal in ["-TERM", "-KILL"] {
        let mut backup = quell(&slow).spawn().unwrap();
        let (part, begun) = (place.path("q.bak.part"), Instant::now());
        while std::fs::metadata(&part).map_or(0, |part| part.len()) == 0 {
            assert!(begun.elapsed() < DEADLINE, "it never begins");
            assert!(backup.try_wait().unwrap().is_none(), "it takes seconds");
        }
        assert_eq!(mode(&part), 0o600);
        let id = backup.id().to_string();
        assert!(Command::new("kill").args([signal, &id]).status().unwrap().success());
        assert!(!backup.wait().unwrap().success());
        assert!(!file.exists(), "{signal}");
        assert_eq!(part.exists(), signal == "-KILL");
    }
    let (done, said) = place.backup("q.bak", &["--json"]);
    let said: Value = serde_json::from_str(&said).unwrap();
    assert!(done && said["bytes"].as_u64().unwrap() > 4_000_000, "{said}");
    let (done, said) = place.backup("q.bak", &[]);
    assert!(!done && said.contains("there already"), "{said}");
    assert!(place.backup("q.bak", &["--force"]).0);
    ends_well(process);
}

/// Users copied `q.db` alone after a stop, and got an empty store.
#[test]
fn after_a_clean_stop_of_all_servers_the_file_alone_is_the_store() {
    let place = Place::new();
    let history = place.path("history.jsonl");
    let (first, second) =
        (place.serve(&["--history", history.to_str().unwrap()]), place.serve(&[]));
    for process in [&first, &second, &first] {
        let (done, said) = text(&process.ask(&["trigger", "later", r#"{"k":"a"}"#]));
        assert!(done, "{said}");
    }
    for name in ["q.db", "q.db-wal", "q.db-shm", "history.jsonl"] {
        assert_eq!(mode(&place.path(name)), 0o600, "{name}");
    }
    ends_well(first);
    let (done, said) = text(&second.ask(&["trigger", "later", r#"{"k":"b"}"#]));
    assert!(done, "{said}");
    ends_well(second);
    let left = std::fs::metadata(place.path("q.db-wal")).map_or(0, |log| log.len());
    assert_eq!(left, 0, "{:?}", place.names());
    std::fs::copy(place.path("q.db"), place.path("copy.db")).unwrap();
    assert_eq!(jobs(&format!("sqlite://{}", place.path("copy.db").display())).len(), 2);
}

#[test]
fn other_stores_are_refused_with_the_tools_that_they_have() {
    let file = tempfile::tempdir().unwrap();
    let file = file.path().join("b");
    for (url, tool) in [
        ("postgres://localhost/app", "pg_dump"),
        ("redis://localhost", "RDB"),
        ("rediss-cluster://a,b", "append-only"),
        ("azure://account/table", "Data Factory"),
        ("memory:", "ends with its process"),
        ("mysql://localhost", "give sqlite://FILE"),
    ] {
        for command in ["backup", "restore"] {
            let args = [command, "--store", url, file.to_str().unwrap()];
            let (done, said) = text(&quell(&args).output().unwrap());
            assert!(!done && said.contains(tool), "{command} {url}: {said}");
        }
    }
}

#[test]
fn a_store_or_a_backup_that_is_missing_is_named() {
    let place = Place::new();
    let (done, said) = place.backup("b", &[]);
    assert!(!done && said.contains("no such file"), "{said}");
    let (done, said) = place.restore("b");
    assert!(!done && said.contains("cannot read the backup"), "{said}");
    assert_eq!(place.names(), ["quell.toml"]);
}
