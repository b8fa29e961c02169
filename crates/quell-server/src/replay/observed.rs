//! A store that passes everything on and notes the answers in the ledger.
//!
//! In virtual time the driver says when something is due, so wake-ups come from it and not from the
//! store. Nothing is pruned: the jobs of a replay are its record.

use std::sync::Arc;

use async_trait::async_trait;
use quell_core::{
    Answer, Capabilities, Ended, JobId, Operation, Pruned, Result, Store, Timestamp, WakeHub,
    Wakeups, lacks,
};

use super::ledger::Ledger;

/// The wrapper.
#[derive(Debug)]
pub(super) struct Observed {
    pub(super) inner: Arc<dyn Store>,
    pub(super) ledger: Arc<Ledger>,
    /// The driver's wake-ups; none for the store's own.
    pub(super) hub: Option<Arc<WakeHub>>,
}

impl Observed {
    /// In virtual time, nobody but the driver's hub tells the worker to.
    fn look_again(&self, again: bool) {
        if let (true, Some(hub)) = (again, &self.hub) {
            hub.wake(None, Timestamp::MIN);
        }
    }
}

#[async_trait]
impl Store for Observed {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    async fn call(&self, now: Option<Timestamp>, operation: Operation) -> Result<Answer> {
        match operation {
            Operation::Prune { .. } => return Ok(Answer::Prune(Pruned::default())),
            // The store's own schedules are no part of what is replayed.
            Operation::Tick { .. } => {
                return Err(lacks("schedules", "they do not fire during a replay"));
            }
            Operation::Enqueue { .. } => self.ledger.enqueuing(),
            _ => {}
        }
        let notes = matches!(
            operation,
            Operation::Enqueue { .. } | Operation::Claim { .. } | Operation::Settle { .. }
        );
        let answer = self.inner.call(now, operation).await;
        match &answer {
            Ok(Answer::Enqueue(all)) => {
                all.iter().flatten().for_each(|one| self.ledger.enqueued(one));
            }
            Ok(Answer::Claim(claimed)) => self.look_again(self.ledger.claimed(claimed)),
            Ok(Answer::Settle(settled)) => self.look_again(self.ledger.settled(settled)),
            Err(error) if notes => self.ledger.failed(error),
            _ => {}
        }
        answer
    }

    fn wakeups(&self) -> Wakeups {
        self.hub.as_ref().map_or_else(|| self.inner.wakeups(), |hub| hub.subscribe())
    }

    fn transaction_committed(&self) {
        self.inner.transaction_committed();
    }

    fn ended(&self, job: JobId) -> Ended {
        self.inner.ended(job)
    }
}
