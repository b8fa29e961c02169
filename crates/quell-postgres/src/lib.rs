//! The Quell store on PostgreSQL: the store that services share.
//!
//! Everything lives in a schema of its own. Many processes write at once: rows are locked, never
//! tables, and always in the order of their ids, so that calls of different processes wait for each
//! other briefly and never in a circle. Whatever one statement can do is one statement, which is
//! its own transaction.
//!
//! Where to read: `store` is the public type; `backend` gives the engine of `quell-engine` its rows, with
//! `load`, `scan` and `commit` for its steps, and `hanging`, `keyed`, `settings` and `schedules` for the
//! kinds of rows; `hot` has the calls that are one statement of their own. `tx` opens a transaction and
//! gives it the time; `row` and `write` are how jobs look on disk; `names` are their numbers; `push`
//! notifies other processes, and `listen` receives their notifications; `watch` looks for triggers without
//! a notification; `connections` lends connections to `hosts`, each `bounded` by a deadline.
//!
//! Invariant: no claim or settlement trusts a caller's clock, and nothing waits for a caller's own
//! transaction.

#[macro_use]
mod calls;

mod alerts;
mod backend;
mod backlog;
mod bounded;
mod checkup;
mod commit;
mod connections;
mod counts;
mod dead;
mod drafts;
mod ends;
mod error;
mod hanging;
mod hosts;
mod hot;
mod idempotency;
mod inbox;
mod keyed;
mod keys;
mod leads;
mod leases;
mod listen;
mod load;
mod names;
mod options;
mod parts;
mod push;
mod read;
mod restored;
mod row;
mod scan;
mod schedules;
mod schema;
mod settings;
mod sql;
mod step;
mod store;
mod tries;
mod turns;
mod tx;
mod watch;
mod workers;
mod write;

pub use hosts::TargetSessionAttrs;
pub use inbox::{settle_in, trigger_in, trigger_in_silently};
pub use options::PostgresOptions;
pub use store::PostgresStore;

/// The README's examples run as documentation tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
