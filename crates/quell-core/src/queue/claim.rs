//! Claims and their answers: jobs under leases, and when to look again.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::trace::Traces;
use crate::{Draw, Job, JobId, Key, LeaseToken, Payload, QueueName, TaskName, Timestamp, WorkerId};

/// A worker's request for jobs of one queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claim {
    /// The queue.
    pub queue: QueueName,
    /// The tasks that the worker knows; no other is handed out (R28).
    pub tasks: Arc<[TaskName]>,
    /// Who asks.
    pub worker: WorkerId,
    /// At most this many.
    pub limit: usize,
    /// How long each lease holds.
    pub lease: Duration,
    /// A new random number for each claim, part of the tokens of its leases (R21).
    pub draw: Draw,
}

/// What a claim brought.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claimed {
    /// The store time of the claim: every job in it started then.
    pub now: Timestamp,
    /// The jobs, in the order of R30.
    pub jobs: Vec<ClaimedJob>,
    /// When to look again.
    pub next: NextDue,
    /// Whether starts in the queue are counted by a rate. A start is counted by the claim, so a
    /// worker then claims only what it starts at once (R31).
    pub rated: bool,
}

impl Claimed {
    /// The same claim by a store that could not say what comes next: its worker is to look at once.
    #[must_use]
    pub fn again(self) -> Self {
        let next = NextDue { now: self.now, due: Some(self.now), expiry: None };
        Claimed { next, ..self }
    }
}

/// A job with a fresh lease, as its worker needs it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClaimedJob {
    /// The job.
    pub id: JobId,
    /// The fence of this attempt.
    pub token: LeaseToken,
    /// The task to run.
    pub task: TaskName,
    /// Its debounce key, if any.
    pub key: Option<Key>,
    /// The folded payload.
    pub payload: Payload,
    /// Which attempt this is, from 1.
    pub attempt: u32,
    /// The failures in a row before it.
    pub failures: u32,
    /// The attempts in a row before it that ended because their worker was gone (R25).
    // The name in answers that are serialized.
    #[serde(rename = "lapses")]
    pub crashes: u32,
    /// How many triggers it covers.
    pub triggers: u64,
    /// The first of them.
    pub first_at: Timestamp,
    /// When it was due.
    pub due_at: Timestamp,
    /// When the lease expires.
    pub lease_until: Timestamp,
    /// The trace contexts of its first triggers that have one (R42).
    pub traces: Traces,
}

impl ClaimedJob {
    /// What a worker needs of a job that runs; none where it has no lease.
    #[must_use]
    pub fn of(job: &Job) -> Option<Self> {
        let lease_until = job.lease_until?;
        Some(ClaimedJob {
            id: job.id,
            token: job.token,
            task: job.task.clone(),
            key: job.key.clone(),
            payload: job.payload.clone(),
            attempt: job.attempt,
            failures: job.failures,
            crashes: job.crashes,
            triggers: job.window.triggers,
            first_at: job.window.first_at,
            due_at: job.window.due_at,
            lease_until,
            traces: job.traces.clone(),
        })
    }
}

/// When something will be to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NextDue {
    /// The store's time of the answer, for callers whose clocks are wrong (R38).
    pub now: Timestamp,
    /// When the first of the jobs that may start is due, or a rate lets it start (R31); none when
    /// there are none. Paused tasks and partitions whose slots are all taken have none.
    pub due: Option<Timestamp>,
    /// The earliest end of a lease; none when nothing runs.
    // The name in answers that are serialized.
    #[serde(rename = "lapse")]
    pub expiry: Option<Timestamp>,
}

/// The right to run one attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Lease {
    /// The job.
    pub job: JobId,
    /// The fence.
    pub token: LeaseToken,
}

/// What a renewal found out about one lease (R21).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Renewal {
    /// It is held until then, in store time.
    Held(Timestamp),
    /// It was lost.
    Lost,
    /// The part of the store that knows it did not answer. The lease may have been extended, and it
    /// lasts at least as long as before.
    Unknown,
}

impl Renewal {
    /// The end of a lease that is held.
    #[must_use]
    pub fn until(self) -> Option<Timestamp> {
        match self {
            Renewal::Held(until) => Some(until),
            Renewal::Lost | Renewal::Unknown => None,
        }
    }
}

/// The answer of a store that knows the lease: its new end, or none where it was lost.
impl From<Option<Timestamp>> for Renewal {
    fn from(until: Option<Timestamp>) -> Self {
        until.map_or(Renewal::Lost, Renewal::Held)
    }
}
