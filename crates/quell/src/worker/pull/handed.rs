//! Claimed jobs on their way to a worker.

use std::sync::Arc;

use quell_core::{ClaimedJob, Lease, Outcome, Settlement, Store, Timestamp};
use tracing::debug;

use super::calls::Calls;
use super::{Pulled, PulledJob};

/// The answer to a claim. Dropped before it was [delivered](Handed::delivered), it releases its
/// jobs: the worker that asked has gone.
#[derive(Debug)]
#[must_use = "dropping it releases the jobs"]
pub struct Handed {
    pulled: Pulled,
    pub(super) undelivered: Undelivered,
}

impl Handed {
    pub(super) fn new(now: Timestamp, jobs: Vec<PulledJob>, undelivered: Undelivered) -> Self {
        Handed { pulled: Pulled { now, jobs, drained: false }, undelivered }
    }

    /// The same, of a worker that an operator drains.
    pub(super) fn drained(mut self) -> Self {
        self.pulled.drained = true;
        self
    }

    /// The jobs; from now on they are the worker's.
    #[must_use]
    pub fn delivered(mut self) -> Pulled {
        self.undelivered.leases.clear();
        let jobs = std::mem::take(&mut self.pulled.jobs);
        Pulled { jobs, now: self.pulled.now, drained: self.pulled.drained }
    }
}

/// Leases that are released when they are dropped.
#[derive(Debug)]
pub(super) struct Undelivered {
    store: Arc<dyn Store>,
    time: Option<Timestamp>,
    calls: Arc<Calls>,
    leases: Vec<Lease>,
}

impl Undelivered {
    pub(super) fn new(store: Arc<dyn Store>, time: Option<Timestamp>, calls: Arc<Calls>) -> Self {
        Undelivered { store, time, calls, leases: Vec::new() }
    }

    pub(super) fn add(&mut self, jobs: &[ClaimedJob]) {
        self.leases.extend(jobs.iter().map(|job| Lease { job: job.id, token: job.token }));
    }

    pub(super) fn absorb(&mut self, mut other: Undelivered) {
        self.leases.append(&mut other.leases);
    }

    pub(super) fn remove(&mut self, lease: Lease) {
        self.leases.retain(|one| *one != lease);
    }
}

impl Drop for Undelivered {
    fn drop(&mut self) {
        let leases = std::mem::take(&mut self.leases);
        if leases.is_empty() {
            return;
        }
        let (store, time) = (Arc::clone(&self.store), self.time);
        // Where this fails too, the leases expire.
        self.calls.begin(async move {
            let release = |lease| Settlement { lease, outcome: Outcome::Released };
            let settlements = leases.into_iter().map(release).collect();
            if let Err(error) = store.settle(time, settlements).await {
                debug!(%error, "jobs of a worker that has gone could not be released");
            }
        });
    }
}
