//! What a file keeps, and by whose clock.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use quell_conformance::Rig;
use quell_conformance::rig::{debounce, key, keyed_with, plain, secs};
use quell_core::dedup::{Dedup, HoldUntil};
use quell_core::edge::Edge;
use quell_core::window::Debounce;
use quell_core::{Batch, Fold, NewTrigger, Retention, Store, Timestamp};

use crate::scene::Scene;

async fn rows(scene: &Scene) -> (i64, i64) {
    let mut db = scene.connect().await;
    let counts = "select (select count(*) from quell_hold), (select count(*) from quell_memory)";
    sqlx::query_as(counts).fetch_one(&mut db).await.unwrap()
}

#[tokio::test]
async fn r37_keys_without_effect_leave_the_file_and_no_others() {
    let scene = Scene::new();
    let mut rig = scene.rig().await;
    let leading = Debounce { edge: Edge::Leading, ..debounce() };
    for (name, held) in [("short", 20), ("long", 500)] {
        let dedup = Some(Dedup { key: key(name), until: HoldUntil::Elapsed(secs(held)) });
        let keyed = keyed_with(name, leading, Fold::Last, "1");
        rig.trigger(NewTrigger { dedup, ..keyed }).await;
    }
    rig.at(15).trigger(keyed_with("long", leading, Fold::Last, "2")).await;
    assert_eq!(rows(&scene).await, (2, 2));
    rig.prune(21, &Retention::default(), 99).await;
    assert_eq!(rows(&scene).await, (1, 1));
    rig.prune(500, &Retention::default(), 99).await;
    assert_eq!(rows(&scene).await, (0, 0));
}

#[tokio::test]
async fn r38_without_a_callers_time_the_machines_clock_counts() {
    let clock =
        || Timestamp::from_micros(0) + SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let store = Scene::new();
    let store = store.open().await;
    let before = clock();
    let receipts = store.enqueue(None, vec![Batch::one(plain("1"))]).await.unwrap();
    let job = store.job(receipts[0].as_ref().unwrap()[0].job().unwrap()).await.unwrap().unwrap();
    let at = job.window.first_at;
    // The two clocks are one; microseconds are cut, not rounded.
    assert!(before.before(Duration::from_micros(1)) <= at && at <= clock(), "{at}");
}

#[tokio::test]
async fn the_log_shrinks_again_after_a_burst_that_readers_held_up() {
    const MAX: u64 = 32 << 20;
    let scene = Scene::new();
    let store = scene.open().await;
    let log = || std::fs::metadata(scene.path().with_extension("db-wal")).unwrap().len();
    let mut reader = scene.connect().await;
    sqlx::raw_sql("begin; select count(*) from quell_job").execute(&mut reader).await.unwrap();
    let large = format!("\"{}\"", "x".repeat(1_000_000));
    for _ in 0..5 {
        let batch = Batch { triggers: vec![plain(&large); 8], dedup: None };
        store.enqueue(None, vec![batch]).await.unwrap().remove(0).unwrap();
    }
    assert!(log() > MAX, "{}", log());
    store.prune(None, &Retention::default(), 9).await.unwrap();
    assert!(log() > MAX, "the reader still needs the log");
    sqlx::raw_sql("rollback").execute(&mut reader).await.unwrap();
    store.prune(None, &Retention::default(), 9).await.unwrap();
    assert!(log() <= MAX, "{}", log());
    assert_eq!(store.claim(None, &Rig::claim_of(50)).await.unwrap().jobs.len(), 40);
}
