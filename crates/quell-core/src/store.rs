//! What callers and stores say to each other beside operations: capabilities, filters, counts.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::setters::setters;
use crate::{Error, Job, JobId, JobState, Key, QueueName, StoreId, TaskName, TriggerId};

/// What a store does natively, and what it does instead where it says no: a refusal of kind
/// [`Unsupported`](crate::ErrorKind::Unsupported) that names the field, before anything is written,
/// or the fallback that stands here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[expect(clippy::struct_excessive_bools, reason = "each is one independent promise")]
pub struct Capabilities {
    /// Conditional writes, so dedup and idempotency keys are exact (R18). Else a batch with one is
    /// refused.
    pub dedup: bool,
    /// Triggers inside the caller's own transaction (R4). Else they are refused.
    pub transactions: bool,
    /// Wake-ups and ends are pushed (R19, R34). Else hints are silent, and polling finds them.
    pub push: bool,
    /// Whatever is due, lapses or ticks wakes a worker when its time comes, whichever process wrote it
    /// (R34). So workers rest. Else they poll.
    pub timed: bool,
    /// Higher priority first (R30). Else due time decides, then id.
    pub priorities: bool,
    /// Limits hold across processes (R31). Else a queue's limits cannot be set: they are refused.
    pub exact_limits: bool,
    /// Jobs can be listed and counted. Else both are refused; one job is found by its id.
    pub listing: bool,
    /// A task's keys are the same in every queue (R7, R11, R16, R19), and a batch may name several
    /// queues (R5). Else a task with keys keeps to the queue in which it first had one: triggers into
    /// another are refused, and so is a batch that is not of one queue.
    pub across_queues: bool,
    /// A batch has as many triggers as a client takes (R5), and a job with its past may be as large as
    /// its payloads. Else what the store cannot write at once is refused, with how much that is; a
    /// batch of ten triggers never is for their number.
    pub large_batches: bool,
}

impl Capabilities {
    /// Every capability.
    ///
    /// ```
    /// use quell_core::Capabilities;
    ///
    /// let capabilities = Capabilities::all().with_timed(false).with_push(false);
    /// assert!(capabilities.dedup && !capabilities.push);
    /// ```
    #[must_use]
    pub const fn all() -> Self {
        Self::every(true)
    }

    /// No capability. Where a capability is added later, a store that starts from here lacks it.
    ///
    /// ```
    /// use quell_core::Capabilities;
    ///
    /// let capabilities = Capabilities::none().with_dedup(true);
    /// assert!(capabilities.dedup && !capabilities.transactions);
    /// ```
    #[must_use]
    pub const fn none() -> Self {
        Self::every(false)
    }

    const fn every(has: bool) -> Self {
        Capabilities {
            dedup: has,
            transactions: has,
            push: has,
            timed: has,
            priorities: has,
            exact_limits: has,
            listing: has,
            across_queues: has,
            large_batches: has,
        }
    }
}

/// Makes a setter for each capability.
macro_rules! capability_setters {
    ($($setter:ident: $field:ident),* $(,)?) => {
        impl Capabilities {
            $(
                #[doc = concat!("Sets [`", stringify!($field), "`](field@Self::", stringify!($field), ").")]
                #[must_use]
                pub const fn $setter(mut self, has: bool) -> Self {
                    self.$field = has;
                    self
                }
            )*
        }
    };
}

capability_setters! {
    with_dedup: dedup,
    with_transactions: transactions,
    with_push: push,
    with_timed: timed,
    with_priorities: priorities,
    with_exact_limits: exact_limits,
    with_listing: listing,
    with_across_queues: across_queues,
    with_large_batches: large_batches,
}

/// Where a caller's own transaction finds the store (R4, R22).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Location {
    /// Which store it is; a transaction on another one is refused.
    pub id: StoreId,
    /// The schema that holds it, in a database that has schemas.
    pub schema: Option<String>,
}

impl Location {
    /// The refusal of a transaction on a database that holds the store `found`, not this one.
    #[must_use]
    pub fn other_store(&self, found: &str) -> Error {
        let message = format!(
            "the transaction is on the database of store {found:?}, the client's store is {}: \
             begin the transaction on the database that holds the client's store",
            self.id
        );
        Error::new(crate::ErrorKind::Unsupported, message)
    }
}

/// The refusal to settle inside a savepoint: rolled back alone, it would undo the fence of R22.
#[must_use]
pub fn in_savepoint() -> Error {
    let message = "the job cannot be settled inside a savepoint, which could be rolled back alone: \
                   settle in the outermost transaction";
    Error::new(crate::ErrorKind::Unsupported, message)
}

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

/// The refusal of what a store cannot do natively (R18): names the field of [`Capabilities`] and
/// what to do instead.
#[must_use]
pub fn lacks(capability: &str, cure: &str) -> Error {
    let message = format!("the store lacks the capability `{capability}`: {cure}");
    Error::new(crate::ErrorKind::Unsupported, message)
}
