//! The engine: each operation is one step on a backend's rows.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use quell_core::alert::{AlertRow, AlertState, Overview};
use quell_core::checkup::Checkup;
use quell_core::effect::{EffectStart, check_result};
use quell_core::heartbeat::{Beaten, Heartbeat, WorkerDrain, Workers};
use quell_core::history::Sink;
use quell_core::job::{Adjusted, Adjustment};
use quell_core::part::Notifications;
use quell_core::schedule::{RecordedTick, Schedule, ScheduleInfo, ScheduleState, Ticked};
use quell_core::store::SettledAnswers;
use quell_core::{
    AlertName, Answer, Attempt, Backlog, BacklogOf, Batch, Cancelled, Capabilities, Claim, Claimed,
    Counts, DeadExport, DeadFilter, DeadJobs, Effect, EffectName, EndHub, EndNotification, Error,
    ErrorKind, ExpiredLease, ExplainTarget, Explanation, Imported, Job, JobFilter, JobId,
    JobResult, Key, Lease, NextDue, Now, Operation, Payload, Pruned, QueueInfo, QueueName,
    QueueSettings, Receipt, Redrive, Renewal, Result, Retention, ScheduleName, Settled, SettledAs,
    Settlement, Steps, Store, TaskInfo, TaskName, TaskSettings, Timestamp, UnreadableJob,
    UnreadableJobs, UnreadablePage, WakeHub, Wakeups, WorkerId, dispatch, lacks, unreadable,
};
use tracing::{error, warn};

use crate::backend::{Access, Backend, Removal, Time, contended};
use crate::backoff::{Backoff, Contention};
use crate::known::Known;
use crate::moves::{CHANGES_OF_A_START, CHANGES_OF_AN_END};
use crate::step::{Step, is_too_large, is_too_much, step};
use crate::upkeep::{Frees, Met};

/// A store on a [`Backend`].
#[derive(Debug)]
pub struct Engine<B> {
    pub(crate) backend: B,
    hub: Arc<WakeHub>,
    ends: Arc<EndHub>,
    pub(crate) history: Option<Sink>,
    pub(crate) known: Known,
    pub(crate) contention: Contention,
    /// Ends of calls that failed.
    pub(crate) answers: SettledAnswers,
}

impl<B: Backend> Engine<B> {
    /// A store on this backend.
    #[must_use]
    pub fn new(backend: B) -> Self {
        let (hub, ends) = (Arc::default(), Arc::default());
        let (known, contention) = (Known::default(), Contention::default());
        let answers = SettledAnswers::default();
        Engine { backend, hub, ends, history: None, known, contention, answers }
    }

    /// The same store with an event history.
    #[must_use]
    pub fn with_history(self, sink: Sink) -> Self {
        Engine { history: Some(sink), ..self }
    }

    /// The same store, which gives its hints where other shards of one store do.
    #[must_use]
    pub fn with_hints(self, hub: Arc<WakeHub>, ends: Arc<EndHub>) -> Self {
        Engine { hub, ends, ..self }
    }

    /// What keeps its rows.
    #[must_use]
    pub fn backend(&self) -> &B {
        &self.backend
    }

    /// Where hints of other processes go.
    #[must_use]
    pub fn hub(&self) -> &Arc<WakeHub> {
        &self.hub
    }

    /// Notifies workers of this process and the history of what a step changed.
    pub(crate) fn spread(&self, news: Notifications) {
        publish(news, &self.hub, &self.ends, self.history.as_ref());
    }

    pub(crate) async fn reading(&self, time: impl Into<Time>) -> Result<Step<'_, B>> {
        Step::begin(&self.backend, time.into(), Access::Read, false).await
    }

    /// Sets the job aside whose row cannot be decoded, if that is what `error` says; `false` where that
    /// is no reason to take the failed step again. The engine does so itself for its own steps; a store
    /// calls it where a hot path has met such a row.
    ///
    /// # Errors
    /// What the backend answers.
    pub async fn set_aside(&self, error: &Error) -> Result<bool> {
        let Some(id) = error.unreadable_job() else { return Ok(false) };
        let reason = unreadable::reason(error);
        let mut others = 0;
        loop {
            let error = match self.set_one_aside(id, &reason, Frees::NextWindow).await {
                Ok(met) => return Ok(met == Met::Aside || others > 0),
                Err(error) => error,
            };
            // Its key's next window cannot be decoded either. That one goes first: a process that ends
            // between the two must not leave the key to a window that nothing frees.
            let next = error.unreadable_job().filter(|next| *next != id);
            let Some(next) = next.filter(|_| others < unreadable::MAX_PER_CALL) else {
                return Err(error);
            };
            self.set_one_aside(next, &unreadable::reason(&error), Frees::Nothing).await?;
            others += 1;
        }
    }

    async fn set_one_aside(&self, id: JobId, reason: &str, frees: Frees) -> Result<Met> {
        let mut backoff = Backoff::new(self.backend.longest_pause());
        loop {
            let recorded = self.history.is_some();
            let mut step =
                Step::begin(&self.backend, Time::Last, Access::Write { jobs: 0 }, recorded).await?;
            if let Some(met) = step.set_aside(id, reason, frees).await?
                && let Some(news) = step.commit().await?
            {
                if met == Met::Aside {
                    warn!(job = %id, reason, "job set aside: its row cannot be decoded");
                }
                self.spread(news);
                return Ok(met);
            }
            if !backoff.again().await {
                return Err(contended("set an unreadable job aside"));
            }
        }
    }
}

/// Notifies workers of this process, callers that wait for jobs, and the history of what a commit changed:
/// for a backend that commits more than the steps of the engine.
pub fn publish(news: Notifications, hub: &WakeHub, ends: &EndHub, history: Option<&Sink>) {
    if let Some(history) = history {
        news.events.iter().for_each(|event| history.record(event));
    }
    for (queue, due) in news.wakes {
        hub.wake(Some(&queue), due);
    }
    if let Some(due) = news.next_tick {
        hub.wake(None, due);
    }
    news.cancelled.iter().for_each(|job| hub.cancelled(Cancelled::Job(*job)));
    ends.notify(news.ended);
}

/// The error of one of the engine's [`Steps`] as callers receive it; [`Store::call`] converts it itself.
#[must_use]
pub fn caller_error(error: Error) -> Error {
    if is_too_large(&error) { too_much(&error) } else { error }
}

/// The refusal of what cannot be split and is more than the store writes at once.
pub(crate) fn too_much(error: &Error) -> Error {
    lacks("large_batches", &format!("{error} into several, or keep large payloads elsewhere"))
}

/// Whether the store is away: what comes next would fail, too.
fn is_away(error: &Error) -> bool {
    let kinds = [ErrorKind::Unavailable, ErrorKind::UnknownOutcome, ErrorKind::Full];
    kinds.contains(&error.kind())
}

/// Both halves of what was too much at once.
pub(crate) fn halves<T>(all: &[T]) -> [&[T]; 2] {
    let (first, second) = all.split_at(all.len() / 2);
    [first, second]
}

#[async_trait]
impl<B: Backend> Store for Engine<B> {
    fn capabilities(&self) -> Capabilities {
        self.backend.capabilities()
    }

    async fn call(&self, now: Now, operation: Operation) -> Result<Answer> {
        dispatch(self, now, operation).await.map_err(caller_error)
    }

    fn wakeups(&self) -> Wakeups {
        self.hub.subscribe()
    }

    fn ended(&self, job: JobId) -> EndNotification {
        self.ends.wait_for(job)
    }
}

#[async_trait]
impl<B: Backend> Steps for Engine<B> {
    async fn enqueue(&self, now: Now, batches: Vec<Batch>) -> Result<Vec<Result<Vec<Receipt>>>> {
        self.accept_each(now, batches).await
    }

    async fn claim(&self, now: Now, claim: &Claim) -> Result<Claimed> {
        self.claim_each(now, claim).await
    }

    async fn renew(&self, now: Now, leases: &[Lease], lease: Duration) -> Result<Vec<Renewal>> {
        if let Some(answer) = self.hot(|| self.backend.hot_renew(now, leases, lease)).await? {
            return Ok(answer);
        }
        self.extend_all(now, leases, lease).await
    }

    async fn settle(&self, now: Now, settlements: Vec<Settlement>) -> Result<Vec<Settled>> {
        self.settle_each(now, settlements).await
    }

    async fn begin_effect(
        &self,
        now: Now,
        lease: &Lease,
        name: &EffectName,
        key: &Key,
    ) -> Result<EffectStart> {
        step!(self, "record an intent", (now, 0), |step| {
            step.load_effects(lease.job).await?;
            step.take(|part| part.begin_effect(lease, name, key))
        })
    }

    async fn end_effect(
        &self,
        now: Now,
        lease: &Lease,
        name: &EffectName,
        result: &Payload,
    ) -> Result<()> {
        check_result(name, result)?;
        step!(self, "record a result", (now, 0), |step| {
            step.load_effects(lease.job).await?;
            step.take(|part| part.end_effect(lease, name, result))
        })
    }

    async fn effects(&self, id: JobId) -> Result<Vec<Effect>> {
        let mut step = self.reading(Time::Last).await?;
        step.load([crate::rows::RowName::Effects(id)]).await?;
        let effects = step.rows.effects.remove(&id).unwrap_or_default();
        Ok(effects.into_values().collect())
    }

    async fn heartbeat(&self, now: Now, beat: &Heartbeat) -> Result<Beaten> {
        Ok(step!(self, "write a heartbeat", (now, 0), |step| Some(step.heartbeat(beat).await?)))
    }

    async fn drain_worker(&self, now: Now, drain: &WorkerDrain) -> Result<u64> {
        drain.validate()?;
        Ok(step!(self, "drain a worker", (now, 0), |step| Some(step.drain_worker(drain).await?)))
    }

    async fn remove_worker(&self, worker: &WorkerId, incarnation: u32) -> Result<()> {
        step!(self, "remove a worker", (Time::Last, 0), |step| {
            Some(step.remove_worker(worker, incarnation).await?)
        });
        Ok(())
    }

    async fn workers(&self, now: Now) -> Result<Workers> {
        let mut step = self.reading(now).await?;
        let mut rows = step.workers_with_drains().await?;
        let now = step.now;
        rows.retain(|row| row.is_kept(now));
        Ok(Workers { now, rows })
    }

    async fn reap(&self, now: Now, limit: usize) -> Result<Vec<ExpiredLease>> {
        self.take_all_back(now, limit).await
    }

    async fn next_due(&self, now: Now, queue: &QueueName, tasks: &[TaskName]) -> Result<NextDue> {
        if let Some(next) = self.backend.hot_next_due(now, (queue, tasks)).await? {
            return Ok(next);
        }
        let mut step = self.reading(now).await?;
        let mut view = step.look_at(queue, tasks, None, 0).await?;
        step.next_of(&mut view).await
    }

    async fn peek(
        &self,
        now: Now,
        queues: &[(QueueName, Arc<[TaskName]>)],
    ) -> Result<Vec<NextDue>> {
        if let Some(next) = self.backend.hot_peek(now, queues).await? {
            return Ok(next);
        }
        let mut next = Vec::with_capacity(queues.len());
        for (queue, tasks) in queues {
            next.push(Steps::next_due(self, now, queue, tasks).await?);
        }
        Ok(next)
    }

    async fn backlog(&self, now: Now, of: &BacklogOf) -> Result<Backlog> {
        if let Some(backlog) = self.backend.hot_backlog(now, of).await? {
            return Ok(backlog);
        }
        self.reading(now).await?.backlog(of).await
    }

    async fn queues(&self) -> Result<Vec<QueueInfo>> {
        self.reading(Time::Last).await?.queues().await
    }

    async fn set_queue(&self, now: Now, queue: &QueueName, settings: &QueueSettings) -> Result<()> {
        settings.validate()?;
        step!(self, "set a queue", (Time::Noted(now), 0), |step| {
            step.load_queue(queue).await?;
            step.close_gates();
            step.take(|part| part.set_queue(queue, settings))
        });
        Ok(())
    }

    async fn replace_queue(
        &self,
        now: Now,
        queue: &QueueName,
        known: Option<&QueueSettings>,
        settings: &QueueSettings,
    ) -> Result<bool> {
        settings.validate()?;
        Ok(step!(self, "replace a queue's settings", (Time::Noted(now), 0), |step| {
            step.load_queue(queue).await?;
            step.close_gates();
            step.take(|part| part.replace_queue(queue, known, settings))
        }))
    }

    async fn delete_queue(&self, now: Now, queue: &QueueName) -> Result<bool> {
        Ok(step!(self, "delete a queue", (Time::Noted(now), 0), |step| {
            step.load_queue(queue).await?;
            step.close_gates();
            step.take(|part| part.delete_queue(queue))
        }))
    }

    async fn tasks(&self) -> Result<Vec<TaskInfo>> {
        self.reading(Time::Last).await?.tasks().await
    }

    async fn set_task(&self, now: Now, task: &TaskName, settings: &TaskSettings) -> Result<()> {
        settings.validate()?;
        step!(self, "set a task", (Time::Noted(now), 0), |step| step
            .set_task(task, settings)
            .await?);
        Ok(())
    }

    async fn task_settings(&self, tasks: &[TaskName]) -> Result<Vec<TaskInfo>> {
        self.reading(Time::Last).await?.task_settings(tasks).await
    }

    async fn replace_task(
        &self,
        now: Now,
        task: &TaskName,
        known: &TaskSettings,
        settings: &TaskSettings,
    ) -> Result<bool> {
        settings.validate()?;
        Ok(step!(self, "replace a task's settings", (Time::Noted(now), 0), |step| {
            step.load_for_task(task).await?;
            step.take(|part| part.replace_task(task, known, settings))
        }))
    }

    async fn job(&self, id: JobId) -> Result<Option<Job>> {
        self.reading(Time::Last).await?.job(id).await
    }

    async fn result(&self, id: JobId) -> Result<Option<JobResult>> {
        self.reading(Time::Last).await?.result(id).await
    }

    async fn jobs(&self, filter: &JobFilter) -> Result<Vec<Job>> {
        self.reading(Time::Last).await?.list(filter).await
    }

    async fn counts(&self) -> Result<Vec<Counts>> {
        self.reading(Time::Last).await?.counts().await
    }

    async fn attempts(&self, id: JobId) -> Result<Vec<Attempt>> {
        Ok(step!(self, "read attempts", Access::Read, Time::Last, |step| {
            step.load_around(&[id]).await?;
            step.view().map(|part| part.attempts(id))
        }))
    }

    async fn explain(&self, now: Now, target: &ExplainTarget) -> Result<Option<Explanation>> {
        // Only keys that expire need the time.
        let time = match target {
            ExplainTarget::Job(_) | ExplainTarget::Trigger(_) | ExplainTarget::Key { .. } => {
                Time::Last
            }
            ExplainTarget::IdempotencyKey { .. } | ExplainTarget::DedupKey { .. } => now.into(),
        };
        step!(self, "explain a job", Access::Read, time, |step| {
            match step.load_story(target).await? {
                Some(target) => step.view().map(|part| part.explain(&target)),
                None => Some(Ok(None)),
            }
        })
    }

    async fn flush(&self, now: Now, task: &TaskName, key: &Key) -> Result<Option<JobId>> {
        Ok(step!(self, "flush a window", (now, 0), |step| {
            step.load_window(task, key).await?;
            step.take(|part| part.flush(task, key))
        }))
    }

    async fn cancel_key(&self, now: Now, task: &TaskName, key: &Key) -> Result<Option<JobId>> {
        step!(self, "cancel a window", (now, 0), |step| {
            step.load_window(task, key).await?;
            step.take(|part| part.cancel_key(task, key))
        })
    }

    async fn cancel(&self, now: Now, id: JobId, reason: &str) -> Result<()> {
        step!(self, "cancel a job", (now, 0), |step| {
            step.load_around(&[id]).await?;
            step.take(|part| part.cancel(id, reason))
        })
    }

    async fn adjust(&self, now: Now, id: JobId, adjustment: Adjustment) -> Result<Adjusted> {
        adjustment.validate()?;
        step!(self, "change a waiting job", (now, 0), |step| {
            step.load_around(&[id]).await?;
            step.take(|part| part.adjust(id, &adjustment))
        })
    }

    async fn redrive(&self, now: Now, redrive: &Redrive) -> Result<SettledAs> {
        step!(self, "put a job back", (now, 0), |step| {
            step.load_around(&[redrive.id]).await?;
            step.meet_claims(redrive.id);
            step.take(|part| part.redrive(redrive))
        })
    }

    async fn prune(&self, now: Now, retention: &Retention, limit: usize) -> Result<Pruned> {
        if let Some(pruned) = self.backend.hot_prune(now, Removal { retention, limit }).await? {
            return Ok(pruned);
        }
        if let Err(error) = self.backend.tidy().await {
            error!(%error, "a backend could not keep its costs flat");
        }
        let (mut most, mut all) = (self.share(CHANGES_OF_AN_END).min(limit), Pruned::default());
        loop {
            match self.remove_old(now, retention, most).await {
                Err(error) if is_too_large(&error) && most > 1 => most /= 2,
                // One job that more keys name than one commit changes.
                Err(error) if is_too_large(&error) && self.keep_some(now, retention).await? => {}
                other => {
                    let some = other?;
                    all.jobs = all.jobs.saturating_add(some.jobs);
                    all.expired = all.expired.saturating_add(some.expired);
                    all.more = some.more;
                    let done = usize::try_from(all.jobs.max(all.expired)).unwrap_or(usize::MAX);
                    // A backend that takes any number of changes has bounded what it loads.
                    let is_bounded = self.backend.most_changes() < usize::MAX;
                    if !some.more || most == 0 || done >= limit || !is_bounded {
                        return Ok(all);
                    }
                    most = most.min(limit.saturating_sub(done));
                }
            }
        }
    }

    async fn overview(&self, now: Now) -> Result<Overview> {
        if let Some(overview) = self.backend.hot_overview(now).await? {
            return Ok(overview);
        }
        self.reading(now).await?.overview().await
    }

    async fn checkup(&self) -> Result<Checkup> {
        self.backend.checkup().await
    }

    async fn alerts(&self) -> Result<Vec<AlertRow>> {
        self.reading(Time::Last).await?.alerts().await
    }

    async fn set_alert(
        &self,
        name: &AlertName,
        version: u64,
        state: Option<&AlertState>,
    ) -> Result<bool> {
        Ok(step!(self, "write an alert", (Time::Last, 0), |step| {
            Some(step.set_alert(name, version, state).await?)
        }))
    }

    async fn set_schedule(&self, now: Now, schedule: &Schedule) -> Result<()> {
        // Declared at each start: mostly there is nothing to write.
        if self.backend.locks() && self.is_set(now, schedule).await? {
            return Ok(());
        }
        step!(self, "set a schedule", (now, 0), |step| {
            step.load_schedules([schedule.name.clone()]).await?;
            step.take(|part| part.set_schedule(schedule))
        });
        Ok(())
    }

    async fn set_schedule_state(
        &self,
        now: Now,
        name: &ScheduleName,
        state: ScheduleState,
    ) -> Result<()> {
        step!(self, "switch a schedule", (now, 0), |step| {
            step.load_schedules([name.clone()]).await?;
            step.take(|part| part.set_schedule_state(name, state))
        })
    }

    async fn delete_schedule(&self, now: Now, name: &ScheduleName) -> Result<()> {
        let most = self.share(CHANGES_OF_A_START);
        // Its ticks go first, so that one of its name later starts without them: all at once where the backend
        // takes any number of changes.
        let is_bounded = self.backend.most_changes() < usize::MAX;
        while is_bounded
            && step!(self, "delete a schedule", (now, 0), |step| {
                step.load_schedules([name.clone()]).await?;
                Some(step.drop_ticks(name, most).await?)
            })
        {}
        step!(self, "delete a schedule", (now, 0), |step| {
            step.load_schedules([name.clone()]).await?;
            step.load_ticks(name, Timestamp::MIN, Timestamp::MAX).await?;
            step.take(|part| part.delete_schedule(name))
        })
    }

    async fn schedules(&self) -> Result<Vec<ScheduleInfo>> {
        let mut step = self.reading(Time::Last).await?;
        step.load_all_schedules().await?;
        Ok(std::mem::take(&mut step.rows.schedules).into_values().collect())
    }

    async fn ticks(
        &self,
        name: &ScheduleName,
        from: Timestamp,
        to: Timestamp,
        limit: usize,
    ) -> Result<Vec<RecordedTick>> {
        self.reading(Time::Last).await?.ticks(name, from, to, limit).await
    }

    async fn tick(&self, now: Now, limit: usize) -> Result<Ticked> {
        if self.backend.locks() {
            let seen = self.next_tick(now).await?;
            if seen.next.is_none_or(|next| next > seen.now) || limit == 0 {
                return Ok(seen);
            }
        }
        let ticked = match self.fire(now, None, limit).await {
            Err(error) if is_too_much(&error) => self.fire_one_by_one(now, limit).await?,
            other => other?,
        };
        // Of the schedules that were not due, too. These have fired: where the next one is unknown, the
        // caller asks again at once.
        let next = self.next_tick(now).await.map(|seen| seen.next);
        Ok(Ticked { next: next.unwrap_or(Some(ticked.now)), ..ticked })
    }

    async fn run_schedule(&self, now: Now, name: &ScheduleName) -> Result<Receipt> {
        step!(self, "run a schedule", (now, 1), |step| {
            step.load_schedules([name.clone()]).await?;
            step.load_for_schedules().await?;
            step.check_ids(1).await?;
            step.take(|part| part.run_schedule(name))
        })
    }

    async fn backfill(
        &self,
        now: Now,
        name: &ScheduleName,
        from: Timestamp,
        to: Timestamp,
    ) -> Result<u64> {
        let (mut fired, mut left) = (0_u64, vec![(from, to)]);
        while let Some((from, to)) = left.pop() {
            match self.fire_between(now, name, (from, to)).await {
                Err(error) if is_too_large(&error) && from < to => {
                    let middle = from + to.since(from).checked_div(2).unwrap_or_default();
                    left.push((middle + Duration::from_micros(1), to));
                    left.push((from, middle));
                }
                other => fired = fired.saturating_add(other?),
            }
        }
        Ok(fired)
    }
}

#[async_trait]
impl<B: Backend> DeadJobs for Engine<B> {
    async fn dead(&self, filter: &DeadFilter) -> Result<Vec<Job>> {
        let (mut page, size) = (Vec::new(), filter.page());
        let mut step = self.reading(Time::Last).await?;
        step.walk_dead(filter, |job| {
            page.push(job);
            page.len() < size
        })
        .await?;
        Ok(page)
    }

    async fn count_dead(&self, filter: &DeadFilter) -> Result<u64> {
        self.reading(Time::Last).await?.count_dead(filter).await
    }

    async fn exports(&self, ids: &[JobId]) -> Result<Vec<DeadExport>> {
        let ids: Vec<JobId> = ids.iter().copied().take(DeadFilter::MAX_PAGE).collect();
        Ok(step!(self, "export dead jobs", Access::Read, Time::Last, |step| {
            step.load_whole(&ids).await?;
            step.view().map(|part| ids.iter().filter_map(|id| part.export(*id)).collect())
        }))
    }

    async fn discard(&self, now: Now, ids: &[JobId], reason: &str) -> Result<Vec<JobId>> {
        let mut gone = Vec::new();
        let mut left: Vec<&[JobId]> = ids.chunks(self.share(CHANGES_OF_AN_END)).rev().collect();
        while let Some(next) = left.pop() {
            match self.discard_at_once(now, next, reason).await {
                Err(error) if is_too_large(&error) && next.len() > 1 => {
                    left.extend(halves(next).into_iter().rev());
                }
                other => gone.extend(other?),
            }
        }
        Ok(gone)
    }

    async fn import_dead(&self, now: Now, exports: &[DeadExport]) -> Result<Vec<Imported>> {
        let mut imported = Vec::new();
        let mut left: Vec<&[DeadExport]> =
            exports.chunks(self.share(CHANGES_OF_AN_END)).rev().collect();
        while let Some(next) = left.pop() {
            match self.import_at_once(now, next).await {
                Err(error) if is_too_large(&error) && next.len() > 1 => {
                    left.extend(halves(next).into_iter().rev());
                }
                other => imported.extend(other?),
            }
        }
        Ok(imported)
    }
}

#[async_trait]
impl<B: Backend> UnreadableJobs for Engine<B> {
    async fn unreadable(&self, page: &UnreadablePage) -> Result<Vec<UnreadableJob>> {
        self.reading(Time::Last).await?.unreadable(page).await
    }

    async fn restore(&self, now: Now, ids: &[JobId]) -> Result<Vec<JobId>> {
        let (mut restored, mut failed) = (Vec::new(), None);
        for id in ids.iter().copied() {
            match self.restore_one(now, id).await {
                Ok(true) => restored.push(id),
                Ok(false) => {}
                Err(error) if is_away(&error) => {
                    return if restored.is_empty() { Err(error) } else { Ok(restored) };
                }
                // It is tried again, and holds up no other.
                Err(error) => {
                    warn!(%error, job = %id, "unreadable job not decoded again");
                    failed.get_or_insert(error);
                }
            }
        }
        match failed.filter(|_| restored.is_empty()) {
            Some(error) => Err(error),
            None => Ok(restored),
        }
    }
}
