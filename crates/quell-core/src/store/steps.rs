//! A store with a method for each operation.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::alert::{AlertRow, AlertState, Overview};
use crate::checkup::Checkup;
use crate::effect::EffectStart;
use crate::heartbeat::{Beaten, Heartbeat, WorkerDrain, Workers};
use crate::job::{Adjusted, Adjustment};
use crate::queue::{QueueInfo, QueueSettings, TaskInfo, TaskSettings};
use crate::schedule::{RecordedTick, Schedule, ScheduleInfo, ScheduleState, Ticked};
use crate::store::lacks;
use crate::{
    AlertName, Attempt, Backlog, BacklogOf, Batch, Claim, Claimed, Counts, DeadJobs, Effect,
    EffectName, Error, ExpiredLease, ExplainTarget, Explanation, Job, JobFilter, JobId, JobResult,
    Key, Lease, NextDue, Now, Payload, Pruned, QueueName, Receipt, Redrive, Renewal, Result,
    Retention, ScheduleName, Settled, SettledAs, Settlement, TaskName, Timestamp, UnreadableJobs,
    WorkerId,
};

/// A store that has a method for each [`Operation`](crate::Operation): its [`Store::call`] is
/// [`dispatch`](crate::dispatch).
///
/// Each method is one atomic step, as [`Store`] says.
///
/// [`Store`]: crate::Store
/// [`Store::call`]: crate::Store::call
#[async_trait]
pub trait Steps: DeadJobs + UnreadableJobs + Send + Sync {
    /// Accepts batches, each whole or not at all; receipts come in the same order (R1–R9, R16). A
    /// batch whose idempotency keys came with other payloads is refused by itself (R19), and leaves
    /// nothing behind.
    ///
    /// The caller has validated the batches.
    async fn enqueue(&self, now: Now, batches: Vec<Batch>) -> Result<Vec<Result<Vec<Receipt>>>>;

    /// Starts due jobs, in the order of R30, under fresh leases.
    async fn claim(&self, now: Now, claim: &Claim) -> Result<Claimed>;

    /// Extends leases to `lease` from now, and answers for each of them in the same order (R21).
    ///
    /// An error is the answer for all. A store of several parts answers for the leases of each part
    /// that it reached, and [`Renewal::Unknown`] for the others.
    async fn renew(&self, now: Now, leases: &[Lease], lease: Duration) -> Result<Vec<Renewal>>;

    /// Ends attempts; answers come in the same order (R12, R21, R24, R25).
    async fn settle(&self, now: Now, settlements: Vec<Settlement>) -> Result<Vec<Settled>>;

    /// Puts on record that an attempt is about to perform an effect, and returns what is known of
    /// it (R23). The intent is durable before the answer comes; where one is known, that one
    /// stands, with its key.
    ///
    /// Fails with `IllegalMove` where the lease was lost, and with `Invalid` as for
    /// [`Effect::begin`].
    async fn begin_effect(
        &self,
        now: Now,
        lease: &Lease,
        name: &EffectName,
        key: &Key,
    ) -> Result<EffectStart>;

    /// Records the result of an effect that was begun (R23).
    ///
    /// Fails with `IllegalMove` where the lease was lost or as for
    /// [`effect::end`](crate::effect::end), and with `Invalid` for a result over
    /// [`effect::MAX_RESULT_BYTES`](crate::effect::MAX_RESULT_BYTES).
    async fn end_effect(
        &self,
        now: Now,
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
    /// Its price is bounded by the number of workers: it reads and writes nothing of jobs and
    /// queues.
    async fn heartbeat(&self, now: Now, beat: &Heartbeat) -> Result<Beaten>;

    /// Drains the processes of a worker that are listed now, or resumes them: they learn it with their
    /// next heartbeats (R29). Returns how many there are.
    ///
    /// Fails with `Invalid` as for [`WorkerDrain::validate`].
    async fn drain_worker(&self, now: Now, drain: &WorkerDrain) -> Result<u64>;

    /// Removes the row of a worker that has stopped; nothing where there is none.
    async fn remove_worker(&self, worker: &WorkerId, incarnation: u32) -> Result<()>;

    /// The workers that were seen within [`KEPT_UNSEEN`](crate::heartbeat::KEPT_UNSEEN), by name
    /// and incarnation.
    async fn workers(&self, now: Now) -> Result<Workers>;

    /// Takes back at most `limit` expired leases (R21), and decides for each from the worker
    /// rows whether it counts as a crash ([`crash::is_crash`](crate::crash::is_crash)).
    async fn reap(&self, now: Now, limit: usize) -> Result<Vec<ExpiredLease>>;

    /// When something will be to do in `queue` for a worker that knows `tasks`.
    async fn next_due(&self, now: Now, queue: &QueueName, tasks: &[TaskName]) -> Result<NextDue>;

    /// When something may be to do in each of these queues, for a worker that knows these tasks: at
    /// the latest when [`Steps::next_due`] says so, and earlier where a limit keeps it back. One
    /// look at all of them is what an idle worker costs.
    async fn peek(
        &self,
        now: Now,
        queues: &[(QueueName, Arc<[TaskName]>)],
    ) -> Result<Vec<NextDue>> {
        let mut next = Vec::with_capacity(queues.len());
        for (queue, tasks) in queues {
            next.push(self.next_due(now, queue, tasks).await?);
        }
        Ok(next)
    }

    /// The partitions of a queue with the most waiting jobs (R31): how many wait and run in each, and
    /// since when. It looks at a limited number of jobs, however many wait, and reads no payload.
    async fn backlog(&self, now: Now, of: &BacklogOf) -> Result<Backlog>;

    /// The queues there are, with their settings.
    async fn queues(&self) -> Result<Vec<QueueInfo>>;

    /// Sets a queue's settings; makes the queue where there is none, or was deleted (R32).
    ///
    /// Fails with `Invalid` as for [`QueueSettings::validate`]. A rate counts starts from when it
    /// is set; a longer period counts those that the shorter one did.
    async fn set_queue(&self, now: Now, queue: &QueueName, settings: &QueueSettings) -> Result<()>;

    /// Sets a queue's settings if they are still `known`; none stands for a queue that is not there,
    /// or was deleted (R32). Says whether it did.
    ///
    /// Fails with `Invalid` as for [`QueueSettings::validate`].
    async fn replace_queue(
        &self,
        now: Now,
        queue: &QueueName,
        known: Option<&QueueSettings>,
        settings: &QueueSettings,
    ) -> Result<bool>;

    /// Deletes a queue's settings, so that nothing starts until it is set again (R32); triggers are
    /// accepted and wait. Says whether there was such a queue.
    async fn delete_queue(&self, now: Now, queue: &QueueName) -> Result<bool>;

    /// The tasks there are, with their settings.
    async fn tasks(&self) -> Result<Vec<TaskInfo>>;

    /// The settings of these tasks, in this order; the default ones of a task that is not there. One
    /// read of as many rows as there are names: clients make it every few seconds (R14).
    async fn task_settings(&self, tasks: &[TaskName]) -> Result<Vec<TaskInfo>>;

    /// Sets all settings of a task; no job need be there yet (R14, R33).
    ///
    /// Fails with `Invalid` as for [`TaskSettings::validate`].
    async fn set_task(&self, now: Now, task: &TaskName, settings: &TaskSettings) -> Result<()>;

    /// Sets a task's settings if they are still `known`; a task that is not there has the default ones
    /// (R32). Says whether it did.
    ///
    /// Fails with `Invalid` as for [`TaskSettings::validate`].
    async fn replace_task(
        &self,
        now: Now,
        task: &TaskName,
        known: &TaskSettings,
        settings: &TaskSettings,
    ) -> Result<bool>;

    /// One job, or none where its id is unknown or its row was pruned.
    async fn job(&self, id: JobId) -> Result<Option<Job>>;

    /// The state and result of a job, also after its row was removed where an idempotency record
    /// keeps them (R19, R37); of the successor, where it was absorbed. None for an unknown job.
    async fn result(&self, id: JobId) -> Result<Option<JobResult>>;

    /// Jobs that match, newest first, one page.
    async fn jobs(&self, filter: &JobFilter) -> Result<Vec<Job>>;

    /// How many jobs there are.
    async fn counts(&self) -> Result<Vec<Counts>>;

    /// The attempts of a job, oldest first; of many, the first and the last ones
    /// ([`record`](crate::record)).
    async fn attempts(&self, id: JobId) -> Result<Vec<Attempt>>;

    /// What happened to a trigger, job or key, and why (R15); none where nothing is known of it. A
    /// dedup or idempotency key that is free at `now` is not known.
    ///
    /// Fails with `NotFound`, and what is known, where such a key is taken but its job's row was removed.
    async fn explain(&self, now: Now, target: &ExplainTarget) -> Result<Option<Explanation>>;

    /// Makes the open window of a key due now (R7); none where no window is open.
    async fn flush(&self, now: Now, task: &TaskName, key: &Key) -> Result<Option<JobId>>;

    /// Cancels the open window of a key (R7); none where no window is open.
    async fn cancel_key(&self, now: Now, task: &TaskName, key: &Key) -> Result<Option<JobId>>;

    /// Cancels a job that waits or runs.
    ///
    /// Fails with `NotFound` for an unknown job and `IllegalMove` for one that has ended.
    async fn cancel(&self, now: Now, id: JobId, reason: &str) -> Result<()>;

    /// Changes a job that waits, on an operator's request: makes it due now, or changes its
    /// priority (R15). Another attempt of its key and a throttle's period still hold it (R11, R13).
    ///
    /// Fails with `NotFound` for an unknown job, `IllegalMove` for one that does not wait, and
    /// `Invalid` where nothing is asked for.
    async fn adjust(&self, now: Now, id: JobId, adjustment: Adjustment) -> Result<Adjusted>;

    /// Puts a dead job back with fresh attempts, or into its key's open window; a payload that is
    /// edited replaces its own, which stays on record (R26).
    ///
    /// Fails with `NotFound` for an unknown job, `IllegalMove` for one that is not dead, and
    /// `Invalid` for a payload that later ones could not be gathered into. The caller has validated
    /// its size.
    async fn redrive(&self, now: Now, redrive: &Redrive) -> Result<SettledAs>;

    /// Removes at most `limit` ended jobs past their retention, and expired dedup and idempotency
    /// keys, key memories, starts and ticks, where a store with a disk takes at most `limit` of
    /// each kind (R37). The answer says whether another call may find more; callers repeat the call
    /// until it does not.
    async fn prune(&self, now: Now, retention: &Retention, limit: usize) -> Result<Pruned>;

    /// The dead jobs and the oldest due one of each queue and task, in bounded work (R27).
    async fn overview(&self, now: Now) -> Result<Overview>;

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
    async fn set_schedule(&self, now: Now, schedule: &Schedule) -> Result<()> {
        let _unused = (now, schedule);
        Err(lacks_schedules())
    }

    /// Pauses or resumes a schedule (R36). Fails with `NotFound` for an unknown one.
    async fn set_schedule_state(
        &self,
        now: Now,
        name: &ScheduleName,
        state: ScheduleState,
    ) -> Result<()> {
        let _unused = (now, name, state);
        Err(lacks_schedules())
    }

    /// Removes a schedule and what is known of its ticks. Fails with `NotFound` for an unknown one.
    async fn delete_schedule(&self, now: Now, name: &ScheduleName) -> Result<()> {
        let _unused = (now, name);
        Err(lacks_schedules())
    }

    /// The schedules there are, by name.
    async fn schedules(&self) -> Result<Vec<ScheduleInfo>> {
        Err(lacks_schedules())
    }

    /// The ticks of a schedule that are on record from `from` to `to`, both included, by their times: the first
    /// `limit`, and at most [`RecordedTick::MAX_PAGE`] (R36). Fails with `NotFound` for an unknown schedule.
    async fn ticks(
        &self,
        name: &ScheduleName,
        from: Timestamp,
        to: Timestamp,
        limit: usize,
    ) -> Result<Vec<RecordedTick>> {
        let _unused = (name, from, to, limit);
        Err(lacks_schedules())
    }

    /// Fires at most `limit` ticks that are due, of at most as many schedules, those that have
    /// waited longest first; each tick once, however many workers ask and how often (R36).
    async fn tick(&self, now: Now, limit: usize) -> Result<Ticked> {
        let _unused = (now, limit);
        Err(lacks_schedules())
    }

    /// Fires the trigger of a schedule now, outside its plan. Fails with `NotFound` for an
    /// unknown one.
    async fn run_schedule(&self, now: Now, name: &ScheduleName) -> Result<Receipt> {
        let _unused = (now, name);
        Err(lacks_schedules())
    }

    /// Fires the ticks from `from` to `to`, both included, that have not fired; returns how many
    /// did. Fails with `NotFound` for an unknown schedule, and with `Invalid` for a range that
    /// [`ScheduleInfo::backfill`] refuses.
    async fn backfill(
        &self,
        now: Now,
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
