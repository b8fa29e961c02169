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

use std::cell::Cell;

use quell_core::Timestamp;
pub use quell_core::history::{Event, History, Sink, WorkerTask};

thread_local! {
    static CALL: Cell<Option<Timestamp>> = const { Cell::new(None) };
}

/// When the store call was made that records an event, on the host's clock; none where no call records.
/// A [`History`] asks for it in [`record`](History::record). What others did after that moment the call
/// may have missed, however late it took its time.
///
/// A store that records from a thread of its own has none. One that holds events back until older calls
/// have recorded theirs, as that on Redis does, may have the time of a later call.
///
/// ```
/// assert_eq!(quell::history::call_made(), None);
/// ```
#[must_use]
pub fn call_made() -> Option<Timestamp> {
    CALL.get()
}

/// Runs a part of a call that was made at `since`.
pub(crate) fn within_call<R>(since: Timestamp, part: impl FnOnce() -> R) -> R {
    /// Restores what was before, after a panic too.
    struct Before(Option<Timestamp>);
    impl Drop for Before {
        fn drop(&mut self) {
            CALL.set(self.0);
        }
    }
    let _before = Before(CALL.replace(Some(since)));
    part()
}
