//! Dead jobs: finding, explaining, redriving, discarding, exporting and importing them.
//!
//! A job dies when its attempts are spent or its handler says that no retry will help. It stays until
//! it is redriven or discarded. [`Quell::dead`](crate::Quell::dead) has the commands;
//! [`UnreadableJob`] is a job whose row could not be decoded and was set aside.
//!
//! ```
//! use quell::dead::DeadFilter;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> quell::Result<()> {
//! let quell = quell::Quell::open("memory:").await?;
//! let timed_out = DeadFilter::default().error("timed out");
//! let progress = quell.dead().redrive_all(timed_out, 100)?.run().await?;
//! assert_eq!(progress.seen(), 0);
//! # Ok(())
//! # }
//! ```

pub use quell_core::dead::{MAX_REASON_BYTES, MAX_SEARCH_BYTES};
pub use quell_core::{
    DeadExport, DeadFilter, DeadPlace, Imported, Origin, Past, Redrive, UnreadableJob,
    UnreadablePage, exports,
};

pub use crate::operator::causes::{DeadCause, DeadCauses};
pub use crate::operator::dead::{BulkResult, Dead, Progress, RedriveAll, RedriveRate};
