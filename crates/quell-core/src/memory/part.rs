//! The rules on a part of the rows, for stores that keep them elsewhere and write under optimistic
//! control.
//!
//! A store loads the rows that a step may touch, lets the [`Part`] take the step as the model store
//! would, and writes what differs between before and after, provided that what it loaded is still
//! so. What a step may touch is said at each method; rows that are not there are taken as absent.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::indexes::Indexes;
use super::state::State;
use crate::accept::accept;
use crate::dedup::Hold;
use crate::edge::KeyMemory;
use crate::effect::EffectStart;
use crate::heartbeat::WorkerRow;
use crate::history::Event;
use crate::idempotency::Record;
use crate::job::{Adjusted, Adjustment};
use crate::limit::StartLog;
use crate::schedule::{Schedule, ScheduleInfo, ScheduleState, Tick, Ticked};
use crate::{
    Attempt, Batch, Claim, ClaimedJob, DeadExport, Effect, EffectName, ExpiredLease, ExplainTarget,
    Explanation, Imported, Job, JobId, JobResult, JobState, Key, Lease, Past, Payload, Pruned,
    QueueName, QueueSettings, Receipt, Redrive, Renewal, Result, Retention, ScheduleName, Settled,
    SettledAs, Settlement, TaskName, TaskSettings, Timestamp,
};

/// A key belongs to its task.
pub type TaskKey = (TaskName, Key);

/// Rows of a store, by what names them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rows {
    /// Jobs. A step copies those that it changes, and shares the others.
    pub jobs: BTreeMap<JobId, Arc<Job>>,
    /// Their attempts on record, oldest first.
    pub attempts: BTreeMap<JobId, Vec<Attempt>>,
    /// Their effects, by name.
    pub effects: BTreeMap<JobId, BTreeMap<EffectName, Effect>>,
    /// What they were before.
    pub pasts: BTreeMap<JobId, Past>,
    /// Queues; none for one whose settings were deleted.
    pub queues: BTreeMap<QueueName, Option<QueueSettings>>,
    /// Tasks.
    pub tasks: BTreeMap<TaskName, TaskSettings>,
    /// The starts that rates count, of a queue as a whole and of its partitions.
    pub starts: BTreeMap<(QueueName, Option<Key>), StartLog>,
    /// Dedup keys.
    pub holds: BTreeMap<TaskKey, Hold>,
    /// Idempotency keys.
    pub records: BTreeMap<TaskKey, Record>,
    /// What edges remember.
    pub memories: BTreeMap<TaskKey, KeyMemory>,
    /// Schedules.
    pub schedules: BTreeMap<ScheduleName, ScheduleInfo>,
    /// Ticks that fired.
    pub ticks: BTreeMap<(ScheduleName, Timestamp), Tick>,
}

/// The ids of new jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ids {
    /// The next one.
    pub next: u64,
    /// From one to the next: more than 1 where several shards hand out ids.
    pub step: u64,
}

/// Notifications to publish once the step is durable.
#[derive(Clone, Debug, Default)]
pub struct Notifications {
    /// The earliest new due time of each queue; [`Timestamp::MIN`] where workers must look again.
    pub wakes: BTreeMap<QueueName, Timestamp>,
    /// Queues of strict order in which a job that was due may be next in its partition, because the one
    /// before it has left: its due time is nothing new (R41).
    pub turns: BTreeSet<QueueName>,
    /// When workers, who know of later ticks only, are to ask for ticks.
    pub next_tick: Option<Timestamp>,
    /// Jobs that ended.
    pub ended: Vec<JobId>,
    /// Running jobs that were cancelled.
    pub cancelled: Vec<JobId>,
    /// The events, in order; empty without a history.
    pub events: Vec<Event>,
}

/// What became of the rows of a step.
#[derive(Clone, Debug)]
pub struct StepResult {
    /// The rows after it; what is missing was removed.
    pub rows: Rows,
    /// The id that the next new job would have got.
    pub next_id: u64,
    /// What to publish.
    pub news: Notifications,
}

/// Some rows of a store, at one moment, and the steps that may be taken on them.
#[derive(Debug)]
pub struct Part(State);

impl Part {
    /// These rows at `now`.
    #[must_use]
    pub fn new(now: Timestamp, ids: Ids, rows: Rows, has_history: bool) -> Self {
        let mut state = State::of(now, rows, Indexes::default());
        (state.next_id, state.id_step) = (ids.next, ids.step);
        state.has_history = has_history;
        Part(state)
    }

    /// Notes jobs of a key whose rows were not loaded: whether one of them runs, and the oldest
    /// closed window (R10, R11). Such a window is enough for [`Part::enqueue`]; the other steps
    /// need its row.
    pub fn note_key(&mut self, task_key: &TaskKey, runs: bool, closed: Option<JobId>) {
        self.0.indexes.note_key(task_key, runs, closed);
    }

    /// Ends the step.
    #[must_use]
    pub fn end(mut self) -> StepResult {
        self.0.know_met();
        let (wakes, events) = self.0.take_notifications();
        let State {
            next_id,
            jobs,
            attempts,
            effects,
            pasts,
            limits,
            turns,
            next_tick,
            ended,
            cancelled,
            ..
        } = self.0;
        let rows = Rows {
            jobs,
            attempts,
            effects,
            pasts,
            queues: limits.queues,
            tasks: limits.tasks,
            starts: limits.starts,
            holds: self.0.holds,
            records: self.0.records,
            memories: self.0.memories,
            schedules: self.0.schedules,
            ticks: self.0.ticks,
        };
        StepResult {
            rows,
            next_id,
            news: Notifications { wakes, turns, next_tick, ended, cancelled, events },
        }
    }

    /// The time of the step.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        self.0.now()
    }

    /// As [`Store::enqueue`](crate::Store::enqueue), on the rows that
    /// [`Needs`](crate::touched::Needs) names and the queues and tasks of the triggers.
    ///
    /// # Errors
    /// Those of a batch stand in its place.
    pub fn enqueue(&mut self, batches: &[Batch]) -> Vec<Result<Vec<Receipt>>> {
        batches.iter().map(|batch| Ok(accept(&mut self.0, batch)?)).collect()
    }

    /// Starts these jobs, which the caller has found to be next, on their rows, those of their
    /// queue and its starts.
    pub fn start(&mut self, claim: &Claim, jobs: &[JobId]) -> Vec<ClaimedJob> {
        jobs.iter().filter_map(|id| self.0.start_claimed(*id, claim)).collect()
    }

    /// As [`Store::renew`](crate::Store::renew), on the jobs' rows.
    pub fn renew(&mut self, leases: &[Lease], lease: Duration) -> Vec<Renewal> {
        leases.iter().map(|held| self.0.renew(held, lease).into()).collect()
    }

    /// As [`Store::settle`](crate::Store::settle), on the jobs with all that hangs on them, other
    /// jobs of their keys that wait or run, what is remembered of these keys, and the dedup and
    /// idempotency keys that name the jobs. Of a job that succeeds its row is enough, the other
    /// jobs of its key and the settings of its queue.
    pub fn settle(&mut self, settlements: &[Settlement]) -> Vec<Settled> {
        settlements.iter().map(|one| self.0.settle(one)).collect()
    }

    /// As [`Store::reap`](crate::Store::reap), on the rows that [`Part::settle`] needs of the jobs
    /// whose leases expired; `workers` are all worker rows, by name and incarnation.
    pub fn reap(&mut self, workers: Vec<WorkerRow>, limit: usize) -> Vec<ExpiredLease> {
        self.0.workers = workers;
        self.0.reap(limit)
    }

    /// As [`Store::begin_effect`](crate::Store::begin_effect), on the job and its effects.
    ///
    /// # Errors
    /// As there.
    pub fn begin_effect(
        &mut self,
        lease: &Lease,
        name: &EffectName,
        key: &Key,
    ) -> Result<EffectStart> {
        self.0.begin_effect(lease, name, key)
    }

    /// As [`Store::end_effect`](crate::Store::end_effect), on the job and its effects.
    ///
    /// # Errors
    /// As there.
    pub fn end_effect(&mut self, lease: &Lease, name: &EffectName, result: &Payload) -> Result<()> {
        self.0.end_effect(lease, name, result)
    }

    /// As [`Store::flush`](crate::Store::flush), on the open window of the key.
    pub fn flush(&mut self, task: &TaskName, key: &Key) -> Option<JobId> {
        self.0.flush(task, key)
    }

    /// As [`Store::cancel_key`](crate::Store::cancel_key), on the open window of the key and what
    /// hangs on it.
    ///
    /// # Errors
    /// As there.
    pub fn cancel_key(&mut self, task: &TaskName, key: &Key) -> Result<Option<JobId>> {
        self.0.cancel_key(task, key)
    }

    /// As [`Store::cancel`](crate::Store::cancel), on the rows that [`Part::settle`] needs.
    ///
    /// # Errors
    /// As there.
    pub fn cancel(&mut self, id: JobId, reason: &str) -> Result<()> {
        self.0.cancel(id, reason)
    }

    /// As [`Store::adjust`](crate::Store::adjust), on the rows that [`Part::settle`] needs.
    ///
    /// # Errors
    /// As there.
    pub fn adjust(&mut self, id: JobId, adjustment: &Adjustment) -> Result<Adjusted> {
        self.0.adjust(id, adjustment)
    }

    /// As [`Store::redrive`](crate::Store::redrive), on the rows that [`Part::settle`] needs.
    ///
    /// # Errors
    /// As there.
    pub fn redrive(&mut self, redrive: &Redrive) -> Result<SettledAs> {
        self.0.redrive(redrive)
    }

    /// As [`DeadJobs::discard`](crate::DeadJobs::discard), on the jobs with all that hangs on
    /// them and the keys that name them.
    pub fn discard(&mut self, ids: &[JobId], reason: &str) -> Vec<JobId> {
        ids.iter().copied().filter(|id| self.0.discard(*id, reason)).collect()
    }

    /// Sets a job aside whose row cannot be decoded (R25): on what is known of it, on the rows that
    /// [`Part::settle`] needs, and on the idempotency keys that name it.
    pub fn set_aside(&mut self, id: JobId, reason: &str) {
        self.0.set_aside(id, reason);
    }

    /// Lets the key's next window start where no attempt of the key runs any more (R11), on the row
    /// of that window: after a job was set aside whose key cannot be decoded either.
    pub fn free_key(&mut self, task_key: &TaskKey) {
        self.0.free_next_window(task_key);
    }

    /// As [`UnreadableJobs::restore`](crate::UnreadableJobs::restore), of one job that was set
    /// aside in the state `was`, on the same rows.
    pub fn restore(&mut self, id: JobId, was: JobState) {
        self.0.restore(id, was);
    }

    /// As [`DeadJobs::import_dead`](crate::DeadJobs::import_dead), on the jobs that the
    /// imported ones were or became here, with their pasts.
    pub fn import_dead(&mut self, exports: &[DeadExport]) -> Vec<Imported> {
        exports.iter().map(|export| self.0.import(export)).collect()
    }

    /// As [`Store::prune`](crate::Store::prune), on jobs that have ended with all that hangs on
    /// them, and on keys, memories and ticks that have expired, with the jobs that those name.
    pub fn prune(&mut self, retention: &Retention, limit: usize) -> Pruned {
        self.0.prune(retention, limit)
    }

    /// As [`Store::set_queue`](crate::Store::set_queue), on the queue and its starts.
    pub fn set_queue(&mut self, queue: &QueueName, settings: &QueueSettings) {
        self.0.set_queue(queue, settings);
    }

    /// As [`Store::replace_queue`](crate::Store::replace_queue), on the queue and its starts.
    pub fn replace_queue(
        &mut self,
        queue: &QueueName,
        known: Option<&QueueSettings>,
        settings: &QueueSettings,
    ) -> bool {
        self.0.replace_queue(queue, known, settings)
    }

    /// As [`Store::delete_queue`](crate::Store::delete_queue), on the queue and its starts.
    pub fn delete_queue(&mut self, queue: &QueueName) -> bool {
        self.0.delete_queue(queue)
    }

    /// As [`Store::set_task`](crate::Store::set_task), on the task and all queues.
    pub fn set_task(&mut self, task: &TaskName, settings: &TaskSettings) {
        self.0.set_task(task, settings);
    }

    /// As [`Store::replace_task`](crate::Store::replace_task), on the task and all queues.
    pub fn replace_task(
        &mut self,
        task: &TaskName,
        known: &TaskSettings,
        settings: &TaskSettings,
    ) -> bool {
        self.0.replace_task(task, known, settings)
    }

    /// As [`Store::set_schedule`](crate::Store::set_schedule), on the schedule.
    pub fn set_schedule(&mut self, schedule: &Schedule) {
        self.0.set_schedule(schedule);
    }

    /// As [`Store::set_schedule_state`](crate::Store::set_schedule_state), on the schedule.
    ///
    /// # Errors
    /// As there.
    pub fn set_schedule_state(&mut self, name: &ScheduleName, to: ScheduleState) -> Result<()> {
        self.0.set_schedule_state(name, to)
    }

    /// As [`Store::delete_schedule`](crate::Store::delete_schedule), on the schedule and its ticks.
    ///
    /// # Errors
    /// As there.
    pub fn delete_schedule(&mut self, name: &ScheduleName) -> Result<()> {
        self.0.delete_schedule(name)
    }

    /// As [`Store::tick`](crate::Store::tick), on the schedules that are due with their ticks, and
    /// the rows that [`Part::enqueue`] needs of their triggers. The next tick that it answers with
    /// is that of these schedules.
    pub fn tick(&mut self, limit: usize) -> Ticked {
        self.0.tick(limit)
    }

    /// As [`Store::run_schedule`](crate::Store::run_schedule), on the schedule and the rows that
    /// [`Part::enqueue`] needs of its trigger.
    ///
    /// # Errors
    /// As there.
    pub fn run_schedule(&mut self, name: &ScheduleName) -> Result<Receipt> {
        self.0.run_schedule(name)
    }

    /// As [`Store::backfill`](crate::Store::backfill), on the schedule with its ticks and the rows
    /// that [`Part::enqueue`] needs of its trigger.
    ///
    /// # Errors
    /// As there.
    pub fn backfill(&mut self, name: &ScheduleName, from: Timestamp, to: Timestamp) -> Result<u64> {
        self.0.backfill(name, from, to)
    }

    /// As [`Store::explain`](crate::Store::explain), on the job with all that hangs on it, the jobs
    /// that it absorbed, the open window of its key, its ticks and the newest keyed jobs of its
    /// task. Of a dedup or idempotency key, on its rows, too.
    ///
    /// # Errors
    /// As there.
    pub fn explain(&self, target: &ExplainTarget) -> Result<Option<Explanation>> {
        self.0.explain(target)
    }

    /// As [`Store::result`](crate::Store::result), on the job, its successors and the records that
    /// name them.
    #[must_use]
    pub fn result(&self, id: JobId) -> Option<JobResult> {
        self.0.result(id)
    }

    /// As [`DeadJobs::exports`](crate::DeadJobs::exports), on the job with all that hangs on
    /// it.
    #[must_use]
    pub fn export(&self, id: JobId) -> Option<DeadExport> {
        self.0.export(id)
    }

    /// As [`Store::attempts`](crate::Store::attempts), on the job and its attempts.
    #[must_use]
    pub fn attempts(&self, id: JobId) -> Vec<Attempt> {
        self.0.attempts(id)
    }
}
