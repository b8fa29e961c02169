//! The Quell store on PostgreSQL: the store that services share.
//!
//! Everything lives in a schema of its own. Many processes write at once: rows are locked, never
//! tables, and always in the order of their ids, so that calls of different processes wait for each
//! other briefly and never in a circle. Whatever one statement can do is one statement, which is
//! its own transaction.
//!
//! Where to read: `store` is the door; `tx` opens a transaction and gives it the time; `enqueue`
//! (with `keys`), `claim`, `settle` and `operate` are what happens inside one; `row` and `write`
//! are how jobs look on disk; `names` are their numbers; `push` notifies other processes, and `listen`
//! receives their notifications; `watch` looks for what nobody notified; `connections` lends connections to `hosts`, each `bounded` by a
//! deadline.
//!
//! Invariant: no claim or settlement trusts a caller's clock, and nothing waits for a caller's own
//! transaction.

mod alerts;
mod bounded;
mod checkup;
mod claim;
mod connections;
mod counts;
mod dead;
mod effects;
mod ends;
mod enqueue;
mod error;
mod gather;
mod heads;
mod hosts;
mod idempotency;
mod inbox;
mod keys;
mod leases;
mod limit;
mod listen;
mod look;
mod moving;
mod names;
mod opening;
mod operate;
mod options;
mod parts;
mod push;
mod read;
mod record;
mod restored;
mod row;
mod schedules;
mod schema;
mod settle;
mod sql;
mod store;
mod straight;
mod trail;
mod tries;
mod tx;
mod unreadable;
mod warm;
mod watch;
mod workers;
mod write;

pub use hosts::TargetSessionAttrs;
pub use inbox::{settle_in, settle_in_with, trigger_in, trigger_in_silently};
pub use options::PostgresOptions;
pub use store::PostgresStore;

/// The README's examples run as documentation tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
