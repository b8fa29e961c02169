//! Backfills of several processes at once, while other callers force their steps to retry.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use quell_conformance::rig::{Rig, plain, secs, task};
use quell_core::schedule::{CatchUp, Schedule, Spec};
use quell_core::{Batch, NewTrigger, ScheduleName, Store, Timestamp};
use quell_redis::RedisStore;
use tokio::task::JoinSet;

use crate::place::{Place, server};

const ROUNDS: u64 = 100;
const TICKS: u64 = 5;

/// Triggers until the test sets `stop`.
async fn trigger(store: Arc<RedisStore>, stop: Arc<AtomicBool>) {
    while !stop.load(Ordering::Relaxed) {
        store.enqueue(Some(Rig::START), vec![Batch::one(plain("1"))]).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r36_a_tick_fires_once_in_backfills_that_meet_however_often_they_start_over() {
    let server = server(&[]);
    let place = Place::on(&server);
    let store = place.open().await;
    let name = ScheduleName::new("s").unwrap();
    let spec = Spec::every(secs(1), Timestamp::from_secs(0)).unwrap();
    let of_schedule = NewTrigger { task: task("ticks"), ..plain("1") };
    let one = Schedule {
        name: name.clone(),
        spec,
        catch_up: CatchUp::None,
        trigger: of_schedule,
        declared: None,
    };
    let last = Rig::START + secs(ROUNDS * TICKS + 10);
    store.set_schedule(Some(last), &one).await.unwrap();
    // Those before it do not change the schedule's row, and those between the others only spans.
    for tick in [last, last.before(secs(3)), Rig::START.before(secs(3))] {
        assert_eq!(store.backfill(Some(last), &name, tick, tick).await.unwrap(), 1);
    }

    let (stop, mut callers) = (Arc::new(AtomicBool::new(false)), JoinSet::new());
    for _ in 0..3 {
        callers.spawn(trigger(Arc::new(place.open().await), Arc::clone(&stop)));
    }
    let others = [place.open().await, place.open().await];
    for round in 0..ROUNDS {
        let from = Rig::START + secs(round * TICKS);
        let to = Rig::START + secs(round * TICKS + TICKS - 1);
        let backfill = |store| Store::backfill(store, Some(last), &name, from, to);
        let (a, b) = tokio::join!(backfill(&others[0]), backfill(&others[1]));
        assert_eq!(a.unwrap() + b.unwrap(), TICKS, "in round {round}");
    }
    stop.store(true, Ordering::Relaxed);
    while let Some(ended) = callers.join_next().await {
        ended.unwrap();
    }
    let counts = store.counts().await.unwrap();
    let jobs = counts.iter().find(|counts| counts.task == task("ticks")).unwrap().jobs;
    assert_eq!(jobs, ROUNDS * TICKS + 3);
}
