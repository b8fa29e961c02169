//! The tasks and queues of a chaos run, as one deploy or the next declares them.
//!
//! Every retry policy has the product's default `max_crashes`: what kills do to jobs is judged.

use std::time::Duration;

use quell::queue::{QueueSettings, Rate};
use quell::{Edge, Fold, Policy, Task};
use serde::{Deserialize, Serialize};

/// Carries the stamp witness; another debounce, edge and backoff with each deploy.
pub(crate) const STAMPED: &str = "stamped";
/// The task of the configuration that `quell serve` runs.
pub(crate) const NOTE: &str = "note";
/// Triggered with an idempotency key.
pub(crate) const ORDER: &str = "order";
/// Runs in the queue with concurrency limits.
pub(crate) const NARROW: &str = "narrow";
/// Runs in the queue with rates.
pub(crate) const RATED: &str = "rated";
/// Registered by one of the workers only; collects payloads, some with a dedup key.
pub(crate) const RARE: &str = "rare";

/// Takes longer than leases last; triggered where a test asks for it.
pub(crate) const LONG: &str = "long";

/// How long a lease lasts: long enough to be renewed in time on a loaded machine, and short enough
/// to expire often in a run.
pub(crate) const LEASE: Duration = Duration::from_secs(1);

/// The queue of stamped tasks.
pub(crate) const URGENT: &str = "urgent";
/// At once: of the queue, of a worker, of a partition.
pub(crate) const SLOTS: [u32; 3] = [3, 2, 2];
/// Starts of the queue and of a partition.
pub(crate) const RATES: [Rate; 2] = [
    Rate { limit: 12, period: Duration::from_secs(1) },
    Rate { limit: 6, period: Duration::from_secs(1) },
];

/// The queues with settings of their own.
pub(crate) fn queues() -> Vec<(&'static str, QueueSettings)> {
    let [queue, worker, partition] = SLOTS.map(Some);
    let narrow = QueueSettings {
        concurrency: queue,
        worker_concurrency: worker,
        partition_concurrency: partition,
        ..QueueSettings::default()
    };
    let [rate, partition_rate] = RATES.map(Some);
    let rated = QueueSettings { rate, partition_rate, ..QueueSettings::default() };
    vec![(NARROW, narrow), (RATED, rated), (URGENT, QueueSettings::default())]
}

/// A task's policy. The second deploy changes thresholds, edge and backoff.
pub(super) fn policy(task: &str, deploy: u32) -> Policy {
    let millis = Duration::from_millis;
    let is_second = deploy % 2 == 1;
    let (queue, priority) = match task {
        STAMPED => (URGENT, 5),
        NARROW => (NARROW, 0),
        RATED => (RATED, 0),
        _ => (quell::DEFAULT_QUEUE, 0),
    };
    let policy = Policy::queue(queue).priority(priority).attempts(1_000);
    let policy = policy.min_backoff(millis(1)).max_backoff(millis(5));
    match task {
        ORDER => policy,
        STAMPED if is_second => policy
            .debounce(millis(10)..=millis(60))
            .edge(Edge::Both)
            .min_backoff(millis(2))
            .max_backoff(millis(20)),
        // Windows that are soon full (R10).
        RARE => policy.debounce(millis(5)..=millis(60)).fold(Fold::Collect { cap: 3 }),
        _ if is_second => policy.debounce(millis(10)..=millis(60)),
        _ => policy.debounce(millis(5)..=millis(40)),
    }
}

/// An order that is triggered and settled in transactions.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Booked {
    /// Its number.
    pub(crate) order: u64,
}

impl Task for Booked {
    const NAME: &'static str = "booked";
    type Output = ();

    fn policy() -> Policy {
        let policy = Policy::queue("books").attempts(1_000);
        policy.min_backoff(Duration::from_millis(1)).max_backoff(Duration::from_millis(5))
    }
}
