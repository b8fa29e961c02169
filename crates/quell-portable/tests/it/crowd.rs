//! Eight processes that trigger one hot key at once, on a table whose calls take time.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use fastrand::Rng;
use quell_conformance::Rig;
use quell_conformance::effort::cases;
use quell_conformance::rig::{debounce, keyed_with};
use quell_core::window::{Debounce, Thresholds};
use quell_core::{Fold, JobFilter, Result, Steps, Timestamp};
use quell_engine::Engine;
use quell_portable::{Bounds, Change, Committed, MemoryTable, Page, Partition, Range, Row, Table};
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::between::enqueue;

/// Seeds in a usual run and in a long one.
const SEEDS: [u64; 2] = [4, 40];
const PROCESSES: u64 = 8;
const TRIGGERS: usize = 100;
/// Of a hundred triggers, at most one takes more tries.
const MOST_TRIES: usize = 3;

/// A table whose calls take a random time, half of it before anything is done.
#[derive(Debug)]
struct Slow {
    table: MemoryTable,
    random: std::sync::Mutex<Rng>,
    batches: Arc<AtomicUsize>,
}

impl Slow {
    async fn half(&self) {
        let micros = self.random.lock().unwrap().u64(500..=5_000);
        sleep(Duration::from_micros(micros)).await;
    }
}

#[async_trait]
impl Table for Slow {
    fn bounds(&self) -> Bounds {
        self.table.bounds()
    }

    async fn now(&self) -> Result<Timestamp> {
        self.table.now().await
    }

    async fn get(&self, partition: &str, rows: &[String]) -> Result<Vec<Option<Row>>> {
        self.half().await;
        let rows = self.table.get(partition, rows).await;
        self.half().await;
        rows
    }

    async fn range(&self, partition: &str, range: &Range, limit: usize) -> Result<Page> {
        self.half().await;
        let page = self.table.range(partition, range, limit).await;
        self.half().await;
        page
    }

    async fn commit(&self, partition: &str, changes: Vec<Change>) -> Result<Committed> {
        let takes_ids = changes.iter().any(|change| change.row == "i:ids");
        self.batches.fetch_add(usize::from(!takes_ids), Ordering::SeqCst);
        self.half().await;
        let committed = self.table.commit(partition, changes).await;
        self.half().await;
        committed
    }
}

/// The tries of each trigger.
async fn crowd(seed: u64) -> Vec<usize> {
    fastrand::seed(seed);
    let table = MemoryTable::new(Rig::START);
    let mut processes = JoinSet::new();
    for process in 0..PROCESSES {
        let batches = Arc::new(AtomicUsize::new(0));
        let random = Rng::with_seed(seed * PROCESSES + process).into();
        let slow = Slow { table: table.clone(), random, batches: Arc::clone(&batches) };
        let store = Engine::new(Partition::new(slow, "p"));
        processes.spawn(async move {
            let mut tries = Vec::new();
            for _ in 0..TRIGGERS {
                let before = batches.load(Ordering::SeqCst);
                let hour = Duration::from_secs(3_600);
                let thresholds = Thresholds::new(hour, hour).unwrap();
                let debounce = Debounce { thresholds, ..debounce() };
                let fold = Fold::Collect { cap: 10_000 };
                enqueue(&store, 0, keyed_with("hot", debounce, fold, "1")).await;
                tries.push(batches.load(Ordering::SeqCst) - before);
            }
            tries
        });
    }
    let tries: Vec<usize> = processes.join_all().await.into_iter().flatten().collect();
    let store = Engine::new(Partition::new(table, "p"));
    let jobs = store.jobs(&JobFilter::default()).await.unwrap();
    let payloads = jobs.iter().map(|job| job.payload.as_str().matches('1').count());
    assert_eq!(payloads.sum::<usize>(), tries.len(), "seed {seed}: each trigger is in a window");
    tries
}

#[tokio::test(start_paused = true)]
async fn r01_eight_processes_at_one_hot_key_seldom_try_more_than_three_times() {
    let [usual, long] = SEEDS;
    for seed in 0..cases(usual, long) {
        let mut tries = crowd(seed).await;
        tries.sort_unstable();
        let (mean, most) = (tries.iter().sum::<usize>() * 100 / tries.len(), tries.last());
        let p99 = tries[tries.len() * 99 / 100 - 1];
        eprintln!("seed {seed}: {mean} tries for 100 triggers, p99 {p99}, at most {most:?}");
        assert!(p99 <= MOST_TRIES, "seed {seed}: p99 {p99}, {tries:?}");
    }
}
