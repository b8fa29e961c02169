//! How many requests calls take, counted before the service: each is billed, and counts towards the
//! targets of a partition. docs/azure.md and bench/archive/2026-11.md have the figures.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::try_join_all;
use quell::{Batch, Ctx, Payload, Policy, Quell, TaskError};
use quell_azure::AzureStore;
use quell_conformance::Rig;
use quell_conformance::rig::{key, keyed_with, lease, queue, task};
use quell_core::window::{Debounce, Thresholds};
use quell_core::{Fold, NewTrigger, Outcome, Settlement, Store};

use crate::proxy::{Act, Proxy};
use crate::quick::Quick;
use crate::server::Place;

/// Sizes of bursts.
const BURSTS: [usize; 3] = [1, 10, 100];
/// Requests of a trigger that is alone in its call, whether it opens a window or joins one: one read and
/// one batch.
const OF_A_TRIGGER: usize = 2;
/// Batches of one trigger that a step takes, at least.
const BATCHES_OF_A_STEP: usize = 12;
/// Requests of the start of a job, and of its end, at most.
const OF_A_RUN: [usize; 2] = [10, 7];
/// Requests of a claim that finds nothing, in a queue without limits, by a worker of one task.
const OF_A_POLL: usize = 7;

/// Requests of an idle worker in a minute: sixty polls, heartbeats and upkeep.
const OF_AN_IDLE_MINUTE: usize = 480;

struct Counted {
    proxy: Proxy,
    store: Arc<AzureStore>,
    quell: Quell,
}

impl Counted {
    async fn new() -> Self {
        let place = Place::new();
        let proxy = Proxy::start(place.port(), |_| Act::Forward).await;
        let store = place.through(proxy.port, Duration::from_secs(60)).open().await.unwrap();
        let store = Arc::new(store);
        let quell = Quell::with_store(Arc::clone(&store) as Arc<dyn Store>).build().unwrap();
        let counted = Counted { proxy, store, quell };
        // The first trigger takes a block of ids and learns the time.
        counted.quell.enqueue(Batch::one(trigger("warm"))).await.unwrap();
        counted
    }

    /// The requests so far, but for those that learn the time, once a minute.
    fn requests(&self) -> usize {
        self.proxy.seen().iter().filter(|(_, request)| !request.contains("RowKey='clock'")).count()
    }

    async fn of<T>(&self, call: impl Future<Output = T>) -> (usize, T) {
        let before = self.requests();
        let answer = call.await;
        (self.requests() - before, answer)
    }
}

fn trigger(of: &str) -> NewTrigger {
    // Nothing becomes due while the test runs, however slow the machine.
    let hours = |count: u64| Duration::from_secs(count * 3_600);
    let debounce = Debounce::new(Thresholds::new(hours(1), hours(2)).unwrap());
    keyed_with(of, debounce, Fold::Last, r#"{"page":"a"}"#)
}

#[tokio::test]
async fn r01_requests_of_debounced_triggers_and_of_runs() {
    let counted = Counted::new().await;
    let quell = &counted.quell;
    eprintln!("| triggers of a burst | one by one | side by side | one batch |");
    eprintln!("| --- | --- | --- | --- |");
    for burst in BURSTS {
        let one_by_one = async {
            for _ in 0..burst {
                quell.enqueue(Batch::one(trigger(&format!("one{burst}")))).await.unwrap();
            }
        };
        let (one_by_one, ()) = counted.of(one_by_one).await;
        let all = (0..burst).map(|_| quell.enqueue(Batch::one(trigger(&format!("side{burst}")))));
        let (side_by_side, all) = counted.of(try_join_all(all)).await;
        assert_eq!(all.unwrap().len(), burst);
        let triggers = vec![trigger(&format!("batch{burst}")); burst];
        let batch = quell.enqueue(Batch { triggers, dedup: None });
        let (batch, receipts) = counted.of(batch).await;
        assert_eq!(receipts.unwrap().len(), burst);
        eprintln!("| {burst} | {one_by_one} | {side_by_side} | {batch} |");
        assert!(one_by_one <= OF_A_TRIGGER * burst, "{burst} one by one: {one_by_one}");
        // The first one is a call of its own, and the next call takes those that came meanwhile, some
        // at a time.
        let steps = 2 + burst / BATCHES_OF_A_STEP;
        assert!(side_by_side <= OF_A_TRIGGER * steps, "{burst} side by side: {side_by_side}");
        assert!(batch <= OF_A_TRIGGER, "{burst} in a batch: {batch}");
    }

    let asked = Rig::claim_of(1);
    let (idle, claimed) = counted.of(counted.store.claim(None, &asked)).await;
    assert!(claimed.unwrap().jobs.is_empty());
    let (look, _) = counted.of(counted.store.next_due(None, &queue(), &asked.tasks)).await;
    eprintln!("a claim that finds nothing: {idle}; a look: {look}");
    assert!(idle <= OF_A_POLL && look <= OF_A_POLL, "{idle}, {look}");
    for jobs in [1, 10] {
        let keys: Vec<_> = (0..jobs).map(|at| format!("run{jobs}{at}")).collect();
        let triggers = keys.iter().map(|of| quell.enqueue(Batch::one(trigger(of))));
        try_join_all(triggers).await.unwrap();
        let task = task("t");
        for of in &keys {
            counted.store.flush(None, &task, &key(of)).await.unwrap();
        }
        let (start, claimed) = counted.of(counted.store.claim(None, &Rig::claim_of(jobs))).await;
        let claimed = claimed.unwrap().jobs;
        assert_eq!(claimed.len(), jobs);
        let ends = claimed.iter().map(|job| {
            let outcome = Outcome::Succeeded { output: None };
            Settlement { lease: lease(job), outcome }
        });
        let (end, settled) = counted.of(counted.store.settle(None, ends.collect())).await;
        assert_eq!(settled.unwrap().len(), jobs);
        eprintln!("{jobs} jobs: {start} to start, {end} to end");
        let [most_to_start, most_to_end] = OF_A_RUN.map(|one| one * jobs);
        assert!(start <= most_to_start && end <= most_to_end, "{jobs} jobs: {start}, {end}");
    }
}

/// A minute of the worker's clock, which runs five times as fast as the machine's.
#[tokio::test]
async fn r35_requests_of_an_idle_worker_in_a_minute() {
    let counted = Counted::new().await;
    let clock = Arc::new(Quick::new(5));
    let minute = clock.takes(Duration::from_secs(60));
    let store = Arc::clone(&counted.store) as Arc<dyn Store>;
    let quell = Quell::with_store(store).clock(clock).build().unwrap();
    let worker = quell.worker(()).register_raw(task("t"), &Policy::default(), nothing);
    let (requests, ended) = counted.of(worker.run_until(tokio::time::sleep(minute))).await;
    ended.unwrap();
    eprintln!("an idle worker of one queue and one task, in a minute: {requests}");
    assert!(requests <= OF_AN_IDLE_MINUTE, "{requests}");
    assert!(requests >= 10 * OF_A_POLL, "nothing was measured: {requests}");
}

async fn nothing(_: Payload, _: Ctx<()>) -> Result<Option<Payload>, TaskError> {
    Ok(None)
}
