//! What calls cost as a store grows: the steps of SQLite's virtual machine, at two sizes.
//!
//! A plan that searches an index may still read as many entries as there are jobs, partitions or
//! keys. So each call is counted on a small store and on one a hundred times as large.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use quell_conformance::rig::{debounce, key, keyed, keyed_with, lease, plain, queue, secs};
use quell_conformance::{Opened, Rig};
use quell_core::dedup::{Dedup, HoldUntil};
use quell_core::idempotency::Idempotency;
use quell_core::schedule::{CatchUp, Schedule, Spec};
use quell_core::window::{Debounce, Thresholds};
use quell_core::{
    Batch, Claim, ClaimedJob, Fold, JobFilter, NewTrigger, QueueSettings, Rate, Retention,
    ScheduleName, Store, When,
};
use quell_sqlite::StepCounter;

use crate::scene::Scene;

const SMALL: u64 = 30;
const LARGE: u64 = 3_000;

/// What a store has many of.
#[derive(Clone, Copy, Debug)]
enum Many {
    DueJobs,
    LaterJobs,
    Windows,
    LaterPartitions,
    LaterPartitionsWithSlots,
    LaterPartitionsWithRates,
    DuePartitions,
    DuePartitionsWithSlots,
    BacklogOfAFullPartition,
    BacklogOfARatedPartition,
    EndedJobs,
    Attempts,
    DedupKeys,
    ExpiredKeysOfWaitingJobs,
    Ticks,
}

const ALL: [Many; 15] = [
    Many::DueJobs,
    Many::LaterJobs,
    Many::Windows,
    Many::LaterPartitions,
    Many::LaterPartitionsWithSlots,
    Many::LaterPartitionsWithRates,
    Many::DuePartitions,
    Many::DuePartitionsWithSlots,
    Many::BacklogOfAFullPartition,
    Many::BacklogOfARatedPartition,
    Many::EndedJobs,
    Many::Attempts,
    Many::DedupKeys,
    Many::ExpiredKeysOfWaitingJobs,
    Many::Ticks,
];

impl Many {
    fn settings(self) -> QueueSettings {
        let rate = Some(Rate { limit: 1, period: secs(1_000_000) });
        let none = QueueSettings::default();
        match self {
            Many::LaterPartitionsWithSlots
            | Many::DuePartitionsWithSlots
            | Many::BacklogOfAFullPartition => {
                QueueSettings { partition_concurrency: Some(1), ..none }
            }
            Many::LaterPartitionsWithRates | Many::BacklogOfARatedPartition => {
                QueueSettings { partition_rate: rate, ..none }
            }
            _ => none,
        }
    }

    fn trigger(self, n: u64) -> NewTrigger {
        let name = || Some(key(&format!("p{n}")));
        let later = When::After(secs(900_000));
        match self {
            Many::DueJobs | Many::EndedJobs | Many::Attempts | Many::Ticks => plain("1"),
            Many::LaterJobs => NewTrigger { when: later, ..plain("1") },
            Many::Windows => {
                let thresholds = Thresholds::new(secs(900_000), secs(900_000)).unwrap();
                let debounce = Debounce { thresholds, ..debounce() };
                keyed_with(&format!("k{n}"), debounce, Fold::Last, "1")
            }
            Many::LaterPartitions
            | Many::LaterPartitionsWithSlots
            | Many::LaterPartitionsWithRates => {
                NewTrigger { partition: name(), when: later, ..plain("1") }
            }
            Many::DuePartitions | Many::DuePartitionsWithSlots => {
                NewTrigger { partition: name(), ..plain("1") }
            }
            Many::BacklogOfAFullPartition | Many::BacklogOfARatedPartition => {
                NewTrigger { partition: Some(key("busy")), ..plain("1") }
            }
            Many::DedupKeys => {
                let until = HoldUntil::Elapsed(secs(1_000_000));
                let dedup = Some(Dedup { key: key(&format!("d{n}")), until });
                NewTrigger { dedup, when: later, ..plain("1") }
            }
            Many::ExpiredKeysOfWaitingJobs => {
                let idempotency = Some(record(&format!("i{n}"), 1));
                NewTrigger { idempotency, when: later, ..plain("1") }
            }
        }
    }
}

fn record(name: &str, seconds: u64) -> Idempotency {
    Idempotency { key: key(name), retention: secs(seconds) }
}

/// Brings `many` of them into the store.
async fn fill(rig: &mut Rig, many: Many, count: u64) {
    rig.set_queue(many.settings()).await;
    for first in (0..count).step_by(500) {
        let of_batch = first..count.min(first + 500);
        let triggers = of_batch.map(|n| many.trigger(n)).collect();
        rig.trigger_batch(Batch { triggers, dedup: None }).await;
    }
    let long = Claim { lease: secs(1_000_000), ..Rig::claim_of(5_000) };
    match many {
        Many::EndedJobs => {
            for job in rig.claim_with(&Rig::claim_of(5_000)).await {
                rig.succeed(&job).await;
            }
        }
        Many::Attempts => drop(rig.claim_with(&long).await),
        Many::BacklogOfAFullPartition | Many::BacklogOfARatedPartition => {
            assert_eq!(rig.claim_with(&long).await.len(), 1);
        }
        Many::Ticks => {
            let name = ScheduleName::new("old").unwrap();
            let spec = Spec::every(secs(1), Rig::START).unwrap();
            let schedule = Schedule {
                name,
                spec,
                catch_up: CatchUp::All,
                trigger: plain("1"),
                declared: None,
            };
            rig.store.set_schedule(Some(rig.now()), &schedule).await.unwrap();
            let now = rig.at(count).now();
            while !rig.store.tick(Some(now), 1_000).await.unwrap().fired.is_empty() {}
        }
        _ => {}
    }
    // The names that the calls use, and upkeep that is due.
    let now = rig.at(4_000).now();
    let keep = Retention { succeeded: Some(secs(500_000)), dead: None };
    while rig.pruned(now, &keep, 1_000).await.more {}
}

/// Makes a call, and notes the steps that it took.
macro_rules! cost {
    ($steps:ident, $costs:ident, $name:literal, $call:expr) => {{
        let before = $steps.load(Ordering::Relaxed);
        let answer = $call;
        $costs.push(($name, $steps.load(Ordering::Relaxed) - before));
        answer
    }};
}

/// One of each call that workers and clients make all the time; returns the steps of each.
async fn costs(rig: &mut Rig, steps: &StepCounter, round: u64) -> Vec<(&'static str, u64)> {
    let mut costs = Vec::new();
    let now = Some(rig.at(5_000 + round).now());
    let keep = Retention { succeeded: Some(secs(500_000)), dead: None };
    let partition = Some(key("p1"));
    let dedup = Some(Dedup::new(key(&format!("once{round}"))));
    let idempotency = Some(record(&format!("mine{round}"), 900_000));
    cost!(steps, costs, "next_due", rig.next_due().await);
    cost!(
        steps,
        costs,
        "peek",
        rig.store.peek(now, &[(queue(), Rig::claim_of(1).tasks)]).await.unwrap()
    );
    cost!(steps, costs, "reap", rig.reap().await);
    cost!(steps, costs, "prune", rig.pruned(rig.now(), &keep, 100).await);
    cost!(steps, costs, "tick", rig.store.tick(now, 9).await.unwrap());
    cost!(steps, costs, "overview", rig.store.overview(now).await.unwrap());
    cost!(steps, costs, "claim", rig.claim_with(&Rig::claim_of(3)).await);
    cost!(steps, costs, "enqueue", rig.trigger(plain("1")).await);
    cost!(
        steps,
        costs,
        "enqueue, partition",
        rig.trigger(NewTrigger { partition, ..plain("1") }).await
    );
    cost!(steps, costs, "enqueue, debounced", rig.trigger(keyed("k1")).await);
    cost!(steps, costs, "enqueue, dedup", rig.trigger(NewTrigger { dedup, ..plain("1") }).await);
    cost!(
        steps,
        costs,
        "enqueue, idempotent",
        rig.trigger(NewTrigger { idempotency, ..plain("1") }).await
    );
    let jobs: Vec<ClaimedJob> =
        cost!(steps, costs, "claim again", rig.claim_with(&Rig::claim_of(3)).await);
    let job = jobs.first().unwrap();
    cost!(steps, costs, "renew", rig.renew(lease(job)).await);
    cost!(steps, costs, "settle", rig.succeed(job).await);
    costs
}

async fn costs_at(many: Many, count: u64) -> Vec<(&'static str, u64)> {
    let (scene, steps) = (Scene::new(), StepCounter::default());
    let store = scene.options().count_steps(Arc::clone(&steps)).open().await.unwrap();
    let mut rig = Rig::new(Opened { store: Arc::new(store), guard: Box::new(()) });
    fill(&mut rig, many, count).await;
    // The first round makes names and caches.
    costs(&mut rig, &steps, 0).await;
    costs(&mut rig, &steps, 1).await
}

#[tokio::test]
async fn r30_r37_no_call_takes_more_steps_on_a_store_a_hundred_times_as_large() {
    let mut grown = Vec::new();
    for many in ALL {
        let (small, large) = (costs_at(many, SMALL).await, costs_at(many, LARGE).await);
        for ((call, few), (_, more)) in small.into_iter().zip(large) {
            if more > few + few / 2 + 60 {
                grown.push(format!("{call} with {many:?}: {few} steps, then {more}"));
            }
        }
    }
    assert!(grown.is_empty(), "{}", grown.join("\n"));
}

/// What callers and workers do to a key that has many closed windows (R10); the steps of each call.
async fn costs_of_a_full_key(windows: u64) -> Vec<(&'static str, u64)> {
    let (scene, steps) = (Scene::new(), StepCounter::default());
    let store = scene.options().count_steps(Arc::clone(&steps)).open().await.unwrap();
    let mut rig = Rig::new(Opened { store: Arc::new(store), guard: Box::new(()) });
    let full = || keyed_with("k", debounce(), Fold::Collect { cap: 1 }, "1");
    let paused = |paused| QueueSettings { paused, ..QueueSettings::default() };
    rig.set_queue(paused(true)).await;
    let triggers = (0..windows).map(|_| full()).collect();
    rig.trigger_batch(Batch { triggers, dedup: None }).await;
    rig.trigger(plain("1")).await;
    rig.set_queue(paused(false)).await;
    let mut costs = Vec::new();
    rig.at(1_000);
    cost!(steps, costs, "a trigger that closes a window", rig.trigger(full()).await);
    let other = cost!(
        steps,
        costs,
        "a look past the key's windows",
        rig.claim_with(&Rig::claim_of(9)).await
    );
    assert_eq!(other.len(), 2, "the first window, and the job without a key");
    let first = other.iter().find(|job| job.key.is_some()).unwrap();
    cost!(
        steps,
        costs,
        "a failure that goes back before the others",
        rig.fail(first, secs(1)).await
    );
    let first = rig.at(1_002).claim_one().await;
    cost!(steps, costs, "an end", rig.succeed(&first).await);
    let next = cost!(steps, costs, "the next start", rig.claim_one().await);
    rig.succeed(&next).await;
    let next = rig.jobs().await.into_iter().rev().find(|job| job.is_closed_window()).unwrap();
    cost!(steps, costs, "a cancelled window", rig.cancel(next.id).await.unwrap());
    cost!(steps, costs, "a flush", rig.flush("k").await);
    costs
}

#[tokio::test]
async fn r10_r11_a_key_with_many_closed_windows_costs_no_more_than_one_with_few() {
    let (few, many) = (costs_of_a_full_key(SMALL).await, costs_of_a_full_key(LARGE).await);
    let grown: Vec<String> = few
        .into_iter()
        .zip(many)
        .filter(|((_, few), (_, many))| *many > few + few / 2 + 60)
        .map(|((call, few), (_, many))| format!("{call}: {few} steps, then {many}"))
        .collect();
    assert!(grown.is_empty(), "{}", grown.join("\n"));
}

/// However long the queue is paused, no row that a join writes is larger than the window's limit.
#[tokio::test]
async fn r10_joins_write_no_more_while_a_queue_is_paused() {
    let mut largest = Vec::new();
    for count in [SMALL, LARGE] {
        let scene = Scene::new();
        let rig = scene.rig().await;
        let paused = QueueSettings { paused: true, ..QueueSettings::default() };
        rig.set_queue(paused).await;
        let limit = Debounce { max_bytes: Some(500), ..debounce() };
        let payload = format!("\"{}\"", "x".repeat(50));
        for first in (0..count).step_by(10) {
            let of_batch = first..count.min(first + 10);
            let joins =
                of_batch.map(|_| keyed_with("k", limit, Fold::Collect { cap: 90 }, &payload));
            rig.trigger_batch(Batch { triggers: joins.collect(), dedup: None }).await;
        }
        let mut db = scene.connect().await;
        let row = sqlx::query_as("select max(length(payload)), sum(triggers) from quell_job");
        let (bytes, triggers): (i64, i64) = row.fetch_one(&mut db).await.unwrap();
        assert_eq!(triggers, i64::try_from(count).unwrap());
        largest.push(bytes);
    }
    assert_eq!(largest, [478, 478]);
}

#[tokio::test]
async fn the_counter_sees_a_loop() {
    let (scene, steps) = (Scene::new(), StepCounter::default());
    let store = scene.options().count_steps(Arc::clone(&steps)).open().await.unwrap();
    let triggers = vec![plain("1"); 1_000];
    store.enqueue(None, vec![Batch { triggers, dedup: None }]).await.unwrap()[0].as_ref().unwrap();
    let before = steps.load(Ordering::Relaxed);
    let page = store.jobs(&JobFilter { limit: 1_000, ..JobFilter::default() }).await.unwrap();
    let steps = steps.load(Ordering::Relaxed) - before;
    assert!(page.len() >= 100 && steps >= 28 * 100, "{} jobs in {steps} steps", page.len());
}
