//! A power cut at any byte of the write-ahead log: what was acknowledged by then is there, batches
//! are whole, and the file opens without repair (R1, R5).
//!
//! The log only grows while it is below its checkpoint, so a prefix of it beside the database is
//! what a disk holds that lost everything after that byte. Cuts fall on every commit, one byte
//! before it, and at many places between.

use std::path::Path;

use quell_conformance::rig::{keyed, plain};
use quell_core::{Batch, JobFilter, JobId, Store};
use quell_sqlite::{SqliteOptions, Synchronous};
use sqlx::Connection;

use crate::scene::Scene;

/// Batches of two jobs of their own and a trigger of one shared window.
const BATCHES: u64 = 40;

/// What had been acknowledged when the log had this length.
struct Acknowledged {
    log: usize,
    batches: u64,
}

fn log_of(path: &Path) -> std::path::PathBuf {
    path.with_file_name("quell.db-wal")
}

#[tokio::test]
async fn r01_r05_a_power_cut_at_any_byte_keeps_what_was_acknowledged_and_whole_batches() {
    let scene = Scene::new();
    let store = scene.options().synchronous(Synchronous::Full).open().await.unwrap();
    let log = || std::fs::read(log_of(&scene.path())).unwrap();
    let mut acknowledged = vec![Acknowledged { log: log().len(), batches: 0 }];
    for batches in 1..=BATCHES {
        let triggers = vec![plain("1"), keyed("shared"), plain("2")];
        store.enqueue(None, vec![Batch { triggers, dedup: None }]).await.unwrap();
        acknowledged.push(Acknowledged { log: log().len(), batches });
    }
    let (database, log) = (std::fs::read(scene.path()).unwrap(), log());
    let grown = acknowledged.windows(2).all(|pair| pair[0].log < pair[1].log);
    assert!(grown, "a checkpoint came between: the prefixes mean nothing");

    let commits = acknowledged.iter().map(|at| at.log);
    let cuts = commits.flat_map(|at| [at, at - 1, at - 1_000, at - 5_000]);
    for cut in cuts.filter(|cut| *cut >= acknowledged[0].log) {
        let after = Scene::new();
        std::fs::write(after.path(), &database).unwrap();
        std::fs::write(log_of(&after.path()), &log[..cut]).unwrap();
        let least = acknowledged.iter().rfind(|at| at.log <= cut).unwrap().batches;
        judge(&after, cut, least).await;
    }
}

async fn judge(after: &Scene, cut: usize, least: u64) {
    let store = SqliteOptions::new(after.path()).open().await.unwrap();
    let filter = JobFilter { limit: JobFilter::MAX_PAGE, ..JobFilter::default() };
    let jobs = store.jobs(&filter).await.unwrap();
    let shared = store.job(JobId::new(2)).await.unwrap();
    let batches = shared.map_or(0, |job| job.window.triggers);
    assert_eq!(batches, least, "cut at {cut}: the last whole commit is what there is");
    let whole = if batches == 0 { 0 } else { usize::try_from(2 * batches + 1).unwrap() };
    assert_eq!(jobs.len(), whole, "cut at {cut}: a batch is there in part");
    store.enqueue(None, vec![Batch::one(plain("3"))]).await.unwrap();
    let mut plain = after.connect().await;
    let sound: String =
        sqlx::query_scalar("pragma integrity_check").fetch_one(&mut plain).await.unwrap();
    assert_eq!(sound, "ok", "cut at {cut}");
    plain.close().await.unwrap();
}
