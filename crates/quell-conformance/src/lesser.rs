//! A store that claims less than the one inside it, and keeps to that.
//!
//! It shows a store author what lacking a capability means, and tests of clients and workers what
//! they meet on such a store.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use quell_core::effect::Begun;
use quell_core::heartbeat::{Heartbeat, Workers};
use quell_core::schedule::{Schedule, ScheduleInfo, ScheduleState, Ticked};
use quell_core::{
    AlertName, AlertRow, AlertState, Attempt, Batch, Capabilities, Claim, Claimed, Counts,
    DeadFilter, DeadLetter, DeadLetters, Effect, EffectName, Ended, Error, ExplainTarget,
    Explanation, Imported, Job, JobFilter, JobId, JobResult, Key, Lapsed, Lease, NextDue, Overview,
    Payload, Pruned, QueueInfo, QueueName, QueueSettings, Receipt, Redrive, Renewal, Result,
    Retention, ScheduleName, Settled, SettledAs, Settlement, Store, TaskInfo, TaskName,
    TaskSettings, Timestamp, UnreadableJob, UnreadableJobs, UnreadablePage, Wakeups, WorkerId,
    lacks,
};

use crate::Capability;

/// Hides capabilities of a store and does without them as `Capabilities` documents.
///
/// ```
/// use quell_conformance::{Capability, Lesser};
/// use quell_core::{MemoryStore, Store, Timestamp};
///
/// let whole = MemoryStore::new(Timestamp::from_secs(0));
/// let lesser = Lesser::new(whole, &[Capability::Dedup, Capability::Push]);
/// assert!(!lesser.capabilities().dedup && lesser.capabilities().listing);
/// ```
#[derive(Debug)]
pub struct Lesser<S> {
    inner: S,
    claims: Capabilities,
    /// The queues that tasks with keys keep to.
    kept_to: Mutex<BTreeMap<TaskName, QueueName>>,
}

impl<S: Store> Lesser<S> {
    /// The store without these.
    #[must_use]
    pub fn new(inner: S, without: &[Capability]) -> Self {
        let claims = inner.capabilities();
        let claims = without.iter().fold(claims, |claims, hidden| hidden.hidden(claims));
        Lesser { inner, claims, kept_to: Mutex::default() }
    }

    /// A refusal, unless the capability is claimed.
    fn needs(&self, capability: Capability, cure: &str) -> Result<()> {
        if capability.is_claimed(&self.claims) {
            return Ok(());
        }
        Err(lacks(capability.name(), cure))
    }

    /// Whether a batch is of one queue, and that its tasks' own where they have keys.
    fn keeps_to_queues(&self, batch: &Batch) -> Result<()> {
        let mut kept_to = self.kept_to.lock().unwrap_or_else(PoisonError::into_inner);
        let first = batch.triggers.first().map(|trigger| &trigger.queue);
        for trigger in &batch.triggers {
            if first != Some(&trigger.queue) {
                self.needs(Capability::AcrossQueues, "make one batch for each queue")?;
            }
            if trigger.has_key() || batch.dedup.is_some() {
                let own = kept_to.entry(trigger.task.clone()).or_insert(trigger.queue.clone());
                if *own != trigger.queue {
                    let cure = format!("trigger task {} in queue {own}", trigger.task);
                    self.needs(Capability::AcrossQueues, &cure)?;
                }
            }
        }
        Ok(())
    }
}

#[async_trait]
impl<S: Store> Store for Lesser<S> {
    fn capabilities(&self) -> Capabilities {
        self.claims
    }

    async fn enqueue(
        &self,
        now: Option<Timestamp>,
        mut batches: Vec<Batch>,
    ) -> Result<Vec<Result<Vec<Receipt>>>> {
        if batches.iter().any(Batch::asks_dedup) {
            self.needs(Capability::Dedup, "leave the dedup key out or change stores")?;
        }
        if batches.iter().any(Batch::asks_idempotency) {
            self.needs(Capability::Dedup, "leave the idempotency key out or change stores")?;
        }
        if !self.claims.priorities {
            let triggers = batches.iter_mut().flat_map(|batch| &mut batch.triggers);
            triggers.for_each(|trigger| trigger.priority = 0);
        }
        if self.claims.across_queues {
            return self.inner.enqueue(now, batches).await;
        }
        let refused: Vec<Option<Error>> =
            batches.iter().map(|batch| self.keeps_to_queues(batch).err()).collect();
        let mut kept = refused.iter().map(Option::is_none);
        batches.retain(|_| kept.next().unwrap_or(false));
        let mut accepted = self.inner.enqueue(now, batches).await?.into_iter();
        let answers = refused.into_iter().map(|refused| match refused {
            Some(error) => Some(Err(error)),
            None => accepted.next(),
        });
        Ok(answers.flatten().collect())
    }

    async fn claim(&self, now: Option<Timestamp>, claim: &Claim) -> Result<Claimed> {
        self.inner.claim(now, claim).await
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
        self.inner.settle(now, settlements).await
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
        // Silent and not ended: a stream ends with its store.
        if self.claims.push {
            self.inner.wakeups()
        } else {
            Box::pin(futures_util::stream::pending())
        }
    }

    fn ended(&self, job: JobId) -> Ended {
        if self.claims.push {
            self.inner.ended(job)
        } else {
            Box::pin(futures_util::future::pending())
        }
    }

    async fn queues(&self) -> Result<Vec<QueueInfo>> {
        self.inner.queues().await
    }

    async fn set_queue(&self, queue: &QueueName, settings: &QueueSettings) -> Result<()> {
        if settings.limits_concurrency() || settings.limits_rate() {
            self.needs(Capability::ExactLimits, "limit the workers of the queue instead")?;
        }
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

    async fn job(&self, id: JobId) -> Result<Option<Job>> {
        self.inner.job(id).await
    }

    async fn result(&self, id: JobId) -> Result<Option<JobResult>> {
        self.inner.result(id).await
    }

    async fn jobs(&self, filter: &JobFilter) -> Result<Vec<Job>> {
        self.needs(Capability::Listing, "ask for a job by its id")?;
        self.inner.jobs(filter).await
    }

    async fn counts(&self) -> Result<Vec<Counts>> {
        self.needs(Capability::Listing, "ask for a job by its id")?;
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

    async fn prune(
        &self,
        now: Option<Timestamp>,
        retention: &Retention,
        limit: usize,
    ) -> Result<Pruned> {
        self.inner.prune(now, retention, limit).await
    }

    async fn overview(&self, now: Option<Timestamp>) -> Result<Overview> {
        self.needs(Capability::Listing, "look at a job by its id")?;
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

    async fn set_schedule(&self, now: Option<Timestamp>, schedule: &Schedule) -> Result<()> {
        self.keeps_to_queues(&Batch::one(schedule.trigger.clone()))?;
        let mut schedule = schedule.clone();
        if schedule.trigger.dedup.is_some() {
            self.needs(Capability::Dedup, "leave the dedup key out or change stores")?;
        }
        if !self.claims.priorities {
            schedule.trigger.priority = 0;
        }
        self.inner.set_schedule(now, &schedule).await
    }

    async fn set_schedule_state(
        &self,
        now: Option<Timestamp>,
        name: &ScheduleName,
        state: ScheduleState,
    ) -> Result<()> {
        self.inner.set_schedule_state(now, name, state).await
    }

    async fn delete_schedule(&self, now: Option<Timestamp>, name: &ScheduleName) -> Result<()> {
        self.inner.delete_schedule(now, name).await
    }

    async fn schedules(&self) -> Result<Vec<ScheduleInfo>> {
        self.inner.schedules().await
    }

    async fn tick(&self, now: Option<Timestamp>, limit: usize) -> Result<Ticked> {
        self.inner.tick(now, limit).await
    }

    async fn run_schedule(&self, now: Option<Timestamp>, name: &ScheduleName) -> Result<Receipt> {
        self.inner.run_schedule(now, name).await
    }

    async fn backfill(
        &self,
        now: Option<Timestamp>,
        name: &ScheduleName,
        from: Timestamp,
        to: Timestamp,
    ) -> Result<u64> {
        self.inner.backfill(now, name, from, to).await
    }
}

#[async_trait]
impl<S: Store> DeadLetters for Lesser<S> {
    async fn dead(&self, filter: &DeadFilter) -> Result<Vec<Job>> {
        self.needs(Capability::Listing, "ask for a job by its id")?;
        self.inner.dead(filter).await
    }

    async fn count_dead(&self, filter: &DeadFilter) -> Result<u64> {
        self.needs(Capability::Listing, "ask for a job by its id")?;
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
        let mut letters = letters.to_vec();
        if !self.claims.priorities {
            letters.iter_mut().for_each(|letter| letter.job.priority = 0);
        }
        self.inner.import_dead(now, &letters).await
    }
}

#[async_trait]
impl<S: Store> UnreadableJobs for Lesser<S> {
    async fn unreadable(&self, page: &UnreadablePage) -> Result<Vec<UnreadableJob>> {
        self.needs(Capability::Listing, "ask for a job by its id")?;
        self.inner.unreadable(page).await
    }

    async fn restore(&self, now: Option<Timestamp>, ids: &[JobId]) -> Result<Vec<JobId>> {
        self.inner.restore(now, ids).await
    }
}
