//! What an action answers that has no other result.

use quell::alert::AlertName;
use quell::schedule::ScheduleName;
use quell::{JobId, JobState, QueueName};
use serde::{Deserialize, Serialize};

/// A job that was cancelled.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CancelledJob {
    /// The job.
    pub job: JobId,
    /// Its state now.
    pub state: JobState,
}

/// A window that is due now.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct FlushedWindow {
    /// The job.
    pub job: JobId,
    /// Always true.
    pub flushed: bool,
}

/// A window that will not run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CancelledWindow {
    /// The job.
    pub job: JobId,
    /// Always true.
    pub cancelled: bool,
}

/// A job that was set aside and is back.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RestoredJob {
    /// The job.
    pub job: JobId,
    /// Always true.
    pub restored: bool,
}

/// A dead job that is gone.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DiscardedJob {
    /// The job.
    pub job: JobId,
    /// Always true.
    pub discarded: bool,
}

/// A queue whose settings are gone.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DeletedQueue {
    /// The queue.
    pub queue: QueueName,
    /// Always true.
    pub deleted: bool,
}

/// A schedule that is gone.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DeletedSchedule {
    /// The schedule.
    pub schedule: ScheduleName,
    /// Always true.
    pub deleted: bool,
}

/// How many ticks a backfill fired.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Backfilled {
    /// The schedule.
    pub schedule: ScheduleName,
    /// How many ticks fired.
    pub fired: u64,
}

/// An alert whose record is gone.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ForgottenAlert {
    /// The alert.
    pub alert: AlertName,
    /// Always true.
    pub forgotten: bool,
}
