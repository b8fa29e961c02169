//! Ends of attempts: the report of a worker, and the resulting state of the job (R12, R21, R24,
//! R25).

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::payload::present;
use crate::{AttemptOutcome, Job, JobId, JobState, Lease, Payload, Timestamp};

/// The end of an attempt, as a worker reports it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settlement {
    /// The attempt's right.
    pub lease: Lease,
    /// The outcome of the attempt.
    pub outcome: Outcome,
}

/// The outcome of an attempt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Outcome {
    /// It ended well.
    Succeeded {
        /// What the handler returned, if anything, at most
        /// [`JobResult::MAX_OUTPUT_BYTES`](crate::JobResult::MAX_OUTPUT_BYTES) long.
        #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "present")]
        output: Option<Payload>,
    },
    /// It failed (R24, R25).
    Failed(Failure),
    /// The handler asked to be run again after `delay`; no attempt is spent.
    Snoozed {
        /// How long to wait.
        delay: Duration,
    },
    /// The worker gave it back unfinished; no attempt is spent (R29).
    Released,
    /// The handler ended the job without success.
    Cancelled {
        /// Why; stores cut it at [`Failure::MAX_ERROR_BYTES`].
        reason: String,
    },
    /// The handler settled the job in its own transaction (R22) and returned well. Where that
    /// transaction did not commit, the attempt failed so.
    InTransaction(Failure),
}

impl Outcome {
    /// It ended well and returned nothing.
    #[must_use]
    pub const fn succeeded() -> Self {
        Outcome::Succeeded { output: None }
    }

    /// Whether it ended well.
    #[must_use]
    pub fn is_success(&self) -> bool {
        matches!(self, Outcome::Succeeded { .. })
    }

    /// How metrics and the history count it.
    #[must_use]
    pub fn counted(&self) -> AttemptOutcome {
        match self {
            Outcome::Succeeded { .. } => AttemptOutcome::Succeeded,
            Outcome::Failed(failure) | Outcome::InTransaction(failure) => failure.ended,
            Outcome::Snoozed { .. } => AttemptOutcome::Snoozed,
            Outcome::Released => AttemptOutcome::Released,
            Outcome::Cancelled { .. } => AttemptOutcome::Cancelled,
        }
    }

    /// How the attempt is put on record beside its job; none for success, which the job's row has.
    #[must_use]
    pub fn on_record(&self) -> Option<(AttemptOutcome, Option<String>)> {
        match self {
            Outcome::Succeeded { .. } => None,
            Outcome::Failed(failure) | Outcome::InTransaction(failure) => {
                Some((failure.ended, Some(failure.clipped())))
            }
            Outcome::Snoozed { .. } => Some((AttemptOutcome::Snoozed, None)),
            Outcome::Released => Some((AttemptOutcome::Released, None)),
            Outcome::Cancelled { reason } => {
                Some((AttemptOutcome::Cancelled, Some(clipped(reason))))
            }
        }
    }

    /// The failure that it reports, or would if its transaction did not commit (R22).
    #[must_use]
    pub fn failure(&self) -> Option<&Failure> {
        match self {
            Outcome::Failed(failure) | Outcome::InTransaction(failure) => Some(failure),
            Outcome::Succeeded { .. }
            | Outcome::Snoozed { .. }
            | Outcome::Released
            | Outcome::Cancelled { .. } => None,
        }
    }
}

/// A failed attempt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// What it said, with its sources; stores cut it at [`Failure::MAX_ERROR_BYTES`].
    pub error: String,
    /// How the attempt ended.
    pub ended: AttemptOutcome,
    /// What follows.
    pub kind: FailureKind,
}

impl Failure {
    /// The most of an error's text that is kept, in bytes.
    pub const MAX_ERROR_BYTES: usize = 16 << 10;

    /// The error's text as it is kept.
    #[must_use]
    pub fn clipped(&self) -> String {
        clipped(&self.error)
    }
}

/// A text as it is kept beside a job or an attempt: an error, or the reason of a cancellation.
#[must_use]
pub fn clipped(text: &str) -> String {
    let end = text.floor_char_boundary(Failure::MAX_ERROR_BYTES);
    text.get(..end).unwrap_or_default().to_owned()
}

/// What follows a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FailureKind {
    /// It is tried again after `backoff`, unless this was the last attempt (R24).
    Transient {
        /// The wait before the next attempt.
        backoff: Duration,
        /// Whether the attempts are used up.
        last: bool,
        /// Whether the handler asked for this delay: it is not the policy's backoff then.
        asked: bool,
    },
    /// No retry can help: buried at once (R25).
    Permanent,
}

impl Settlement {
    /// The answer to a settlement whose lease is lost: refused (R21), unless it reports a
    /// transaction that has settled `job` by then (R22).
    #[must_use]
    pub fn without_lease(&self, job: Option<&Job>) -> SettledAs {
        let by_itself =
            |job: &&Job| job.state == JobState::Succeeded && job.token == self.lease.token;
        match self.outcome {
            Outcome::InTransaction(_) if job.filter(by_itself).is_some() => SettledAs::Succeeded,
            Outcome::InTransaction(_)
            | Outcome::Succeeded { .. }
            | Outcome::Failed(_)
            | Outcome::Snoozed { .. }
            | Outcome::Released
            | Outcome::Cancelled { .. } => SettledAs::Refused,
        }
    }
}

/// The store's answer to one settlement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settled {
    /// Whose attempt.
    pub lease: Lease,
    /// What became of the job.
    pub became: SettledAs,
}

/// The state of a job after a settlement or an expired lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum SettledAs {
    /// It succeeded.
    Succeeded,
    /// It will run again.
    Scheduled {
        /// When.
        due: Timestamp,
    },
    /// A newer window of its key took it in (R12).
    Absorbed {
        /// That window.
        by: JobId,
        /// When it is due.
        due: Timestamp,
    },
    /// It was buried.
    Dead,
    /// It was cancelled.
    Cancelled,
    /// The lease had expired or was another's: nothing was changed (R21).
    Refused,
}

/// A lease that was taken back (R21).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExpiredLease {
    /// Whose attempt.
    pub lease: Lease,
    /// What became of the job.
    pub became: SettledAs,
    /// Whether it counts as a crash of its worker ([`crash::is_crash`](crate::crash::is_crash)).
    pub crash: bool,
}
