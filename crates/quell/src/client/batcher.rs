//! Group commit: concurrent triggers ride in one store call.
//!
//! While a call is in flight the next batch gathers. Where a store takes several concurrent calls,
//! each gets its share of the callers: the store works on one while this process makes the next.
//! There is no timer, so a lone trigger pays nothing, and every caller still waits until its own
//! trigger is durable (R1). One owned task per client does it; a caller that gives up waiting loses
//! the answer, never the trigger of another.

use std::collections::VecDeque;
use std::sync::Arc;

use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use quell_core::{Batch, Error, ErrorKind, NewTrigger, Receipt, Result, Store};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;

use crate::clock::Clock;
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
    /// Dropping the future before it ends leaves the outcome unknown to the caller, and also
    /// whether it happens before or after what is triggered next: only a caller that waits knows
    /// the order.
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
    receiver: mpsc::Receiver<Waiting>,
) {
    let call = |group| flush(store.as_ref(), clock.as_ref(), group);
    serve(|| store.concurrent_enqueues(), receiver, call).await;
}

/// Takes callers in and makes store calls, until no more callers can come.
async fn serve<C: Future<Output = ()>>(
    at_once: impl Fn() -> usize,
    mut receiver: mpsc::Receiver<Waiting>,
    call: impl Fn(Vec<Waiting>) -> C,
) {
    let mut line = Line::of(1);
    let mut calls = FuturesUnordered::new();
    loop {
        tokio::select! {
            biased;
            Some(callers) = calls.next() => line.answered(callers),
            // Backpressure: while no call can be made, callers wait in the channel.
            received = receiver.recv(), if line.may_call() => match received {
                Some(one) => line.waiting.push_back(one),
                // The calls in flight are of callers that have gone.
                None => return,
            },
        }
        gather(&mut receiver, &mut line).await;
        line.at_once = at_once().max(1);
        while let Some(group) = line.next_call() {
            let callers = group.len();
            let call = call(group);
            calls.push(async move {
                call.await;
                callers
            });
            // The store gets it before the next one is made.
            if let Some(Some(callers)) = calls.next().now_or_never() {
                line.answered(callers);
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
        let here = line.waiting.len();
        // The callers in flight wait for an answer, too.
        let is_enough = line.calls > 0 && here >= line.share();
        if here == before || here >= QUEUE || is_enough {
            return;
        }
    }
}

/// The callers that wait for a call, and the calls in flight.
#[derive(Debug)]
struct Line {
    /// How many calls the store is worth at a time, as it said last.
    at_once: usize,
    calls: usize,
    /// Callers of these calls.
    in_flight: usize,
    waiting: VecDeque<Waiting>,
}

impl Line {
    fn of(at_once: usize) -> Self {
        Line { at_once, calls: 0, in_flight: 0, waiting: VecDeque::new() }
    }

    fn may_call(&self) -> bool {
        self.calls < self.at_once && self.waiting.len() < QUEUE
    }

    /// How many of all callers that wait or are in flight one call should have.
    fn share(&self) -> usize {
        self.in_flight.saturating_add(self.waiting.len()).div_ceil(self.at_once)
    }

    /// A call with this number of callers is over.
    fn answered(&mut self, callers: usize) {
        self.calls = self.calls.saturating_sub(1);
        self.in_flight = self.in_flight.saturating_sub(callers);
    }

    /// Who goes to the store now.
    ///
    /// Each call gets its share: were the first to take all callers, callers and store would wait
    /// for each other in turn, for ever. A batch that is far from a share waits for the call in
    /// flight and grows meanwhile, as each call has a fixed cost.
    fn next_call(&mut self) -> Option<Vec<Waiting>> {
        let (here, share) = (self.waiting.len(), self.share());
        let least = self.in_flight.saturating_add(here) / self.at_once;
        let is_worth_a_call = self.calls == 0 || here.saturating_mul(4) >= least.saturating_mul(3);
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
        self.in_flight = self.in_flight.saturating_add(group.len());
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
                let _dropped = answer.send(receipts);
            }
        }
        Err(error) => {
            for answer in answers {
                let _dropped = answer.send(Err(error.share()));
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
        assert_eq!(go(&mut line), [1], "a lone trigger does not wait");
        come(&mut line, 31, 1);
        assert_eq!(go(&mut line), [0; 0], "one is in flight");
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
        come(&mut line, 8, 1);
        assert_eq!(go(&mut line), [0; 0], "half of its callers are on their way");
        come(&mut line, 8, 1);
        assert_eq!(go(&mut line), [16]);
        line.answered(16);
        line.answered(16);
        come(&mut line, 3, 1);
        assert_eq!(go(&mut line), [2, 1], "there are no other callers");
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

    /// A call that came: how many callers it has, and what ends it.
    type Came = (usize, oneshot::Sender<()>);

    /// Serves callers with calls that end when the test says so.
    fn start(
        at_once: usize,
    ) -> (mpsc::Sender<Waiting>, mpsc::UnboundedReceiver<Came>, JoinSet<()>) {
        let (sender, receiver) = mpsc::channel(QUEUE);
        let (came, calls) = mpsc::unbounded_channel();
        let call = move |group: Vec<Waiting>| {
            let (end, ended) = oneshot::channel();
            came.send((group.len(), end)).unwrap();
            async move {
                ended.await.unwrap();
                group.into_iter().for_each(|one| one.answer.send(Ok(Vec::new())).unwrap());
            }
        };
        let mut task = JoinSet::new();
        task.spawn(serve(move || at_once, receiver, call));
        (sender, calls, task)
    }

    /// This number of callers, each waiting for its answer.
    fn callers(sender: &mpsc::Sender<Waiting>, count: usize) -> JoinSet<()> {
        let mut callers = JoinSet::new();
        for _ in 0..count {
            let sender = sender.clone();
            callers.spawn(async move {
                let (answer, answered) = oneshot::channel();
                let batch = Batch { triggers: Vec::new(), dedup: None };
                sender.send(Waiting { batch, answer }).await.unwrap();
                assert_eq!(answered.await.unwrap().unwrap(), []);
            });
        }
        callers
    }

    #[tokio::test]
    async fn a_call_that_hangs_holds_up_only_who_is_in_it() {
        let (sender, mut calls, _task) = start(2);
        let first = callers(&sender, 8);
        let ((hanging, _end), (others, end)) =
            (calls.recv().await.unwrap(), calls.recv().await.unwrap());
        assert_eq!((hanging, others), (4, 4));
        end.send(()).unwrap();
        for _ in 0..3 {
            let mut more = callers(&sender, 4);
            let (count, end) = calls.recv().await.unwrap();
            assert_eq!(count, 4);
            end.send(()).unwrap();
            while let Some(answered) = more.join_next().await {
                answered.unwrap();
            }
        }
        assert_eq!(first.len(), 8);
        assert!(calls.try_recv().is_err(), "no caller waits");
    }

    #[tokio::test]
    async fn while_no_call_can_be_made_who_comes_is_kept_back() {
        for at_once in [1, 2] {
            let (sender, mut calls, _task) = start(at_once);
            let mut in_flight = Vec::new();
            for _ in 0..at_once {
                callers(&sender, 1).detach_all();
                in_flight.push(calls.recv().await.unwrap());
            }
            let mut came = 0;
            loop {
                let (answer, _) = oneshot::channel();
                let batch = Batch { triggers: Vec::new(), dedup: None };
                if sender.try_send(Waiting { batch, answer }).is_err() {
                    break;
                }
                came += 1;
                assert!(came <= 2 * QUEUE, "as many as there are wait");
                tokio::task::yield_now().await;
            }
        }
    }
}
