//! The rules' own store, in memory: the oracle that other stores are compared with, and enough to
//! run workers on in tests.
//!
//! It keeps nothing through a restart and has no clock: without a `now` it uses the highest time it
//! was ever given. `call` takes the operations, `state` has the rows, `indexes` what follows from
//! them, `limits` the settings, `line` the order of jobs, `effects` the records of attempts, `alerts`
//! the states of alerts. `moves` changes them and `adjust` does what an operator asks for. `dead` has
//! the dead ones, `results` their outcomes, `workers` the worker rows, `rows` shows them to `accept`,
//! `schedules` makes ticks into triggers, `snapshot` sets them beside others. `part` lends all of it to
//! stores that keep their rows elsewhere.

mod adjust;
mod alerts;
mod backlog;
mod call;
mod dead;
mod effects;
mod explain;
mod indexes;
mod limits;
mod line;
mod moves;
pub mod part;
mod results;
mod rows;
mod schedules;
mod snapshot;
mod state;
mod workers;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;

use crate::history::{Event, Sink};
use crate::store::no_such_job;
use crate::{
    Answer, Cancelled, Capabilities, EndHub, EndNotification, JobId, Now, Operation, Result, Store,
    Timestamp, WakeHub, Wakeups,
};
pub use snapshot::Snapshot;
use state::State;

/// A store that keeps everything in memory.
///
/// ```
/// use quell_core::{MemoryStore, Store, Timestamp};
///
/// let store = MemoryStore::new(Timestamp::from_secs(0));
/// assert!(store.capabilities().dedup);
/// ```
#[derive(Debug)]
pub struct MemoryStore {
    state: Mutex<State>,
    hub: WakeHub,
    ends: Arc<EndHub>,
    history: Option<Sink>,
}

impl MemoryStore {
    /// An empty store whose time is `now`.
    #[must_use]
    pub fn new(now: Timestamp) -> Self {
        MemoryStore::of(State::new(now))
    }

    /// A store that goes on from a snapshot, without an event history.
    #[must_use]
    pub fn restored(snapshot: &Snapshot) -> Self {
        MemoryStore::of(snapshot.state())
    }

    fn of(state: State) -> Self {
        let (hub, ends) = (WakeHub::new(), Arc::default());
        MemoryStore { state: Mutex::new(state), hub, ends, history: None }
    }

    /// Everything it keeps at this moment.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        Snapshot::of(&self.locked())
    }

    /// The same store, whose ids begin with `ids.next` and go on by `ids.step`: to be compared with
    /// a store of several shards.
    #[must_use]
    pub fn numbered(self, ids: part::Ids) -> Self {
        let mut state = self.locked();
        (state.next_id, state.id_step) = (ids.next, ids.step);
        drop(state);
        self
    }

    /// The same store with an event history.
    #[must_use]
    pub fn with_history(self, sink: Sink) -> Self {
        self.locked().has_history = true;
        MemoryStore { history: Some(sink), ..self }
    }

    /// Runs one atomic step at `now`, then publishes what it changed.
    fn step<R>(&self, now: Now, step: impl FnOnce(&mut State) -> R) -> R {
        let mut state = self.locked();
        state.set_now(now);
        let answer = step(&mut state);
        state.know_met();
        let (wakes, events) = state.take_notifications();
        let (next_tick, ended) = (state.next_tick.take(), std::mem::take(&mut state.ended));
        let cancelled = std::mem::take(&mut state.cancelled);
        if let Some(history) = &self.history {
            events.iter().for_each(|event| history.record(event));
        }
        drop(state);
        for (queue, due) in wakes {
            self.hub.wake(Some(&queue), due);
        }
        if let Some(due) = next_tick {
            self.hub.wake(None, due);
        }
        cancelled.into_iter().for_each(|job| self.hub.cancelled(Cancelled::Job(job)));
        self.ends.notify(ended);
        answer
    }

    fn locked(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl Store for MemoryStore {
    fn capabilities(&self) -> Capabilities {
        Capabilities::all().with_transactions(false).with_timed(false)
    }

    async fn call(&self, now: Now, operation: Operation) -> Result<Answer> {
        self.take(now, operation)
    }

    fn wakeups(&self) -> Wakeups {
        self.hub.subscribe()
    }

    fn ended(&self, job: JobId) -> EndNotification {
        self.ends.wait_for(job)
    }
}
