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
