//! Durable background tasks that run **once per burst**.
//!
//! Triggers of one task and key that come in a burst share one run; Quell debounces,
//! deduplicates, limits, retries and records them, and keeps that promise through crashes.
//!
//! ```
//! use std::time::Duration;
//! use quell::{Ctx, Policy, Quell, Task, TaskError};
//! use serde::{Deserialize, Serialize};
//!
//! #[derive(Serialize, Deserialize)]
//! struct Reindex { page: u32 }
//!
//! impl Task for Reindex {
//!     const NAME: &'static str = "reindex";
//!     type Output = ();
//!     fn policy() -> Policy {
//!         Policy::default().debounce(Duration::from_millis(5)..=Duration::from_millis(50))
//!     }
//!     fn debounce_key(&self) -> Option<String> { Some(self.page.to_string()) }
//! }
//!
//! async fn reindex(task: Reindex, ctx: Ctx<tokio::sync::mpsc::Sender<u64>>) -> Result<(), TaskError> {
//!     Ok(ctx.state().send(ctx.triggers()).await?)
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> quell::Result<()> {
//! let quell = Quell::open("memory:").await?;
//! quell.trigger_many((0..3).map(|_| Reindex { page: 7 })).await?;
//! let (sender, mut runs) = tokio::sync::mpsc::channel(9);
//! let done = async { assert_eq!(runs.recv().await, Some(3)) };
//! quell.worker(sender).register(reindex).run_until(done).await
//! # }
//! ```
//!
//! Start with [`Task`] and [`Quell`]; [`testing`] runs a worker in virtual time. The promises,
//! rule by rule, are in [`semantics`].

#[cfg(any(feature = "sqlite", feature = "postgres"))]
mod after_commit;
mod aside;
mod batcher;
mod call;
mod causes;
mod client;
mod clock;
mod ctx;
mod deaths;
mod effects;
pub mod failure;
mod guard;
mod handler;
mod metrics;
mod open;
mod operate;
mod policy;
mod queues;
mod random;
mod result;
mod scheduled;
mod task;
pub mod testing;
#[cfg(any(feature = "sqlite", feature = "postgres"))]
mod transaction;

mod worker;
mod workers;

#[cfg(any(feature = "sqlite", feature = "postgres"))]
pub use after_commit::AfterCommit;
pub use call::{Trigger, TriggerMany};
pub use causes::{DeadCause, DeadCauses};
pub use client::{DedupFallback, Quell, QuellBuilder};
pub use clock::{Clock, SystemClock};
pub use ctx::Ctx;
pub use deaths::{Dead, Pace, Progress, RedriveAll, Swept};
pub use effects::{EffectCall, Once, OnceCall, Unverified, Verify};
pub use handler::{Collected, Handler, Input, RawOutput};
pub use open::{reset_clock, skip_ids};
pub use policy::{DEFAULT_QUEUE, DEFAULT_TIMEOUT, Policy, TaskPolicy};
#[cfg(feature = "azure")]
pub use quell_azure as azure;
pub use quell_core::dedup::{Dedup, HoldUntil};
pub use quell_core::edge::Edge;
pub use quell_core::idempotency::{DerivedKey, Idempotency};
pub use quell_core::poll::PollSettings;
pub use quell_core::retry::{Jitter, Retry};
pub use quell_core::schedule::{CatchUp, Schedule, ScheduleInfo, ScheduleState, Spec};
#[doc(inline)]
pub use quell_core::semantics;
pub use quell_core::trigger::Keyed;
pub use quell_core::window::{Debounce, DueReason, Thresholds, Window};
pub use quell_core::*;
#[cfg(feature = "postgres")]
pub use quell_postgres as postgres;
#[cfg(feature = "redis")]
pub use quell_redis as redis;
#[cfg(feature = "sqlite")]
pub use quell_sqlite as sqlite;
pub use queues::Queue;
pub use scheduled::ScheduleTask;
pub use task::{Task, TaskError};
#[cfg(any(feature = "sqlite", feature = "postgres"))]
pub use transaction::{Database, SettlingDatabase};
pub use worker::WorkerBuilder;

/// The README's examples run as documentation tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
