//! The one door to the world: what every store does, in batches, one atomic step per call.
//!
//! Callers are the client's batcher, the worker and the operator's tools; implementors are
//! [`MemoryStore`](crate::MemoryStore) and one crate per engine. A store takes the time as a
//! parameter: `None` means its own clock (production), `Some` is virtual time (tests).

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use crate::alert::{AlertRow, AlertState, Overview};
use crate::checkup::Checkup;
use crate::effect::Begun;
use crate::heartbeat::{Heartbeat, Workers};
use crate::schedule::{Schedule, ScheduleInfo, ScheduleState, Ticked};
use crate::settings::{QueueInfo, QueueSettings, TaskInfo, TaskSettings};
use crate::{
    AlertName, Attempt, Batch, Claim, Claimed, DeadLetters, Effect, EffectName, Ended, Error,
    Explanation, Job, JobId, JobResult, JobState, Key, Lapsed, Lease, NextDue, Payload, QueueName,
    Receipt, Redrive, Renewal, Result, ScheduleName, Settled, SettledAs, Settlement, StoreId,
    TaskName, Timestamp, TriggerId, UnreadableJobs, Wakeups, WorkerId,
};

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

/// Which jobs to list, newest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
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

/// What to explain (R15).
#[derive(Clone, Debug, PartialEq, Eq)]
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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

/// What one call of [`Store::prune`] removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
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

/// The engine below clients and workers.
///
/// Each method is one atomic step: all of it happens or none, except that an error of kind
/// [`UnknownOutcome`](crate::ErrorKind::UnknownOutcome) says nothing about which. Dropping a
/// returned future leaves the step's outcome unknown in the same way.
#[async_trait]
pub trait Store: DeadLetters + UnreadableJobs + Send + Sync + std::fmt::Debug + 'static {
    /// What the store does natively.
    fn capabilities(&self) -> Capabilities;

    /// How many calls of [`enqueue`](Store::enqueue) a process does well to have under way at a time
    /// when more triggers wait, as things are now: it is asked before each call. One for a store that
    /// takes one writer at a time.
    fn enqueues_at_once(&self) -> usize {
        1
    }

    /// Where callers' own transactions find the store (R4, R22); none where they cannot.
    fn location(&self) -> Option<&Location> {
        None
    }

    /// Accepts batches, each whole or not at all; receipts come in the same order (R1–R9, R16). A
    /// batch whose idempotency keys came with other payloads is refused by itself (R19), and leaves
    /// nothing behind.
    ///
    /// The caller has validated the batches.
    async fn enqueue(
        &self,
        now: Option<Timestamp>,
        batches: Vec<Batch>,
    ) -> Result<Vec<Result<Vec<Receipt>>>>;

    /// Starts due jobs, in the order of R30, under fresh leases.
    async fn claim(&self, now: Option<Timestamp>, claim: &Claim) -> Result<Claimed>;

    /// Extends leases to `lease` from now, and answers for each of them in the same order (R21).
    ///
    /// An error is the answer for all. A store of several parts answers for the leases of each part
    /// that it reached, and [`Renewal::Unknown`] for the others.
    async fn renew(
        &self,
        now: Option<Timestamp>,
        leases: &[Lease],
        lease: Duration,
    ) -> Result<Vec<Renewal>>;

    /// Ends attempts; answers come in the same order (R12, R21, R24, R25).
    async fn settle(
        &self,
        now: Option<Timestamp>,
        settlements: Vec<Settlement>,
    ) -> Result<Vec<Settled>>;

    /// Puts on record that an attempt is about to perform an effect, and says what is known of it
    /// (R23). The intent is durable before the answer comes; where one is known, that one stands,
    /// with its key.
    ///
    /// Fails with `IllegalMove` where the lease was lost, and with `Invalid` as for
    /// [`Effect::begin`].
    async fn begin_effect(
        &self,
        now: Option<Timestamp>,
        lease: &Lease,
        name: &EffectName,
        key: &Key,
    ) -> Result<Begun>;

    /// Records the result of an effect that was begun (R23).
    ///
    /// Fails with `IllegalMove` where the lease was lost or as for [`effect::end`](crate::effect::end),
    /// and with `Invalid` for a result over
    /// [`effect::MAX_RESULT_BYTES`](crate::effect::MAX_RESULT_BYTES).
    async fn end_effect(
        &self,
        now: Option<Timestamp>,
        lease: &Lease,
        name: &EffectName,
        result: &Payload,
    ) -> Result<()>;

    /// The effects of a job, by name; none where its id is unknown or its row was pruned (R23).
    async fn effects(&self, id: JobId) -> Result<Vec<Effect>>;

    /// Records that a worker is alive (R25): makes its row, or changes it as
    /// [`WorkerRow::again`](crate::heartbeat::WorkerRow::again) does. A new row removes those that
    /// are [`outdated`](crate::heartbeat::outdated).
    ///
    /// Its price is bounded by the number of workers: it reads and writes nothing of jobs and queues.
    async fn heartbeat(&self, now: Option<Timestamp>, beat: &Heartbeat) -> Result<()>;

    /// Removes the row of a worker that has stopped; nothing where there is none.
    async fn remove_worker(&self, worker: &WorkerId, incarnation: u32) -> Result<()>;

    /// The workers that were seen within [`KEPT_UNSEEN`](crate::heartbeat::KEPT_UNSEEN), by name and
    /// incarnation.
    async fn workers(&self, now: Option<Timestamp>) -> Result<Workers>;

    /// Takes back at most `limit` leases that lapsed (R21), and decides for each from the worker
    /// rows whether it counts as a crash ([`crash::is_crash`](crate::crash::is_crash)).
    async fn reap(&self, now: Option<Timestamp>, limit: usize) -> Result<Vec<Lapsed>>;

    /// When something will be to do in `queue` for a worker that knows `tasks`.
    async fn next_due(
        &self,
        now: Option<Timestamp>,
        queue: &QueueName,
        tasks: &[TaskName],
    ) -> Result<NextDue>;

    /// When something may be to do in each of these queues, for a worker that knows these tasks: at
    /// the latest when [`Store::next_due`] says so, and earlier where a limit keeps it back. One
    /// look at all of them is what an idle worker costs.
    async fn peek(
        &self,
        now: Option<Timestamp>,
        queues: &[(QueueName, Arc<[TaskName]>)],
    ) -> Result<Vec<NextDue>> {
        let mut next = Vec::with_capacity(queues.len());
        for (queue, tasks) in queues {
            next.push(self.next_due(now, queue, tasks).await?);
        }
        Ok(next)
    }

    /// A stream of hints that something may be due earlier than a worker thinks (R34). A hint may
    /// be lost or false; polling is the safety net.
    fn wakeups(&self) -> Wakeups;

    /// Hears of the end of a job that comes after this call (R19), an absorption too. The hint may be
    /// lost or false; asking for the [result](Store::result) now and then is the safety net. A store
    /// that pushes nothing answers with what is never ready.
    fn ended(&self, job: JobId) -> Ended;

    /// The queues there are, with their settings.
    async fn queues(&self) -> Result<Vec<QueueInfo>>;

    /// Sets a queue's settings; makes the queue where there is none, or was deleted (R32).
    ///
    /// Fails with `Invalid` as for [`QueueSettings::validate`]. A rate counts starts from when it
    /// is set; a longer period counts those that the shorter one did.
    async fn set_queue(&self, queue: &QueueName, settings: &QueueSettings) -> Result<()>;

    /// Deletes a queue's settings, so that nothing starts until it is set again (R32); triggers are
    /// accepted and wait. Says whether there was such a queue.
    async fn delete_queue(&self, queue: &QueueName) -> Result<bool>;

    /// The tasks there are, with their settings.
    async fn tasks(&self) -> Result<Vec<TaskInfo>>;

    /// Sets a task's settings; no job need be there yet (R33).
    async fn set_task(&self, task: &TaskName, settings: &TaskSettings) -> Result<()>;

    /// One job, or none where its id is unknown or its row was pruned.
    async fn job(&self, id: JobId) -> Result<Option<Job>>;

    /// How a job stands and what came of it, also after its row was removed where an idempotency
    /// record keeps it (R19, R37); of the heir, where it was absorbed. None where nothing is known.
    async fn result(&self, id: JobId) -> Result<Option<JobResult>>;

    /// Jobs that match, newest first, one page.
    async fn jobs(&self, filter: &JobFilter) -> Result<Vec<Job>>;

    /// How many jobs there are.
    async fn counts(&self) -> Result<Vec<Counts>>;

    /// The attempts of a job, oldest first; of many, the first and the last ones
    /// ([`record`](crate::record)).
    async fn attempts(&self, id: JobId) -> Result<Vec<Attempt>>;

    /// What happened to a trigger, job or key, and why (R15); none where nothing is known of it.
    async fn explain(&self, target: &ExplainTarget) -> Result<Option<Explanation>>;

    /// Makes the open window of a key due now (R7); none where no window is open.
    async fn flush(
        &self,
        now: Option<Timestamp>,
        task: &TaskName,
        key: &Key,
    ) -> Result<Option<JobId>>;

    /// Cancels the open window of a key (R7); none where no window is open.
    async fn cancel_key(
        &self,
        now: Option<Timestamp>,
        task: &TaskName,
        key: &Key,
    ) -> Result<Option<JobId>>;

    /// Cancels a job that waits or runs.
    ///
    /// Fails with `NotFound` for an unknown job and `IllegalMove` for one that has ended.
    async fn cancel(&self, now: Option<Timestamp>, id: JobId, reason: &str) -> Result<()>;

    /// Puts a dead job back with fresh attempts, or into its key's open window; a payload that is
    /// edited replaces its own, which stays on record (R26).
    ///
    /// Fails with `NotFound` for an unknown job, `IllegalMove` for one that is not dead, and
    /// `Invalid` for a payload that later ones could not be gathered into. The caller has validated
    /// its size.
    async fn redrive(&self, now: Option<Timestamp>, redrive: &Redrive) -> Result<SettledAs>;

    /// Removes at most `limit` ended jobs past their retention, and expired dedup and idempotency
    /// keys, key memories, starts and ticks, of which a store with a disk takes at most `limit` of
    /// each kind (R37). The answer says whether another call may find more; callers repeat the call
    /// until it does not.
    async fn prune(
        &self,
        now: Option<Timestamp>,
        retention: &Retention,
        limit: usize,
    ) -> Result<Pruned>;

    /// The dead jobs and the oldest due one of each queue and task, in bounded work (R27).
    async fn overview(&self, now: Option<Timestamp>) -> Result<Overview>;

    /// What is kept of alerts, by name (R27).
    async fn alerts(&self) -> Result<Vec<AlertRow>>;

    /// Writes what is kept of an alert, if its row still has this version; 0 where there is none.
    /// Says whether it did. None removes the row.
    async fn set_alert(
        &self,
        name: &AlertName,
        version: u64,
        state: Option<&AlertState>,
    ) -> Result<bool>;

    /// Reads the store's clock and a few facts about its health, in bounded work (R38).
    async fn checkup(&self) -> Result<Checkup> {
        Err(lacks("checkup", "there is nothing to check"))
    }

    /// Makes a schedule, or changes the one of its name; its state stays (R36).
    ///
    /// The caller has validated it.
    async fn set_schedule(&self, now: Option<Timestamp>, schedule: &Schedule) -> Result<()> {
        let _unused = (now, schedule);
        Err(lacks_schedules())
    }

    /// Pauses or resumes a schedule (R36). Fails with `NotFound` for an unknown one.
    async fn set_schedule_state(
        &self,
        now: Option<Timestamp>,
        name: &ScheduleName,
        state: ScheduleState,
    ) -> Result<()> {
        let _unused = (now, name, state);
        Err(lacks_schedules())
    }

    /// Removes a schedule and what is known of its ticks. Fails with `NotFound` for an unknown one.
    async fn delete_schedule(&self, now: Option<Timestamp>, name: &ScheduleName) -> Result<()> {
        let _unused = (now, name);
        Err(lacks_schedules())
    }

    /// The schedules there are, by name.
    async fn schedules(&self) -> Result<Vec<ScheduleInfo>> {
        Err(lacks_schedules())
    }

    /// Fires at most `limit` ticks that are due, of at most as many schedules, those that have
    /// waited longest first; each tick once, whoever asks and however often (R36).
    async fn tick(&self, now: Option<Timestamp>, limit: usize) -> Result<Ticked> {
        let _unused = (now, limit);
        Err(lacks_schedules())
    }

    /// Triggers what a schedule triggers, now and outside its plan. Fails with `NotFound` for an
    /// unknown one.
    async fn run_schedule(&self, now: Option<Timestamp>, name: &ScheduleName) -> Result<Receipt> {
        let _unused = (now, name);
        Err(lacks_schedules())
    }

    /// Fires the ticks from `from` to `to`, both included, that have not fired; returns how many
    /// did. Fails with `NotFound` for an unknown schedule, and with `Invalid` for a range that
    /// [`ScheduleInfo::backfill`] refuses.
    async fn backfill(
        &self,
        now: Option<Timestamp>,
        name: &ScheduleName,
        from: Timestamp,
        to: Timestamp,
    ) -> Result<u64> {
        let _unused = (now, name, from, to);
        Err(lacks_schedules())
    }
}

fn lacks_schedules() -> Error {
    lacks("schedules", "trigger from a scheduler of your own, or change stores")
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
