//! The store as a process sees it: at the other end of a network.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::BoxFuture;
use futures_util::{StreamExt, stream};
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
use tokio::sync::oneshot;

use super::process::ProcessClock;
use super::world::World;

/// One process's connection.
#[derive(Debug)]
pub(super) struct Remote {
    pub(super) world: Arc<World>,
    pub(super) clock: Arc<ProcessClock>,
}

/// What a call does at the store.
type Done<R> = BoxFuture<'static, Result<R>>;

/// Makes a call over the network. The message owns its arguments, because it may arrive after its
/// caller's death, and twice where `$may_repeat`.
macro_rules! call {
    ($remote:ident, $may_repeat:expr, [$($arg:ident),*], |$store:ident, $now:ident| $call:expr) => {{
        $(let $arg = $arg.to_owned();)*
        let answered = $remote.call($may_repeat, move |$store, $now| {
            // A call that carries no time has no use for it.
            let _now: Option<Timestamp> = $now;
            $(let $arg = $arg.clone();)*
            Box::pin(async move { $call.await })
        });
        answered.await
    }};
}

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
                let store = world.stores().store_of(process);
                world.perform(call(store, Some(world.store_time())))
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

    fn wakeups(&self) -> Wakeups {
        let (world, clock) = (Arc::clone(&self.world), Arc::clone(&self.clock));
        let hints = self.world.stores().hints();
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
        self.world.stores().store_of(self.clock.index()).ended(job)
    }

    async fn enqueue(
        &self,
        _: Option<Timestamp>,
        batches: Vec<Batch>,
    ) -> Result<Vec<Result<Vec<Receipt>>>> {
        call!(self, false, [batches], |store, now| store.enqueue(now, batches))
    }

    async fn claim(&self, _: Option<Timestamp>, claim: &Claim) -> Result<Claimed> {
        call!(self, false, [claim], |store, now| store.claim(now, &claim))
    }

    async fn renew(
        &self,
        _: Option<Timestamp>,
        leases: &[Lease],
        lease: Duration,
    ) -> Result<Vec<Renewal>> {
        call!(self, true, [leases], |store, now| store.renew(now, &leases, lease))
    }

    async fn settle(&self, _: Option<Timestamp>, sent: Vec<Settlement>) -> Result<Vec<Settled>> {
        call!(self, true, [sent], |store, now| store.settle(now, sent))
    }

    async fn begin_effect(
        &self,
        _: Option<Timestamp>,
        lease: &Lease,
        name: &EffectName,
        key: &Key,
    ) -> Result<Begun> {
        call!(self, true, [lease, name, key], |store, now| store
            .begin_effect(now, &lease, &name, &key))
    }

    async fn end_effect(
        &self,
        _: Option<Timestamp>,
        lease: &Lease,
        name: &EffectName,
        result: &Payload,
    ) -> Result<()> {
        call!(self, true, [lease, name, result], |store, now| store
            .end_effect(now, &lease, &name, &result))
    }

    async fn effects(&self, id: JobId) -> Result<Vec<Effect>> {
        call!(self, true, [], |store, now| store.effects(id))
    }

    async fn reap(&self, _: Option<Timestamp>, limit: usize) -> Result<Vec<Lapsed>> {
        call!(self, true, [], |store, now| store.reap(now, limit))
    }

    async fn heartbeat(&self, _: Option<Timestamp>, beat: &Heartbeat) -> Result<()> {
        call!(self, true, [beat], |store, now| store.heartbeat(now, &beat))
    }

    async fn remove_worker(&self, worker: &WorkerId, incarnation: u32) -> Result<()> {
        call!(self, true, [worker], |store, now| store.remove_worker(&worker, incarnation))
    }

    async fn workers(&self, _: Option<Timestamp>) -> Result<Workers> {
        call!(self, true, [], |store, now| store.workers(now))
    }

    async fn next_due(
        &self,
        _: Option<Timestamp>,
        queue: &QueueName,
        tasks: &[TaskName],
    ) -> Result<NextDue> {
        call!(self, true, [queue, tasks], |store, now| store.next_due(now, &queue, &tasks))
    }

    async fn peek(
        &self,
        _: Option<Timestamp>,
        queues: &[(QueueName, Arc<[TaskName]>)],
    ) -> Result<Vec<NextDue>> {
        call!(self, true, [queues], |store, now| store.peek(now, &queues))
    }

    async fn queues(&self) -> Result<Vec<QueueInfo>> {
        call!(self, true, [], |store, now| store.queues())
    }

    async fn set_queue(&self, queue: &QueueName, settings: &QueueSettings) -> Result<()> {
        call!(self, true, [queue, settings], |store, now| store.set_queue(&queue, &settings))
    }

    async fn delete_queue(&self, queue: &QueueName) -> Result<bool> {
        call!(self, true, [queue], |store, now| store.delete_queue(&queue))
    }

    async fn tasks(&self) -> Result<Vec<TaskInfo>> {
        call!(self, true, [], |store, now| store.tasks())
    }

    async fn set_task(&self, task: &TaskName, settings: &TaskSettings) -> Result<()> {
        call!(self, true, [task, settings], |store, now| store.set_task(&task, &settings))
    }

    async fn job(&self, id: JobId) -> Result<Option<Job>> {
        call!(self, true, [], |store, now| store.job(id))
    }

    async fn result(&self, id: JobId) -> Result<Option<JobResult>> {
        call!(self, true, [], |store, now| store.result(id))
    }

    async fn jobs(&self, filter: &JobFilter) -> Result<Vec<Job>> {
        call!(self, true, [filter], |store, now| store.jobs(&filter))
    }

    async fn counts(&self) -> Result<Vec<Counts>> {
        call!(self, true, [], |store, now| store.counts())
    }

    async fn attempts(&self, id: JobId) -> Result<Vec<Attempt>> {
        call!(self, true, [], |store, now| store.attempts(id))
    }

    async fn explain(&self, target: &ExplainTarget) -> Result<Option<Explanation>> {
        call!(self, true, [target], |store, now| store.explain(&target))
    }

    async fn flush(
        &self,
        _: Option<Timestamp>,
        task: &TaskName,
        key: &Key,
    ) -> Result<Option<JobId>> {
        call!(self, true, [task, key], |store, now| store.flush(now, &task, &key))
    }

    async fn cancel_key(
        &self,
        _: Option<Timestamp>,
        task: &TaskName,
        key: &Key,
    ) -> Result<Option<JobId>> {
        call!(self, true, [task, key], |store, now| store.cancel_key(now, &task, &key))
    }

    async fn cancel(&self, _: Option<Timestamp>, id: JobId, reason: &str) -> Result<()> {
        call!(self, true, [reason], |store, now| store.cancel(now, id, &reason))
    }

    async fn redrive(&self, _: Option<Timestamp>, redrive: &Redrive) -> Result<SettledAs> {
        call!(self, true, [redrive], |store, now| store.redrive(now, &redrive))
    }

    async fn prune(&self, _: Option<Timestamp>, keep: &Retention, limit: usize) -> Result<Pruned> {
        call!(self, true, [keep], |store, now| store.prune(now, &keep, limit))
    }

    async fn overview(&self, _: Option<Timestamp>) -> Result<Overview> {
        call!(self, true, [], |store, now| store.overview(now))
    }

    async fn alerts(&self) -> Result<Vec<AlertRow>> {
        call!(self, true, [], |store, now| store.alerts())
    }

    async fn set_alert(
        &self,
        name: &AlertName,
        version: u64,
        state: Option<&AlertState>,
    ) -> Result<bool> {
        let state = state.cloned();
        call!(self, true, [name, state], |store, now| store.set_alert(
            &name,
            version,
            state.as_ref()
        ))
    }

    async fn set_schedule(&self, _: Option<Timestamp>, schedule: &Schedule) -> Result<()> {
        call!(self, true, [schedule], |store, now| store.set_schedule(now, &schedule))
    }

    async fn set_schedule_state(
        &self,
        _: Option<Timestamp>,
        name: &ScheduleName,
        state: ScheduleState,
    ) -> Result<()> {
        call!(self, true, [name], |store, now| store.set_schedule_state(now, &name, state))
    }

    async fn delete_schedule(&self, _: Option<Timestamp>, name: &ScheduleName) -> Result<()> {
        call!(self, true, [name], |store, now| store.delete_schedule(now, &name))
    }

    async fn schedules(&self) -> Result<Vec<ScheduleInfo>> {
        call!(self, true, [], |store, now| store.schedules())
    }

    async fn tick(&self, _: Option<Timestamp>, limit: usize) -> Result<Ticked> {
        call!(self, true, [], |store, now| store.tick(now, limit))
    }

    async fn run_schedule(&self, _: Option<Timestamp>, name: &ScheduleName) -> Result<Receipt> {
        call!(self, false, [name], |store, now| store.run_schedule(now, &name))
    }

    async fn backfill(
        &self,
        _: Option<Timestamp>,
        name: &ScheduleName,
        from: Timestamp,
        to: Timestamp,
    ) -> Result<u64> {
        call!(self, true, [name], |store, now| store.backfill(now, &name, from, to))
    }
}

#[async_trait]
impl DeadLetters for Remote {
    async fn dead(&self, filter: &DeadFilter) -> Result<Vec<Job>> {
        call!(self, true, [filter], |store, now| store.dead(&filter))
    }

    async fn count_dead(&self, filter: &DeadFilter) -> Result<u64> {
        call!(self, true, [filter], |store, now| store.count_dead(&filter))
    }

    async fn letters(&self, ids: &[JobId]) -> Result<Vec<DeadLetter>> {
        call!(self, true, [ids], |store, now| store.letters(&ids))
    }

    async fn discard(
        &self,
        _: Option<Timestamp>,
        ids: &[JobId],
        reason: &str,
    ) -> Result<Vec<JobId>> {
        call!(self, true, [ids, reason], |store, now| store.discard(now, &ids, &reason))
    }

    async fn import_dead(
        &self,
        _: Option<Timestamp>,
        letters: &[DeadLetter],
    ) -> Result<Vec<Imported>> {
        call!(self, true, [letters], |store, now| store.import_dead(now, &letters))
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
