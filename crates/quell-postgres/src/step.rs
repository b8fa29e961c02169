//! An open step of the engine: one transaction that locks what it loads, or, for a step that only reads,
//! single statements that lock nothing.
//!
//! Invariant: what a writing step has loaded is locked until it commits, but for jobs that keys name.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use quell_core::part::TaskKey;
use quell_core::{
    Effect, Error, ErrorKind, Job, JobId, JobState, Lease, LeaseToken, QueueName, Result, Timestamp,
};
use quell_engine::{KeyJobs, RowName};
use sqlx::postgres::PgRow;
use tokio::runtime::Handle;

use crate::backend::PostgresBackend;
use crate::settings::QueueBefore;
use crate::sql::PgQuery;
use crate::tx::{Asked, Tx, read};

/// In which table the row of a job is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Home {
    /// It waits or runs.
    Waiting,
    /// It has ended, or is set aside.
    Ended,
}

/// A job as it was loaded.
#[derive(Clone, Debug)]
pub(crate) struct Loaded {
    pub(crate) job: Arc<Job>,
    pub(crate) home: Home,
}

/// What a step knows of its rows.
#[derive(Debug)]
pub(crate) struct Step {
    /// None for a step that only reads.
    tx: Option<Tx>,
    /// Whether a statement is not answered yet.
    is_busy: bool,
    pub(crate) asked: Asked,
    /// The store's time, once rows are locked.
    pub(crate) late: Option<Timestamp>,
    /// The first of the drafts that its new jobs have.
    pub(crate) first_draft: u64,
    pub(crate) jobs: BTreeMap<JobId, Loaded>,
    /// Keys of jobs that are locked.
    pub(crate) keys: BTreeMap<TaskKey, KeyJobs>,
    /// Jobs that dedup and idempotency keys name: no step changes them for that.
    pub(crate) named: BTreeSet<JobId>,
    /// The attempts on record of jobs.
    pub(crate) attempts: BTreeMap<JobId, BTreeSet<LeaseToken>>,
    pub(crate) effects: BTreeMap<JobId, Vec<Effect>>,
    pub(crate) queues: BTreeMap<QueueName, QueueBefore>,
    /// Jobs whose attempts it may end: it decides by their leases.
    pub(crate) ending: BTreeSet<JobId>,
    /// Those of them whose lease has expired for good: no renewal of it was in flight.
    pub(crate) gone: BTreeSet<JobId>,
    /// All rows that it has loaded and that were there.
    pub(crate) there: BTreeSet<RowName>,
    /// Leases that expired and are locked: their tokens have the draw and nothing else.
    pub(crate) expired: Vec<Lease>,
}

impl Step {
    /// A step in this transaction, or one that only reads.
    pub(crate) fn new(tx: Option<Tx>, asked: Asked) -> Self {
        Step {
            tx,
            is_busy: false,
            asked,
            late: None,
            first_draft: 0,
            jobs: BTreeMap::new(),
            keys: BTreeMap::new(),
            named: BTreeSet::new(),
            attempts: BTreeMap::new(),
            effects: BTreeMap::new(),
            queues: BTreeMap::new(),
            ending: BTreeSet::new(),
            gone: BTreeSet::new(),
            there: BTreeSet::new(),
            expired: Vec::new(),
        }
    }

    /// Whether it may change what it loads.
    pub(crate) fn writes(&self) -> bool {
        self.tx.is_some()
    }

    /// The leases that it decides by and that have expired by the time that it knows, but for those that it
    /// holds, and for those that are gone.
    pub(crate) fn expired(&self) -> Vec<Lease> {
        let held: BTreeSet<_> = self.expired.iter().map(|lease| lease.token.draw()).collect();
        let jobs = self.ending.difference(&self.gone).filter_map(|id| self.jobs.get(id));
        let expired = jobs.map(|loaded| &loaded.job).filter(|job| self.has_expired(job));
        let leases = expired.map(|job| Lease { job: job.id, token: job.token });
        leases.filter(|lease| !held.contains(&lease.token.draw())).collect()
    }

    fn has_expired(&self, job: &Job) -> bool {
        job.state == JobState::Running && job.lease_until <= self.late
    }

    /// Notes which of these leases have expired, now that no renewal of theirs is in flight.
    pub(crate) fn note_gone(&mut self, leases: &[Lease]) {
        for Lease { job, .. } in leases {
            if self.jobs.get(job).is_some_and(|loaded| self.has_expired(&loaded.job)) {
                self.gone.insert(*job);
            }
        }
    }

    /// The rows of a statement.
    pub(crate) async fn fetch(
        &mut self,
        by: &PostgresBackend,
        what: &'static str,
        query: PgQuery,
    ) -> Result<Vec<PgRow>> {
        let Some(tx) = &mut self.tx else { return read(&by.pool, &by.sql, what, query).await };
        self.is_busy = true;
        let rows = tx.fetch(what, query).await;
        self.is_busy = false;
        rows
    }

    /// Its transaction, which commits or rolls back.
    pub(crate) fn take_tx(&mut self) -> Result<Tx> {
        let message = "a step that only reads has nothing to commit";
        self.tx.take().ok_or_else(|| Error::new(ErrorKind::Internal, message))
    }
}

impl Drop for Step {
    /// Gives the step up. Where a statement is not answered, its connection is closed, which rolls back
    /// as well; else the next call may have it.
    fn drop(&mut self) {
        let Some(tx) = self.tx.take().filter(|_| !self.is_busy) else { return };
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(tx.roll_back());
        }
    }
}
