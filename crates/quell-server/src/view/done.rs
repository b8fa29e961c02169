//! What an action answers that has no other result.

use quell::alert::AlertName;
use quell::job::Adjusted;
use quell::schedule::ScheduleName;
use quell::{JobId, JobState, QueueName};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::State;

/// A job that was cancelled.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct CancelledJob {
    /// The job.
    #[schema(value_type = String)]
    pub job: JobId,
    /// Its state now.
    #[schema(value_type = State)]
    pub state: JobState,
}

/// A job that waits, as a change left it.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct AdjustedJob {
    /// The job.
    #[schema(value_type = String)]
    pub job: JobId,
    /// When it is due.
    pub due_at: String,
    /// Higher runs first.
    pub priority: i16,
    /// Whether another job of its key goes first.
    pub waits_for_its_key: bool,
}

impl AdjustedJob {
    /// A job after a change.
    #[must_use]
    pub fn new(job: JobId, adjusted: &Adjusted) -> Self {
        let Adjusted { due_at, priority, waits } = *adjusted;
        AdjustedJob { job, due_at: due_at.to_string(), priority, waits_for_its_key: waits }
    }
}

/// A window that is due now.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct FlushedWindow {
    /// The job.
    #[schema(value_type = String)]
    pub job: JobId,
    /// Always true.
    pub flushed: bool,
}

/// A window that will not run.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct CancelledWindow {
    /// The job.
    #[schema(value_type = String)]
    pub job: JobId,
    /// Always true.
    pub cancelled: bool,
}

/// A job that was set aside and is back.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct RestoredJob {
    /// The job.
    #[schema(value_type = String)]
    pub job: JobId,
    /// Always true.
    pub restored: bool,
}

/// A dead job that is gone.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct DiscardedJob {
    /// The job.
    #[schema(value_type = String)]
    pub job: JobId,
    /// Always true.
    pub discarded: bool,
}

/// A queue whose settings are gone.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct DeletedQueue {
    /// The queue.
    #[schema(value_type = String)]
    pub queue: QueueName,
    /// Always true.
    pub deleted: bool,
}

/// A schedule that is gone.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct DeletedSchedule {
    /// The schedule.
    #[schema(value_type = String)]
    pub schedule: ScheduleName,
    /// Always true.
    pub deleted: bool,
}

/// How many ticks a backfill fired.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Backfilled {
    /// The schedule.
    #[schema(value_type = String)]
    pub schedule: ScheduleName,
    /// How many ticks fired.
    pub fired: u64,
}

/// An alert whose record is gone.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct ForgottenAlert {
    /// The alert.
    #[schema(value_type = String)]
    pub alert: AlertName,
    /// Always true.
    pub forgotten: bool,
}
