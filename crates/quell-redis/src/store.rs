//! One shard: each method of the trait is one step here.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use quell_core::alert::{AlertRow, AlertState, Overview};
use quell_core::checkup::Checkup;
use quell_core::effect::{EffectStart, check_result};
use quell_core::heartbeat::{Heartbeat, Workers};
use quell_core::history::Sink;
use quell_core::part::Notifications;
use quell_core::schedule::{Schedule, ScheduleInfo, ScheduleState, Ticked};
use quell_core::{
    AlertName, Attempt, Batch, Cancelled, Capabilities, Claim, Claimed, Counts, Effect, EffectName,
    ExplainTarget, Explanation, Job, JobFilter, JobId, JobResult, Key, Lapsed, Lease, NextDue,
    Payload, Pruned, QueueInfo, QueueName, QueueSettings, Receipt, Redrive, Renewal, Result,
    Retention, ScheduleName, Settled, SettledAs, Settlement, Steps, TaskInfo, TaskName,
    TaskSettings, Timestamp, WakeHub, WorkerId,
};
use quell_shards::SettledAnswers;

use crate::claim::Tried;
use crate::ends::Ends;
use crate::fast::Given;
use crate::pace::{TRIES, TRIES_OF_A_CLAIM};
use crate::shard::{Shard, Time};
use crate::tx::{Committed, Tx, contended};

/// One shard as a store of its own.
#[derive(Debug)]
pub(crate) struct ShardStore {
    pub(crate) shard: Shard,
    pub(crate) history: Option<Sink>,
    hub: Arc<WakeHub>,
    ends: Arc<Ends>,
    /// What callers have not been told yet.
    pub(crate) told: SettledAnswers,
}

/// One step: its body loads rows, takes the step and says what came of it; none lets it start over.
macro_rules! step {
    ($self:ident, $what:literal, ($time:expr, $jobs:expr), |$tx:ident| $body:expr) => {
        step!($self, $what, ($time, $jobs, $self.history.is_some()), |$tx| $body)
    };
    (
        $self:ident, $what:literal, ($time:expr, $jobs:expr, $recorded:expr), |$tx:ident| $body:expr
    ) => {
        step!($self, $what, ($time, $jobs, $recorded), TRIES, |$tx| $body)
    };
    (
        $self:ident, $what:literal, ($time:expr, $jobs:expr, $recorded:expr), $tries:expr,
        |$tx:ident| $body:expr
    ) => {{
        let mut rows_set_aside = 0;
        loop {
            let done: Result<_> = async {
                Ok($crate::store::step_once!(
                    $self,
                    $what,
                    ($time, $jobs, $recorded),
                    $tries,
                    |$tx| $body
                ))
            }
            .await;
            let error = match done {
                Ok(answer) => break answer,
                Err(error) => error,
            };
            // R25: a row that cannot be decoded harms itself only.
            rows_set_aside += 1;
            let may_try = rows_set_aside <= quell_core::unreadable::MAX_PER_CALL;
            if !(may_try && $self.set_aside(&error).await?) {
                return Err(error);
            }
        }
    }};
}
pub(crate) use step;

/// As [`step!`], and fails where a row cannot be decoded.
macro_rules! step_once {
    (
        $self:ident, $what:literal, ($time:expr, $jobs:expr, $recorded:expr), $tries:expr,
        |$tx:ident| $body:expr
    ) => {{
        let _turn = $self.shard.turn().await;
        let mut pace = $crate::pace::Pace::new($tries);
        loop {
            let told = ($time, $recorded);
            let mut $tx = Tx::begin(&$self.shard, told, pace.tries(), $jobs).await?;
            let answer = $body;
            if let Some(answer) = answer
                && let Committed::Done(news) = $tx.commit($what).await?
            {
                $self.spread(news);
                break answer;
            }
            if !pace.again().await {
                return Err(contended($what));
            }
        }
    }};
}
pub(crate) use step_once;

impl ShardStore {
    pub(crate) fn new(
        shard: Shard,
        history: Option<Sink>,
        (hub, ends): (Arc<WakeHub>, Arc<Ends>),
    ) -> Self {
        ShardStore { shard, history, hub, ends, told: SettledAnswers::default() }
    }

    /// Takes over what another shard has put on record of a task.
    pub(crate) async fn be_told_of_task(
        &self,
        task: &TaskName,
        settings: &TaskSettings,
    ) -> Result<()> {
        step!(self, "set a task", (Time::Last, 0, false), |tx| {
            tx.take_all_settings();
            tx.step(|part| part.set_task(task, settings))
        });
        Ok(())
    }

    pub(crate) async fn accept_by_step(
        &self,
        now: Option<Timestamp>,
        batches: &[Batch],
    ) -> Result<Vec<Result<Vec<Receipt>>>> {
        let jobs = batches.iter().map(|batch| batch.triggers.len()).sum();
        self.shard.steps.taken();
        let _alone = self.shard.accepting.write().await;
        Ok(step!(self, "accept triggers", (now.into(), jobs), |tx| {
            tx.load_for(batches).await?;
            tx.step(|part| part.enqueue(batches))
        }))
    }

    pub(crate) async fn settle_by_step(
        &self,
        now: Option<Timestamp>,
        settlements: &[Settlement],
    ) -> Result<Vec<Settled>> {
        let ids: Vec<JobId> = settlements.iter().map(|one| one.lease.job).collect();
        Ok(step!(self, "end attempts", (now.into(), 0), |tx| {
            tx.load_around(&ids).await?;
            tx.step(|part| part.settle(settlements))
        }))
    }

    async fn claim_by_step(&self, now: Option<Timestamp>, claim: &Claim) -> Result<Tried> {
        let recorded = self.history.is_some();
        let started =
            step!(self, "start jobs", (now.into(), 0, recorded), TRIES_OF_A_CLAIM, |tx| {
                tx.start(claim).await?
            });
        Ok(started)
    }

    pub(crate) async fn next_due_by_step(
        &self,
        now: Option<Timestamp>,
        queue: &QueueName,
        tasks: &[TaskName],
    ) -> Result<NextDue> {
        let mut tx = Tx::begin(&self.shard, (now.into(), false), 0, 0).await?;
        Ok(tx.line(queue, tasks, None).await?.line.next())
    }

    /// Tells workers of this process and the history what a step changed.
    pub(crate) fn spread(&self, news: Notifications) {
        if let Some(history) = &self.history {
            news.events.iter().for_each(|event| history.record(event));
        }
        for (queue, due) in news.wakes {
            self.hub.wake(Some(&queue), due);
        }
        if let Some(due) = news.next_tick {
            self.hub.wake(None, due);
        }
        news.cancelled.iter().for_each(|job| self.hub.cancelled(Cancelled::Job(*job)));
        self.ends.here.notify(news.ended);
    }
}

impl ShardStore {
    pub(crate) fn capabilities(&self) -> Capabilities {
        Capabilities {
            dedup: true,
            transactions: false,
            push: true,
            timed: false,
            priorities: true,
            exact_limits: true,
            listing: true,
            across_queues: true,
            large_batches: true,
        }
    }

    /// While the server works on one call, this process reads the answer of another and makes the
    /// next. But steps wait for each other, and where replicas or the disk are waited for, two
    /// calls wait twice.
    pub(crate) fn enqueues_at_once(&self) -> usize {
        let Shard { link, steps, syncs, .. } = &self.shard;
        let one_by_one = self.history.is_some() || link.waits() || *syncs || steps.are_common();
        if one_by_one { 1 } else { 2 }
    }
}

#[async_trait]
impl Steps for ShardStore {
    async fn enqueue(
        &self,
        now: Option<Timestamp>,
        batches: Vec<Batch>,
    ) -> Result<Vec<Result<Vec<Receipt>>>> {
        self.accept_each(now, batches).await
    }

    async fn claim(&self, now: Option<Timestamp>, claim: &Claim) -> Result<Claimed> {
        let rated = || self.shard.known().limits_rate(&claim.queue);
        if self.shard.link.waits() {
            // Who starts nothing has nothing to wait for.
            let next = self.next_due(now, &claim.queue, &claim.tasks).await?;
            if next.due.is_none_or(|due| due > next.now) {
                return Ok(Claimed { now: next.now, jobs: Vec::new(), next, rated: rated() });
            }
        }
        let Given { mut jobs, now: given_at, next, .. } = self.claim_fast(now, claim).await?;
        if let Some(next) = next {
            return Ok(Claimed { now: next.now, jobs, next, rated: rated() });
        }
        let rest = Claim { limit: claim.limit.saturating_sub(jobs.len()), ..claim.clone() };
        // They have started: who cannot be told what comes next is to look at once.
        let again = |now| NextDue { now, due: Some(now), lapse: None };
        match (self.claim_by_step(now, &rest).await, given_at.filter(|_| !jobs.is_empty())) {
            (Ok(Tried::Started(now, started)), _) => {
                self.shard.held.note(claim, &started);
                jobs.extend(started);
                let next = self.next_due(Some(now), &claim.queue, &claim.tasks).await;
                let next = next.unwrap_or_else(|_| again(now));
                Ok(Claimed { now, jobs, next, rated: rated() })
            }
            (Ok(Tried::Nothing(next)), _) => {
                Ok(Claimed { now: next.now, jobs, next, rated: rated() })
            }
            (Err(_), Some(now)) => Ok(Claimed { now, jobs, next: again(now), rated: rated() }),
            (Err(error), None) => Err(error),
        }
    }

    async fn renew(
        &self,
        now: Option<Timestamp>,
        leases: &[Lease],
        lease: Duration,
    ) -> Result<Vec<Renewal>> {
        if leases.is_empty() {
            return Ok(Vec::new());
        }
        if let Some(renewed) = self.renew_fast(now, leases, lease).await? {
            return Ok(renewed);
        }
        Ok(step!(self, "renew leases", (now.into(), 0), |tx| {
            tx.load_jobs(leases.iter().map(|lease| lease.job)).await?;
            tx.step(|part| part.renew(leases, lease))
        }))
    }

    async fn settle(
        &self,
        now: Option<Timestamp>,
        settlements: Vec<Settlement>,
    ) -> Result<Vec<Settled>> {
        if settlements.is_empty() {
            return Ok(Vec::new());
        }
        self.settle_each(now, settlements).await
    }

    async fn begin_effect(
        &self,
        now: Option<Timestamp>,
        lease: &Lease,
        name: &EffectName,
        key: &Key,
    ) -> Result<EffectStart> {
        step!(self, "record an intent", (now.into(), 0), |tx| {
            tx.load_whole(&[lease.job]).await?;
            tx.step(|part| part.begin_effect(lease, name, key))
        })
    }

    async fn end_effect(
        &self,
        now: Option<Timestamp>,
        lease: &Lease,
        name: &EffectName,
        result: &Payload,
    ) -> Result<()> {
        check_result(name, result)?;
        step!(self, "record a result", (now.into(), 0), |tx| {
            tx.load_whole(&[lease.job]).await?;
            tx.step(|part| part.end_effect(lease, name, result))
        })
    }

    async fn effects(&self, id: JobId) -> Result<Vec<Effect>> {
        self.read_effects(id).await
    }

    async fn reap(&self, now: Option<Timestamp>, limit: usize) -> Result<Vec<Lapsed>> {
        if !self.has_lapsed(now.into()).await? {
            return Ok(Vec::new());
        }
        Ok(step!(self, "take back leases", (now.into(), 0), |tx| {
            let lapsed = tx.lapsed(limit).await?;
            tx.load_around(&lapsed).await?;
            let workers = tx.workers().await?;
            tx.step(|part| part.reap(workers, limit))
        }))
    }

    async fn heartbeat(&self, now: Option<Timestamp>, beat: &Heartbeat) -> Result<()> {
        step!(self, "write a heartbeat", (now.into(), 0), |tx| {
            Some(tx.write_heartbeat(beat).await?)
        });
        Ok(())
    }

    async fn remove_worker(&self, worker: &WorkerId, incarnation: u32) -> Result<()> {
        step!(self, "remove a worker", (Time::Last, 0), |tx| {
            tx.remove_worker_row(worker, incarnation);
            Some(())
        });
        Ok(())
    }

    async fn workers(&self, now: Option<Timestamp>) -> Result<Workers> {
        self.list_workers(now.into()).await
    }

    async fn next_due(
        &self,
        now: Option<Timestamp>,
        queue: &QueueName,
        tasks: &[TaskName],
    ) -> Result<NextDue> {
        match self.next_due_fast(now, queue, tasks).await? {
            Some(next) => Ok(next),
            None => self.next_due_by_step(now, queue, tasks).await,
        }
    }

    async fn peek(
        &self,
        now: Option<Timestamp>,
        queues: &[(QueueName, Arc<[TaskName]>)],
    ) -> Result<Vec<NextDue>> {
        self.peek_all(now, queues).await
    }

    async fn queues(&self) -> Result<Vec<QueueInfo>> {
        let known = self.shard.learn().await?;
        let info = |(name, settings): (&QueueName, &Option<QueueSettings>)| {
            Some(QueueInfo { name: name.clone(), settings: settings.clone()? })
        };
        Ok(known.queues.iter().filter_map(info).collect())
    }

    async fn set_queue(&self, queue: &QueueName, settings: &QueueSettings) -> Result<()> {
        settings.validate()?;
        step!(self, "set a queue", (Time::Last, 0), |tx| {
            tx.load_queue(queue).await?;
            tx.step(|part| part.set_queue(queue, settings))
        });
        Ok(())
    }

    async fn delete_queue(&self, queue: &QueueName) -> Result<bool> {
        Ok(step!(self, "delete a queue", (Time::Last, 0), |tx| {
            tx.load_queue(queue).await?;
            tx.step(|part| part.delete_queue(queue))
        }))
    }

    async fn tasks(&self) -> Result<Vec<TaskInfo>> {
        let known = self.shard.learn().await?;
        let info = |(name, settings): (&TaskName, &TaskSettings)| TaskInfo {
            name: name.clone(),
            settings: *settings,
        };
        Ok(known.tasks.iter().map(info).collect())
    }

    async fn set_task(&self, task: &TaskName, settings: &TaskSettings) -> Result<()> {
        step!(self, "set a task", (Time::Last, 0), |tx| {
            tx.take_all_settings();
            tx.step(|part| part.set_task(task, settings))
        });
        Ok(())
    }

    async fn job(&self, id: JobId) -> Result<Option<Job>> {
        self.read_job(id).await
    }

    async fn result(&self, id: JobId) -> Result<Option<JobResult>> {
        self.read_result(id).await
    }

    async fn jobs(&self, filter: &JobFilter) -> Result<Vec<Job>> {
        self.list(filter).await
    }

    async fn counts(&self) -> Result<Vec<Counts>> {
        self.read_counts().await
    }

    async fn attempts(&self, id: JobId) -> Result<Vec<Attempt>> {
        self.read_attempts(id).await
    }

    async fn explain(&self, target: &ExplainTarget) -> Result<Option<Explanation>> {
        self.read_explanation(target).await
    }

    async fn flush(
        &self,
        now: Option<Timestamp>,
        task: &TaskName,
        key: &Key,
    ) -> Result<Option<JobId>> {
        Ok(step!(self, "flush a window", (now.into(), 0), |tx| {
            tx.load_window(task, key).await?;
            tx.step(|part| part.flush(task, key))
        }))
    }

    async fn cancel_key(
        &self,
        now: Option<Timestamp>,
        task: &TaskName,
        key: &Key,
    ) -> Result<Option<JobId>> {
        step!(self, "cancel a window", (now.into(), 0), |tx| {
            tx.load_window(task, key).await?;
            tx.step(|part| part.cancel_key(task, key))
        })
    }

    async fn cancel(&self, now: Option<Timestamp>, id: JobId, reason: &str) -> Result<()> {
        step!(self, "cancel a job", (now.into(), 0), |tx| {
            tx.load_around(&[id]).await?;
            tx.step(|part| part.cancel(id, reason))
        })
    }

    async fn redrive(&self, now: Option<Timestamp>, redrive: &Redrive) -> Result<SettledAs> {
        step!(self, "put a job back", (now.into(), 0), |tx| {
            tx.load_around(&[redrive.id]).await?;
            tx.step(|part| part.redrive(redrive))
        })
    }

    async fn prune(
        &self,
        now: Option<Timestamp>,
        retention: &Retention,
        limit: usize,
    ) -> Result<Pruned> {
        let old = self.look_for_old(now.into(), retention).await?;
        let ticks = match old.ticks {
            true => self.forget_old_ticks(now.into(), limit).await?,
            false => Pruned::default(),
        };
        if !old.rows {
            return Ok(ticks);
        }
        Ok(step!(self, "remove what has ended", (now.into(), 0), |tx| {
            let more = tx.load_old(retention, limit).await?;
            let pruned = tx.step(|part| part.prune(retention, limit));
            pruned.map(|Pruned { jobs, expired, .. }| Pruned {
                jobs,
                expired: expired.saturating_add(ticks.expired),
                more: more || ticks.more,
            })
        }))
    }

    async fn overview(&self, now: Option<Timestamp>) -> Result<Overview> {
        self.read_overview(now.into()).await
    }

    async fn checkup(&self) -> Result<Checkup> {
        self.read_checkup().await
    }

    async fn alerts(&self) -> Result<Vec<AlertRow>> {
        self.read_alerts().await
    }

    async fn set_alert(
        &self,
        name: &AlertName,
        version: u64,
        state: Option<&AlertState>,
    ) -> Result<bool> {
        Ok(step!(self, "write an alert", (Time::Last, 0), |tx| {
            Some(tx.write_alert(name, version, state).await?)
        }))
    }

    async fn set_schedule(&self, now: Option<Timestamp>, schedule: &Schedule) -> Result<()> {
        step!(self, "set a schedule", (now.into(), 0), |tx| {
            tx.load_schedules([schedule.name.clone()]).await?;
            tx.step(|part| part.set_schedule(schedule))
        });
        Ok(())
    }

    async fn set_schedule_state(
        &self,
        now: Option<Timestamp>,
        name: &ScheduleName,
        state: ScheduleState,
    ) -> Result<()> {
        step!(self, "switch a schedule", (now.into(), 0), |tx| {
            tx.load_schedules([name.clone()]).await?;
            tx.step(|part| part.set_schedule_state(name, state))
        })
    }

    async fn delete_schedule(&self, now: Option<Timestamp>, name: &ScheduleName) -> Result<()> {
        step!(self, "delete a schedule", (now.into(), 0), |tx| {
            tx.load_schedules([name.clone()]).await?;
            tx.step(|part| part.delete_schedule(name))
        })
    }

    async fn schedules(&self) -> Result<Vec<ScheduleInfo>> {
        self.read_schedules().await
    }

    async fn tick(&self, now: Option<Timestamp>, limit: usize) -> Result<Ticked> {
        let seen = self.look_for_ticks(now.into()).await?;
        if seen.next.is_none_or(|next| next > seen.now) || limit == 0 {
            return Ok(seen);
        }
        let ticked = step!(self, "fire ticks", (now.into(), limit), |tx| {
            tx.load_due_schedules(limit).await?;
            tx.step(|part| part.tick(limit))
        });
        // Of the schedules that were not due, too. These have fired: who cannot be told what comes
        // next is to ask at once.
        let next = self.look_for_ticks(now.into()).await.map(|seen| seen.next);
        Ok(Ticked { next: next.unwrap_or(Some(ticked.now)), ..ticked })
    }

    async fn run_schedule(&self, now: Option<Timestamp>, name: &ScheduleName) -> Result<Receipt> {
        step!(self, "run a schedule", (now.into(), 1), |tx| {
            tx.load_schedules([name.clone()]).await?;
            tx.load_for_schedules().await?;
            tx.step(|part| part.run_schedule(name))
        })
    }

    async fn backfill(
        &self,
        now: Option<Timestamp>,
        name: &ScheduleName,
        from: Timestamp,
        to: Timestamp,
    ) -> Result<u64> {
        let most = quell_core::schedule::MAX_BACKFILL;
        step!(self, "backfill a schedule", (now.into(), most), |tx| {
            tx.load_for_backfill(name, from, to).await?;
            tx.step(|part| part.backfill(name, from, to))
        })
    }
}
