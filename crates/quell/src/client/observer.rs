//! What a program sees of the calls that its client and workers make.

use std::fmt::Debug;

use quell_core::{Answer, Now, Operation};

/// Sees the answer of a call.
pub type Seen<'o> = Box<dyn FnOnce(&Answer) + Send + 'o>;

/// Sees the calls of a client's store, those of its workers too: for numbers and pictures of what flows.
/// It changes nothing. Its methods must be short: callers wait for them.
///
/// ```
/// use std::sync::Arc;
/// use std::sync::atomic::{AtomicU64, Ordering};
///
/// use quell::store::{Answer, MemoryStore, Now, Observer, Operation, Seen};
/// use quell::{Quell, Timestamp};
///
/// #[derive(Debug, Default)]
/// struct Claims(AtomicU64);
///
/// impl Observer for Claims {
///     fn call<'o>(&'o self, _: Now, operation: &Operation) -> Option<Seen<'o>> {
///         let Operation::Claim { .. } = operation else { return None };
///         Some(Box::new(|answer| {
///             if let Answer::Claim(claimed) = answer {
///                 self.0.fetch_add(claimed.jobs.len() as u64, Ordering::Relaxed);
///             }
///         }))
///     }
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> quell::Result<()> {
/// let store = Arc::new(MemoryStore::new(Timestamp::from_secs(0)));
/// let claims = Arc::new(Claims::default());
/// let quell = Quell::with_store(store).observer(claims.clone()).build()?;
/// # let _ = quell;
/// # Ok(())
/// # }
/// ```
pub trait Observer: Send + Sync + Debug + 'static {
    /// A call begins. What this returns sees its answer, unless the call fails or is dropped.
    fn call<'o>(&'o self, now: Now, operation: &Operation) -> Option<Seen<'o>>;
}
