//! Closed windows while many calls meet on their keys (R10, R11): none is stuck, none is lost, and no
//! two of a key run at once.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use futures_util::future::{join, join_all};
use quell_core::window::Debounce;
use quell_core::{
    AttemptOutcome, ErrorKind, Failure, FailureKind, Fold, JobFilter, JobId, JobState, Key,
    Outcome, Redrive,
};

use crate::rig::{Rig, debounce, fails, key, keyed_with, lease, secs, task};

const KEYS: [&str; 2] = ["a", "b"];
const CALLERS: usize = 3;
const TRIGGERS: usize = 25;
const CLAIMERS: usize = 3;
const ORDERS: usize = 25;
/// A job fails again and again at random, and not for ever.
const CLAIMS: usize = 5_000;

/// What the calls of a scene share.
struct Scene {
    rig: Rig,
    overlaps: bool,
    /// Which attempts run, by key.
    running: Mutex<BTreeMap<Key, JobId>>,
    /// A job that was cancelled frees its key before its worker is notified.
    cancelled: Mutex<BTreeSet<JobId>>,
    triggered: AtomicUsize,
    is_over: AtomicBool,
}

/// Failures, cancels, flushes, redrives and new windows, all at once.
pub async fn r10_r11_no_window_is_stuck_however_many_calls_meet(rig: Rig) {
    meet(rig, false).await;
}

/// The same while triggers turn the overlap of attempts on and off.
pub async fn r10_r11_no_window_is_stuck_while_overlap_comes_and_goes(rig: Rig) {
    meet(rig, true).await;
}

async fn meet(rig: Rig, overlaps: bool) {
    let (running, cancelled) = (Mutex::default(), Mutex::default());
    let (triggered, is_over) = (AtomicUsize::new(0), AtomicBool::new(false));
    let mut scene = Scene { rig, overlaps, running, cancelled, triggered, is_over };
    scene.rig.at(1);
    let others = async {
        join(join_all((0..CALLERS).map(|_| scene.call())), scene.operate()).await;
        scene.is_over.store(true, Ordering::Relaxed);
    };
    join(others, join_all((0..CLAIMERS).map(|_| scene.work()))).await;
    // All windows are due by now.
    scene.rig.at(1_000);
    scene.work().await;
    for state in [JobState::Scheduled, JobState::Running] {
        let filter = JobFilter { state: Some(state), ..JobFilter::default() };
        let left = scene.rig.store.jobs(&filter).await.expect("the store lists jobs");
        assert!(left.is_empty(), "stuck: {left:#?}");
    }
    let counted = scene.rig.store.jobs(&JobFilter { limit: 1_000, ..JobFilter::default() }).await;
    let absorbed = |state| state == JobState::Absorbed;
    let counted: u64 = counted
        .expect("the store lists jobs")
        .iter()
        .filter(|job| !absorbed(job.state))
        .map(|job| job.window.triggers)
        .sum();
    assert_eq!(usize::try_from(counted).expect("few"), scene.triggered.into_inner(), "R2");
}

impl Scene {
    async fn call(&self) {
        for number in 0..TRIGGERS {
            let k = KEYS[fastrand::usize(..KEYS.len())];
            let overlap = self.overlaps && fastrand::bool();
            let debounce = Debounce { overlap, ..debounce() };
            let fold = Fold::Collect { cap: fastrand::u32(1..3) };
            self.rig.trigger(keyed_with(k, debounce, fold, &number.to_string())).await;
            self.triggered.fetch_add(1, Ordering::Relaxed);
        }
    }

    async fn operate(&self) {
        for _ in 0..ORDERS {
            let k = KEYS[fastrand::usize(..KEYS.len())];
            match fastrand::u8(..4) {
                0 => drop(self.rig.flush(k).await),
                1 => {
                    let now = Some(self.rig.now());
                    let cancelled = self.rig.store.cancel_key(now, &task("t"), &key(k)).await;
                    cancelled.expect("the store cancels");
                }
                2 => self.cancel_one().await,
                _ => self.redrive_one().await,
            }
        }
    }

    async fn pick(&self, state: JobState) -> Option<JobId> {
        let filter = JobFilter { state: Some(state), ..JobFilter::default() };
        let jobs = self.rig.store.jobs(&filter).await.expect("the store lists jobs");
        (!jobs.is_empty()).then(|| jobs[fastrand::usize(..jobs.len())].id)
    }

    async fn cancel_one(&self) {
        let Some(id) = self.pick(JobState::Scheduled).await else { return };
        locked(&self.cancelled).insert(id);
        if let Err(error) = self.rig.cancel(id).await {
            // It has ended meanwhile.
            assert_eq!(error.kind(), ErrorKind::IllegalMove, "{error}");
        }
    }

    async fn redrive_one(&self) {
        let Some(id) = self.pick(JobState::Dead).await else { return };
        let redrive = Redrive { id, payload: None };
        let redriven = self.rig.store.redrive(Some(self.rig.now()), &redrive).await;
        redriven.expect("no other call redrives it");
    }

    /// Runs what it gets, until the others are done and there is nothing more.
    async fn work(&self) {
        let mut claims = 0;
        while claims < CLAIMS {
            let is_over = self.is_over.load(Ordering::Relaxed);
            let jobs = self.rig.claim_with(&Rig::claim_of(3)).await;
            if jobs.is_empty() {
                if is_over {
                    return;
                }
                // On a busy machine, thousands find nothing before the others are done.
                tokio::task::yield_now().await;
                continue;
            }
            claims += 1;
            for job in &jobs {
                let Some(key) = job.key.clone() else { continue };
                let other = locked(&self.running).insert(key, job.id);
                let is_free = other.is_none_or(|other| locked(&self.cancelled).contains(&other));
                assert!(is_free || self.overlaps, "R11: beside {other:?}: {job:?}");
            }
            for job in jobs {
                let outcome = match fastrand::u8(..10) {
                    0 | 1 => fails(secs(0), false),
                    2 => Outcome::Snoozed { delay: secs(0) },
                    3 => Outcome::Released,
                    4 => dies(),
                    _ => Outcome::succeeded(),
                };
                if let Some(key) = &job.key {
                    let mut running = locked(&self.running);
                    if running.get(key) == Some(&job.id) {
                        running.remove(key);
                    }
                }
                self.rig.settle(lease(&job), outcome).await;
            }
        }
        panic!("{CLAIMS} claims, and there is always more");
    }
}

fn locked<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

fn dies() -> Outcome {
    let (error, ended) = ("no".to_owned(), AttemptOutcome::Failed);
    Outcome::Failed(Failure { error, ended, kind: FailureKind::Permanent })
}
