//! The rules of Quell, as pure functions and plain structs.
//!
//! Modules follow the life of a trigger:
//!
//! | folder | contents |
//! | --- | --- |
//! | [`trigger`] | accepting triggers ([`accept`]): the debounce [`window`] and its [`edge`], [`dedup`], [`idempotency`] keys, [`payload`] folding, what stands for an encrypted one ([`envelope`]), [`trace`] contexts |
//! | [`queue`] | choosing the next jobs: the lanes of a queue ([`line`](mod@line)), [`limit`], adaptive polling ([`poll`]) |
//! | [`attempt`] | running a job: [`retry`] and backoff, [`crash`], recorded [`effect`], settlement, worker rows ([`heartbeat`]) |
//! | [`job`] | the states of a job, the moves between them, and their explanation |
//! | [`dead`] | dead jobs, the [`cause`] of a death, rows that cannot be decoded ([`unreadable`]) |
//! | [`schedule`] | triggers by the clock |
//! | [`alert`] | alerts and their notices |
//! | [`store`] | the contract of a store: [`Store`], its operations, notifications, the event [`history`] |
//!
//! [`MemoryStore`] is written from the rules: the model that tests compare every other store with.
//!
//! Invariant: the rules are functions from (state, event, now) to state. They know no clock, no I/O and
//! no runtime, and only `store` and the model store have asynchronous code.
#![deny(clippy::arithmetic_side_effects, clippy::indexing_slicing, clippy::wildcard_enum_match_arm)]
#![cfg_attr(
    test,
    expect(clippy::arithmetic_side_effects, reason = "test arithmetic may overflow loudly")
)]

pub mod alert;
pub mod attempt;
mod codes;
pub mod dead;
mod error;
mod id;
pub mod job;
mod memory;
pub mod queue;
pub mod schedule;
pub mod semantics;
mod setters;
pub mod store;
mod time;
pub mod trigger;

// Rules by their own names, whatever their folder.
#[doc(no_inline)]
pub use attempt::{crash, effect, failure, heartbeat, record, retry};
#[doc(no_inline)]
pub use dead::{cause, exports, unreadable};
#[doc(no_inline)]
pub use queue::{backlog, limit, line, poll, turn};
#[doc(no_inline)]
pub use store::{checkup, history};
#[doc(no_inline)]
pub use trigger::{accept, dedup, edge, envelope, idempotency, payload, touched, trace, window};

pub use alert::{AlertRow, AlertState, Overview};
pub use attempt::effect::Effect;
pub use attempt::{
    Attempt, AttemptOutcome, ExpiredLease, Failure, FailureKind, Outcome, Settled, SettledAs,
    Settlement, clipped,
};
pub use dead::unreadable::{UnreadableJob, UnreadablePage};
pub use dead::{DeadExport, DeadFilter, DeadPlace, Imported, Origin, Past, Redrive};
pub use error::{Error, ErrorKind, Result};
pub use id::{
    AlertName, Draw, EffectName, JobId, Key, LeaseToken, MAX_KEY_BYTES, MAX_NAME_BYTES, QueueName,
    ScheduleName, StoreId, TaskName, TriggerId, WorkerId,
};
pub use job::{Explanation, Job, JobState, KeyAdvice, describe_reason};
pub use memory::{MemoryStore, Snapshot, part};
pub use queue::{
    Backlog, BacklogOf, Claim, Claimed, ClaimedJob, Lease, NextDue, PartitionBacklog,
    PartitionOrder, QueueInfo, QueueSettings, Rate, Renewal, TaskInfo, TaskSettings,
};
pub use store::{
    Answer, Call, Cancelled, Capabilities, Counts, DeadJobs, EndHub, EndNotification,
    ExplainTarget, JobFilter, Lead, Location, Operation, OperationKind, Pruned, Retention, Root,
    Scope, Steps, Store, Trouble, UnreadableJobs, WakeHub, Wakeup, Wakeups, dispatch, in_savepoint,
    lacks, no_such_job,
};
pub use time::{Now, Timestamp};
pub use trigger::idempotency::JobResult;
pub use trigger::payload::{Fold, Payload};
pub use trigger::{Batch, Limits, NewTrigger, Priority, Receipt, When};

/// The README's examples run as documentation tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
