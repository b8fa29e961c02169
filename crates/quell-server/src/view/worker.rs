//! Workers (R25).

use quell::worker::{WorkerRow, Workers as Found};
use quell::{QueueName, TaskName, Timestamp};
use quell_core::WorkerId;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::config::duration::exact;

/// A worker that was seen within the last day.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Worker {
    /// Its name.
    #[schema(value_type = String)]
    pub worker: WorkerId,
    /// Which process of that name it is.
    pub incarnation: u32,
    /// `seen`, or `unseen` where it missed three heartbeats. Of one that an operator drains: `draining`
    /// while it runs attempts, then `drained`.
    pub state: String,
    /// Where it runs.
    pub host: String,
    /// Its process.
    pub pid: u32,
    /// Its version of Quell.
    pub version: String,
    /// The queues that it takes jobs from.
    #[schema(value_type = Vec<String>)]
    pub queues: Vec<QueueName>,
    /// The tasks that it knows; left out where that is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Vec<String>>)]
    pub tasks: Option<Vec<TaskName>>,
    /// Attempts at once.
    pub slots: u32,
    /// Attempts now.
    pub busy: u32,
    /// The term of its leases.
    pub lease: String,
    /// When it started.
    pub started_at: String,
    /// Its last heartbeat.
    pub seen_at: String,
    /// Since when an operator drains it; left out where it takes jobs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(required = false)]
    pub drained_since: Option<String>,
    /// Who drained it, where the caller said so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(required = false)]
    pub drained_by: Option<String>,
}

/// What a worker is about, in a word.
fn state(row: &WorkerRow, now: Timestamp) -> &'static str {
    match &row.drained {
        _ if row.is_unseen(now) => "unseen",
        Some(_) if row.busy > 0 => "draining",
        Some(_) => "drained",
        None => "seen",
    }
}

/// All workers.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Workers {
    /// By name.
    pub workers: Vec<Worker>,
}

impl From<&Found> for Workers {
    fn from(found: &Found) -> Self {
        let show = |row: &WorkerRow| Worker {
            worker: row.worker.clone(),
            incarnation: row.incarnation,
            state: state(row, found.now).to_owned(),
            host: row.host.clone(),
            pid: row.pid,
            version: row.version.clone(),
            queues: row.queues.clone(),
            tasks: row.tasks.clone(),
            slots: row.slots,
            busy: row.busy,
            lease: exact(row.lease),
            started_at: row.started_at.to_string(),
            seen_at: row.seen_at.to_string(),
            drained_since: row.drained.as_ref().map(|drained| drained.since.to_string()),
            drained_by: row.drained.as_ref().and_then(|drained| drained.by.clone()),
        };
        Workers { workers: found.rows.iter().map(show).collect() }
    }
}
