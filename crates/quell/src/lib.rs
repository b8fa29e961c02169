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
//!
//! # Where things are
//!
//! The root has what nearly every program names. The rest is in a module by subject:
//!
//! | to | see |
//! | --- | --- |
//! | set options of a trigger, trigger without types or in a transaction | [`trigger`] |
//! | write handlers; judge their errors; call the outside once | [`handler`], [`failure`], [`effect`] |
//! | run workers and list them | [`worker`] |
//! | find and explain jobs; handle dead ones | [`job`], [`dead`] |
//! | limit and pause queues; run tasks by the clock | [`queue`], [`schedule`] |
//! | test with virtual time | [`testing`], [`clock`] |
//! | keep payloads from the eyes of the store | [`encryption`] |
//! | watch a store | [`alert`], [`checkup`], [`history`] |
//! | open a store with options of its own; write one | `sqlite`, `postgres`, `redis`, `azure`; [`store`] |

pub mod alert;
pub mod checkup;
pub mod clock;
pub mod dead;
pub mod effect;
pub mod encryption;
pub mod failure;
pub mod handler;
pub mod history;
pub mod job;
pub mod queue;
pub mod schedule;
pub mod store;
pub mod testing;
pub mod trigger;
pub mod worker;

mod client;
mod metrics;
mod operator;
#[cfg(feature = "opentelemetry")]
mod otel;
mod random;
mod spans;

#[cfg(feature = "azure")]
pub use quell_azure as azure;
pub use quell_core::dedup::HoldUntil;
pub use quell_core::edge::Edge;
pub use quell_core::idempotency::DerivedKey;
pub use quell_core::retry::{Jitter, Retry};
#[doc(inline)]
pub use quell_core::semantics;
pub use quell_core::window::Debounce;
pub use quell_core::{
    Batch, Error, ErrorKind, Fold, Job, JobId, JobResult, JobState, Key, Payload, Priority,
    QueueName, Receipt, Result, TaskName, Timestamp, When,
};
#[cfg(feature = "postgres")]
pub use quell_postgres as postgres;
#[cfg(feature = "redis")]
pub use quell_redis as redis;
#[cfg(feature = "sqlite")]
pub use quell_sqlite as sqlite;

pub use client::{Quell, QuellBuilder};
#[doc(inline)]
pub use handler::Collected;
pub use handler::around::{Around, Next};
pub use handler::ctx::Ctx;
pub use handler::effects::Once;
pub use handler::policy::{DEFAULT_QUEUE, DEFAULT_TIMEOUT, Policy};
pub use handler::task::{Task, TaskError};
#[doc(inline)]
pub use worker::WorkerBuilder;

/// The README's examples run as documentation tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
