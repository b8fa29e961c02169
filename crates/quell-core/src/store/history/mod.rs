//! The event history: one line per thing that happened, the only input of every checker.
//!
//! Clients, workers and stores hand events to a [`History`] where one is set; without one they
//! build none. Stores record what they have committed, in the order of their commits; clients and
//! workers record before the effect can be seen by others (`start` before the handler's body,
//! `trigger_invoke` before the call), so that a kill loses a last event, never the truth of one.

mod events;

use std::fmt::Debug;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::dedup::{Dedup, HoldUntil};
use crate::idempotency::Idempotency;
use crate::job::Shape;
use crate::queue::{QueueSettings, TaskSettings};
use crate::retry::Retry;
use crate::schedule::{CatchUp, ScheduleState, Spec, TickedBy};
use crate::trace::{TraceContext, Traces};
use crate::trigger::{Priority, When};
use crate::window::{Debounce, DueReason};
use crate::{
    AttemptOutcome, Fold, JobId, JobState, Key, LeaseToken, Origin, QueueName, Receipt,
    ScheduleName, SettledAs, TaskName, Timestamp, WorkerId,
};

/// Where events go. Calls are synchronous and must be short.
pub trait History: Send + Sync + Debug + 'static {
    /// Writes one event.
    fn record(&self, event: &Event);

    /// Whether events are to carry payloads. They may be large, or confidential.
    fn wants_payloads(&self) -> bool {
        false
    }
}

/// A shared sink.
pub type Sink = Arc<dyn History>;

/// A task as a worker runs it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerTask {
    /// Its name.
    pub task: TaskName,
    /// Its queue.
    pub queue: QueueName,
    /// How often it is tried.
    pub retry: Retry,
}

/// Something that happened. Names and fields are those of the checker's input.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "event")]
#[non_exhaustive]
pub enum Event {
    /// A process begins its record. One that has an [`Event::End`] as its last line wrote all that
    /// it did; one without an end was killed, and what it had in flight may be missing.
    Begin {
        /// The time on the host's clock.
        t: Timestamp,
    },
    /// A process ends its record: everything that it did is in it.
    End,
    /// A writing call of the store got no answer: its caller dropped it, or received an unknown
    /// outcome. The store may have committed it without a record. Triggers have
    /// [`Event::TriggerInfo`] instead.
    Unanswered {
        /// When the caller stopped waiting, on its clock.
        t: Timestamp,
        /// When the call was made, on the same clock.
        since: Timestamp,
        /// The name of the call.
        call: String,
    },
    /// A writing call of the store failed and changed nothing, as the store could not complete it. It may
    /// have held rows meanwhile, which claims pass over.
    CallFailed {
        /// When the caller received the error, on its clock.
        t: Timestamp,
        /// When the call was made, on the same clock.
        since: Timestamp,
        /// The name of the call.
        call: String,
    },
    /// What a test promises of the whole record.
    Record {
        /// Whether every fault is in it.
        faults: bool,
        /// How late an attempt may start while no fault is at work and nothing holds it back.
        punctual: Option<std::time::Duration>,
    },
    /// A caller is about to trigger.
    TriggerInvoke {
        /// The caller's number for the call; it is its own.
        op: u64,
        /// The task.
        task: TaskName,
        /// Its queue.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        queue: Option<QueueName>,
        /// Its partition.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        partition: Option<Key>,
        /// Its priority.
        #[serde(default)]
        priority: Priority,
        /// Its debounce key.
        key: Option<Key>,
        /// Its dedup key.
        dedup: Option<Key>,
        /// How long the dedup key is asked for.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        hold: Option<HoldUntil>,
        /// Its idempotency key and how long that is kept.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        idempotency: Option<Idempotency>,
        /// The fingerprint of its payload, where it has an idempotency key.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        fingerprint: Option<String>,
        /// The debounce policy it brings.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        debounce: Option<Debounce>,
        /// The delay it asks for.
        #[serde(default)]
        when: When,
        /// How its payload is folded.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        fold: Option<Fold>,
        /// Its payload as JSON text, where payloads are recorded.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        payload: Option<String>,
        /// Its trace context.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        trace: Option<TraceContext>,
    },
    /// The store accepted the trigger, or said that it is a duplicate.
    TriggerOk {
        /// The call.
        op: u64,
        /// What became of it.
        #[serde(serialize_with = "Receipt::without_output")]
        receipt: Receipt,
    },
    /// The trigger was surely not accepted.
    TriggerFail {
        /// The call.
        op: u64,
        /// Why, as the error's kind.
        kind: String,
    },
    /// It is unknown whether the trigger was accepted.
    TriggerInfo {
        /// The call.
        op: u64,
    },
    /// A job came to be or its window changed: opened, joined, flushed, absorbed into, rescheduled.
    Window {
        /// Store time.
        t: Timestamp,
        /// The job.
        job: JobId,
        /// The task.
        task: TaskName,
        /// Its queue.
        queue: QueueName,
        /// The partition of the queue that it belongs to.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        partition: Option<Key>,
        /// The debounce key; a job without one has a window of a single trigger.
        key: Option<Key>,
        /// Higher runs first.
        priority: Priority,
        /// Its first trigger.
        first: Timestamp,
        /// Its last trigger.
        last: Timestamp,
        /// How many triggers it has.
        count: u64,
        /// How many of them its leading edge does not run.
        suppressed: u64,
        /// When it is due.
        due: Timestamp,
        /// The bound that no join moves due past.
        bound: Option<Timestamp>,
        /// Not before this: the end of a backoff.
        nb: Timestamp,
        /// Why it is due then.
        reason: DueReason,
        /// What the job keeps of its policy.
        shape: Shape,
    },
    /// A trigger was counted that a leading edge does not run (R13).
    Suppressed {
        /// Store time.
        t: Timestamp,
        /// The job that leads the burst.
        job: JobId,
        /// How many triggers it has now.
        count: u64,
        /// How many of them are suppressed.
        suppressed: u64,
    },
    /// A worker begins to work.
    Worker {
        /// Who.
        worker: WorkerId,
        /// What it runs.
        tasks: Vec<WorkerTask>,
    },
    /// The store gave an attempt's lease.
    Claimed {
        /// Store time.
        t: Timestamp,
        /// The job.
        job: JobId,
        /// The fence.
        token: LeaseToken,
        /// The task.
        task: TaskName,
        /// Its queue.
        queue: QueueName,
        /// The debounce key.
        key: Option<Key>,
        /// Who may run it.
        worker: WorkerId,
        /// How many triggers it covers.
        count: u64,
        /// When it was due.
        due: Timestamp,
        /// Which attempt, from 1.
        attempt: u32,
        /// When the lease expires.
        until: Timestamp,
    },
    /// An attempt starts: its worker is about to run the handler.
    Start {
        /// Store time, as the worker reckons it.
        t: Timestamp,
        /// The job.
        job: JobId,
        /// The fence.
        token: LeaseToken,
        /// The task.
        task: TaskName,
        /// The debounce key.
        key: Option<Key>,
        /// Who runs it.
        worker: WorkerId,
        /// How many triggers it covers.
        count: u64,
        /// When it was due.
        due: Timestamp,
        /// Which attempt, from 1.
        attempt: u32,
        /// When the lease expires.
        until: Timestamp,
        /// What the handler is given, as JSON text, where payloads are recorded.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        payload: Option<String>,
        /// The trace contexts that the handler is given.
        #[serde(default, skip_serializing_if = "Traces::is_empty")]
        traces: Traces,
    },
    /// The store extended a lease.
    Renew {
        /// Store time.
        t: Timestamp,
        /// The job.
        job: JobId,
        /// The fence.
        token: LeaseToken,
        /// Until when.
        until: Timestamp,
    },
    /// A worker learnt that its lease is lost.
    Lost {
        /// The job.
        job: JobId,
        /// The fence.
        token: LeaseToken,
    },
    /// A handler asks a transaction of its own to end the attempt (R22): its commit, whose answer
    /// may be lost, ends the job well from here on. Written before the database is asked.
    SettleIn {
        /// The job.
        job: JobId,
        /// The fence.
        token: LeaseToken,
    },
    /// The store took an expired lease back.
    // The name in histories.
    #[serde(rename = "lapse")]
    Expire {
        /// Store time.
        t: Timestamp,
        /// The job.
        job: JobId,
        /// The fence.
        token: LeaseToken,
        /// What became of the job.
        became: SettledAs,
        /// Whether it counts as a crash of its worker (R25).
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        crash: bool,
    },
    /// The store took a settlement, or refused it because the lease was lost.
    Settle {
        /// Store time.
        t: Timestamp,
        /// The job.
        job: JobId,
        /// The fence.
        token: LeaseToken,
        /// What was reported.
        outcome: AttemptOutcome,
        /// Whether the failure was reported as permanent.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        permanent: bool,
        /// Whether the failure was reported as the last that the policy allows.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        exhausted: bool,
        /// Whether the handler asked for the delay before the next attempt.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        asked: bool,
        /// Whether the handler's own transaction ended the job, at or before this time (R22).
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        in_tx: bool,
        /// What became of the job; `refused` when the lease was lost.
        became: SettledAs,
    },
    /// An effect of an attempt was committed.
    Effect {
        /// The job.
        job: JobId,
        /// The fence.
        token: LeaseToken,
        /// Which effect.
        name: String,
    },
    /// The outside did what an attempt asked for, with an idempotency key that it had not met.
    Performed {
        /// The job.
        job: JobId,
        /// Which effect.
        name: String,
    },
    /// Someone is about to flush the window of a key.
    FlushInvoke {
        /// The task.
        task: TaskName,
        /// The debounce key.
        key: Key,
    },
    /// Someone cancelled a job.
    Cancel {
        /// Store time.
        t: Timestamp,
        /// The job.
        job: JobId,
    },
    /// An operator changed a job that waits; a due time that moved follows as its window.
    Adjust {
        /// Store time.
        t: Timestamp,
        /// The job.
        job: JobId,
        /// Whether it was made due.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        run_now: bool,
        /// Its priority from then on, where that was given.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        priority: Option<Priority>,
    },
    /// Someone put a dead job back.
    Redrive {
        /// Store time.
        t: Timestamp,
        /// The job.
        job: JobId,
        /// What became of it.
        became: SettledAs,
        /// Whether its payload was edited.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        edited: bool,
    },
    /// Someone discarded a dead job: its row was removed.
    Discard {
        /// Store time.
        t: Timestamp,
        /// The job.
        job: JobId,
        /// Why.
        reason: String,
    },
    /// A dead job of another store, or of this one at another time, was put in.
    Import {
        /// Store time.
        t: Timestamp,
        /// The job that it is here.
        job: JobId,
        /// The job that it was where it was accepted.
        of: Origin,
        /// The task.
        task: TaskName,
        /// Its queue.
        queue: QueueName,
        /// The debounce key.
        key: Option<Key>,
        /// Its first trigger.
        first: Timestamp,
        /// How many triggers it has.
        count: u64,
    },
    /// A job was set aside because its row cannot be decoded (R25).
    SetAside {
        /// Store time.
        t: Timestamp,
        /// The job.
        job: JobId,
        /// What cannot be decoded.
        reason: String,
    },
    /// A job that was set aside is where it was: its row can be decoded.
    Restored {
        /// Store time.
        t: Timestamp,
        /// The job.
        job: JobId,
        /// Its state from now on.
        state: JobState,
    },
    /// The row of an ended job was removed.
    Prune {
        /// Store time.
        t: Timestamp,
        /// The job.
        job: JobId,
    },
    /// The settings of a queue were made or changed.
    Queue {
        /// Store time.
        t: Timestamp,
        /// The queue.
        queue: QueueName,
        /// Its settings from now on.
        settings: QueueSettings,
    },
    /// The settings of a queue were deleted.
    QueueDeleted {
        /// Store time.
        t: Timestamp,
        /// The queue.
        queue: QueueName,
    },
    /// The settings of a task were changed.
    TaskChanged {
        /// Store time.
        t: Timestamp,
        /// The task.
        task: TaskName,
        /// Its settings from now on.
        settings: TaskSettings,
    },
    /// A schedule was made or changed, paused or resumed.
    Schedule {
        /// Store time.
        t: Timestamp,
        /// Its name.
        schedule: ScheduleName,
        /// Its plan from now on.
        spec: Spec,
        /// What becomes of missed ticks.
        catch_up: CatchUp,
        /// Whether it fires.
        state: ScheduleState,
        /// Every tick up to here has fired by plan or never will.
        handled: Timestamp,
        /// The task that it triggers.
        task: TaskName,
        /// The debounce key.
        key: Option<Key>,
        /// The dedup key.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        dedup: Option<Dedup>,
        /// The debounce policy.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        debounce: Option<Debounce>,
        /// How its payloads are folded.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        fold: Option<Fold>,
        /// The delay.
        #[serde(default)]
        when: When,
    },
    /// A schedule was removed.
    Unscheduled {
        /// Store time.
        t: Timestamp,
        /// Which.
        schedule: ScheduleName,
    },
    /// A tick fired; what it changed is recorded after it.
    Ticked {
        /// Store time.
        t: Timestamp,
        /// The schedule.
        schedule: ScheduleName,
        /// The planned time.
        tick: Timestamp,
        /// Why it fired.
        by: TickedBy,
        /// What became of its trigger.
        receipt: Receipt,
    },
    /// Someone ran a schedule outside its plan.
    ScheduleRun {
        /// Store time.
        t: Timestamp,
        /// The schedule.
        schedule: ScheduleName,
        /// What became of its trigger.
        receipt: Receipt,
    },
    /// A test did harm.
    Fault {
        /// Store time.
        t: Timestamp,
        /// What, for a reader; `kill` is a process's end, and `stop` asks it to end well, which
        /// excuses no lost lease.
        what: String,
        /// To whom: a worker by its name, `store`, or for a reader.
        whom: String,
    },
    /// No harm is done from here on.
    Heal {
        /// Store time.
        t: Timestamp,
    },
    /// A job's row at the end, after everything that waited has run.
    Row {
        /// The job.
        job: JobId,
        /// The task.
        task: TaskName,
        /// The debounce key.
        key: Option<Key>,
        /// Its state.
        state: JobState,
        /// How many triggers it counts.
        count: u64,
        /// Its last trigger.
        last: Timestamp,
        /// When its last attempt started.
        started: Option<Timestamp>,
        /// The job that took it in.
        by: Option<JobId>,
    },
    /// The stamp witness: a caller raised the counter of a key and is about to trigger it.
    Stamp {
        /// The caller's number for the call; it is its own.
        op: u64,
        /// The key.
        key: String,
        /// The counter's value.
        value: u64,
    },
    /// The queue under test accepted the trigger of a stamp.
    StampOk {
        /// The call.
        op: u64,
    },
    /// A handler read the counter of its key, first thing.
    Read {
        /// The run; it is its process's own.
        run: u64,
        /// The key.
        key: String,
        /// What it read.
        value: u64,
    },
    /// The run of a read ended well, and its end was accepted.
    ReadOk {
        /// The run.
        run: u64,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Deaf;

    impl History for Deaf {
        fn record(&self, _: &Event) {}
    }

    #[test]
    fn a_history_gets_payloads_only_when_it_asks() {
        assert!(!Deaf.wants_payloads());
    }
}
