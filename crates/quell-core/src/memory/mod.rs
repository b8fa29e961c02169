//! The rules' own store, in memory: the oracle that other stores are compared with, and enough to
//! run workers on in tests.
//!
//! It keeps nothing through a restart and has no clock: without a `now` it uses the highest time it
//! was ever given. `state` has the rows, `indexes` what follows from them, `limits` the settings,
//! `line` the order of jobs, `effects` the records of attempts, `alerts` the states of alerts,
//! `moves` changes them and `adjust` does what an operator asks for, `dead` has the dead ones, `results` their outcomes, `workers` the worker
//! rows, `rows` shows them to `accept`, `schedules` makes ticks into triggers, `snapshot` sets them
//! beside others. `part` lends all of it to stores that keep their rows elsewhere.

mod adjust;
mod alerts;
mod dead;
mod effects;
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
use std::time::Duration;

use async_trait::async_trait;

use crate::accept::accept;
use crate::alert::{AlertRow, AlertState, Overview};
use crate::effect::EffectStart;
use crate::heartbeat::{Heartbeat, Workers};
use crate::history::{Event, Sink};
use crate::job::{Adjusted, Adjustment};
use crate::schedule::{Schedule, ScheduleInfo, ScheduleState, Ticked};
use crate::store::no_such_job;
use crate::{
    AlertName, Answer, Attempt, Batch, Cancelled, Capabilities, Claim, Claimed, Counts, Effect,
    EffectName, EndHub, EndNotification, ExpiredLease, ExplainTarget, Explanation, Job, JobFilter,
    JobId, JobResult, Key, Lease, NextDue, Now, Operation, Payload, Pruned, QueueInfo, QueueName,
    QueueSettings, Receipt, Redrive, Renewal, Result, Retention, ScheduleName, Settled, SettledAs,
    Settlement, Steps, Store, TaskInfo, TaskName, TaskSettings, Timestamp, WakeHub, Wakeups,
    WorkerId, dispatch,
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
        dispatch(self, now, operation).await
    }

    fn wakeups(&self) -> Wakeups {
        self.hub.subscribe()
    }

    fn ended(&self, job: JobId) -> EndNotification {
        self.ends.wait_for(job)
    }
}

#[async_trait]
impl Steps for MemoryStore {
    async fn enqueue(&self, now: Now, batches: Vec<Batch>) -> Result<Vec<Result<Vec<Receipt>>>> {
        Ok(self.step(now, |state| batches.iter().map(|batch| Ok(accept(state, batch)?)).collect()))
    }

    async fn claim(&self, now: Now, claim: &Claim) -> Result<Claimed> {
        Ok(self.step(now, |state| Claimed {
            now: state.now(),
            jobs: state.claim(claim),
            next: state.next_due(&claim.queue, &claim.tasks),
            rated: state.settings(&claim.queue).limits_rate(),
        }))
    }

    async fn renew(&self, now: Now, leases: &[Lease], lease: Duration) -> Result<Vec<Renewal>> {
        Ok(self
            .step(now, |state| leases.iter().map(|held| state.renew(held, lease).into()).collect()))
    }

    async fn settle(&self, now: Now, settlements: Vec<Settlement>) -> Result<Vec<Settled>> {
        Ok(self.step(now, |state| settlements.iter().map(|one| state.settle(one)).collect()))
    }

    async fn begin_effect(
        &self,
        now: Now,
        lease: &Lease,
        name: &EffectName,
        key: &Key,
    ) -> Result<EffectStart> {
        self.step(now, |state| state.begin_effect(lease, name, key))
    }

    async fn end_effect(
        &self,
        now: Now,
        lease: &Lease,
        name: &EffectName,
        result: &Payload,
    ) -> Result<()> {
        self.step(now, |state| state.end_effect(lease, name, result))
    }

    async fn effects(&self, id: JobId) -> Result<Vec<Effect>> {
        Ok(self.locked().effects(id))
    }

    async fn reap(&self, now: Now, limit: usize) -> Result<Vec<ExpiredLease>> {
        Ok(self.step(now, |state| state.reap(limit)))
    }

    async fn heartbeat(&self, now: Now, beat: &Heartbeat) -> Result<()> {
        self.step(now, |state| state.heartbeat(beat));
        Ok(())
    }

    async fn remove_worker(&self, worker: &WorkerId, incarnation: u32) -> Result<()> {
        self.step(None, |state| state.remove_worker(worker, incarnation));
        Ok(())
    }

    async fn workers(&self, now: Now) -> Result<Workers> {
        Ok(self.step(now, |state| state.workers()))
    }

    async fn next_due(&self, now: Now, queue: &QueueName, tasks: &[TaskName]) -> Result<NextDue> {
        Ok(self.step(now, |state| state.next_due(queue, tasks)))
    }

    async fn queues(&self) -> Result<Vec<QueueInfo>> {
        Ok(self.locked().limits.queues())
    }

    async fn set_queue(&self, queue: &QueueName, settings: &QueueSettings) -> Result<()> {
        settings.validate()?;
        self.step(None, |state| state.set_queue(queue, settings));
        Ok(())
    }

    async fn replace_queue(
        &self,
        queue: &QueueName,
        known: Option<&QueueSettings>,
        settings: &QueueSettings,
    ) -> Result<bool> {
        settings.validate()?;
        Ok(self.step(None, |state| state.replace_queue(queue, known, settings)))
    }

    async fn delete_queue(&self, queue: &QueueName) -> Result<bool> {
        Ok(self.step(None, |state| state.delete_queue(queue)))
    }

    async fn tasks(&self) -> Result<Vec<TaskInfo>> {
        Ok(self.locked().limits.tasks())
    }

    async fn set_task(&self, task: &TaskName, settings: &TaskSettings) -> Result<()> {
        self.step(None, |state| state.set_task(task, settings));
        Ok(())
    }

    async fn job(&self, id: JobId) -> Result<Option<Job>> {
        Ok(self.locked().job(id).cloned())
    }

    async fn result(&self, id: JobId) -> Result<Option<JobResult>> {
        Ok(self.locked().result(id))
    }

    async fn jobs(&self, filter: &JobFilter) -> Result<Vec<Job>> {
        Ok(self.locked().jobs(filter))
    }

    async fn counts(&self) -> Result<Vec<Counts>> {
        Ok(self.locked().counts())
    }

    async fn attempts(&self, id: JobId) -> Result<Vec<Attempt>> {
        Ok(self.locked().attempts(id))
    }

    async fn explain(&self, target: &ExplainTarget) -> Result<Option<Explanation>> {
        Ok(self.locked().explain(target))
    }

    async fn flush(&self, now: Now, task: &TaskName, key: &Key) -> Result<Option<JobId>> {
        Ok(self.step(now, |state| state.flush(task, key)))
    }

    async fn cancel_key(&self, now: Now, task: &TaskName, key: &Key) -> Result<Option<JobId>> {
        self.step(now, |state| state.cancel_key(task, key))
    }

    async fn cancel(&self, now: Now, id: JobId, reason: &str) -> Result<()> {
        self.step(now, |state| state.cancel(id, reason))
    }

    async fn adjust(&self, now: Now, id: JobId, adjustment: Adjustment) -> Result<Adjusted> {
        self.step(now, |state| state.adjust(id, &adjustment))
    }

    async fn redrive(&self, now: Now, redrive: &Redrive) -> Result<SettledAs> {
        self.step(now, |state| state.redrive(redrive))
    }

    async fn prune(&self, now: Now, retention: &Retention, limit: usize) -> Result<Pruned> {
        Ok(self.step(now, |state| state.prune(retention, limit)))
    }

    async fn overview(&self, now: Now) -> Result<Overview> {
        Ok(self.step(now, |state| state.overview()))
    }

    async fn alerts(&self) -> Result<Vec<AlertRow>> {
        Ok(self.locked().alerts())
    }

    async fn set_alert(
        &self,
        name: &AlertName,
        version: u64,
        to: Option<&AlertState>,
    ) -> Result<bool> {
        Ok(self.step(None, |state| state.set_alert(name, version, to)))
    }

    async fn set_schedule(&self, now: Now, schedule: &Schedule) -> Result<()> {
        self.step(now, |state| state.set_schedule(schedule));
        Ok(())
    }

    async fn set_schedule_state(
        &self,
        now: Now,
        name: &ScheduleName,
        to: ScheduleState,
    ) -> Result<()> {
        self.step(now, |state| state.set_schedule_state(name, to))
    }

    async fn delete_schedule(&self, now: Now, name: &ScheduleName) -> Result<()> {
        self.step(now, |state| state.delete_schedule(name))
    }

    async fn schedules(&self) -> Result<Vec<ScheduleInfo>> {
        Ok(self.locked().schedules())
    }

    async fn tick(&self, now: Now, limit: usize) -> Result<Ticked> {
        Ok(self.step(now, |state| state.tick(limit)))
    }

    async fn run_schedule(&self, now: Now, name: &ScheduleName) -> Result<Receipt> {
        self.step(now, |state| state.run_schedule(name))
    }

    async fn backfill(
        &self,
        now: Now,
        name: &ScheduleName,
        from: Timestamp,
        to: Timestamp,
    ) -> Result<u64> {
        self.step(now, |state| state.backfill(name, from, to))
    }
}
