//! Group commit: concurrent triggers ride in one store call.
//!
//! While a call is under way the next batch gathers. A store that is worth several calls at a time
//! gets each caller's share of them: it works on one while this process makes the next. There is no
//! timer, so a lone trigger pays nothing, and every caller still waits until its own trigger is
//! durable (R1). One owned task per client does it; a caller that gives up waiting loses the answer,
//! never the trigger of another.

use std::collections::VecDeque;
use std::sync::Arc;

use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
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
    let mut line = Line::of(store.enqueues_at_once());
    let mut calls = FuturesUnordered::new();
    loop {
        tokio::select! {
            biased;
            Some(answered) = calls.next() => line.answered(answered),
            received = receiver.recv() => match received {
                Some(one) => line.waiting.push_back(one),
                // What is under way is of callers that have gone.
                None => return,
            },
        }
        gather(&mut receiver, &mut line).await;
        while let Some(group) = line.next_call() {
            let (store, clock, callers) = (store.as_ref(), clock.as_ref(), group.len());
            calls.push(async move {
                flush(store, clock, group).await;
                callers
            });
            // The store has it before the next one is made.
            if let Some(Some(answered)) = calls.next().now_or_never() {
                line.answered(answered);
            }
            tokio::task::yield_now().await;
        }
    }
}

/// Callers that the last call answered are about to trigger again: lets them run while more come.
async fn gather(receiver: &mut mpsc::Receiver<Waiting>, line: &mut Line) {
    loop {
        let before = line.waiting.len();
        tokio::task::yield_now().await;
        while line.waiting.len() < QUEUE {
            match receiver.try_recv() {
                Ok(one) => line.waiting.push_back(one),
                Err(_) => break,
            }
        }
        if line.waiting.len() == before || line.waiting.len() >= QUEUE {
            return;
        }
    }
}

/// Who waits for a call, and who is under way.
#[derive(Debug)]
struct Line {
    /// How many calls the store is worth at a time, and how many there are.
    at_once: usize,
    calls: usize,
    /// Callers of these calls.
    under_way: usize,
    waiting: VecDeque<Waiting>,
}

impl Line {
    fn of(at_once: usize) -> Self {
        Line { at_once: at_once.max(1), calls: 0, under_way: 0, waiting: VecDeque::new() }
    }

    /// A call of so many is over.
    fn answered(&mut self, callers: usize) {
        self.calls = self.calls.saturating_sub(1);
        self.under_way = self.under_way.saturating_sub(callers);
    }

    /// Who goes to the store now.
    ///
    /// Each call gets its share of all that wait or are under way: were the first to take all of
    /// them, callers and store would wait for each other in turn, for ever. What is far from a share
    /// waits for the call that is under way, and grows meanwhile: a call has its price whatever is
    /// in it.
    fn next_call(&mut self) -> Option<Vec<Waiting>> {
        let here = self.waiting.len();
        let share = self.under_way.saturating_add(here).div_ceil(self.at_once);
        let is_worth_a_call = self.calls == 0 || here.saturating_mul(4) >= share.saturating_mul(3);
        if here == 0 || self.calls >= self.at_once || !is_worth_a_call {
            return None;
        }
        let (mut group, mut triggers) = (Vec::new(), 0_usize);
        while let Some(next) = self.waiting.front() {
            triggers = triggers.saturating_add(next.batch.triggers.len());
            if !group.is_empty() && (group.len() >= share || triggers > MAX_TRIGGERS) {
                break;
            }
            group.extend(self.waiting.pop_front());
        }
        self.under_way = self.under_way.saturating_add(group.len());
        self.calls = self.calls.saturating_add(1);
        Some(group)
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use quell_core::{Payload, QueueName, TaskName};

    fn come(line: &mut Line, callers: usize, triggers: usize) {
        let (task, queue) = (TaskName::new("t").unwrap(), QueueName::new("q").unwrap());
        let trigger = NewTrigger::new(task, queue, Payload::from_stored("1"));
        for _ in 0..callers {
            let (answer, _) = oneshot::channel();
            let batch = Batch { triggers: vec![trigger.clone(); triggers], dedup: None };
            line.waiting.push_back(Waiting { batch, answer });
        }
    }

    /// How many callers go, by call.
    fn go(line: &mut Line) -> Vec<usize> {
        std::iter::from_fn(|| line.next_call()).map(|group| group.len()).collect()
    }

    #[test]
    fn one_call_at_a_time_takes_all_who_wait() {
        let mut line = Line::of(1);
        come(&mut line, 1, 1);
        assert_eq!(go(&mut line), [1], "a lone trigger waits for nobody");
        come(&mut line, 31, 1);
        assert_eq!(go(&mut line), [0; 0], "one is under way");
        line.answered(1);
        come(&mut line, 1, 1);
        assert_eq!(go(&mut line), [32]);
        line.answered(32);
        assert_eq!(go(&mut line), [0; 0]);
    }

    #[test]
    fn two_calls_at_a_time_share_who_waits() {
        let mut line = Line::of(2);
        come(&mut line, 32, 1);
        assert_eq!(go(&mut line), [16, 16], "not all in the first");
        line.answered(16);
        come(&mut line, 10, 1);
        assert_eq!(go(&mut line), [0; 0], "most of its callers are on their way");
        come(&mut line, 6, 1);
        assert_eq!(go(&mut line), [16]);
        line.answered(16);
        line.answered(16);
        come(&mut line, 3, 1);
        assert_eq!(go(&mut line), [2, 1], "nobody else is there");
    }

    #[test]
    fn a_large_batch_holds_up_no_lone_trigger_where_two_calls_may_go() {
        let mut line = Line::of(2);
        come(&mut line, 1, MAX_TRIGGERS);
        assert_eq!(go(&mut line), [1]);
        come(&mut line, 1, 1);
        assert_eq!(go(&mut line), [1]);
    }

    #[test]
    fn a_call_has_a_bound_unless_one_batch_is_larger() {
        let mut line = Line::of(1);
        come(&mut line, 1, MAX_TRIGGERS + 1);
        come(&mut line, 15, MAX_TRIGGERS / 10);
        for expected in [1, 10, 5] {
            assert_eq!(go(&mut line), [expected]);
            line.answered(expected);
        }
    }
}
