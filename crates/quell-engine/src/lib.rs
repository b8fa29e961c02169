//! One engine for every store: a [`Backend`] keeps rows, the [`Engine`] keeps the promises.
//!
//! A step of the engine loads the rows that it may touch, lets the rules of `quell-core` take it on
//! them, and hands what differs to the backend, which writes all of it if no other step has changed the rows
//! meanwhile. After a conflict the step is taken again. So a store author writes no rule, and a rule is
//! written once.
//!
//! [`Maps`] is the smallest backend: ordered maps in memory.
//!
//! Invariant: the engine knows no clock but the backend's, and no row that the backend did not load.

pub mod backend;
mod backlog;
mod backoff;
mod changes;
mod claim;
mod counts;
mod ends;
mod engine;
mod hot;
mod known;
mod lanes;
mod load;
mod loaded;
mod maps;
mod moves;
mod read;
pub mod rows;
mod shard;
pub mod sql;
mod step;
mod turns;
mod upkeep;

pub use backend::{
    Access, Backend, Beginning, Changes, Committed, Entry, Index, Kind, Lanes, Note, Part, Place,
    Removal, Running, Scan, Seen, Taken, Tally, TasksOf, Time, add_to,
};
pub use ends::EndWaiters;
pub use engine::{Engine, caller_error, publish};
pub use maps::Maps;
pub use rows::{GATES, KeyJobs, Row, RowName, SettingsOf};

/// The README's examples run as documentation tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
