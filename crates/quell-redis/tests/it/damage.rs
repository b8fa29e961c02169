//! Rows that cannot be decoded are set aside, and harm no other job.

use async_trait::async_trait;
use quell_conformance::rig::{debounce, fails, keyed_with, lease, secs};
use quell_conformance::unreadable::Damage;
use quell_conformance::{Opened, Rig};
use quell_core::{Fold, JobId, JobState, NewTrigger, UnreadablePage};
use redis::AsyncCommands;
use serde_json::Value;
use std::sync::Arc;

use crate::place::Place;

/// Where the reason of the due time is in a job's row, and what no build has written there.
const REASON: usize = 6;
const UNKNOWN: i64 = 70;

/// Rows whose reason is one that this build does not know.
struct Reasons(Place);

#[async_trait]
impl Damage for Reasons {
    async fn damage(&self, job: JobId) {
        self.add(job, UNKNOWN).await;
    }

    async fn repair(&self, job: JobId) {
        self.add(job, -UNKNOWN).await;
    }
}

impl Reasons {
    async fn add(&self, job: JobId, by: i64) {
        let mut db = self.0.connect().await;
        for hash in ["jobs", "unreadable-rows"] {
            for key in self.keys(hash).await {
                let row: Option<Vec<u8>> = db.hget(&key, job.to_string()).await.unwrap();
                let Some(row) = row else { continue };
                let mut fields: Vec<Value> = rmp_serde::from_slice(&row).unwrap();
                let reason = fields[REASON].as_i64().unwrap() + by;
                fields[REASON] = reason.into();
                let row = rmp_serde::to_vec(&fields).unwrap();
                let _: () = db.hset(&key, job.to_string(), row).await.unwrap();
            }
        }
    }

    /// Makes rows what is no MessagePack at all.
    async fn rubbish(&self, jobs: &[JobId]) {
        let mut db = self.0.connect().await;
        for key in self.keys("jobs").await {
            for job in jobs {
                let _: () = db.hset(&key, job.to_string(), b"\xc1rubbish").await.unwrap();
            }
        }
    }

    async fn keys(&self, hash: &str) -> Vec<String> {
        let mut db = self.0.connect().await;
        db.keys(format!("{}:*:{hash}", self.0.prefix)).await.unwrap()
    }
}

async fn damageable() -> (Rig, Reasons) {
    let place = Place::shared();
    let store = Arc::new(place.open().await);
    (Rig::new(Opened { store, guard: Box::new(()) }), Reasons(place))
}

quell_conformance::unreadable_scenes!(damageable());

/// A row that is no MessagePack at all says nothing of its job: it leaves every index.
#[tokio::test]
async fn r25_rubbish_leaves_every_index_and_can_be_discarded() {
    let (mut rig, damage) = damageable().await;
    let bad = rig.trigger(quell_conformance::rig::keyed("bad")).await.job().unwrap();
    let good = rig.trigger(quell_conformance::rig::keyed("good")).await.job().unwrap();
    damage.rubbish(&[bad]).await;
    assert_eq!(rig.at(10).claim_one().await.id, good);
    let aside = rig.store.unreadable(&UnreadablePage::default()).await.unwrap();
    assert_eq!((aside.len(), aside[0].id, aside[0].was), (1, bad, None));
    assert_eq!(rig.next_due().await.due, None);
    assert_eq!(rig.store.restore(Some(rig.now()), &[bad]).await.unwrap(), []);
    let gone = rig.store.discard(Some(rig.now()), &[bad], "rubbish").await.unwrap();
    assert_eq!(gone, [bad]);
    assert_eq!(rig.job(good).await.state, JobState::Running);
    assert_eq!(rig.store.unreadable(&UnreadablePage::default()).await.unwrap(), []);
}

/// It is discarded before any call has met its places.
#[tokio::test]
async fn r25_rubbish_that_was_discarded_holds_up_no_other_job() {
    let (mut rig, damage) = damageable().await;
    let bad = rig.trigger(quell_conformance::rig::keyed("bad")).await.job().unwrap();
    let good = rig.trigger(quell_conformance::rig::keyed("good")).await.job().unwrap();
    damage.rubbish(&[bad]).await;
    let newer = rig.trigger(quell_conformance::rig::keyed("bad")).await.job().unwrap();
    assert_ne!(newer, bad, "the row is set aside");
    let gone = rig.store.discard(Some(rig.now()), &[bad], "rubbish").await.unwrap();
    assert_eq!(gone, [bad]);
    let mut ran = Vec::new();
    for second in [20, 30] {
        ran.extend(rig.at(second).claim().await.iter().map(|job| job.id));
    }
    assert_eq!(ran, [good, newer]);
    assert_eq!(rig.next_due().await.due, None);
}

/// A trigger of the key `a`, whose windows hold one payload each.
fn collects(payload: &str) -> NewTrigger {
    keyed_with("a", debounce(), Fold::Collect { cap: 1 }, payload)
}

/// Makes `count` windows of the key `a`; all but the last are closed.
async fn windows(rig: &Rig, count: usize) -> Vec<JobId> {
    let mut windows = Vec::new();
    for n in 0..count {
        windows.push(rig.trigger(collects(&n.to_string())).await.job().unwrap());
    }
    windows
}

/// Runs what may start until nothing does; returns the payloads.
async fn run_all(rig: &Rig) -> Vec<String> {
    let mut payloads = Vec::new();
    loop {
        let jobs = rig.claim().await;
        assert!(jobs.len() <= 1, "R11: one at a time: {jobs:?}");
        let Some(run) = jobs.first() else { return payloads };
        payloads.push(run.payload.as_str().to_owned());
        rig.succeed(run).await;
    }
}

impl Reasons {
    /// Nothing of the key `a` is busy any more.
    async fn is_free(&self) {
        let mut db = self.0.connect().await;
        for key in self.keys("runs").await {
            let runs: Vec<(String, String)> = db.hgetall(&key).await.unwrap();
            assert_eq!(runs, []);
        }
        let closed: Vec<String> = db.keys(format!("{}:*:closed:*", self.0.prefix)).await.unwrap();
        assert_eq!(closed, [] as [String; 0]);
    }
}

/// The other windows run in their order, whichever of them says nothing of itself.
#[tokio::test]
async fn r10_r11_windows_that_are_rubbish_hold_back_no_newer_one() {
    for bad in [&[0][..], &[1], &[2], &[0, 1], &[0, 2], &[1, 2, 3], &[0, 1, 2, 3], &[4], &[0, 4]] {
        let (mut rig, damage) = damageable().await;
        let windows = windows(&rig, 6).await;
        let jobs: Vec<JobId> = bad.iter().map(|place| windows[*place]).collect();
        damage.rubbish(&jobs).await;
        let good = (0..6).filter(|n| !bad.contains(n)).map(|n| format!("[{n}]"));
        assert_eq!(run_all(rig.at(100)).await, good.collect::<Vec<_>>(), "{bad:?}");
        let aside = rig.store.unreadable(&UnreadablePage::default()).await.unwrap();
        assert_eq!(aside.len(), bad.len(), "{bad:?}: {aside:?}");
        damage.is_free().await;
    }
}

/// A trigger reads no closed window, and the one that it opens waits for those that can be read.
#[tokio::test]
async fn r10_r25_triggers_do_not_read_closed_windows() {
    let (mut rig, damage) = damageable().await;
    let mut all = windows(&rig, 3).await;
    damage.rubbish(&all[..2]).await;
    all.push(rig.trigger(collects("3")).await.job().unwrap());
    assert_eq!(rig.store.unreadable(&UnreadablePage::default()).await.unwrap(), []);
    assert!(rig.job(all[3]).await.waits);
    assert_eq!(run_all(rig.at(100)).await, ["[2]", "[3]"]);
}

/// A running job that says nothing of itself is taken back with its lease, and its key goes on.
#[tokio::test]
async fn r11_a_running_job_that_is_rubbish_frees_its_key() {
    for closed in [0, 2] {
        let (mut rig, damage) = damageable().await;
        let run = windows(&rig, 1).await.remove(0);
        assert_eq!(rig.at(10).claim_one().await.id, run);
        let waiting = windows(&rig, closed + 1).await;
        damage.rubbish(&[run]).await;
        rig.at(20).claim_none().await;
        assert!(rig.at(200).reap().await.is_empty());
        assert!(!rig.job(waiting[0]).await.waits);
        let payloads: Vec<String> = (0..=closed).map(|n| format!("[{n}]")).collect();
        assert_eq!(run_all(&rig).await, payloads);
        damage.is_free().await;
    }
}

/// An old, redriven job is the open window; closed ones wait for it, until it is set aside.
#[tokio::test]
async fn r10_r11_an_open_window_that_is_rubbish_holds_back_no_closed_one() {
    let (mut rig, damage) = damageable().await;
    let two = |payload| keyed_with("a", debounce(), Fold::Collect { cap: 2 }, payload);
    let old = rig.trigger(two("0")).await.job().unwrap();
    let run = rig.at(10).claim_one().await;
    rig.settle(lease(&run), fails(secs(1), true)).await;
    for payload in ["1", "2"] {
        rig.at(20).trigger(two(payload)).await;
    }
    let run = rig.at(30).claim_one().await;
    rig.redrive(old).await.unwrap();
    rig.fail(&run, secs(1)).await;
    let closed = rig.job(run.id).await;
    assert!(closed.is_closed_window() && closed.waits && closed.id > old);
    assert!(rig.job(old).await.is_open_window());
    damage.rubbish(&[old]).await;
    assert_eq!(run_all(rig.at(100)).await, ["[1,2]"]);
    damage.is_free().await;
}

/// Jobs of one key that a newer build wrote are set aside one after the other.
#[tokio::test]
async fn r10_r25_unreadable_jobs_of_one_key_are_all_set_aside() {
    let (mut rig, damage) = damageable().await;
    let all = windows(&rig, 31).await;
    let run = rig.claim_one().await;
    assert_eq!(run.id, all[0]);
    for job in &all[..30] {
        damage.damage(*job).await;
    }
    rig.settle(lease(&run), fails(secs(1), false)).await;
    assert_eq!(run_all(rig.at(100)).await, ["[30]"]);
    let page = UnreadablePage { before: None, limit: 100 };
    assert_eq!(rig.store.unreadable(&page).await.unwrap().len(), 30);
    damage.is_free().await;
    for job in &all[..30] {
        damage.repair(*job).await;
    }
    assert_eq!(rig.store.restore(Some(rig.now()), &all[..30]).await.unwrap(), all[..30]);
    let payloads: Vec<String> = (0..30).map(|n| format!("[{n}]")).collect();
    assert_eq!(run_all(rig.at(200)).await, payloads);
    damage.is_free().await;
}
