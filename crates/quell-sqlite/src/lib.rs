//! The Quell store on SQLite: the embedded default.
//!
//! Everything is one file, in WAL mode, fully synchronous unless asked otherwise. Several
//! processes may share it: writes are serialised by SQLite's own lock, and each process notices
//! the others' commits by `PRAGMA data_version`. Concurrent triggers of one process share a commit
//! (see the client's batcher), which makes durable triggers cheap.
//!
//! Where to read: `store` is the door; `clock` is the host's time, `tx` opens a write transaction and gives it ids and the
//! time; `look` (with `heads`) reads what is due, `enqueue` (with `keys`), `claim` (with `limit`), `settle`, `effects`, `operate`
//! and `schedules` are what happens inside one, and `tally` counts what they change; `row` and `write` are how jobs look on disk; `names`
//! are their numbers.
//!
//! What is fast here is fast for one reason: each statement is a trip to the thread of its
//! connection, so calls make few trips, with many rows each, and bind few values for a row.
//!
//! Invariant: no write happens outside `tx`, and no claim or settlement trusts a caller's clock.

mod alerts;
mod checkup;
mod claim;
mod clock;
mod dead;
mod effects;
mod ending;
mod enqueue;
mod error;
mod heads;
mod idempotency;
mod inbox;
mod keys;
mod limit;
mod look;
mod names;
mod operate;
mod options;
mod read;
mod record;
mod restored;
mod row;
mod schedules;
mod schema;
mod settle;
mod store;
mod tally;
mod tx;
mod unreadable;
mod wal;
mod watch;
mod workers;
mod write;

#[doc(hidden)]
pub use clock::ClockOffset;
pub use ending::{settle_in, settle_in_with};
pub use inbox::trigger_in;
#[doc(hidden)]
pub use options::StepCounter;
pub use options::{SqliteOptions, Synchronous};
pub use store::SqliteStore;

/// The README's examples run as documentation tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
