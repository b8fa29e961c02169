//! The rules of Quell, as pure functions and plain structs.
//!
//! Everything here is a function from (state, event, now) to state: the debounce window
//! ([`window`]), the edges of a burst ([`edge`]), payload folding ([`payload`]), retry and backoff
//! ([`retry`]), crashes ([`crash`]), worker rows ([`heartbeat`]), dedup ([`dedup`]), idempotency keys ([`idempotency`]), limits
//! ([`limit`]), recorded effects ([`effect`]), dead letters ([`dead`]), alerts ([`alert`]), adaptive
//! polling ([`poll`]), schedules ([`schedule`]) and the moves between job states ([`job`]). The
//! [`Store`] trait is the one door to the world, and [`MemoryStore`] is the rules' own store: the
//! oracle that every other store is compared with.
//!
//! Invariant: this crate knows no clock, no runtime and no I/O. Whatever needs the time takes `now`.
#![deny(clippy::arithmetic_side_effects, clippy::indexing_slicing, clippy::wildcard_enum_match_arm)]
#![cfg_attr(
    test,
    expect(clippy::arithmetic_side_effects, reason = "test arithmetic may overflow loudly")
)]

pub mod accept;
pub mod alert;
mod attempt;
pub mod cause;
pub mod checkup;
mod claim;
pub mod crash;
pub mod dead;
#[cfg(test)]
mod dead_tests;
mod debounce;
pub mod dedup;
pub mod edge;
pub mod effect;
mod ends;
mod error;
mod explain;
pub mod failure;
pub mod heartbeat;
pub mod history;
mod id;
pub mod idempotency;
pub mod job;
pub mod letters;
pub mod limit;
pub mod line;
mod memory;
mod operation;
pub mod payload;
pub mod poll;
pub mod record;
pub mod retry;
pub mod schedule;
mod scope;
pub mod semantics;
mod setters;
mod settings;
mod settlement;
mod shape;
mod steps;
mod store;
mod time;
pub mod touched;
pub mod trigger;
pub mod unreadable;
mod wake;
pub mod window;

pub use alert::{AlertRow, AlertState, Overview};
pub use claim::{Claim, Claimed, ClaimedJob, Lease, NextDue, Renewal};
pub use dead::{DeadFilter, DeadLetter, DeadLetters, DeadPlace, Imported, Origin, Past, Redrive};
pub use effect::Effect;
pub use ends::{EndHub, Ended};
pub use error::{Error, ErrorKind, Result};
pub use explain::{Explanation, KeyAdvice, describe_reason};
pub use id::{
    AlertName, Draw, EffectName, JobId, Key, LeaseToken, MAX_KEY_BYTES, MAX_NAME_BYTES, QueueName,
    ScheduleName, StoreId, TaskName, TriggerId, WorkerId,
};
pub use idempotency::JobResult;
pub use job::{Attempt, AttemptOutcome, Job, JobState};
pub use memory::{MemoryStore, Snapshot, part};
pub use operation::{Answer, Call, Operation, OperationKind, Store, dispatch};
pub use payload::{Fold, Payload};
pub use scope::{Root, Scope};
pub use settings::{QueueInfo, QueueSettings, Rate, TaskInfo, TaskSettings};
pub use settlement::{
    Failure, FailureKind, Lapsed, Outcome, Settled, SettledAs, Settlement, clipped,
};
pub use steps::Steps;
pub use store::{
    Capabilities, Counts, ExplainTarget, JobFilter, Location, Pruned, Retention, in_savepoint,
    lacks, no_such_job,
};
pub use time::Timestamp;
pub use trigger::{Batch, Limits, NewTrigger, Priority, Receipt, When};
pub use unreadable::{UnreadableJob, UnreadableJobs, UnreadablePage};
pub use wake::{Cancelled, WakeHub, Wakeup, Wakeups};

/// The README's examples run as documentation tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
