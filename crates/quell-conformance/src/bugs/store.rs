//! The model store with one bug.
//!
//! Events of the model are a draft: they are changed, dropped or recorded as a store with the bug would
//! have done. So simulations can judge it by its events alone.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use futures_util::{FutureExt, stream};
use quell_core::history::{Event, History, Sink};
use quell_core::schedule::CatchUp;
use quell_core::{
    Answer, Batch, Capabilities, Effect, EffectName, EndNotification, Error, ErrorKind, Job,
    JobFilter, JobId, JobState, Key, Lease, MemoryStore, Now, Operation, Receipt, Result,
    ScheduleName, Settled, SettledAs, Settlement, Store, TaskName, Timestamp, Wakeups,
};

use super::{Bend, Bug};

/// Keeps the model's events until they are recorded or dropped.
#[derive(Clone, Debug, Default)]
struct Draft(Arc<Mutex<Vec<Event>>>);

impl History for Draft {
    fn record(&self, event: &Event) {
        locked(&self.0).push(event.clone());
    }
}

/// Drops events.
#[derive(Debug)]
struct Unrecorded;

impl History for Unrecorded {
    fn record(&self, _: &Event) {}
}

/// A store with a bug.
#[derive(Debug)]
pub struct Buggy {
    bug: &'static Bug,
    pub(super) inner: MemoryStore,
    draft: Draft,
    pub(super) sink: Sink,
    memory: Mutex<Memory>,
}

/// What bugs remember from one call to the next.
#[derive(Debug, Default)]
pub(super) struct Memory {
    /// How often something was counted.
    pub(super) count: u64,
    /// The tasks of all triggers.
    pub(super) tasks: BTreeSet<TaskName>,
    /// Keys that calls in flight have marked.
    pub(super) marked: BTreeSet<Key>,
    /// Dedup keys that calls took which failed.
    pub(super) burned: BTreeMap<(TaskName, Key), JobId>,
    /// The partition of each key's first trigger.
    pub(super) partitions: BTreeMap<Key, Option<Key>>,
    /// How many slots are leaked.
    pub(super) leaked: usize,
    /// Jobs to which the bug happened already.
    pub(super) had: BTreeSet<JobId>,
    /// Windows of whose due time no worker is notified.
    pub(super) disarmed: BTreeSet<JobId>,
    /// A job that has succeeded, which absorbs others.
    pub(super) elsewhere: Option<JobId>,
    /// How callers want schedules to catch up.
    pub(super) catch_up: BTreeMap<ScheduleName, CatchUp>,
    /// The last key of each effect's name.
    pub(super) effect_keys: BTreeMap<EffectName, Key>,
    /// The effects that were last listed of each job.
    pub(super) effects: BTreeMap<JobId, Vec<Effect>>,
}

impl Buggy {
    /// An empty store with this bug, which records its events in `sink`.
    #[must_use]
    pub fn new(bug: &'static Bug, now: Timestamp, sink: Sink) -> Self {
        let draft = Draft::default();
        let inner = MemoryStore::new(now).with_history(Arc::new(draft.clone()));
        Buggy { bug, inner, draft, sink, memory: Mutex::default() }
    }

    /// An empty store with this bug and without an event history.
    #[must_use]
    pub fn unrecorded(bug: &'static Bug, now: Timestamp) -> Self {
        Buggy::new(bug, now, Arc::new(Unrecorded))
    }

    pub(super) fn memory(&self) -> MutexGuard<'_, Memory> {
        locked(&self.memory)
    }

    /// Counts one more.
    pub(super) fn count(&self) -> u64 {
        let mut memory = self.memory();
        memory.count += 1;
        memory.count
    }

    /// True each third time.
    pub(super) fn each_third(&self) -> bool {
        self.count().is_multiple_of(3)
    }

    /// Changes the draft of events.
    pub(super) fn draft(&self, change: impl FnOnce(&mut Vec<Event>)) {
        change(&mut locked(&self.draft.0));
    }

    /// Records the draft, as this store would have written it.
    pub(super) fn record(&self) {
        let events = std::mem::take(&mut *locked(&self.draft.0));
        for mut event in events {
            for bend in self.bug.bends {
                if let Bend::Event(change) = bend {
                    change(self, &mut event);
                }
            }
            self.sink.record(&event);
        }
    }

    /// Makes a call of the model without a trace in the events.
    pub(super) fn unseen<R>(&self, call: impl Future<Output = Result<R>>) -> Result<R> {
        self.record();
        let answer = at_once(call);
        self.draft(Vec::clear);
        answer
    }

    /// The newest job of a key in this state.
    pub(super) fn of_key(
        &self,
        task: &TaskName,
        key: &Key,
        state: JobState,
    ) -> Result<Option<Job>> {
        let filter = JobFilter::default().task(task.clone()).key(key.clone()).state(state);
        Ok(at_once(self.inner.jobs(&filter))?.pop())
    }

    /// Performs an operation as this store does.
    fn perform(&self, now: Now, operation: Operation) -> Result<Answer> {
        for bend in self.bug.bends {
            if let Bend::Perform(perform) = bend
                && let Some(answer) = perform(self, now, &operation)
            {
                return answer;
            }
        }
        match operation {
            Operation::Enqueue { batches } => self.enqueue(now, batches).map(Answer::Enqueue),
            Operation::Settle { settlements } => self.settle(now, settlements).map(Answer::Settle),
            operation => at_once(self.inner.call(now, operation)),
        }
    }

    pub(super) fn enqueue(
        &self,
        now: Now,
        batches: Vec<Batch>,
    ) -> Result<Vec<Result<Vec<Receipt>>>> {
        let accepted = batches.into_iter().map(|batch| {
            let receipts = self.accept(now, batch);
            self.record();
            receipts
        });
        accepted.collect()
    }

    fn accept(&self, now: Now, mut batch: Batch) -> Result<Result<Vec<Receipt>>> {
        for bend in self.bug.bends {
            match bend {
                Bend::Trigger(change) => {
                    batch.triggers.iter_mut().for_each(|trigger| change(self, trigger));
                }
                Bend::Batch(answer) => {
                    if let Some(receipts) = answer(self, now, &mut batch) {
                        return Ok(receipts);
                    }
                }
                _ => {}
            }
        }
        let mut accepted = at_once(self.inner.enqueue(now, vec![batch.clone()]))?;
        let mut receipts = accepted.pop().unwrap_or_else(|| Ok(Vec::new()));
        for bend in self.bug.bends {
            if let Bend::Receipts(change) = bend {
                change(self, now, &batch, &mut receipts);
            }
        }
        Ok(receipts)
    }

    fn settle(&self, now: Now, settlements: Vec<Settlement>) -> Result<Vec<Settled>> {
        let mut settled = Vec::with_capacity(settlements.len());
        for presented in settlements {
            let mut given = presented.clone();
            for bend in self.bug.bends {
                if let Bend::Settlement(change) = bend {
                    change(self, now, &mut given)?;
                }
            }
            let Some(mut one) = at_once(self.inner.settle(now, vec![given]))?.pop() else {
                continue;
            };
            one.lease = presented.lease;
            self.draft(|events| {
                for event in events {
                    if let Event::Settle { token, .. } = event {
                        *token = presented.lease.token;
                    }
                }
            });
            self.record();
            if presented.outcome.is_success() && one.became == SettledAs::Succeeded {
                self.record_effect(presented.lease);
            }
            for bend in self.bug.bends {
                if let Bend::Settled(act) = bend {
                    act(self, now, &presented, &mut one)?;
                }
            }
            settled.push(one);
        }
        Ok(settled)
    }

    /// Records that an attempt's effect was committed.
    pub(super) fn record_effect(&self, Lease { job, token }: Lease) {
        self.sink.record(&Event::Effect { job, token, name: "ledger".to_owned() });
    }

    /// Events have the settings of queues as they were requested.
    fn record_as_requested(&self, requested: &Operation) {
        let Operation::SetQueue { settings, .. } = requested else { return };
        self.draft(|events| {
            for event in events {
                if let Event::Queue { settings: recorded, .. } = event {
                    recorded.clone_from(settings);
                }
            }
        });
    }
}

#[async_trait]
impl Store for Buggy {
    fn capabilities(&self) -> Capabilities {
        let claims = self.bug.bends.iter().find_map(|bend| match bend {
            Bend::Claims(claims) => Some(claims),
            _ => None,
        });
        let of_model = self.inner.capabilities();
        claims.map_or(of_model, |claims| claims(of_model))
    }

    async fn call(&self, now: Now, operation: Operation) -> Result<Answer> {
        let requested = operation.clone();
        let (mut now, mut operation) = (now, operation);
        for bend in self.bug.bends {
            match (bend, &mut operation) {
                (Bend::Ask(change), operation) => change(self, &mut now, operation),
                (Bend::Interleave(accept), Operation::Enqueue { batches }) => {
                    let accepted = accept(self, now, std::mem::take(batches)).await;
                    return accepted.map(Answer::Enqueue);
                }
                _ => {}
            }
        }
        let mut answer = self.perform(now, operation);
        self.record_as_requested(&requested);
        for bend in self.bug.bends {
            if let Bend::Answer(change) = bend {
                answer = change(self, now, &requested, answer);
            }
        }
        self.record();
        answer
    }

    fn wakeups(&self) -> Wakeups {
        if self.bug.bends.iter().any(|bend| matches!(bend, Bend::NoWakeups)) {
            return Box::pin(stream::pending());
        }
        self.inner.wakeups()
    }

    fn transaction_committed(&self) {
        self.inner.transaction_committed();
    }

    fn ended(&self, job: JobId) -> EndNotification {
        if self.bug.bends.iter().any(|bend| matches!(bend, Bend::NoEnds)) {
            return Box::pin(std::future::pending());
        }
        self.inner.ended(job)
    }
}

/// The answer to a call of the model, which waits for nothing.
pub(super) fn at_once<R>(call: impl Future<Output = Result<R>>) -> Result<R> {
    call.now_or_never().unwrap_or_else(|| {
        Err(Error::new(ErrorKind::Internal, "a store in memory did not answer at once"))
    })
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
