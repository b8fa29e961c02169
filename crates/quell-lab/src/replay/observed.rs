//! A store that forwards every call and counts the answers in the ledger.
//!
//! In virtual time wake-ups come from the driver instead of the store, and the worker's upkeep never
//! reaches the store: minutes and days lie between two events, so each event would cost a heartbeat,
//! a search for expired leases and one for unreadable jobs. Nothing is pruned at any speed: the jobs of a replay are its record.

use std::sync::Arc;

use async_trait::async_trait;
use quell_core::heartbeat::Beaten;
use quell_core::{
    Answer, Capabilities, EndNotification, JobId, Now, Operation, Pruned, Result, Store, Timestamp,
    Trouble, WakeHub, Wakeups, lacks,
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
    /// Answers the calls that a replay keeps from its store.
    fn left_out(&self, operation: &Operation) -> Option<Result<Answer>> {
        let is_virtual = self.hub.is_some();
        match operation {
            Operation::Prune { .. } => Some(Ok(Answer::Prune(Pruned::default()))),
            // The store's own schedules are no part of a trace.
            Operation::Tick { .. } => {
                Some(Err(lacks("schedules", "they do not fire during a replay")))
            }
            Operation::Heartbeat { .. } if is_virtual => {
                Some(Ok(Answer::Heartbeat(Beaten::default())))
            }
            Operation::Reap { .. } if is_virtual => Some(Ok(Answer::Reap(Vec::new()))),
            Operation::Unreadable { .. } if is_virtual => Some(Ok(Answer::Unreadable(Vec::new()))),
            _ => None,
        }
    }

    /// Wakes the worker in virtual time, where only the driver's hub does.
    fn wake_if(&self, again: bool) {
        if let (true, Some(hub)) = (again, &self.hub) {
            hub.wake(None, Timestamp::MIN);
        }
    }
}

#[async_trait]
impl Store for Observed {
    /// In virtual time no worker rests: it would leave the store and return with each event.
    fn capabilities(&self) -> Capabilities {
        let capabilities = self.inner.capabilities();
        Capabilities { timed: capabilities.timed && self.hub.is_none(), ..capabilities }
    }

    async fn call(&self, now: Now, operation: Operation) -> Result<Answer> {
        if let Some(answer) = self.left_out(&operation) {
            return answer;
        }
        if matches!(operation, Operation::Enqueue { .. }) {
            self.ledger.enqueuing();
        }
        let counts = matches!(
            operation,
            Operation::Enqueue { .. } | Operation::Claim { .. } | Operation::Settle { .. }
        );
        let answer = self.inner.call(now, operation).await;
        match &answer {
            Ok(Answer::Enqueue(all)) => {
                all.iter().flatten().for_each(|one| self.ledger.enqueued(one));
            }
            Ok(Answer::Claim(claimed)) => self.wake_if(self.ledger.claimed(claimed)),
            Ok(Answer::Settle(settled)) => self.wake_if(self.ledger.settled(settled)),
            Err(error) if counts => self.ledger.failed(error),
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

    fn trouble(&self) -> Option<Trouble> {
        self.inner.trouble()
    }

    async fn close(&self) -> Result<()> {
        self.inner.close().await
    }

    fn ended(&self, job: JobId) -> EndNotification {
        self.inner.ended(job)
    }
}
