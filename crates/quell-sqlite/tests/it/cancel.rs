//! Futures that are dropped half-way: whole or not at all, and the store goes on (R5).

use std::time::Duration;

use quell_conformance::rig::plain;
use quell_core::{Batch, Store};

use crate::scene::{Scene, trigger};

#[tokio::test]
async fn r05_a_dropped_call_happens_whole_or_not_at_all_and_blocks_nobody() {
    let scene = Scene::new();
    let (ours, theirs) = (scene.open().await, scene.open().await);
    let batch = Batch { triggers: vec![plain("1"); 100], dedup: None };
    // From before the begin to after the commit: the longest of these is done by then.
    for polls in 0..400_u64 {
        let enqueue = ours.enqueue(None, vec![batch.clone()]);
        drop(tokio::time::timeout(Duration::from_micros(polls * 10), enqueue).await);
        if polls % 20 == 0 {
            // The dropped transaction must not keep the file's write lock.
            trigger(&theirs, plain("2")).await;
        }
    }
    trigger(&ours, plain("2")).await;
    let jobs: u64 = theirs.counts().await.unwrap().iter().map(|count| count.jobs).sum();
    assert_eq!((jobs - 21) % 100, 0, "a batch was cut: {jobs} jobs");
    assert!(jobs > 21, "no batch came through");
}

#[tokio::test]
async fn a_store_that_is_dropped_ends_its_wakeups() {
    use futures_util::StreamExt;

    let scene = Scene::new();
    let store = scene.open().await;
    let wakeups = store.wakeups();
    drop(store);
    let rest = tokio::time::timeout(Duration::from_secs(5), wakeups.collect::<Vec<_>>()).await;
    assert!(rest.is_ok(), "the stream of wake-ups goes on");
}
