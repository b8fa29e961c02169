//! What a user of the library does, on the model store in virtual time and on SQLite for real.
#![expect(clippy::unwrap_used, clippy::panic, reason = "these are tests")]

mod anywhere;
mod around;
#[cfg(feature = "azure")]
mod azure;
mod cancels;
mod dead;
mod effects;
#[cfg(feature = "sqlite")]
mod encryption;
mod failures;
#[cfg(feature = "sqlite")]
mod faulty;
mod held;
mod leaves;
#[cfg(any(feature = "sqlite", feature = "postgres"))]
mod ledger;
mod lesser;
mod limits;
mod panics;
#[cfg(feature = "postgres")]
mod postgres;
mod pull;
#[cfg(any(feature = "sqlite", feature = "postgres"))]
mod pushed_results;
#[cfg(feature = "redis")]
mod redis;
mod rests;
mod results;
#[cfg(feature = "sqlite")]
mod run_twice;
mod schedules;
mod search;
mod seen;
#[cfg(any(feature = "sqlite", feature = "postgres"))]
mod settled_outputs;
mod spans;
mod sqlite;
mod task_thresholds;
mod tasks;
mod triggers;
mod virtual_time;
mod waiting;
