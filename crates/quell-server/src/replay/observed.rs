//! A store that passes everything on and notes the answers in the ledger.
//!
//! In virtual time the driver says when something is due, so wake-ups come from it and not from the
//! store. Nothing is pruned: the jobs of a replay are its record.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use quell_core::effect::Begun;
use quell_core::heartbeat::{Heartbeat, Workers};
use quell_core::{
    AlertName, AlertRow, AlertState, Attempt, Batch, Capabilities, Claim, Claimed, Counts,
    DeadFilter, DeadLetter, DeadLetters, Effect, EffectName, Ended, ExplainTarget, Explanation,
    Imported, Job, JobFilter, JobId, JobResult, Key, Lapsed, Lease, NextDue, Overview, Payload,
    Pruned, QueueInfo, QueueName, QueueSettings, Receipt, Redrive, Renewal, Result, Retention,
    Settled, SettledAs, Settlement, Store, TaskInfo, TaskName, TaskSettings, Timestamp,
    UnreadableJob, UnreadableJobs, UnreadablePage, WakeHub, Wakeups, WorkerId,
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

    fn noted<T>(&self, answer: Result<T>, note: impl FnOnce(&T)) -> Result<T> {
        match &answer {
            Ok(value) => note(value),
            Err(error) => self.ledger.failed(error),
        }
        answer
    }
}

#[async_trait]
impl Store for Observed {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    async fn enqueue(
        &self,
        now: Option<Timestamp>,
        batches: Vec<Batch>,
    ) -> Result<Vec<Result<Vec<Receipt>>>> {
        self.ledger.enqueuing();
        let answer = self.inner.enqueue(now, batches).await;
        self.noted(answer, |all| all.iter().flatten().for_each(|one| self.ledger.enqueued(one)))
    }

    async fn claim(&self, now: Option<Timestamp>, claim: &Claim) -> Result<Claimed> {
        let answer = self.inner.claim(now, claim).await;
        self.noted(answer, |claimed| {
            let again = self.ledger.claimed(claimed);
            self.look_again(again);
        })
    }

    async fn renew(
        &self,
        now: Option<Timestamp>,
        leases: &[Lease],
        lease: Duration,
    ) -> Result<Vec<Renewal>> {
        self.inner.renew(now, leases, lease).await
    }

    async fn settle(
        &self,
        now: Option<Timestamp>,
        settlements: Vec<Settlement>,
    ) -> Result<Vec<Settled>> {
        let answer = self.inner.settle(now, settlements).await;
        self.noted(answer, |settled| {
            let again = self.ledger.settled(settled);
            self.look_again(again);
        })
    }

    async fn begin_effect(
        &self,
        now: Option<Timestamp>,
        lease: &Lease,
        name: &EffectName,
        key: &Key,
    ) -> Result<Begun> {
        self.inner.begin_effect(now, lease, name, key).await
    }

    async fn end_effect(
        &self,
        now: Option<Timestamp>,
        lease: &Lease,
        name: &EffectName,
        result: &Payload,
    ) -> Result<()> {
        self.inner.end_effect(now, lease, name, result).await
    }

    async fn effects(&self, id: JobId) -> Result<Vec<Effect>> {
        self.inner.effects(id).await
    }

    async fn reap(&self, now: Option<Timestamp>, limit: usize) -> Result<Vec<Lapsed>> {
        self.inner.reap(now, limit).await
    }

    async fn heartbeat(&self, now: Option<Timestamp>, beat: &Heartbeat) -> Result<()> {
        self.inner.heartbeat(now, beat).await
    }

    async fn remove_worker(&self, worker: &WorkerId, incarnation: u32) -> Result<()> {
        self.inner.remove_worker(worker, incarnation).await
    }

    async fn workers(&self, now: Option<Timestamp>) -> Result<Workers> {
        self.inner.workers(now).await
    }

    async fn next_due(
        &self,
        now: Option<Timestamp>,
        queue: &QueueName,
        tasks: &[TaskName],
    ) -> Result<NextDue> {
        self.inner.next_due(now, queue, tasks).await
    }

    fn wakeups(&self) -> Wakeups {
        self.hub.as_ref().map_or_else(|| self.inner.wakeups(), |hub| hub.subscribe())
    }

    fn ended(&self, job: JobId) -> Ended {
        self.inner.ended(job)
    }

    async fn queues(&self) -> Result<Vec<QueueInfo>> {
        self.inner.queues().await
    }

    async fn set_queue(&self, queue: &QueueName, settings: &QueueSettings) -> Result<()> {
        self.inner.set_queue(queue, settings).await
    }

    async fn delete_queue(&self, queue: &QueueName) -> Result<bool> {
        self.inner.delete_queue(queue).await
    }

    async fn tasks(&self) -> Result<Vec<TaskInfo>> {
        self.inner.tasks().await
    }

    async fn set_task(&self, task: &TaskName, settings: &TaskSettings) -> Result<()> {
        self.inner.set_task(task, settings).await
    }

    async fn overview(&self, now: Option<Timestamp>) -> Result<Overview> {
        self.inner.overview(now).await
    }

    async fn alerts(&self) -> Result<Vec<AlertRow>> {
        self.inner.alerts().await
    }

    async fn set_alert(
        &self,
        name: &AlertName,
        version: u64,
        state: Option<&AlertState>,
    ) -> Result<bool> {
        self.inner.set_alert(name, version, state).await
    }

    async fn job(&self, id: JobId) -> Result<Option<Job>> {
        self.inner.job(id).await
    }

    async fn result(&self, id: JobId) -> Result<Option<JobResult>> {
        self.inner.result(id).await
    }

    async fn jobs(&self, filter: &JobFilter) -> Result<Vec<Job>> {
        self.inner.jobs(filter).await
    }

    async fn counts(&self) -> Result<Vec<Counts>> {
        self.inner.counts().await
    }

    async fn attempts(&self, id: JobId) -> Result<Vec<Attempt>> {
        self.inner.attempts(id).await
    }

    async fn explain(&self, target: &ExplainTarget) -> Result<Option<Explanation>> {
        self.inner.explain(target).await
    }

    async fn flush(
        &self,
        now: Option<Timestamp>,
        task: &TaskName,
        key: &Key,
    ) -> Result<Option<JobId>> {
        self.inner.flush(now, task, key).await
    }

    async fn cancel_key(
        &self,
        now: Option<Timestamp>,
        task: &TaskName,
        key: &Key,
    ) -> Result<Option<JobId>> {
        self.inner.cancel_key(now, task, key).await
    }

    async fn cancel(&self, now: Option<Timestamp>, id: JobId, reason: &str) -> Result<()> {
        self.inner.cancel(now, id, reason).await
    }

    async fn redrive(&self, now: Option<Timestamp>, redrive: &Redrive) -> Result<SettledAs> {
        self.inner.redrive(now, redrive).await
    }

    async fn prune(&self, _: Option<Timestamp>, _: &Retention, _: usize) -> Result<Pruned> {
        Ok(Pruned::default())
    }
}

#[async_trait]
impl DeadLetters for Observed {
    async fn dead(&self, filter: &DeadFilter) -> Result<Vec<Job>> {
        self.inner.dead(filter).await
    }

    async fn count_dead(&self, filter: &DeadFilter) -> Result<u64> {
        self.inner.count_dead(filter).await
    }

    async fn letters(&self, ids: &[JobId]) -> Result<Vec<DeadLetter>> {
        self.inner.letters(ids).await
    }

    async fn discard(
        &self,
        now: Option<Timestamp>,
        ids: &[JobId],
        reason: &str,
    ) -> Result<Vec<JobId>> {
        self.inner.discard(now, ids, reason).await
    }

    async fn import_dead(
        &self,
        now: Option<Timestamp>,
        letters: &[DeadLetter],
    ) -> Result<Vec<Imported>> {
        self.inner.import_dead(now, letters).await
    }
}

#[async_trait]
impl UnreadableJobs for Observed {
    async fn unreadable(&self, page: &UnreadablePage) -> Result<Vec<UnreadableJob>> {
        self.inner.unreadable(page).await
    }

    async fn restore(&self, now: Option<Timestamp>, ids: &[JobId]) -> Result<Vec<JobId>> {
        self.inner.restore(now, ids).await
    }
}
