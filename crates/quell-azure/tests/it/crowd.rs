//! Eight processes that trigger one hot key at once. How often each trigger is tried depends on the
//! machine here: `crates/quell-portable/tests/it/crowd.rs` judges it, in virtual time.

use std::time::Duration;

use quell_conformance::rig::keyed_with;
use quell_core::window::{Debounce, Thresholds};
use quell_core::{Batch, Fold, JobFilter, NewTrigger, Store};
use tokio::task::JoinSet;

use crate::proxy::{Act, Proxy};
use crate::server::Place;

const PROCESSES: usize = 8;
const TRIGGERS: usize = 20;

fn hot() -> NewTrigger {
    let hour = Duration::from_secs(3_600);
    let debounce = Debounce::new(Thresholds::new(hour, hour).unwrap());
    keyed_with("hot", debounce, Fold::Collect { cap: 10_000 }, "1")
}

#[tokio::test]
async fn r01_every_trigger_of_eight_processes_at_one_hot_key_is_accepted() {
    let place = Place::new();
    let mut stores = Vec::new();
    for _ in 0..PROCESSES {
        let proxy = Proxy::start(place.port(), |_| Act::Forward).await;
        let store = place.through(proxy.port, Duration::from_secs(60)).open().await.unwrap();
        stores.push((proxy, store));
    }
    let mut processes = JoinSet::new();
    for (proxy, store) in stores {
        processes.spawn(async move {
            let batches = || {
                let is_batch = |request: &str| request.contains("$batch");
                proxy.seen().iter().filter(|(_, request)| is_batch(request)).count()
            };
            let mut tries = Vec::new();
            for _ in 0..TRIGGERS {
                let before = batches();
                let accepted = store.enqueue(None, vec![Batch::one(hot())]).await.unwrap();
                assert!(accepted.iter().all(Result::is_ok), "{accepted:?}");
                tries.push(batches() - before);
            }
            tries
        });
    }
    let mut tries: Vec<usize> = processes.join_all().await.into_iter().flatten().collect();
    tries.sort_unstable();
    assert!(tries[0] >= 1, "each trigger is a batch: {tries:?}");
    let sum: usize = tries.iter().sum();
    let p99 = tries[tries.len() * 99 / 100 - 1];
    eprintln!("{} triggers, {sum} tries, p99 {p99}, at most {:?}", tries.len(), tries.last());
    let store = place.through(place.port(), Duration::from_secs(60)).open().await.unwrap();
    let jobs = store.jobs(&JobFilter::default()).await.unwrap();
    let elements = jobs.iter().map(|job| job.payload.as_str().matches('1').count());
    assert_eq!(elements.sum::<usize>(), tries.len(), "each trigger is in a window");
}
