//! The contract between callers, workers and stores: the [`Store`] trait, its operations, and the
//! notifications inside a process.
//!
//! An [`Operation`] is one atomic step, and [`Scope`] names the rows that it may touch. A store with a
//! method for each operation implements [`Steps`].
//!
//! Invariant: this folder and the model store have the only asynchronous code of the crate; the rules
//! beside it are plain functions.

mod answers;
mod capabilities;
pub mod checkup;
mod dead;
mod ends;
pub mod history;
mod jobs;
mod lead;
mod operation;
mod scope;
mod steps;
mod trouble;
mod wake;

pub use answers::SettledAnswers;
pub use capabilities::{Capabilities, Location, in_savepoint, lacks};
pub use dead::{DeadJobs, UnreadableJobs};
pub use ends::{EndHub, EndNotification};
pub use jobs::{Counts, ExplainTarget, JobFilter, Pruned, Retention, no_such_job};
pub use lead::Lead;
pub use operation::{Answer, Call, Operation, OperationKind, Store, dispatch};
pub use scope::{Root, Scope};
pub use steps::Steps;
pub use trouble::Trouble;
pub use wake::{Cancelled, WakeHub, Wakeup, Wakeups};
