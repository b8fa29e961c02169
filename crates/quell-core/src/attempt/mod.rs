//! Attempts on record: their workers, times and outcomes (R15, R25); and the rules for running
//! jobs.

pub mod crash;
pub mod effect;
pub mod failure;
pub mod heartbeat;
pub mod record;
pub mod retry;
mod settlement;

use serde::{Deserialize, Serialize};

use crate::codes::codes;
use crate::setters::setters;
pub use settlement::{
    ExpiredLease, Failure, FailureKind, Outcome, Settled, SettledAs, Settlement, clipped,
};

use crate::{LeaseToken, Timestamp, WorkerId};

/// How an attempt ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum AttemptOutcome {
    /// The handler returned well.
    Succeeded,
    /// The handler returned an error.
    Failed,
    /// The handler panicked.
    Panicked,
    /// The attempt took longer than its timeout.
    TimedOut,
    /// The handler asked to be run later.
    Snoozed,
    /// A shutdown gave the job back.
    Released,
    /// The lease expired.
    // The name in stores and histories.
    #[serde(rename = "lapsed")]
    LeaseExpired,
    /// The job was cancelled.
    Cancelled,
}

codes!(AttemptOutcome, "outcome");

impl AttemptOutcome {
    /// Every outcome, in the order of their codes.
    pub const ALL: [AttemptOutcome; 8] = [
        AttemptOutcome::Succeeded,
        AttemptOutcome::Failed,
        AttemptOutcome::Panicked,
        AttemptOutcome::TimedOut,
        AttemptOutcome::Snoozed,
        AttemptOutcome::Released,
        AttemptOutcome::LeaseExpired,
        AttemptOutcome::Cancelled,
    ];

    /// The outcome's name, as shown and as used in metric labels.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            AttemptOutcome::Succeeded => "succeeded",
            AttemptOutcome::Failed => "failed",
            AttemptOutcome::Panicked => "panicked",
            AttemptOutcome::TimedOut => "timed_out",
            AttemptOutcome::Snoozed => "snoozed",
            AttemptOutcome::Released => "released",
            AttemptOutcome::LeaseExpired => "lapsed",
            AttemptOutcome::Cancelled => "cancelled",
        }
    }
}

/// One attempt on record (R15, R25).
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Attempt {
    /// Its lease token, which says which start of the job it was.
    pub token: LeaseToken,
    /// Who ran it.
    pub worker: WorkerId,
    /// When it started.
    pub started_at: Timestamp,
    /// When it ended; none while it runs.
    pub ended_at: Option<Timestamp>,
    /// How it ended; none while it runs.
    pub outcome: Option<AttemptOutcome>,
    /// What the error said, with its sources.
    pub error: Option<String>,
}

impl Attempt {
    /// An attempt that runs; set how it ended.
    #[must_use]
    pub fn new(token: LeaseToken, worker: WorkerId, started_at: Timestamp) -> Self {
        Attempt { token, worker, started_at, ended_at: None, outcome: None, error: None }
    }
}

setters!(Attempt {
    ended_at? Timestamp,
    outcome? AttemptOutcome,
    error? String,
});
