//! Workers (R25).

use quell::worker::{WorkerRow, Workers as Found};
use quell::{QueueName, TaskName};
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
    /// `seen`, or `unseen` where it missed three heartbeats.
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
            state: if row.is_unseen(found.now) { "unseen" } else { "seen" }.to_owned(),
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
        };
        Workers { workers: found.rows.iter().map(show).collect() }
    }
}
