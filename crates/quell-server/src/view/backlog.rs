//! The partitions of a queue by what waits in them (R31).

use quell::Key;
use quell::queue::Backlog;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The partitions of a queue, that with the most waiting jobs first.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Partitions {
    /// The store's time.
    pub now: String,
    /// At most 50.
    pub partitions: Vec<Partition>,
    /// Whether all waiting jobs and all partitions are in it. Otherwise there may be more of each.
    pub whole: bool,
}

/// A partition of a queue.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Partition {
    /// Its name; null for the jobs without a partition.
    #[schema(value_type = Option<String>)]
    pub partition: Option<Key>,
    /// Waiting jobs that are due.
    pub due: u64,
    /// Waiting jobs that are not due yet.
    pub later: u64,
    /// Attempts that run.
    pub running: u64,
    /// When the first waiting job is due, or was.
    pub first_due: Option<String>,
}

impl From<&Backlog> for Partitions {
    fn from(backlog: &Backlog) -> Self {
        let partitions = backlog.partitions.iter().map(|one| Partition {
            partition: one.partition.clone(),
            due: one.waiting.due,
            later: one.waiting.later,
            running: one.running,
            first_due: one.waiting.first_due.map(|at| at.to_string()),
        });
        Partitions {
            now: backlog.now.to_string(),
            partitions: partitions.collect(),
            whole: backlog.is_whole,
        }
    }
}
