//! Jobs for workers that pull them, and what becomes of their leases.

use quell::store::{Renewal, SettledAs};
use quell::trigger::TraceContext;
use quell::worker::pull::{Pulled, PulledJob as Found};
use quell::{JobId, Key, QueueName, TaskName, Timestamp};
use quell_core::LeaseToken;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{Document, Trace};
use crate::config::duration::exact;

/// A job that a worker has claimed.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct PulledJob {
    /// What renewals and the settlement name. Its form may change.
    pub lease: String,
    /// The job.
    #[schema(value_type = String)]
    pub id: JobId,
    /// Its task.
    #[schema(value_type = String)]
    pub task: TaskName,
    /// Its queue.
    #[schema(value_type = String)]
    pub queue: QueueName,
    /// Its debounce key.
    #[schema(value_type = Option<String>)]
    pub key: Option<Key>,
    /// The payload of its triggers.
    #[schema(value_type = Document)]
    pub payload: Document,
    /// Which attempt this is, from 1.
    pub attempt: u32,
    /// How often the job has started, expired leases included.
    pub starts: u64,
    /// What no other attempt of the job has. It begins with `starts`.
    #[schema(value_type = String)]
    pub fencing_token: LeaseToken,
    /// How many triggers it covers.
    pub triggers: u64,
    /// Its first trigger.
    pub first_at: String,
    /// When it was due.
    pub due_at: String,
    /// When the attempt started.
    pub started_at: String,
    /// When the lease expires without a renewal.
    pub lease_until: String,
    /// How long the attempt may take.
    pub timeout: String,
    /// The trace contexts of its first triggers (R42).
    #[schema(value_type = Vec<Trace>)]
    pub traces: Vec<TraceContext>,
}

impl From<&Found> for PulledJob {
    fn from(found: &Found) -> Self {
        let job = &found.job;
        PulledJob {
            lease: found.lease.to_string(),
            id: job.id,
            task: job.task.clone(),
            queue: found.queue.clone(),
            key: job.key.clone(),
            payload: Document::from(&job.payload),
            attempt: job.attempt,
            starts: job.token.starts(),
            fencing_token: job.token,
            triggers: job.triggers,
            first_at: job.first_at.to_string(),
            due_at: job.due_at.to_string(),
            started_at: found.lease.started_at.to_string(),
            lease_until: job.lease_until.to_string(),
            timeout: exact(found.timeout),
            traces: job.traces.iter().collect(),
        }
    }
}

/// What a claim brought.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct PulledJobs {
    /// The store's time.
    pub now: String,
    /// The jobs, in the order in which they start. None where the wait is over.
    pub jobs: Vec<PulledJob>,
    /// Whether an operator drains the worker: it gets no jobs until it is resumed. Left out where not.
    #[serde(default, skip_serializing_if = "is_false")]
    #[schema(required = false)]
    pub drained: bool,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_false(value: &bool) -> bool {
    !*value
}

impl From<&Pulled> for PulledJobs {
    fn from(pulled: &Pulled) -> Self {
        let jobs = pulled.jobs.iter().map(PulledJob::from).collect();
        PulledJobs { now: pulled.now.to_string(), jobs, drained: pulled.drained }
    }
}

/// What became of one lease.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct RenewedLease {
    /// The lease.
    pub lease: String,
    /// `held`, `lost`, or `unknown` where the store did not answer for it.
    pub state: String,
    /// When a held lease expires without another renewal.
    pub until: Option<String>,
}

impl RenewedLease {
    /// The answer for a lease.
    #[must_use]
    pub fn new(lease: String, renewal: Renewal) -> Self {
        let state = match renewal {
            Renewal::Held(_) => "held",
            Renewal::Lost => "lost",
            Renewal::Unknown => "unknown",
        };
        let until = renewal.until().map(|until| until.to_string());
        RenewedLease { lease, state: state.to_owned(), until }
    }
}

/// What became of leases.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct RenewedLeases {
    /// In the order of the request.
    pub leases: Vec<RenewedLease>,
}

/// What became of one job.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct SettledJob {
    /// The lease.
    pub lease: String,
    /// `succeeded`, `scheduled`, `absorbed`, `dead`, `cancelled`, or `refused` where the lease was
    /// lost. `invalid` and `unknown` have an `error`: the settlement is wrong, or the store failed for
    /// it and it may be sent again.
    pub became: String,
    /// When the job runs again.
    pub due_at: Option<String>,
    /// The window that took it in.
    #[schema(value_type = Option<String>)]
    pub by: Option<JobId>,
    /// Why it was not taken; left out where it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(required = false)]
    pub error: Option<SettlementError>,
}

/// Why a settlement was not taken.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct SettlementError {
    /// As in an error response: `invalid`, `internal` and others.
    pub kind: String,
    /// The member at fault.
    pub field: Option<String>,
    /// What is wrong, for people.
    pub message: String,
    /// The id under which the log has an error of the server.
    pub id: Option<String>,
}

impl SettledJob {
    /// The answer for a settlement that is wrong: its lease is still held.
    #[must_use]
    pub fn refused(lease: String, error: SettlementError) -> Self {
        let error = Some(error);
        SettledJob { lease, became: "invalid".to_owned(), due_at: None, by: None, error }
    }

    /// The answer for a settlement that the store failed for.
    #[must_use]
    pub fn unknown(lease: String, error: SettlementError) -> Self {
        SettledJob { became: "unknown".to_owned(), ..SettledJob::refused(lease, error) }
    }

    /// The answer for a settlement.
    #[must_use]
    pub fn new(lease: String, became: &SettledAs) -> Self {
        let (name, due, by): (&str, Option<Timestamp>, Option<JobId>) = match became {
            SettledAs::Succeeded => ("succeeded", None, None),
            SettledAs::Scheduled { due } => ("scheduled", Some(*due), None),
            SettledAs::Absorbed { by, due } => ("absorbed", Some(*due), Some(*by)),
            SettledAs::Dead => ("dead", None, None),
            SettledAs::Cancelled => ("cancelled", None, None),
            _ => ("refused", None, None),
        };
        let due_at = due.map(|due| due.to_string());
        SettledJob { lease, became: name.to_owned(), due_at, by, error: None }
    }
}

/// What became of jobs.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct SettledJobs {
    /// In the order of the request.
    pub settled: Vec<SettledJob>,
}

/// A worker that has left.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct LeftWorker {}

/// What the worker of a running attempt last reported of it.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Progress {
    /// Its progress, as the worker sent it.
    #[schema(value_type = Document, required = false)]
    pub progress: Option<Document>,
    /// Its last log lines.
    pub log: Vec<String>,
}
