//! Stores with one bug each, made from the model store: the checker must catch every one.
//!
//! A buggy store tells its own story: its events say what such a store would have written, not what
//! the model inside did. The bugs are those that real queues had; see `docs/testing.md`.

mod bend;
mod own;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::{StreamExt, stream};
use quell_core::effect::Begun;
use quell_core::history::{Event, History, Sink};
use quell_core::schedule::{CatchUp, Schedule, ScheduleInfo, ScheduleState, Ticked};
use quell_core::{
    Answer, Batch, Capabilities, Claim, Claimed, EffectName, Ended, Error, ErrorKind, Job,
    JobFilter, JobId, JobState, Key, Lapsed, Lease, MemoryStore, NextDue, Operation, QueueName,
    QueueSettings, Receipt, Renewal, Result, ScheduleName, Settled, SettledAs, Settlement, Store,
    TaskName, Timestamp, Wakeups,
};

use super::bug::Bug;

/// Keeps the model's events until the buggy store has made its own of them.
#[derive(Clone, Debug, Default)]
struct Draft(Arc<Mutex<Vec<Event>>>);

impl History for Draft {
    fn record(&self, event: &Event) {
        locked(&self.0).push(event.clone());
    }
}

/// A store with a bug.
#[derive(Debug)]
pub struct Buggy {
    bug: Bug,
    inner: MemoryStore,
    draft: Draft,
    sink: Sink,
    odd: Mutex<Odd>,
}

/// What a bug remembers.
#[derive(Debug, Default)]
struct Odd {
    calls: u64,
    burned: BTreeMap<(TaskName, Key), JobId>,
    leaked: usize,
    ran: BTreeSet<JobId>,
    disarmed: BTreeSet<JobId>,
    /// A job that has ended well, for others to be absorbed by.
    elsewhere: Option<JobId>,
    /// How schedules were to catch up.
    asked: BTreeMap<ScheduleName, CatchUp>,
}

impl Buggy {
    /// An empty store with this bug, which writes its events to `sink`.
    #[must_use]
    pub fn new(bug: Bug, now: Timestamp, sink: Sink) -> Self {
        let draft = Draft::default();
        let inner = MemoryStore::new(now).with_history(Arc::new(draft.clone()));
        Buggy { bug, inner, draft, sink, odd: Mutex::new(Odd::default()) }
    }

    fn has(&self, bug: Bug) -> bool {
        self.bug == bug
    }

    /// Writes what the model told, as this store would have told it.
    fn tell(&self) {
        let events = std::mem::take(&mut *locked(&self.draft.0));
        for mut event in events {
            if let Event::Window { key: Some(key), .. } | Event::Claimed { key: Some(key), .. } =
                &mut event
            {
                *key = told_key(key);
            }
            if let Event::Schedule { schedule, catch_up, .. } = &mut event {
                *catch_up = locked(&self.odd).asked.get(schedule).copied().unwrap_or(*catch_up);
            }
            self.miswrite(&mut event);
            self.sink.record(&event);
        }
    }

    /// Forgets what the model told.
    fn hush(&self) {
        locked(&self.draft.0).clear();
    }

    /// Every third time, or so.
    fn now_and_then(&self) -> bool {
        let mut odd = locked(&self.odd);
        odd.calls += 1;
        odd.calls.is_multiple_of(3)
    }
}

/// The key that a renamed one stands for.
fn told_key(key: &Key) -> Key {
    let name = key.as_str().trim_end_matches('~');
    Key::new(name).unwrap_or_else(|_| key.clone())
}

#[async_trait]
impl Store for Buggy {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    async fn call(&self, now: Option<Timestamp>, operation: Operation) -> Result<Answer> {
        match operation {
            Operation::Enqueue { batches } => self.enqueue(now, batches).await.map(Answer::Enqueue),
            Operation::Claim { claim } => self.claim(now, &claim).await.map(Answer::Claim),
            Operation::Renew { leases, lease } => {
                self.renew(now, &leases, lease).await.map(Answer::Renew)
            }
            Operation::Settle { settlements } => {
                self.settle(now, settlements).await.map(Answer::Settle)
            }
            Operation::BeginEffect { lease, name, key } => {
                self.begin_effect(now, &lease, &name, &key).await.map(Answer::BeginEffect)
            }
            Operation::Reap { limit } => self.reap(now, limit).await.map(Answer::Reap),
            Operation::NextDue { queue, tasks } => {
                self.next_due(now, &queue, &tasks).await.map(Answer::NextDue)
            }
            Operation::SetQueue { queue, settings } => {
                self.set_queue(&queue, &settings).await.map(Answer::SetQueue)
            }
            Operation::Jobs { filter } => self.jobs(&filter).await.map(Answer::Jobs),
            Operation::Cancel { id, reason } => {
                self.cancel(now, id, &reason).await.map(Answer::Cancel)
            }
            Operation::SetSchedule { schedule } => {
                self.set_schedule(now, &schedule).await.map(Answer::SetSchedule)
            }
            Operation::SetScheduleState { name, state } => {
                self.set_schedule_state(now, &name, state).await.map(Answer::SetScheduleState)
            }
            Operation::Tick { limit } => self.tick(now, limit).await.map(Answer::Tick),
            Operation::Peek { queues } => {
                let mut next = Vec::with_capacity(queues.len());
                for (queue, tasks) in &queues {
                    next.push(self.next_due(now, queue, tasks).await?);
                }
                Ok(Answer::Peek(next))
            }
            operation => {
                let answer = self.inner.call(now, operation).await;
                self.tell();
                answer
            }
        }
    }

    fn wakeups(&self) -> Wakeups {
        match self.bug {
            Bug::LosesWakeups => Box::pin(stream::pending()),
            Bug::AbsorbDisarms => Box::pin(self.inner.wakeups().filter(|_| async { false })),
            _ => self.inner.wakeups(),
        }
    }

    fn transaction_committed(&self) {
        self.inner.transaction_committed();
    }

    fn ended(&self, job: JobId) -> Ended {
        self.inner.ended(job)
    }
}

impl Buggy {
    async fn enqueue(
        &self,
        now: Option<Timestamp>,
        batches: Vec<Batch>,
    ) -> Result<Vec<Result<Vec<Receipt>>>> {
        let mut receipts = Vec::new();
        for batch in batches {
            let accepted = self.accept(now, batch).await;
            self.tell();
            receipts.push(accepted);
        }
        Ok(receipts)
    }

    async fn claim(&self, now: Option<Timestamp>, claim: &Claim) -> Result<Claimed> {
        let mut claim = claim.clone();
        if self.has(Bug::LeaksSlot) {
            let queues = self.inner.queues().await?;
            let of_queue = queues.into_iter().find(|queue| queue.name == claim.queue);
            if let Some(limit) = of_queue.and_then(|queue| queue.settings.concurrency) {
                let running = JobFilter {
                    queue: Some(claim.queue.clone()),
                    state: Some(JobState::Running),
                    ..JobFilter::default()
                };
                let taken = self.inner.jobs(&running).await?.len() + locked(&self.odd).leaked;
                let limit = usize::try_from(limit).unwrap_or(usize::MAX);
                claim.limit = claim.limit.min(limit.saturating_sub(taken));
            }
        }
        let mut claimed = self.inner.claim(now, &claim).await?;
        self.mishand(&mut claimed);
        self.tell();
        claimed.next = self.bend_next(claimed.next).await?;
        for job in &mut claimed.jobs {
            job.key = job.key.as_ref().map(told_key);
        }
        if self.has(Bug::RunsTwice) && claimed.jobs.is_empty() && claim.limit > 0 {
            claimed.jobs.extend(self.run_again(claimed.now, &claim).await?);
        }
        Ok(claimed)
    }

    async fn renew(
        &self,
        now: Option<Timestamp>,
        leases: &[Lease],
        lease: Duration,
    ) -> Result<Vec<Renewal>> {
        if self.has(Bug::NeverRenews) {
            let until = now.map(|now| now + lease);
            return Ok(leases.iter().map(|_| until.into()).collect());
        }
        let renewed = self.inner.renew(now, leases, lease).await;
        self.tell();
        renewed
    }

    async fn settle(
        &self,
        now: Option<Timestamp>,
        settlements: Vec<Settlement>,
    ) -> Result<Vec<Settled>> {
        let mut settled = Vec::new();
        for presented in settlements {
            let given = self.bend_settlement(now, presented.clone()).await?;
            let mut answer = self.inner.settle(now, vec![given]).await?;
            let Some(mut one) = answer.pop() else { continue };
            one.lease = presented.lease;
            for event in locked(&self.draft.0).iter_mut() {
                if let Event::Settle { token, .. } = event {
                    *token = presented.lease.token;
                }
            }
            self.tell();
            let counts = one.became == SettledAs::Succeeded || self.has(Bug::EffectOutside);
            if presented.outcome.is_success() && counts {
                let Lease { job, token } = presented.lease;
                self.sink.record(&Event::Effect { job, token, name: "ledger".to_owned() });
            }
            self.after(now, &mut one).await?;
            settled.push(one);
        }
        Ok(settled)
    }

    async fn begin_effect(
        &self,
        now: Option<Timestamp>,
        lease: &Lease,
        name: &EffectName,
        key: &Key,
    ) -> Result<Begun> {
        let begun = self.inner.begin_effect(now, lease, name, key).await?;
        let forgets = self.has(Bug::ForgetsIntents) && matches!(begun, Begun::Intended { .. });
        Ok(if forgets { Begun::New { key: key.clone() } } else { begun })
    }

    async fn reap(&self, now: Option<Timestamp>, limit: usize) -> Result<Vec<Lapsed>> {
        if self.has(Bug::NeverReaps) {
            return Ok(Vec::new());
        }
        let lapsed = self.inner.reap(now, limit).await?;
        self.tell();
        if self.has(Bug::CrashLosesJob) {
            for one in &lapsed {
                // One that was absorbed lives on in its heir.
                let _ended = self.inner.cancel(now, one.lease.job, "lost").await;
            }
            self.hush();
        }
        let limited = self.inner.queues().await?;
        if limited.iter().any(|queue| queue.settings.concurrency.is_some()) {
            locked(&self.odd).leaked += lapsed.len();
        }
        Ok(lapsed)
    }

    async fn next_due(
        &self,
        now: Option<Timestamp>,
        queue: &QueueName,
        tasks: &[TaskName],
    ) -> Result<NextDue> {
        let next = self.inner.next_due(now, queue, tasks).await?;
        self.bend_next(next).await
    }

    async fn set_queue(&self, queue: &QueueName, settings: &QueueSettings) -> Result<()> {
        self.inner.set_queue(queue, &self.heeded(settings)).await?;
        for event in locked(&self.draft.0).iter_mut() {
            if let Event::Queue { settings: kept, .. } = event {
                kept.clone_from(settings);
            }
        }
        self.tell();
        Ok(())
    }

    async fn jobs(&self, filter: &JobFilter) -> Result<Vec<Job>> {
        let mut jobs = self.inner.jobs(filter).await?;
        jobs.retain(|job| self.shows(job));
        Ok(jobs)
    }

    async fn cancel(&self, now: Option<Timestamp>, id: JobId, reason: &str) -> Result<()> {
        let cancelled = self.inner.cancel(now, id, reason).await;
        self.tell();
        let illegal = |error: &Error| error.kind() == ErrorKind::IllegalMove;
        match (now, cancelled) {
            (Some(t), Err(error)) if self.has(Bug::CancelsEnded) && illegal(&error) => {
                self.sink.record(&Event::Cancel { t, job: id });
                Ok(())
            }
            (_, cancelled) => cancelled,
        }
    }

    async fn set_schedule(&self, now: Option<Timestamp>, schedule: &Schedule) -> Result<()> {
        let mut bent = schedule.clone();
        if self.has(Bug::MissesTicks) {
            bent.catch_up = CatchUp::None;
            locked(&self.odd).asked.insert(schedule.name.clone(), schedule.catch_up);
        }
        let answer = self.inner.set_schedule(now, &bent).await;
        self.tell();
        answer
    }

    async fn set_schedule_state(
        &self,
        now: Option<Timestamp>,
        name: &ScheduleName,
        state: ScheduleState,
    ) -> Result<()> {
        let known = self.inner.schedules().await?;
        let known = known.into_iter().find(|info| info.schedule.name == *name);
        let ignored = self.has(Bug::TicksOn) && state == ScheduleState::Paused;
        if let Some(info) = known.filter(|_| ignored) {
            let t = now.unwrap_or(Timestamp::MIN);
            self.sink.record(&Event::schedule(t, &ScheduleInfo { state, ..info }));
            return Ok(());
        }
        let answer = self.inner.set_schedule_state(now, name, state).await;
        self.tell();
        answer
    }

    async fn tick(&self, now: Option<Timestamp>, limit: usize) -> Result<Ticked> {
        let ticked = self.inner.tick(now, limit).await?;
        for fired in &ticked.fired {
            match (self.bug, &fired.receipt) {
                (Bug::TicksTwice, _) if self.now_and_then() => {
                    self.tell();
                    self.tick_again(ticked.now, fired).await?;
                }
                (Bug::TicksInVain, Receipt::Accepted { job, .. }) if self.now_and_then() => {
                    let of_job =
                        |event: &Event| matches!(event, Event::Window { job: of, .. } if of == job);
                    locked(&self.draft.0).retain(|event| !of_job(event));
                    self.tell();
                    self.inner.cancel(now, *job, "lost").await?;
                    self.hush();
                }
                _ => {}
            }
        }
        self.tell();
        Ok(ticked)
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
