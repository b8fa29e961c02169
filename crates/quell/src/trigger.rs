//! Triggers: options of one call, calls without types, and calls inside your own transaction.
//!
//! [`Quell::trigger`](crate::Quell::trigger) returns a [`Trigger`], which is awaited after options.
//! Servers and bridges whose tasks are data make a [`NewTrigger`] from a [`TaskPolicy`] and give it
//! to [`Quell::enqueue`](crate::Quell::enqueue).
//!
//! ```
//! use quell::trigger::{NewTrigger, TriggerId};
//! use quell::{Batch, Payload, QueueName, Receipt, TaskName};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> quell::Result<()> {
//! let quell = quell::Quell::open("memory:").await?;
//! let (task, queue) = (TaskName::new("report")?, QueueName::new("default")?);
//! let trigger = NewTrigger::new(task, queue, Payload::encode("all")?);
//! let receipts = quell.enqueue(Batch::one(trigger)).await?;
//! let first: Option<TriggerId> = receipts[0].trigger();
//! assert!(first.is_some() && matches!(receipts[0], Receipt::Accepted { .. }));
//! # Ok(())
//! # }
//! ```

pub use quell_core::dedup::Dedup;
pub use quell_core::idempotency::{Conflict, Fingerprint, Idempotency};
pub use quell_core::payload::{COLLECT_CAP, MAX_PAYLOAD_BYTES};
pub use quell_core::trace::{TraceContext, Traces};
pub use quell_core::trigger::{Keyed, MAX_BATCH_BYTES};
pub use quell_core::window::{Debounce, Thresholds};
pub use quell_core::{Limits, NewTrigger, TriggerId};

pub use crate::client::DedupFallback;
#[cfg(any(feature = "sqlite", feature = "postgres"))]
pub use crate::client::after_commit::AfterCommit;
pub use crate::client::call::{Trigger, TriggerMany};
#[cfg(any(feature = "sqlite", feature = "postgres"))]
pub use crate::client::transaction::{Database, SettlingDatabase};
pub use crate::handler::policy::TaskPolicy;
