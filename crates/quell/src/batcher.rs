//! Group commit: concurrent triggers ride in one store call.
//!
//! While one call is in flight the next batch gathers. There is no timer, so a lone trigger pays
//! nothing, and every caller still waits until its own trigger is durable (R1). One owned task per
//! client does it; a caller that gives up waiting loses the answer, never the trigger of another.

use std::sync::Arc;

use quell_core::{Batch, Error, ErrorKind, NewTrigger, Receipt, Result, Store};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;

use crate::Clock;
use crate::metrics::Tally;

/// Callers that may wait for the batcher at once; more wait for a place.
const QUEUE: usize = 4_096;
/// The most triggers in one store call, unless one batch alone is larger.
const MAX_TRIGGERS: usize = 10_000;

/// One caller's batch and where its answer goes.
#[derive(Debug)]
struct Waiting {
    batch: Batch,
    answer: oneshot::Sender<Result<Vec<Receipt>>>,
}

/// The client's end.
#[derive(Debug)]
pub(crate) struct Batcher {
    sender: mpsc::Sender<Waiting>,
    // Owned so that it ends with the client.
    _task: JoinSet<()>,
}

impl Batcher {
    /// Starts the flushing task on the current runtime.
    pub(crate) fn start(store: Arc<dyn Store>, clock: Arc<dyn Clock>) -> Self {
        let (sender, receiver) = mpsc::channel(QUEUE);
        let mut task = JoinSet::new();
        task.spawn(flush_all(store, clock, receiver));
        Batcher { sender, _task: task }
    }

    /// Accepts a batch; returns once it is durable or refused.
    ///
    /// Dropping the future before it ends leaves the outcome unknown to the caller.
    pub(crate) async fn enqueue(&self, batch: Batch) -> Result<Vec<Receipt>> {
        let (answer, receipts) = oneshot::channel();
        self.sender.send(Waiting { batch, answer }).await.map_err(|_| closed())?;
        receipts.await.map_err(|_| closed())?
    }
}

fn closed() -> Error {
    Error::new(
        ErrorKind::UnknownOutcome,
        "the client's runtime shut down before the trigger was answered: it may have been accepted",
    )
}

async fn flush_all(
    store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
    mut receiver: mpsc::Receiver<Waiting>,
) {
    let mut waiting = Vec::new();
    while receiver.recv_many(&mut waiting, QUEUE).await > 0 {
        gather(&mut receiver, &mut waiting).await;
        for group in into_groups(std::mem::take(&mut waiting)) {
            flush(store.as_ref(), clock.as_ref(), group).await;
        }
    }
}

/// Callers that the last flush answered are about to trigger again: lets them run while more come.
async fn gather(receiver: &mut mpsc::Receiver<Waiting>, waiting: &mut Vec<Waiting>) {
    loop {
        let before = waiting.len();
        tokio::task::yield_now().await;
        while waiting.len() < QUEUE {
            match receiver.try_recv() {
                Ok(one) => waiting.push(one),
                Err(_) => break,
            }
        }
        if waiting.len() == before || waiting.len() >= QUEUE {
            return;
        }
    }
}

/// Splits what waits so that no store call is larger than it may be.
fn into_groups(waiting: Vec<Waiting>) -> Vec<Vec<Waiting>> {
    let mut groups = vec![Vec::new()];
    let mut size = 0;
    for one in waiting {
        let triggers = one.batch.triggers.len();
        if size > 0 && size + triggers > MAX_TRIGGERS {
            groups.push(Vec::new());
            size = 0;
        }
        size += triggers;
        if let Some(group) = groups.last_mut() {
            group.push(one);
        }
    }
    groups
}

async fn flush(store: &dyn Store, clock: &dyn Clock, group: Vec<Waiting>) {
    let (batches, answers): (Vec<Batch>, Vec<_>) =
        group.into_iter().map(|one| (one.batch, one.answer)).unzip();
    let names: Vec<Vec<_>> = batches.iter().map(|batch| names(&batch.triggers)).collect();
    match store.enqueue(clock.store_time(), batches).await {
        Ok(accepted) => {
            let mut tally = Tally::default();
            for (names, receipts) in names.iter().zip(&accepted) {
                for ((queue, task), receipt) in names.iter().zip(receipts.iter().flatten()) {
                    tally.add(queue, task, receipt);
                }
            }
            tally.emit();
            for (answer, receipts) in answers.into_iter().zip(accepted) {
                // A caller that stopped waiting has no use for its receipts.
                let _unheard = answer.send(receipts);
            }
        }
        Err(error) => {
            for answer in answers {
                let _unheard = answer.send(Err(error.share()));
            }
        }
    }
}

fn names(triggers: &[NewTrigger]) -> Vec<(quell_core::QueueName, quell_core::TaskName)> {
    triggers.iter().map(|trigger| (trigger.queue.clone(), trigger.task.clone())).collect()
}
