//! `quell doctor` as a user runs it (R38).

use std::process::Output;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use quell::Timestamp;
use quell::store::Store;

use crate::binary::quell;

fn doctor(url: &str, more: &[&str]) -> (bool, String) {
    let args = [&["doctor", "--store", url], more].concat();
    let Output { status, stdout, stderr } = quell(&args).output().unwrap();
    (
        status.success(),
        format!("{}{}", String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr)),
    )
}

#[tokio::test]
async fn r38_doctor_fails_with_a_remedy_where_the_clock_is_ahead_and_sets_it_back() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite://{}", folder.path().join("q.db").display());
    let (fine, said) = doctor(&url, &["--reset-clock"]);
    assert!(!fine && said.contains("no such file"), "{said}");

    let store = quell::sqlite::SqliteStore::open(&url).await.unwrap();
    let (fine, said) = doctor(&url, &[]);
    assert!(fine && said.contains("ahead by"), "{said}");

    // A time in a wrong unit.
    let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let ahead = Timestamp::from_micros(0) + wall + Duration::from_secs(365 * 86_400);
    let batch = quell::Batch::one(quell_conformance::rig::plain("1"));
    store.enqueue(Some(ahead), vec![batch]).await.unwrap().remove(0).unwrap();
    let (fine, said) = doctor(&url, &[]);
    assert!(!fine && said.contains("quell doctor --reset-clock"), "{said}");
    let (fine, said) = doctor(&url, &["--reset-clock"]);
    assert!(!fine && said.contains("stop all processes"), "{said}");
    drop(store);

    let deadline = std::time::Instant::now() + Duration::from_secs(30);
    let said = loop {
        let (fine, said) = doctor(&url, &["--reset-clock"]);
        if fine || std::time::Instant::now() > deadline {
            break said;
        }
        // The store's connections close where its tasks get to run.
        tokio::task::yield_now().await;
    };
    assert!(
        said.contains("set the clock back by") && said.contains("ahead by       0ns"),
        "{said}"
    );
}

#[tokio::test]
async fn r21_doctor_leaves_ids_out_after_a_restore() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite://{}", folder.path().join("q.db").display());
    let (fine, said) = doctor(&url, &["--skip-ids"]);
    assert!(!fine && said.contains("no such file"), "{said}");
    let store = quell::sqlite::SqliteStore::open(&url).await.unwrap();
    let trigger = async || {
        let batch = quell::Batch::one(quell_conformance::rig::plain("1"));
        let receipts = store.enqueue(None, vec![batch]).await.unwrap().remove(0).unwrap();
        receipts[0].job().unwrap().get()
    };
    let before = trigger().await;
    let (fine, said) = doctor(&url, &["--skip-ids"]);
    assert!(fine && said.contains("left out 100000000 ids"), "{said}");
    assert_eq!(trigger().await, before + 100_000_001);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn doctor_shows_the_disk_the_rights_and_the_versions_of_workers() {
    use std::os::unix::fs::PermissionsExt;
    let served = crate::served::serve(crate::served::TASKS).await;
    let file = served.folder.path().join("q.db");
    let url = format!("sqlite://{}", file.display());
    let report = || {
        let (fine, said) = doctor(&url, &["--json"]);
        assert!(fine, "{said}");
        serde_json::from_str::<serde_json::Value>(&said).unwrap()
    };
    let begun = std::time::Instant::now();
    // The worker's first heartbeat comes soon after the start.
    let found = loop {
        let found = report();
        if found["versions"][0].is_string() {
            break found;
        }
        assert!(begun.elapsed() < Duration::from_secs(30), "{found}");
    };
    assert_eq!(found["versions"], serde_json::json!([env!("CARGO_PKG_VERSION")]));
    assert_eq!(
        (&found["problems"], &found["warnings"]),
        (&serde_json::json!([]), &serde_json::json!([]))
    );
    let facts = found["facts"].as_array().unwrap();
    for (name, value) in [("file mode", "0600"), ("journal", "wal")] {
        assert!(facts.iter().any(|fact| fact["name"] == name && fact["value"] == value), "{found}");
    }
    for name in ["schema", "wal bytes", "disk free"] {
        let fact = facts.iter().find(|fact| fact["name"] == name).unwrap();
        assert!(fact["value"].as_str().unwrap().parse::<u64>().unwrap() > 0, "{fact}");
    }

    std::fs::set_permissions(&file, PermissionsExt::from_mode(0o640)).unwrap();
    let (fine, said) = doctor(&url, &[]);
    assert!(fine, "a warning is no failure: {said}");
    assert!(said.contains("warning: others may read") && said.contains("chmod 600"), "{said}");
    assert_eq!(said.matches("warning: ").count(), 1, "{said}");
    served.server.stop().await.unwrap();
}

#[tokio::test]
async fn r28_doctor_finds_what_does_not_fit_a_configuration() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite://{}", folder.path().join("q.db").display());
    let config = folder.path().join("quell.toml");
    let text = format!(
        "[server]\nlisten = \"127.0.0.1:0\"\n[store]\nurl = \"{url}\"\n\
         [tasks.t]\nqueue = \"mail\"\nexec = {{ command = [\"true\"] }}\n"
    );
    std::fs::write(&config, text).unwrap();
    let of_config = || {
        let args = ["doctor", "--config", config.to_str().unwrap()];
        let Output { status, stdout, stderr } = quell(&args).output().unwrap();
        let said = [stdout, stderr].concat();
        (status.success(), String::from_utf8(said).unwrap())
    };
    let store = quell::sqlite::SqliteStore::open(&url).await.unwrap();
    let (fine, said) = of_config();
    assert!(fine && said.contains("warning: no worker seen of late runs t: start"), "{said}");

    let trigger = async |task: &str, queue: &str| {
        let new = quell_core::NewTrigger {
            task: quell::TaskName::new(task).unwrap(),
            queue: quell::QueueName::new(queue).unwrap(),
            ..quell_conformance::rig::plain("1")
        };
        store.enqueue(None, vec![quell::Batch::one(new)]).await.unwrap().remove(0).unwrap();
    };
    trigger("t", "mail").await;
    let (fine, said) = of_config();
    assert!(fine, "{said}");
    trigger("renamed", "mail").await;
    trigger("t", "default").await;
    let old = quell::QueueName::new("old").unwrap();
    store.set_queue(None, &old, &quell::queue::QueueSettings::default()).await.unwrap();
    let (fine, said) = of_config();
    assert!(!fine && said.contains("the store has 2 problems"), "{said}");
    for needle in [
        "problem: 1 jobs of task renamed wait in queue mail",
        "problem: 1 jobs of task t wait in queue default, and the task's queue is mail",
        "warning: queue old has settings",
    ] {
        assert!(said.contains(needle), "{needle}: {said}");
    }
}
