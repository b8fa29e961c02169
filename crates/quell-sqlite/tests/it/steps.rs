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
    Batch, Claim, ClaimedJob, Fold, NewTrigger, QueueSettings, Rate, Retention, ScheduleName,
    Store, When,
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
    let long = Claim { lease: secs(1_000_000), ..Rig::wish(5_000) };
    match many {
        Many::EndedJobs => {
            for job in rig.claim_with(&Rig::wish(5_000)).await {
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
            let schedule = Schedule { name, spec, catch_up: CatchUp::All, trigger: plain("1") };
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

/// One of each call that workers and clients make all the time; returns the steps of each.
async fn costs(rig: &mut Rig, steps: &StepCounter, round: u64) -> Vec<(&'static str, u64)> {
    let mut costs = Vec::new();
    let now = Some(rig.at(5_000 + round).now());
    macro_rules! cost {
        ($name:literal, $call:expr) => {{
            let before = steps.load(Ordering::Relaxed);
            let answer = $call;
            costs.push(($name, steps.load(Ordering::Relaxed) - before));
            answer
        }};
    }
    let keep = Retention { succeeded: Some(secs(500_000)), dead: None };
    let partition = Some(key("p1"));
    let dedup = Some(Dedup::new(key(&format!("once{round}"))));
    let idempotency = Some(record(&format!("mine{round}"), 900_000));
    cost!("next_due", rig.next_due().await);
    cost!("peek", rig.store.peek(now, &[(queue(), Rig::wish(1).tasks)]).await.unwrap());
    cost!("reap", rig.reap().await);
    cost!("prune", rig.pruned(rig.now(), &keep, 100).await);
    cost!("tick", rig.store.tick(now, 9).await.unwrap());
    cost!("overview", rig.store.overview(now).await.unwrap());
    cost!("claim", rig.claim_with(&Rig::wish(3)).await);
    cost!("enqueue", rig.trigger(plain("1")).await);
    cost!("enqueue, partition", rig.trigger(NewTrigger { partition, ..plain("1") }).await);
    cost!("enqueue, debounced", rig.trigger(keyed("k1")).await);
    cost!("enqueue, dedup", rig.trigger(NewTrigger { dedup, ..plain("1") }).await);
    cost!("enqueue, idempotent", rig.trigger(NewTrigger { idempotency, ..plain("1") }).await);
    let jobs: Vec<ClaimedJob> = cost!("claim again", rig.claim_with(&Rig::wish(3)).await);
    let job = jobs.first().unwrap();
    cost!("renew", rig.renew(lease(job)).await);
    cost!("settle", rig.succeed(job).await);
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

#[tokio::test]
async fn the_counter_sees_a_loop() {
    let (scene, steps) = (Scene::new(), StepCounter::default());
    let store = scene.options().count_steps(Arc::clone(&steps)).open().await.unwrap();
    let triggers = vec![plain("1"); 1_000];
    store.enqueue(None, vec![Batch { triggers, dedup: None }]).await.unwrap()[0].as_ref().unwrap();
    let before = steps.load(Ordering::Relaxed);
    let counts = store.counts().await.unwrap();
    assert_eq!(counts[0].jobs, 1_000);
    assert!(steps.load(Ordering::Relaxed) >= before + 1_000, "counting walks all jobs");
}
