//! A store one of whose calls fails, before it is done or after: the unknown outcome.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use quell_core::effect::Begun;
use quell_core::heartbeat::{Heartbeat, Workers};
use quell_core::schedule::{Schedule, ScheduleInfo, ScheduleState, Ticked};
use quell_core::{
    AlertName, AlertRow, AlertState, Attempt, Batch, Capabilities, Claim, Claimed, Counts,
    DeadFilter, DeadLetter, DeadLetters, Effect, EffectName, Ended, Error, ErrorKind,
    ExplainTarget, Explanation, Imported, Job, JobFilter, JobId, JobResult, Key, Lapsed, Lease,
    NextDue, Overview, Payload, Pruned, QueueInfo, QueueName, QueueSettings, Receipt, Redrive,
    Renewal, Result, Retention, ScheduleName, Settled, SettledAs, Settlement, Store, TaskInfo,
    TaskName, TaskSettings, Timestamp, UnreadableJob, UnreadableJobs, UnreadablePage, Wakeups,
    WorkerId,
};

/// Which call fails, counted from 0, and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NthCall {
    /// It fails and nothing was done.
    Before(u64),
    /// It is done, and its caller is told that nobody knows.
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

    async fn call<R>(&self, call: impl Future<Output = Result<R>> + Send) -> Result<R> {
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

    async fn enqueue(
        &self,
        now: Option<Timestamp>,
        batches: Vec<Batch>,
    ) -> Result<Vec<Result<Vec<Receipt>>>> {
        self.call(self.inner.enqueue(now, batches)).await
    }

    async fn claim(&self, now: Option<Timestamp>, claim: &Claim) -> Result<Claimed> {
        self.call(self.inner.claim(now, claim)).await
    }

    async fn renew(
        &self,
        now: Option<Timestamp>,
        leases: &[Lease],
        lease: Duration,
    ) -> Result<Vec<Renewal>> {
        self.call(self.inner.renew(now, leases, lease)).await
    }

    async fn settle(
        &self,
        now: Option<Timestamp>,
        settlements: Vec<Settlement>,
    ) -> Result<Vec<Settled>> {
        self.call(self.inner.settle(now, settlements)).await
    }

    async fn begin_effect(
        &self,
        now: Option<Timestamp>,
        lease: &Lease,
        name: &EffectName,
        key: &Key,
    ) -> Result<Begun> {
        self.call(self.inner.begin_effect(now, lease, name, key)).await
    }

    async fn end_effect(
        &self,
        now: Option<Timestamp>,
        lease: &Lease,
        name: &EffectName,
        result: &Payload,
    ) -> Result<()> {
        self.call(self.inner.end_effect(now, lease, name, result)).await
    }

    async fn effects(&self, id: JobId) -> Result<Vec<Effect>> {
        self.call(self.inner.effects(id)).await
    }

    async fn reap(&self, now: Option<Timestamp>, limit: usize) -> Result<Vec<Lapsed>> {
        self.call(self.inner.reap(now, limit)).await
    }

    async fn heartbeat(&self, now: Option<Timestamp>, beat: &Heartbeat) -> Result<()> {
        self.call(self.inner.heartbeat(now, beat)).await
    }

    async fn remove_worker(&self, worker: &WorkerId, incarnation: u32) -> Result<()> {
        self.call(self.inner.remove_worker(worker, incarnation)).await
    }

    async fn workers(&self, now: Option<Timestamp>) -> Result<Workers> {
        self.call(self.inner.workers(now)).await
    }

    async fn next_due(
        &self,
        now: Option<Timestamp>,
        queue: &QueueName,
        tasks: &[TaskName],
    ) -> Result<NextDue> {
        self.call(self.inner.next_due(now, queue, tasks)).await
    }

    fn wakeups(&self) -> Wakeups {
        self.inner.wakeups()
    }

    fn ended(&self, job: JobId) -> Ended {
        self.inner.ended(job)
    }

    async fn queues(&self) -> Result<Vec<QueueInfo>> {
        self.call(self.inner.queues()).await
    }

    async fn set_queue(&self, queue: &QueueName, settings: &QueueSettings) -> Result<()> {
        self.call(self.inner.set_queue(queue, settings)).await
    }

    async fn delete_queue(&self, queue: &QueueName) -> Result<bool> {
        self.call(self.inner.delete_queue(queue)).await
    }

    async fn tasks(&self) -> Result<Vec<TaskInfo>> {
        self.call(self.inner.tasks()).await
    }

    async fn set_task(&self, task: &TaskName, settings: &TaskSettings) -> Result<()> {
        self.call(self.inner.set_task(task, settings)).await
    }

    async fn job(&self, id: JobId) -> Result<Option<Job>> {
        self.call(self.inner.job(id)).await
    }

    async fn result(&self, id: JobId) -> Result<Option<JobResult>> {
        self.call(self.inner.result(id)).await
    }

    async fn jobs(&self, filter: &JobFilter) -> Result<Vec<Job>> {
        self.call(self.inner.jobs(filter)).await
    }

    async fn counts(&self) -> Result<Vec<Counts>> {
        self.call(self.inner.counts()).await
    }

    async fn attempts(&self, id: JobId) -> Result<Vec<Attempt>> {
        self.call(self.inner.attempts(id)).await
    }

    async fn explain(&self, target: &ExplainTarget) -> Result<Option<Explanation>> {
        self.call(self.inner.explain(target)).await
    }

    async fn flush(
        &self,
        now: Option<Timestamp>,
        task: &TaskName,
        key: &Key,
    ) -> Result<Option<JobId>> {
        self.call(self.inner.flush(now, task, key)).await
    }

    async fn cancel_key(
        &self,
        now: Option<Timestamp>,
        task: &TaskName,
        key: &Key,
    ) -> Result<Option<JobId>> {
        self.call(self.inner.cancel_key(now, task, key)).await
    }

    async fn cancel(&self, now: Option<Timestamp>, id: JobId, reason: &str) -> Result<()> {
        self.call(self.inner.cancel(now, id, reason)).await
    }

    async fn redrive(&self, now: Option<Timestamp>, redrive: &Redrive) -> Result<SettledAs> {
        self.call(self.inner.redrive(now, redrive)).await
    }

    async fn prune(
        &self,
        now: Option<Timestamp>,
        retention: &Retention,
        limit: usize,
    ) -> Result<Pruned> {
        self.call(self.inner.prune(now, retention, limit)).await
    }

    async fn overview(&self, now: Option<Timestamp>) -> Result<Overview> {
        self.call(self.inner.overview(now)).await
    }

    async fn alerts(&self) -> Result<Vec<AlertRow>> {
        self.call(self.inner.alerts()).await
    }

    async fn set_alert(
        &self,
        name: &AlertName,
        version: u64,
        state: Option<&AlertState>,
    ) -> Result<bool> {
        self.call(self.inner.set_alert(name, version, state)).await
    }

    async fn set_schedule(&self, now: Option<Timestamp>, schedule: &Schedule) -> Result<()> {
        self.call(self.inner.set_schedule(now, schedule)).await
    }

    async fn set_schedule_state(
        &self,
        now: Option<Timestamp>,
        name: &ScheduleName,
        state: ScheduleState,
    ) -> Result<()> {
        self.call(self.inner.set_schedule_state(now, name, state)).await
    }

    async fn delete_schedule(&self, now: Option<Timestamp>, name: &ScheduleName) -> Result<()> {
        self.call(self.inner.delete_schedule(now, name)).await
    }

    async fn schedules(&self) -> Result<Vec<ScheduleInfo>> {
        self.call(self.inner.schedules()).await
    }

    async fn tick(&self, now: Option<Timestamp>, limit: usize) -> Result<Ticked> {
        self.call(self.inner.tick(now, limit)).await
    }

    async fn run_schedule(&self, now: Option<Timestamp>, name: &ScheduleName) -> Result<Receipt> {
        self.call(self.inner.run_schedule(now, name)).await
    }

    async fn backfill(
        &self,
        now: Option<Timestamp>,
        name: &ScheduleName,
        from: Timestamp,
        to: Timestamp,
    ) -> Result<u64> {
        self.call(self.inner.backfill(now, name, from, to)).await
    }
}

#[async_trait]
impl<S: Store> DeadLetters for Faulty<S> {
    async fn dead(&self, filter: &DeadFilter) -> Result<Vec<Job>> {
        self.call(self.inner.dead(filter)).await
    }

    async fn count_dead(&self, filter: &DeadFilter) -> Result<u64> {
        self.call(self.inner.count_dead(filter)).await
    }

    async fn letters(&self, ids: &[JobId]) -> Result<Vec<DeadLetter>> {
        self.call(self.inner.letters(ids)).await
    }

    async fn discard(
        &self,
        now: Option<Timestamp>,
        ids: &[JobId],
        reason: &str,
    ) -> Result<Vec<JobId>> {
        self.call(self.inner.discard(now, ids, reason)).await
    }

    async fn import_dead(
        &self,
        now: Option<Timestamp>,
        letters: &[DeadLetter],
    ) -> Result<Vec<Imported>> {
        self.call(self.inner.import_dead(now, letters)).await
    }
}

#[async_trait]
impl<S: Store> UnreadableJobs for Faulty<S> {
    async fn unreadable(&self, page: &UnreadablePage) -> Result<Vec<UnreadableJob>> {
        self.call(self.inner.unreadable(page)).await
    }

    async fn restore(&self, now: Option<Timestamp>, ids: &[JobId]) -> Result<Vec<JobId>> {
        self.call(self.inner.restore(now, ids)).await
    }
}
