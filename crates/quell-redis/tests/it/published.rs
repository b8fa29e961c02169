//! The published scenarios, step by step, with the window's hash as an operator sees it after each
//! step. `docs/redis.md` shows the same traces.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use quell_conformance::rig::{debounce, fails, keyed, keyed_with, lease, secs};
use quell_conformance::{Opened, Rig};
use quell_core::window::Debounce;
use quell_core::{ClaimedJob, Fold, JobState, Outcome, Settlement};
use redis::aio::MultiplexedConnection;

use crate::place::Place;

/// The longest trace goes on for so long, in seconds.
const LONGEST: u64 = 400;

/// When what happens, in seconds.
struct Plan<'p> {
    triggers: &'p [u64],
    /// From when on a worker is free.
    free_from: u64,
    /// How long a run takes.
    takes: u64,
}

/// Triggers of one key, and the worker that runs them.
struct Scene {
    rig: Rig,
    redis: MultiplexedConnection,
    hash: String,
    running: Option<ClaimedJob>,
    trace: Vec<String>,
}

/// Two attempts of a key run at once and fail in one call: the older job is the window that the newer one
/// joins, and its hash stays.
#[tokio::test]
async fn r07_r12_the_hash_of_a_window_that_goes_back_has_no_end() {
    let mut scene = Scene::new().await;
    let debounce = Debounce { overlap: true, ..debounce() };
    let trigger = || keyed_with("k", debounce, Fold::Last, "1");
    let mut runs = Vec::new();
    for second in [0, 20] {
        scene.rig.at(second).trigger(trigger()).await;
        runs.push(scene.rig.at(second + 10).claim_one().await);
    }
    let ends =
        runs.iter().map(|job| Settlement { lease: lease(job), outcome: fails(secs(5), false) });
    scene.rig.store.settle(Some(scene.rig.now()), ends.collect()).await.unwrap();
    let open = scene.rig.job(runs[0].id).await;
    assert_eq!(open.state, JobState::Scheduled, "the newer one has joined it");
    let (shown, left): (String, i64) = redis::pipe()
        .cmd("HGET")
        .arg(&scene.hash)
        .arg("message_id")
        .cmd("TTL")
        .arg(&scene.hash)
        .query_async(&mut scene.redis)
        .await
        .unwrap();
    assert_eq!((shown, left), (runs[0].id.to_string(), -1));
}

impl Scene {
    async fn new() -> Scene {
        let place = Place::shared();
        let rig = Rig::new(Opened { store: Arc::new(place.open().await), guard: Box::new(()) });
        let hash = format!("{}:{{all}}:debounce:t|k", place.prefix);
        Scene { rig, redis: place.connect().await, hash, running: None, trace: Vec::new() }
    }

    /// Adds what happened, and the hash after it, with its time counted from the beginning.
    async fn note(&mut self, second: u64, what: &str) {
        let (all, left): (BTreeMap<String, String>, i64) = redis::pipe()
            .cmd("HGETALL")
            .arg(&self.hash)
            .cmd("TTL")
            .arg(&self.hash)
            .query_async(&mut self.redis)
            .await
            .unwrap();
        assert_eq!(all.len(), 3, "{all:?}");
        let (id, executed) = (&all["message_id"], &all["executed"]);
        let begin = Rig::START.as_micros() / 1_000_000;
        let time = all["enqueue_timestamp"].parse::<i64>().unwrap() - begin;
        let expires = if left >= 0 { ", expires" } else { "" };
        self.trace.push(format!(
            "{second:>3} s  {what:<9}  message_id {id}, enqueue_timestamp {time}, executed \
             {executed}{expires}"
        ));
    }

    async fn end(&mut self, second: u64) {
        if let Some(job) = self.running.take() {
            self.rig.settle(lease(&job), Outcome::succeeded()).await;
            self.note(second, "run ends").await;
        }
    }

    /// At one instant, windows that are due are taken before a trigger joins.
    async fn play(mut self, plan: &Plan<'_>) -> Vec<String> {
        let takes = Duration::from_secs(plan.takes);
        for second in 0..LONGEST {
            self.rig.at(second);
            let began = self.running.as_ref().map(|job| job.lease_until.before(Rig::LEASE));
            if began.is_some_and(|began| began + takes <= self.rig.now()) {
                self.end(second).await;
            }
            if second >= plan.free_from && self.running.is_none() {
                self.running = self.rig.claim().await.pop();
                if self.running.is_some() {
                    self.note(second, "run").await;
                }
                if plan.takes == 0 {
                    self.end(second).await;
                }
            }
            if plan.triggers.contains(&second) {
                self.rig.trigger(keyed("k")).await;
                self.note(second, "trigger").await;
            }
        }
        self.trace
    }
}

/// Plays it; the steps that `is_shown` names are those expected, and those on the page.
async fn shows(plan: Plan<'_>, is_shown: fn(&str) -> bool, expected: &str) {
    let mut trace = Scene::new().await.play(&plan).await;
    trace.retain(|line| is_shown(line));
    let (trace, expected) = (trace.join("\n"), expected.trim_matches('\n'));
    assert_eq!(trace, expected, "\n{trace}");
    let page = include_str!("../../../../docs/redis.md");
    assert!(page.contains(expected), "docs/redis.md does not show this:\n{trace}");
}

#[tokio::test]
async fn r06_one_trigger_runs_after_its_quiet_period() {
    let plan = Plan { triggers: &[0], free_from: 0, takes: 0 };
    let trace = "
  0 s  trigger    message_id 1, enqueue_timestamp 0, executed 0
 10 s  run        message_id 1, enqueue_timestamp 0, executed 0
 10 s  run ends   message_id 1, enqueue_timestamp 0, executed 1, expires
";
    shows(plan, |_| true, trace).await;
}

#[tokio::test]
async fn r07_a_burst_runs_once_after_the_last_of_it() {
    let plan = Plan { triggers: &[0, 3, 7], free_from: 0, takes: 0 };
    let trace = "
  0 s  trigger    message_id 1, enqueue_timestamp 0, executed 0
  3 s  trigger    message_id 1, enqueue_timestamp 3, executed 0
  7 s  trigger    message_id 1, enqueue_timestamp 7, executed 0
 17 s  run        message_id 1, enqueue_timestamp 7, executed 0
 17 s  run ends   message_id 1, enqueue_timestamp 7, executed 1, expires
";
    shows(plan, |_| true, trace).await;
}

#[tokio::test]
async fn r08_a_window_ends_at_its_bound_however_late_workers_are() {
    let plan = Plan { triggers: &[0, 20, 40, 55, 65], free_from: 56, takes: 0 };
    let trace = "
  0 s  trigger    message_id 1, enqueue_timestamp 0, executed 0
 20 s  trigger    message_id 1, enqueue_timestamp 20, executed 0
 40 s  trigger    message_id 1, enqueue_timestamp 40, executed 0
 55 s  trigger    message_id 1, enqueue_timestamp 55, executed 0
 60 s  run        message_id 1, enqueue_timestamp 55, executed 0
 60 s  run ends   message_id 1, enqueue_timestamp 55, executed 1, expires
 65 s  trigger    message_id 2, enqueue_timestamp 65, executed 0
 75 s  run        message_id 2, enqueue_timestamp 65, executed 0
 75 s  run ends   message_id 2, enqueue_timestamp 65, executed 1, expires
";
    shows(plan, |_| true, trace).await;
}

#[tokio::test]
async fn r08_triggers_without_end_run_once_a_minute() {
    let every_five: Vec<u64> = (0..=300).step_by(5).collect();
    let plan = Plan { triggers: &every_five, free_from: 0, takes: 0 };
    let trace = "
 60 s  run        message_id 1, enqueue_timestamp 55, executed 0
 60 s  run ends   message_id 1, enqueue_timestamp 55, executed 1, expires
120 s  run        message_id 2, enqueue_timestamp 115, executed 0
120 s  run ends   message_id 2, enqueue_timestamp 115, executed 1, expires
180 s  run        message_id 3, enqueue_timestamp 175, executed 0
180 s  run ends   message_id 3, enqueue_timestamp 175, executed 1, expires
240 s  run        message_id 4, enqueue_timestamp 235, executed 0
240 s  run ends   message_id 4, enqueue_timestamp 235, executed 1, expires
300 s  run        message_id 5, enqueue_timestamp 295, executed 0
300 s  run ends   message_id 5, enqueue_timestamp 295, executed 1, expires
310 s  run        message_id 6, enqueue_timestamp 300, executed 0
310 s  run ends   message_id 6, enqueue_timestamp 300, executed 1, expires
";
    shows(plan, |line| line.contains(" run "), trace).await;
}

#[tokio::test]
async fn r11_a_trigger_during_a_run_opens_the_next_window() {
    let plan = Plan { triggers: &[0, 12], free_from: 0, takes: 15 };
    let trace = "
  0 s  trigger    message_id 1, enqueue_timestamp 0, executed 0
 10 s  run        message_id 1, enqueue_timestamp 0, executed 0
 12 s  trigger    message_id 2, enqueue_timestamp 12, executed 0
 25 s  run ends   message_id 2, enqueue_timestamp 12, executed 0
 25 s  run        message_id 2, enqueue_timestamp 12, executed 0
 40 s  run ends   message_id 2, enqueue_timestamp 12, executed 1, expires
";
    shows(plan, |_| true, trace).await;
}
