//! Wakes workers after a caller's own transaction has committed, in place of a notification within it.

use std::sync::Arc;

use quell_core::Store;

/// What a trigger within a transaction returns that does not notify: see
/// [`Trigger::within_silently`](crate::trigger::Trigger::within_silently).
///
/// One of several of the same transaction is enough. After a rollback, drop it.
#[derive(Clone, Debug)]
#[must_use = "call `wake` after the commit: without it, workers find the trigger by polling"]
pub struct AfterCommit {
    store: Arc<dyn Store>,
}

impl AfterCommit {
    pub(crate) fn new(store: Arc<dyn Store>) -> Self {
        AfterCommit { store }
    }

    /// The transaction has committed: wakes workers of this process at once, and notifies those of
    /// others in the background. It waits for nothing. Before the commit it would be of no use, as
    /// workers do not see the trigger yet.
    pub fn wake(self) {
        self.store.transaction_committed();
    }
}
