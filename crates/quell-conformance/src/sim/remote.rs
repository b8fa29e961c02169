//! The store as a process sees it: at the other end of a network.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::BoxFuture;
use futures_util::{FutureExt, StreamExt, stream};
use quell_core::effect::Begun;
use quell_core::heartbeat::{Heartbeat, Workers};
use quell_core::schedule::{Schedule, ScheduleInfo, ScheduleState, Ticked};
use quell_core::{
    AlertName, AlertRow, AlertState, Attempt, Batch, Capabilities, Claim, Claimed, Counts,
    DeadFilter, DeadLetter, DeadLetters, Effect, EffectName, Ended, Error, ErrorKind,
    ExplainTarget, Explanation, Imported, Job, JobFilter, JobId, JobResult, Key, Lapsed, Lease,
    NextDue, Overview, Payload, Pruned, QueueInfo, QueueName, QueueSettings, Receipt, Redrive,
    Result, Retention, ScheduleName, Settled, SettledAs, Settlement, Store, TaskInfo, TaskName,
    TaskSettings, Timestamp, UnreadableJob, UnreadableJobs, UnreadablePage, Wakeups, WorkerId,
};
use tokio::sync::oneshot;

use super::process::ProcessClock;
use super::world::World;

/// One process's connection.
#[derive(Debug)]
pub(super) struct Remote {
    pub(super) world: Arc<World>,
    pub(super) clock: Arc<ProcessClock>,
}

/// What a call does at the store, which answers at once.
type Done<R> = BoxFuture<'static, Result<R>>;

impl Remote {
    async fn call<R, F>(&self, may_repeat: bool, call: F) -> Result<R>
    where
        R: Send + 'static,
        F: Fn(Arc<dyn Store>, Option<Timestamp>) -> Done<R> + Send + 'static,
    {
        let (answer, answered) = oneshot::channel();
        let fate = self.world.fate(self.clock.name());
        let (process, name) = (self.clock.index(), self.clock.name().to_owned());
        self.world.after(fate.there, move |world| {
            let perform = |world: &Arc<World>| {
                let done = call(Arc::clone(world.store()), Some(world.store_time()));
                done.now_or_never().unwrap_or_else(|| Err(gone(ErrorKind::Internal)))
            };
            let result = if fate.fails_before || world.is_down() {
                Err(gone(ErrorKind::Unavailable))
            } else {
                let result = perform(world);
                if fate.twice && may_repeat {
                    drop(perform(world));
                }
                // Its hints reach whoever listens.
                world.stir(World::ALL);
                if fate.fails_after || fate.slow {
                    world.fault("network", &name);
                }
                if fate.fails_after { Err(gone(ErrorKind::UnknownOutcome)) } else { result }
            };
            world.after(fate.back, move |world| {
                // A process that was killed hears nothing.
                let _unheard = answer.send(result);
                world.stir(process);
            });
        });
        answered.await.unwrap_or_else(|_| Err(gone(ErrorKind::UnknownOutcome)))
    }
}

fn gone(kind: ErrorKind) -> Error {
    Error::new(kind, "the simulated network broke the call")
}

#[async_trait]
impl Store for Remote {
    fn capabilities(&self) -> Capabilities {
        self.world.store().capabilities()
    }

    /// Some processes make two calls at a time.
    fn enqueues_at_once(&self) -> usize {
        1 + self.clock.index() % 2
    }

    async fn enqueue(
        &self,
        _: Option<Timestamp>,
        batches: Vec<Batch>,
    ) -> Result<Vec<Result<Vec<Receipt>>>> {
        self.call(false, move |store, now| {
            let batches = batches.clone();
            Box::pin(async move { store.enqueue(now, batches).await })
        })
        .await
    }

    async fn claim(&self, _: Option<Timestamp>, claim: &Claim) -> Result<Claimed> {
        let claim = claim.clone();
        self.call(false, move |store, now| {
            let claim = claim.clone();
            Box::pin(async move { store.claim(now, &claim).await })
        })
        .await
    }

    async fn renew(
        &self,
        _: Option<Timestamp>,
        leases: &[Lease],
        lease: Duration,
    ) -> Result<Vec<Option<Timestamp>>> {
        let leases = leases.to_vec();
        self.call(true, move |store, now| {
            let leases = leases.clone();
            Box::pin(async move { store.renew(now, &leases, lease).await })
        })
        .await
    }

    async fn settle(&self, _: Option<Timestamp>, sent: Vec<Settlement>) -> Result<Vec<Settled>> {
        self.call(true, move |store, now| {
            let sent = sent.clone();
            Box::pin(async move { store.settle(now, sent).await })
        })
        .await
    }

    async fn begin_effect(
        &self,
        _: Option<Timestamp>,
        lease: &Lease,
        name: &EffectName,
        key: &Key,
    ) -> Result<Begun> {
        let (lease, name, key) = (*lease, name.clone(), key.clone());
        self.call(true, move |store, now| {
            let (name, key) = (name.clone(), key.clone());
            Box::pin(async move { store.begin_effect(now, &lease, &name, &key).await })
        })
        .await
    }

    async fn end_effect(
        &self,
        _: Option<Timestamp>,
        lease: &Lease,
        name: &EffectName,
        result: &Payload,
    ) -> Result<()> {
        let (lease, name, result) = (*lease, name.clone(), result.clone());
        self.call(true, move |store, now| {
            let (name, result) = (name.clone(), result.clone());
            Box::pin(async move { store.end_effect(now, &lease, &name, &result).await })
        })
        .await
    }

    async fn effects(&self, id: JobId) -> Result<Vec<Effect>> {
        self.world.store().effects(id).await
    }

    async fn reap(&self, _: Option<Timestamp>, limit: usize) -> Result<Vec<Lapsed>> {
        self.call(true, move |store, now| Box::pin(async move { store.reap(now, limit).await }))
            .await
    }

    async fn heartbeat(&self, _: Option<Timestamp>, beat: &Heartbeat) -> Result<()> {
        let beat = beat.clone();
        self.call(true, move |store, now| {
            let beat = beat.clone();
            Box::pin(async move { store.heartbeat(now, &beat).await })
        })
        .await
    }

    async fn remove_worker(&self, worker: &WorkerId, incarnation: u32) -> Result<()> {
        let worker = worker.clone();
        self.call(true, move |store, _| {
            let worker = worker.clone();
            Box::pin(async move { store.remove_worker(&worker, incarnation).await })
        })
        .await
    }

    async fn workers(&self, _: Option<Timestamp>) -> Result<Workers> {
        self.call(true, move |store, now| Box::pin(async move { store.workers(now).await })).await
    }

    async fn next_due(
        &self,
        _: Option<Timestamp>,
        queue: &QueueName,
        tasks: &[TaskName],
    ) -> Result<NextDue> {
        let (queue, tasks) = (queue.clone(), tasks.to_vec());
        self.call(true, move |store, now| {
            let (queue, tasks) = (queue.clone(), tasks.clone());
            Box::pin(async move { store.next_due(now, &queue, &tasks).await })
        })
        .await
    }

    fn wakeups(&self) -> Wakeups {
        let (world, clock) = (Arc::clone(&self.world), Arc::clone(&self.clock));
        let hints = self.world.store().wakeups();
        Box::pin(stream::unfold((hints, world, clock), async |(mut hints, world, clock)| {
            loop {
                let hint = hints.next().await?;
                if let Some(delay) = world.hears(clock.name()) {
                    clock.sleep(delay).await;
                    return Some((hint, (hints, world, clock)));
                }
            }
        }))
    }

    fn ended(&self, job: JobId) -> Ended {
        self.world.store().ended(job)
    }

    async fn queues(&self) -> Result<Vec<QueueInfo>> {
        self.world.store().queues().await
    }

    async fn set_queue(&self, queue: &QueueName, settings: &QueueSettings) -> Result<()> {
        self.world.store().set_queue(queue, settings).await
    }

    async fn delete_queue(&self, queue: &QueueName) -> Result<bool> {
        self.world.store().delete_queue(queue).await
    }

    async fn tasks(&self) -> Result<Vec<TaskInfo>> {
        self.world.store().tasks().await
    }

    async fn set_task(&self, task: &TaskName, settings: &TaskSettings) -> Result<()> {
        self.world.store().set_task(task, settings).await
    }

    async fn job(&self, id: JobId) -> Result<Option<Job>> {
        self.world.store().job(id).await
    }

    async fn result(&self, id: JobId) -> Result<Option<JobResult>> {
        self.world.store().result(id).await
    }

    async fn jobs(&self, filter: &JobFilter) -> Result<Vec<Job>> {
        self.world.store().jobs(filter).await
    }

    async fn counts(&self) -> Result<Vec<Counts>> {
        self.world.store().counts().await
    }

    async fn attempts(&self, id: JobId) -> Result<Vec<Attempt>> {
        self.world.store().attempts(id).await
    }

    async fn explain(&self, target: &ExplainTarget) -> Result<Option<Explanation>> {
        self.world.store().explain(target).await
    }

    async fn flush(
        &self,
        _: Option<Timestamp>,
        task: &TaskName,
        key: &Key,
    ) -> Result<Option<JobId>> {
        self.world.store().flush(Some(self.world.store_time()), task, key).await
    }

    async fn cancel_key(
        &self,
        _: Option<Timestamp>,
        task: &TaskName,
        key: &Key,
    ) -> Result<Option<JobId>> {
        self.world.store().cancel_key(Some(self.world.store_time()), task, key).await
    }

    async fn cancel(&self, _: Option<Timestamp>, id: JobId, reason: &str) -> Result<()> {
        self.world.store().cancel(Some(self.world.store_time()), id, reason).await
    }

    async fn redrive(&self, _: Option<Timestamp>, redrive: &Redrive) -> Result<SettledAs> {
        self.world.store().redrive(Some(self.world.store_time()), redrive).await
    }

    async fn prune(&self, _: Option<Timestamp>, keep: &Retention, limit: usize) -> Result<Pruned> {
        let keep = *keep;
        self.call(true, move |store, now| {
            Box::pin(async move { store.prune(now, &keep, limit).await })
        })
        .await
    }

    async fn overview(&self, _: Option<Timestamp>) -> Result<Overview> {
        self.world.store().overview(Some(self.world.store_time())).await
    }

    async fn alerts(&self) -> Result<Vec<AlertRow>> {
        self.world.store().alerts().await
    }

    async fn set_alert(
        &self,
        name: &AlertName,
        version: u64,
        state: Option<&AlertState>,
    ) -> Result<bool> {
        self.world.store().set_alert(name, version, state).await
    }

    async fn set_schedule(&self, _: Option<Timestamp>, schedule: &Schedule) -> Result<()> {
        self.world.store().set_schedule(Some(self.world.store_time()), schedule).await
    }

    async fn set_schedule_state(
        &self,
        _: Option<Timestamp>,
        name: &ScheduleName,
        state: ScheduleState,
    ) -> Result<()> {
        self.world.store().set_schedule_state(Some(self.world.store_time()), name, state).await
    }

    async fn delete_schedule(&self, _: Option<Timestamp>, name: &ScheduleName) -> Result<()> {
        self.world.store().delete_schedule(Some(self.world.store_time()), name).await
    }

    async fn schedules(&self) -> Result<Vec<ScheduleInfo>> {
        self.world.store().schedules().await
    }

    async fn tick(&self, _: Option<Timestamp>, limit: usize) -> Result<Ticked> {
        self.call(true, move |store, now| Box::pin(async move { store.tick(now, limit).await }))
            .await
    }

    async fn run_schedule(&self, _: Option<Timestamp>, name: &ScheduleName) -> Result<Receipt> {
        self.world.store().run_schedule(Some(self.world.store_time()), name).await
    }

    async fn backfill(
        &self,
        _: Option<Timestamp>,
        name: &ScheduleName,
        from: Timestamp,
        to: Timestamp,
    ) -> Result<u64> {
        self.world.store().backfill(Some(self.world.store_time()), name, from, to).await
    }
}

#[async_trait]
impl DeadLetters for Remote {
    async fn dead(&self, filter: &DeadFilter) -> Result<Vec<Job>> {
        self.world.store().dead(filter).await
    }

    async fn count_dead(&self, filter: &DeadFilter) -> Result<u64> {
        self.world.store().count_dead(filter).await
    }

    async fn letters(&self, ids: &[JobId]) -> Result<Vec<DeadLetter>> {
        self.world.store().letters(ids).await
    }

    async fn discard(
        &self,
        _: Option<Timestamp>,
        ids: &[JobId],
        reason: &str,
    ) -> Result<Vec<JobId>> {
        self.world.store().discard(Some(self.world.store_time()), ids, reason).await
    }

    async fn import_dead(
        &self,
        _: Option<Timestamp>,
        letters: &[DeadLetter],
    ) -> Result<Vec<Imported>> {
        self.world.store().import_dead(Some(self.world.store_time()), letters).await
    }
}

#[async_trait]
impl UnreadableJobs for Remote {
    async fn unreadable(&self, page: &UnreadablePage) -> Result<Vec<UnreadableJob>> {
        self.world.store().unreadable(page).await
    }

    async fn restore(&self, _: Option<Timestamp>, ids: &[JobId]) -> Result<Vec<JobId>> {
        self.world.store().restore(Some(self.world.store_time()), ids).await
    }
}
