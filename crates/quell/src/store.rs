//! The contract between Quell and a store, for store authors.
//!
//! A [`Store`] takes an [`Operation`] and returns its [`Answer`], each one atomic step. Most stores
//! need not implement it: a [`engine::Backend`] keeps rows, and the [`engine::Engine`] is the store
//! on it, with every rule. `docs/write-a-store.md` shows both ways; the crate `quell-conformance`
//! has the suite that a store passes.
//!
//! Types that callers meet, too, such as [`Job`](crate::Job) and [`Timestamp`](crate::Timestamp),
//! are where callers find them. [`rules`] is the whole of `quell-core`: the rules as pure
//! functions, for stores that restate one in their own language. It changes more often than the
//! rest of this crate.
//!
//! ```
//! use std::sync::Arc;
//! use quell::{Quell, Timestamp};
//! use quell::clock::SystemClock;
//! use quell::store::{MemoryStore, Store};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> quell::Result<()> {
//! let store = Arc::new(MemoryStore::new(Timestamp::from_secs(0)));
//! assert!(store.capabilities().dedup);
//! let clock = Arc::new(SystemClock::for_store());
//! let quell = Quell::with_store(store).clock(clock).build()?;
//! # let _ = quell;
//! # Ok(())
//! # }
//! ```

pub use crate::client::observer::{Observer, Seen};
pub use quell_core as rules;
pub use quell_core::DeadJobs;
pub use quell_core::effect::EffectStart;
pub use quell_core::heartbeat::Heartbeat;
pub use quell_core::schedule::{Fired, Ticked};
pub use quell_core::{
    Answer, Call, Cancelled, Capabilities, Claim, Claimed, ClaimedJob, Draw, EndHub,
    EndNotification, ExpiredLease, Failure, FailureKind, Lease, LeaseToken, Location, MemoryStore,
    NextDue, Now, Operation, OperationKind, Outcome, Pruned, Renewal, Root, Scope, Settled,
    SettledAs, Settlement, Snapshot, Steps, Store, StoreId, Trouble, UnreadableJobs, WakeHub,
    Wakeup, Wakeups, dispatch, in_savepoint, lacks, no_such_job,
};
pub use quell_engine as engine;
