//! Store calls that go on although the claim that made them has been dropped.

use std::fmt;
use std::future::Future;
use std::sync::{Mutex, PoisonError};

use tokio::runtime::Handle;
use tokio::task::JoinSet;

/// The calls in flight. They end with the runtime.
#[derive(Default)]
pub(super) struct Calls(Mutex<JoinSet<()>>);

impl fmt::Debug for Calls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Calls").finish_non_exhaustive()
    }
}

impl Calls {
    /// Begins a call. Outside of a runtime nothing can be done any more.
    pub(super) fn begin(&self, call: impl Future<Output = ()> + Send + 'static) {
        let Ok(runtime) = Handle::try_current() else { return };
        let mut calls = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        while calls.try_join_next().is_some() {}
        calls.spawn_on(call, &runtime);
    }

    /// Waits until no call is in flight; one may begin another.
    pub(super) async fn drained(&self) {
        loop {
            let mut calls =
                std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
            if calls.is_empty() {
                return;
            }
            while calls.join_next().await.is_some() {}
        }
    }
}
