//! The event history: one line per thing that happened, the only input of every checker.
//!
//! Clients, workers and stores hand events to a [`History`] where one is set; without one they
//! build none. A sink must write an event before its effect can be seen by others (`start` before
//! the handler's body, `trigger_invoke` before the call), so that a kill loses nothing but a torn
//! last line.

use std::fmt::Debug;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::store::SettledAs;
use crate::window::DueReason;
use crate::{
    AttemptOutcome, ErrorKind, JobId, Key, LeaseToken, Receipt, TaskName, Timestamp, WorkerId,
};

/// Where events go. Calls are synchronous and must be short.
pub trait History: Send + Sync + Debug + 'static {
    /// Writes one event.
    fn record(&self, event: &Event);
}

/// A shared sink.
pub type Sink = Arc<dyn History>;

/// Something that happened. Names and fields are those of the checker's input.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "event")]
#[non_exhaustive]
pub enum Event {
    /// A caller is about to trigger.
    TriggerInvoke {
        /// The caller's number for the call; it is its own.
        op: u64,
        /// The task.
        task: TaskName,
        /// Its debounce key.
        key: Option<Key>,
        /// Its dedup key.
        dedup: Option<Key>,
    },
    /// The store accepted the trigger, or said that it is a duplicate.
    TriggerOk {
        /// The call.
        op: u64,
        /// What became of it.
        receipt: Receipt,
    },
    /// The trigger was surely not accepted.
    TriggerFail {
        /// The call.
        op: u64,
        /// Why, as the error's kind.
        kind: String,
    },
    /// Nobody knows whether the trigger was accepted.
    TriggerInfo {
        /// The call.
        op: u64,
    },
    /// A window opened or changed.
    Window {
        /// Store time.
        t: Timestamp,
        /// Its job.
        job: JobId,
        /// The task.
        task: TaskName,
        /// The debounce key.
        key: Key,
        /// Its first trigger.
        first: Timestamp,
        /// Its last trigger.
        last: Timestamp,
        /// How many triggers it has.
        count: u64,
        /// When it is due.
        due: Timestamp,
        /// The bound that no join moves due past.
        bound: Option<Timestamp>,
        /// Not before this: the end of a backoff.
        nb: Timestamp,
        /// Why it is due then.
        reason: DueReason,
    },
    /// An attempt starts.
    Start {
        /// Store time of the claim.
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
        /// When the lease lapses.
        until: Timestamp,
    },
    /// A lease was extended.
    Renew {
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
    /// The store took a lapsed lease back.
    Lapse {
        /// Store time.
        t: Timestamp,
        /// The job.
        job: JobId,
        /// The fence.
        token: LeaseToken,
        /// What became of the job.
        became: SettledAs,
    },
    /// The store answered a settlement.
    Settle {
        /// Store time.
        t: Timestamp,
        /// The job.
        job: JobId,
        /// The fence.
        token: LeaseToken,
        /// What was reported.
        outcome: AttemptOutcome,
        /// What became of the job; `refused` when the lease was lost.
        became: SettledAs,
    },
    /// Someone cancelled a job.
    Cancel {
        /// Store time.
        t: Timestamp,
        /// The job.
        job: JobId,
    },
    /// Someone put a dead job back.
    Redrive {
        /// Store time.
        t: Timestamp,
        /// The job.
        job: JobId,
        /// What became of it.
        became: SettledAs,
    },
}

impl Event {
    /// How a call that ended in `error` is recorded: unknown, or surely not accepted.
    #[must_use]
    pub fn failed(op: u64, error: &crate::Error) -> Event {
        if error.kind() == ErrorKind::UnknownOutcome {
            Event::TriggerInfo { op }
        } else {
            Event::TriggerFail { op, kind: format!("{:?}", error.kind()) }
        }
    }

    /// The state of a job's window after a change; none for a job without a key.
    #[must_use]
    pub fn window(t: Timestamp, job: &crate::Job) -> Option<Event> {
        let key = job.key.clone()?;
        Some(Event::Window {
            t,
            job: job.id,
            task: job.task.clone(),
            key,
            first: job.window.first_at,
            last: job.window.last_at,
            count: job.window.triggers,
            due: job.window.due_at,
            bound: job.window.bound_at,
            nb: job.window.not_before,
            reason: job.window.reason,
        })
    }
}
