//! The event history: what clients, workers and stores did, in order, for checkers and traces.
//!
//! Give a [`Sink`] to [`QuellBuilder::history`](crate::QuellBuilder::history) or
//! [`Quell::recorded`](crate::Quell::recorded).
//!
//! ```
//! use std::sync::Arc;
//! use std::sync::atomic::{AtomicUsize, Ordering};
//! use quell::history::{Event, History};
//!
//! #[derive(Debug, Default)]
//! struct Count(AtomicUsize);
//!
//! impl History for Count {
//!     fn record(&self, _: &Event) {
//!         self.0.fetch_add(1, Ordering::Relaxed);
//!     }
//! }
//!
//! # #[derive(serde::Serialize, serde::Deserialize)]
//! # struct Hello;
//! # impl quell::Task for Hello { const NAME: &'static str = "hello"; type Output = (); }
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> quell::Result<()> {
//! let count = Arc::new(Count::default());
//! let quell = quell::Quell::recorded("memory:", count.clone()).await?.build()?;
//! quell.trigger(Hello).await?;
//! assert!(count.0.load(Ordering::Relaxed) >= 2, "the call and its answer");
//! # Ok(())
//! # }
//! ```

pub use quell_core::history::{Event, History, Sink, WorkerTask};
