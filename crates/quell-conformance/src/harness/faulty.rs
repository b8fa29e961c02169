//! A store one of whose calls fails, before it is done or after: the unknown outcome.

use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use quell_core::{
    Answer, Capabilities, EndNotification, Error, ErrorKind, JobId, Now, Operation, Result, Store,
    Wakeups,
};

/// Which call fails, counted from 0, and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NthCall {
    /// It fails and nothing was done.
    Before(u64),
    /// It is done, and its caller receives an unknown outcome.
    AfterDone(u64),
    /// It panics and nothing was done.
    Panics(u64),
    /// It is done, and then it panics.
    PanicsDone(u64),
}

impl NthCall {
    fn number(self) -> u64 {
        match self {
            NthCall::Before(number)
            | NthCall::AfterDone(number)
            | NthCall::Panics(number)
            | NthCall::PanicsDone(number) => number,
        }
    }
}

/// Fails one call of a store: try each in turn, until a run never reaches it.
///
/// ```
/// use quell_conformance::faulty::{Faulty, NthCall};
/// use quell_core::{MemoryStore, Timestamp};
///
/// let store = Faulty::new(MemoryStore::new(Timestamp::from_secs(0)), NthCall::AfterDone(3));
/// assert!(!store.was_reached());
/// ```
#[derive(Debug)]
pub struct Faulty<S> {
    inner: S,
    fails: NthCall,
    calls: AtomicU64,
}

impl<S: Store> Faulty<S> {
    /// A store whose call `fails`.
    #[must_use]
    pub fn new(inner: S, fails: NthCall) -> Self {
        Faulty { inner, fails, calls: AtomicU64::new(0) }
    }

    /// How many calls were made.
    #[must_use]
    pub fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    /// Whether the call was made.
    #[must_use]
    pub fn was_reached(&self) -> bool {
        self.calls() > self.fails.number()
    }

    async fn fail_nth<R>(&self, call: impl Future<Output = Result<R>> + Send) -> Result<R> {
        let number = self.calls.fetch_add(1, Ordering::Relaxed);
        if number != self.fails.number() {
            return call.await;
        }
        match self.fails {
            NthCall::Before(_) => {
                Err(Error::new(ErrorKind::Unavailable, "the call fails before it is done"))
            }
            NthCall::AfterDone(_) => {
                call.await?;
                Err(Error::new(ErrorKind::UnknownOutcome, "the call is done, and its answer lost"))
            }
            NthCall::Panics(_) => panic!("the call panics before it is done"),
            NthCall::PanicsDone(_) => {
                call.await?;
                panic!("the call is done, and panics")
            }
        }
    }
}

#[async_trait]
impl<S: Store> Store for Faulty<S> {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    async fn call(&self, now: Now, operation: Operation) -> Result<Answer> {
        self.fail_nth(self.inner.call(now, operation)).await
    }

    fn wakeups(&self) -> Wakeups {
        self.inner.wakeups()
    }

    fn transaction_committed(&self) {
        self.inner.transaction_committed();
    }

    fn ended(&self, job: JobId) -> EndNotification {
        self.inner.ended(job)
    }
}
