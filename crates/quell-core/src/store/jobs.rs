//! Which jobs to list, count, explain and prune: the arguments and answers of those operations.
//!
//! Every page has a largest size.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::setters::setters;
use crate::{Error, Job, JobId, JobState, Key, QueueName, TaskName, TriggerId};

/// How many jobs there are, by queue, task and state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// The queue.
    pub queue: QueueName,
    /// The task.
    pub task: TaskName,
    /// The state.
    pub state: JobState,
    /// How many.
    pub jobs: u64,
}

impl Counts {
    /// This number of jobs.
    #[must_use]
    pub fn new(queue: QueueName, task: TaskName, state: JobState, jobs: u64) -> Self {
        Counts { queue, task, state, jobs }
    }
}

/// Which jobs to list, newest first.
///
/// ```
/// use quell_core::{JobFilter, JobState, TaskName};
///
/// let filter = JobFilter::default().task(TaskName::new("mail")?).state(JobState::Dead).limit(10);
/// assert_eq!(filter.page(), 10);
/// # Ok::<(), quell_core::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobFilter {
    /// Only of this task.
    pub task: Option<TaskName>,
    /// Only of this queue.
    pub queue: Option<QueueName>,
    /// Only in this state.
    pub state: Option<JobState>,
    /// Only of this debounce key.
    pub key: Option<Key>,
    /// Only ids below this one: the last of the page before.
    pub before: Option<JobId>,
    /// At most this many; 0 means [`JobFilter::DEFAULT_PAGE`], and no page is larger than
    /// [`JobFilter::MAX_PAGE`].
    pub limit: usize,
}

impl JobFilter {
    /// The size of a page where none is asked for.
    pub const DEFAULT_PAGE: usize = 50;
    /// The size of the largest page.
    pub const MAX_PAGE: usize = 200;

    /// Whether this job is meant.
    #[must_use]
    pub fn matches(&self, job: &Job) -> bool {
        self.task.as_ref().is_none_or(|task| *task == job.task)
            && self.queue.as_ref().is_none_or(|queue| *queue == job.queue)
            && self.state.is_none_or(|state| state == job.state)
            && self.key.as_ref().is_none_or(|key| Some(key) == job.key.as_ref())
            && self.before.is_none_or(|before| job.id < before)
    }

    /// The size of the page that is meant.
    #[must_use]
    pub fn page(&self) -> usize {
        if self.limit == 0 { Self::DEFAULT_PAGE } else { self.limit.min(Self::MAX_PAGE) }
    }
}

setters!(JobFilter {
    task? TaskName,
    queue? QueueName,
    state? JobState,
    key? Key,
    before? JobId,
    limit: usize,
});

/// What to explain (R15).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExplainTarget {
    /// A job.
    Job(JobId),
    /// The job that took this trigger.
    Trigger(TriggerId),
    /// The newest job of a key; of any task where none is named.
    Key {
        /// The task.
        task: Option<TaskName>,
        /// The debounce key.
        key: Key,
    },
    /// The job that an idempotency key leads to while it is kept (R19): of any task where none is
    /// named, and then the newest.
    IdempotencyKey {
        /// The task.
        task: Option<TaskName>,
        /// The idempotency key.
        key: Key,
    },
    /// The job that holds a dedup key (R16), likewise.
    DedupKey {
        /// The task.
        task: Option<TaskName>,
        /// The dedup key.
        key: Key,
    },
}

/// How long ended jobs are kept (R37); none means for ever.
///
/// ```
/// use std::time::Duration;
/// use quell_core::Retention;
///
/// let week = Retention::default().dead(Duration::from_secs(7 * 86_400));
/// assert_eq!(week.succeeded, Some(Duration::from_secs(3_600)));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Retention {
    /// Succeeded, cancelled and absorbed jobs.
    pub succeeded: Option<Duration>,
    /// Dead jobs.
    pub dead: Option<Duration>,
}

impl Default for Retention {
    /// An hour for succeeded jobs, for ever for dead ones.
    fn default() -> Self {
        Retention { succeeded: Some(Duration::from_secs(3_600)), dead: None }
    }
}

impl Retention {
    /// Keeps succeeded, cancelled and absorbed jobs for one time, and dead ones for another.
    #[must_use]
    pub const fn new(succeeded: Option<Duration>, dead: Option<Duration>) -> Self {
        Retention { succeeded, dead }
    }
}

setters!(Retention {
    succeeded? Duration,
    dead? Duration,
});

/// What one call of [`Store::prune`](crate::Store::prune) removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pruned {
    /// Ended jobs.
    pub jobs: u64,
    /// Expired rows of other kinds: dedup and idempotency keys, key memories, starts, ticks.
    pub expired: u64,
    /// Whether a limit was reached, so that there may be more to remove.
    pub more: bool,
}

impl Pruned {
    /// Adds the result of another part of the same call, such as another shard.
    #[must_use]
    pub fn and(self, other: Pruned) -> Pruned {
        Pruned {
            jobs: self.jobs.saturating_add(other.jobs),
            expired: self.expired.saturating_add(other.expired),
            more: self.more || other.more,
        }
    }

    /// Counts expired rows that one statement removed, and whether it reached its limit.
    pub fn count_expired(&mut self, removed: u64, limit: usize) {
        self.expired = self.expired.saturating_add(removed);
        self.reaches(removed, limit);
    }

    /// Notes whether a statement that handled this many rows reached its limit.
    pub fn reaches(&mut self, handled: u64, limit: usize) {
        self.more |= handled >= u64::try_from(limit).unwrap_or(u64::MAX);
    }
}

/// The answer for a job that is not there.
#[must_use]
pub fn no_such_job(id: JobId) -> Error {
    Error::new(
        crate::ErrorKind::NotFound,
        format!(
            "job {id} is unknown: it never was, or was removed after its retention or by a discard"
        ),
    )
}
