//! The Quell store on SQLite: the embedded default.
//!
//! Everything is one file, in WAL mode, fully synchronous unless asked otherwise. Several
//! processes may share it: writes are serialised by SQLite's own lock, and each process notices
//! the others' commits by `PRAGMA data_version`. Concurrent triggers of one process share a commit
//! (see the client's batcher), which makes durable triggers cheap.
//!
//! Where to read: `store` opens a file and holds the engine; `backend` is what the engine needs, and `load`,
//! `scan` and `commit` are rows by name, indexes and changes. `tx` opens a write transaction and gives it
//! ids and the time. In `hot` is what clients and workers do all the time; `inbox` and `ending` are for
//! callers' own transactions. `counts` counts what transactions change; `row`, `write`, `keys` and `others`
//! are how rows look on disk; `names` are numbers of names, with their settings.
//!
//! What is fast here is fast for one reason: each statement is a trip to the thread of its
//! connection, so calls make few trips, with many rows each, and bind few values for a row.
//!
//! Invariant: no write happens outside `tx`, and no claim or settlement trusts a caller's clock.

mod backend;
mod backlog;
mod backup;
mod checkup;
mod clock;
mod commit;
mod counts;
mod ending;
mod error;
mod files;
mod hot;
mod inbox;
mod keys;
mod load;
mod names;
mod options;
mod others;
mod restore;
mod restored;
mod row;
mod scan;
mod schema;
mod store;
mod turns;
mod tx;
mod wal;
mod watch;
mod write;

pub use backup::{Backup, BackupOptions, BackupProgress};
#[doc(hidden)]
pub use clock::ClockOffset;
pub use ending::settle_in;
pub use inbox::trigger_in;
#[doc(hidden)]
pub use options::StepCounter;
pub use options::{SqliteOptions, Synchronous};
pub use restore::{RestoreOptions, Restored};
pub use store::SqliteStore;

/// The README's examples run as documentation tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
