//! What a user declares: a task, and the errors its handler may answer with.

use std::error::Error as StdError;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

use quell_core::AttemptOutcome;

use crate::Policy;

/// A named handler's arguments and policy. The type is the payload, so the key function sees the
/// same arguments as the handler.
///
/// It needs no store and no worker, so it can live in a crate that producers share.
///
/// ```
/// use std::time::Duration;
/// use quell::{Policy, Task};
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Serialize, Deserialize)]
/// struct UpdateCustomer {
///     customer_id: u64,
/// }
///
/// impl Task for UpdateCustomer {
///     const NAME: &'static str = "customer_meter.update_customer";
///     type Output = ();
///
///     fn policy() -> Policy {
///         let secs = Duration::from_secs;
///         Policy::queue("billing").attempts(2).min_backoff(secs(30)).debounce(secs(10)..=secs(60))
///     }
///
///     fn debounce_key(&self) -> Option<String> {
///         Some(self.customer_id.to_string())
///     }
/// }
/// ```
pub trait Task: Serialize + DeserializeOwned + Send + 'static {
    /// The task's name: ASCII alphanumerics, `_`, `-`, `.`, `:` and `/`. It is stored with every
    /// job, so renaming it strands the jobs of the old name.
    const NAME: &'static str;

    /// What the handler returns.
    type Output: Serialize + Send + 'static;

    /// How the task wants to be run.
    fn policy() -> Policy {
        Policy::default()
    }

    /// Triggers of one key share a window; none runs on its own, at once (R9).
    ///
    /// The client checks the text and refuses a trigger whose key is malformed (empty, longer than
    /// 512 bytes, or with a NUL character), naming `debounce_key` (R40). For a key of several
    /// parts use [`Key::join`](crate::Key::join).
    fn debounce_key(&self) -> Option<String> {
        None
    }

    /// The partition of the queue that it belongs to, such as a customer: each has limits of its
    /// own, and a full one delays no other (R31). None is under the queue's limits alone.
    ///
    /// The text is checked as that of [`Task::debounce_key`] is.
    fn partition(&self) -> Option<String> {
        None
    }
}

/// Why a handler did not succeed, and what should follow.
///
/// Any error becomes a failure with `?`: a transient one, unless the policy's
/// [`classify`](Policy::classify) says otherwise. The other answers are made by name:
///
/// ```
/// use std::time::Duration;
/// use quell::TaskError;
///
/// fn charge(status: u16) -> Result<(), TaskError> {
///     match status {
///         200 => Ok(()),
///         429 => Err(TaskError::retry_after(Duration::from_secs(60), "rate limited")),
///         400..=499 => Err(TaskError::permanent(format!("refused with {status}"))),
///         _ => Err(TaskError::retry(format!("answered {status}"))),
///     }
/// }
/// # assert!(charge(200).is_ok() && charge(429).is_err() && charge(404).is_err());
/// # assert!(charge(500).is_err());
/// ```
#[derive(Debug)]
pub struct TaskError(pub(crate) Answer);

/// What a handler that did not succeed asks for.
#[derive(Debug)]
pub(crate) enum Answer {
    /// An error that the task's classifier judges.
    Failed {
        error: Box<dyn StdError + Send + Sync>,
    },
    Retry {
        wait: Wait,
        error: String,
    },
    TimedOut {
        error: String,
    },
    /// The handler panicked or exceeded its timeout: what hooks see of it.
    Broke {
        ended: AttemptOutcome,
        error: String,
    },
    Permanent {
        error: String,
    },
    Snooze {
        delay: Duration,
    },
    Cancel {
        reason: String,
    },
    HandOver {
        within: Duration,
    },
}

/// How long a failed attempt waits for the next one (R24).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    /// The policy's backoff.
    Backoff,
    /// So long, whatever the backoff.
    Exactly(Duration),
    /// So long, or the backoff where that is longer.
    AtLeast(Duration),
}

impl TaskError {
    /// A failure that the policy's [`classify`](Policy::classify) judges, as every error is that
    /// comes by `?`. For errors that do not, such as those of `anyhow`.
    pub fn failed(error: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        TaskError(Answer::Failed { error: error.into() })
    }

    /// A transient failure: tried again after the policy's backoff (R24).
    pub fn retry(error: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        TaskError(Answer::Retry { wait: Wait::Backoff, error: chain(error.into().as_ref()) })
    }

    /// A transient failure: tried again after `delay`, also where the policy's backoff is longer
    /// (R24).
    pub fn retry_after(delay: Duration, error: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        let wait = Wait::Exactly(delay);
        TaskError(Answer::Retry { wait, error: chain(error.into().as_ref()) })
    }

    /// A transient failure: tried again after `delay`, or after the policy's backoff where that is
    /// longer (R24). For a delay that another system asks for, such as `Retry-After`: a short one
    /// during an outage does not use up the attempts faster than the backoff would.
    pub fn retry_not_before(
        delay: Duration,
        error: impl Into<Box<dyn StdError + Send + Sync>>,
    ) -> Self {
        let wait = Wait::AtLeast(delay);
        TaskError(Answer::Retry { wait, error: chain(error.into().as_ref()) })
    }

    /// A transient failure that goes on record as a timeout: for a handler that keeps its own time
    /// so that it can end in good order (R24).
    pub fn timed_out(error: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        TaskError(Answer::TimedOut { error: chain(error.into().as_ref()) })
    }

    /// No retry can help: the job is buried at once (R25).
    pub fn permanent(error: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        TaskError(Answer::Permanent { error: chain(error.into().as_ref()) })
    }

    /// Not yet: run again after `delay`; no attempt is spent (R24).
    #[must_use]
    pub fn snooze(delay: Duration) -> Self {
        TaskError(Answer::Snooze { delay })
    }

    /// The same answer with another text, such as one without secrets. A snooze has none.
    #[must_use]
    pub fn map_text(self, change: impl FnOnce(String) -> String) -> Self {
        TaskError(match self.0 {
            Answer::Failed { error } => Answer::Failed { error: change(chain(&*error)).into() },
            Answer::Retry { wait, error } => Answer::Retry { wait, error: change(error) },
            Answer::TimedOut { error } => Answer::TimedOut { error: change(error) },
            Answer::Broke { ended, error } => Answer::Broke { ended, error: change(error) },
            Answer::Permanent { error } => Answer::Permanent { error: change(error) },
            Answer::Cancel { reason } => Answer::Cancel { reason: change(reason) },
            answer @ (Answer::Snooze { .. } | Answer::HandOver { .. }) => answer,
        })
    }

    /// What it says, with its sources, for people.
    #[must_use]
    pub fn describe(&self) -> String {
        match &self.0 {
            Answer::Failed { error } => chain(&**error),
            Answer::Retry { error, .. }
            | Answer::TimedOut { error }
            | Answer::Broke { error, .. }
            | Answer::Permanent { error } => error.clone(),
            Answer::Snooze { delay } => format!("asked to be run again after {delay:?}"),
            Answer::Cancel { reason } => reason.clone(),
            Answer::HandOver { within } => format!("goes on elsewhere, for {within:?} at most"),
        }
    }

    /// Whether the attempt failed; else it asked for something that is no failure.
    #[must_use]
    pub fn is_failure(&self) -> bool {
        !matches!(self.0, Answer::Snooze { .. } | Answer::Cancel { .. } | Answer::HandOver { .. })
    }

    /// How the attempt is counted that ends with this, for hooks ([`Around`](crate::Around)). Of an
    /// error that the policy's [`classify`](Policy::classify) judges, it is `Failed` here.
    #[must_use]
    pub fn outcome(&self) -> AttemptOutcome {
        match &self.0 {
            Answer::Failed { .. } | Answer::Retry { .. } | Answer::Permanent { .. } => {
                AttemptOutcome::Failed
            }
            Answer::TimedOut { .. } => AttemptOutcome::TimedOut,
            Answer::Broke { ended, .. } => *ended,
            Answer::Snooze { .. } => AttemptOutcome::Snoozed,
            Answer::Cancel { .. } => AttemptOutcome::Cancelled,
            Answer::HandOver { .. } => AttemptOutcome::Released,
        }
    }

    /// The attempt goes on elsewhere, for `within` at most: the handler has started work that reports
    /// its end by [`PullTasks::settle`](crate::worker::pull::PullTasks::settle) with the lease of
    /// [`Ctx::lease`](crate::Ctx::lease). The job stays running under that lease; this worker's slot
    /// is free. An attempt that is not settled in time expires as any lease does (R21).
    #[must_use]
    pub fn hand_over(within: Duration) -> Self {
        TaskError(Answer::HandOver { within })
    }

    /// The work is no longer wanted: the job ends cancelled.
    pub fn cancel(reason: impl Into<String>) -> Self {
        TaskError(Answer::Cancel { reason: reason.into() })
    }
}

impl<E: StdError + Send + Sync + 'static> From<E> for TaskError {
    fn from(error: E) -> Self {
        TaskError::failed(error)
    }
}

/// The most sources of an error that are written down: an error may name itself as its source.
const MAX_SOURCES: usize = 64;

/// An error and all its sources, one per line.
pub(crate) fn chain(error: &(dyn StdError + 'static)) -> String {
    let mut text = error.to_string();
    for source in sources(error) {
        text.push_str("\ncaused by: ");
        text.push_str(&source.to_string());
    }
    text
}

/// The sources of an error, the nearest first.
pub(crate) fn sources<'e>(
    error: &'e (dyn StdError + 'static),
) -> impl Iterator<Item = &'e (dyn StdError + 'static)> {
    let next = |source: &&'e (dyn StdError + 'static)| (*source).source();
    std::iter::successors(error.source(), next).take(MAX_SOURCES)
}
