//! Queues and tasks as operators see them: pausing, concurrency limits and rates.
//!
//! ```
//! use std::time::Duration;
//! use quell::queue::{QueueSettings, Rate};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> quell::Result<()> {
//! let quell = quell::Quell::open("memory:").await?;
//! let rate = Rate { limit: 10, period: Duration::from_secs(1) };
//! quell.queue("mail").set(&QueueSettings::default().concurrency(4).rate(rate)).await?;
//! quell.queue("mail").pause().await?;
//! assert_eq!(quell.queue("mail").settings().await?.and_then(|mail| mail.concurrency), Some(4));
//! # Ok(())
//! # }
//! ```

pub use quell_core::backlog::Waiting;
pub use quell_core::{
    Backlog, PartitionBacklog, PartitionOrder, QueueInfo, QueueSettings, Rate, TaskInfo,
    TaskSettings,
};

pub use crate::operator::queues::Queue;
