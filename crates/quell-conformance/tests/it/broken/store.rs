//! The model store with one bug: each changes what is asked of it or what it answers.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::bug::Bug;
use async_trait::async_trait;
use quell_core::edge::Edge;
use quell_core::effect::Begun;
use quell_core::heartbeat::Workers;
use quell_core::schedule::{CatchUp, Schedule, ScheduleState, Ticked};
use quell_core::window::Thresholds;
use quell_core::{
    AlertName, AlertState, Answer, Attempt, Batch, Capabilities, Claim, Claimed, ClaimedJob,
    Effect, EffectName, Ended, ExplainTarget, Explanation, FailureKind, Fold, Job, JobFilter,
    JobId, JobResult, JobState, Key, Lapsed, Lease, MemoryStore, NewTrigger, NextDue, Operation,
    Outcome, Overview, Payload, Pruned, QueueName, QueueSettings, Rate, Receipt, Redrive, Renewal,
    Result, Retention, ScheduleName, Settled, SettledAs, Settlement, Store, TaskName, TaskSettings,
    Timestamp, Wakeups, When, WorkerId,
};

/// A store with a bug.
#[derive(Debug)]
pub(crate) struct Broken {
    pub(super) inner: MemoryStore,
    pub(super) bug: Bug,
    odd: Mutex<Odd>,
}

/// What a bug remembers.
#[derive(Debug, Default)]
pub(super) struct Odd {
    pub(super) triggers: u64,
    tasks: BTreeSet<TaskName>,
    /// Keys that were marked by calls that have not come back.
    marked: BTreeSet<Key>,
    /// The partition of each key's first trigger.
    partitions: BTreeMap<Key, Option<Key>>,
    workers: u64,
    /// The last key of each effect's name.
    effects: BTreeMap<EffectName, Key>,
    /// The effects that were last shown of each job.
    kept: BTreeMap<JobId, Vec<Effect>>,
}

impl Broken {
    pub(crate) fn new(inner: MemoryStore, bug: Bug) -> Self {
        Broken { inner, bug, odd: Mutex::default() }
    }

    pub(super) fn odd<R>(&self, with: impl FnOnce(&mut Odd) -> R) -> R {
        with(&mut self.odd.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// What the bug makes of a trigger before it is written.
    fn bent(&self, mut trigger: NewTrigger) -> NewTrigger {
        let nth = self.odd(|odd| {
            odd.triggers += 1;
            odd.tasks.insert(trigger.task.clone());
            odd.triggers
        });
        match self.bug {
            Bug::LosesEveryThird if nth.is_multiple_of(3) => trigger.task = lost(),
            Bug::MakesPlainTriggersWait if trigger.keyed.is_none() => {
                trigger.when = When::After(Duration::from_secs(10));
            }
            Bug::ForgetsDelays => trigger.when = When::Now,
            Bug::KeepsTheLastPayload => trigger.fold = Fold::Last,
            Bug::ForgetsDedupKeys | Bug::ClaimsNoDedupAndAcceptsKeys => trigger.dedup = None,
            Bug::ForgetsIdempotencyKeys => trigger.idempotency = None,
            Bug::KeepsIdempotencyKeysForever => {
                if let Some(idempotency) = &mut trigger.idempotency {
                    idempotency.retention *= 1_000;
                }
            }
            Bug::IgnoresPriorities => trigger.priority = 0,
            Bug::IgnoresPartitions => trigger.partition = None,
            Bug::SplitsPartitionsByTask => {
                let own = |name: Key| Key::from_parts([trigger.task.as_str(), name.as_str()]);
                trigger.partition = trigger.partition.map(|name| own(name).unwrap());
            }
            Bug::KeepsThePartition => {
                let key = trigger.keyed.as_ref().map(|keyed| keyed.key.clone());
                let partition = trigger.partition.clone();
                let first = key.map(|key| {
                    self.odd(|odd| odd.partitions.entry(key).or_insert(partition).clone())
                });
                trigger.partition = first.unwrap_or(trigger.partition);
            }
            Bug::GluesTaskAndKey => trigger.task = TaskName::new("t").unwrap(),
            _ => {}
        }
        if let Some(keyed) = &mut trigger.keyed {
            let thresholds = keyed.debounce.thresholds;
            match self.bug {
                Bug::OpensSecondWindows => {
                    let twin = format!("{}#{}", keyed.key.as_str(), nth % 2);
                    keyed.key = Key::new(&twin).unwrap_or_else(|_| keyed.key.clone());
                }
                Bug::CutsKeys => {
                    let short: String = keyed.key.as_str().chars().take(100).collect();
                    keyed.key = Key::new(&short).unwrap();
                }
                Bug::NeverCaps => {
                    let year = Duration::from_secs(366 * 86_400);
                    keyed.debounce.thresholds = Thresholds::new(thresholds.min(), year).unwrap();
                }
                Bug::CountsWholeSeconds => {
                    let whole = |time: Duration| Duration::from_secs(time.as_secs().max(1));
                    let (min, max) = (whole(thresholds.min()), whole(thresholds.max()));
                    keyed.debounce.thresholds = Thresholds::new(min, max).unwrap();
                }
                Bug::ForgetsMaxTriggers => keyed.debounce.max_triggers = None,
                Bug::CutsDelays => trigger.when = cut(trigger.when, thresholds.max()),
                Bug::ForgetsOverlap => keyed.debounce.overlap = false,
                Bug::RunsKeysSideBySide => keyed.debounce.overlap = true,
                Bug::ForgetsEdges => keyed.debounce.edge = Edge::Trailing,
                Bug::ForgetsTheQueuesThresholds => keyed.debounce.from_default = false,
                _ => {}
            }
        }
        trigger
    }

    fn bent_batch(&self, batch: Batch) -> Batch {
        let dedup = match self.bug {
            Bug::ForgetsBatchKeys | Bug::ForgetsDedupKeys | Bug::ClaimsNoDedupAndAcceptsKeys => {
                None
            }
            _ => batch.dedup,
        };
        let triggers = batch.triggers.into_iter().map(|trigger| self.bent(trigger)).collect();
        Batch { triggers, dedup }
    }

    /// The keys that a call marks before it writes, for the bugs that do that.
    fn marks(&self, batches: &[Batch]) -> BTreeSet<Key> {
        let triggers = batches.iter().flat_map(|batch| &batch.triggers);
        let key = |trigger: &NewTrigger| match self.bug {
            Bug::PushesTheMessageLater => trigger.keyed.as_ref().map(|keyed| keyed.key.clone()),
            Bug::BurnsDedupKeys => trigger.dedup.as_ref().map(|dedup| dedup.key.clone()),
            _ => None,
        };
        triggers.filter_map(key).collect()
    }

    fn bent_outcome(&self, outcome: Outcome) -> Outcome {
        match (self.bug, outcome) {
            (Bug::ForgetsOutputs, Outcome::Succeeded { .. }) => Outcome::succeeded(),
            (Bug::ForgetsBackoff, Outcome::Failed(mut failure)) => {
                if let FailureKind::Transient { backoff, .. } = &mut failure.kind {
                    *backoff = Duration::ZERO;
                }
                Outcome::Failed(failure)
            }
            (Bug::BuriesInsteadOfAbsorbing, Outcome::Failed(mut failure)) => {
                if matches!(failure.kind, FailureKind::Transient { last: true, .. }) {
                    failure.kind = FailureKind::Permanent;
                }
                Outcome::Failed(failure)
            }
            (Bug::SpendsAttemptsOnReleases, Outcome::Released) => {
                quell_conformance::rig::fails(Duration::ZERO, false)
            }
            (_, outcome) => outcome,
        }
    }

    /// The lease of whoever runs the job now.
    async fn anyones(&self, lease: Lease) -> Lease {
        let attempts = self.inner.attempts(lease.job).await.unwrap_or_default();
        let running = attempts.last().filter(|attempt| attempt.outcome.is_none());
        running.map_or(lease, |attempt| Lease { token: attempt.token, ..lease })
    }
}

/// A delay, but no longer than `most`.
fn cut(when: When, most: Duration) -> When {
    match when {
        When::After(delay) => When::After(delay.min(most)),
        When::Now | When::At(_) => when,
    }
}

/// A task that nobody runs.
fn lost() -> TaskName {
    TaskName::new("lost").unwrap()
}

#[async_trait]
impl Store for Broken {
    fn capabilities(&self) -> Capabilities {
        let dedup = self.bug != Bug::ClaimsNoDedupAndAcceptsKeys;
        Capabilities { dedup, ..self.inner.capabilities() }
    }

    #[expect(clippy::too_many_lines, reason = "a line for each operation that a bug changes")]
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
            Operation::EndEffect { lease, name, result } => {
                self.end_effect(now, &lease, &name, &result).await.map(Answer::EndEffect)
            }
            Operation::Effects { id } => self.effects(id).await.map(Answer::Effects),
            Operation::Reap { limit } => self.reap(now, limit).await.map(Answer::Reap),
            Operation::Workers {} => self.workers(now).await.map(Answer::Workers),
            Operation::NextDue { queue, tasks } => {
                self.next_due(now, &queue, &tasks).await.map(Answer::NextDue)
            }
            Operation::SetQueue { queue, settings } => {
                self.set_queue(&queue, &settings).await.map(Answer::SetQueue)
            }
            Operation::DeleteQueue { queue } => {
                self.delete_queue(&queue).await.map(Answer::DeleteQueue)
            }
            Operation::SetTask { task, settings } => {
                self.set_task(&task, &settings).await.map(Answer::SetTask)
            }
            Operation::ResultOf { id } => self.result(id).await.map(Answer::ResultOf),
            Operation::Jobs { filter } => self.jobs(&filter).await.map(Answer::Jobs),
            Operation::Attempts { id } => self.attempts(id).await.map(Answer::Attempts),
            Operation::Explain { target } => self.explain(&target).await.map(Answer::Explain),
            Operation::Flush { task, key } => self.flush(now, &task, &key).await.map(Answer::Flush),
            Operation::Cancel { id, reason } => {
                self.cancel(now, id, &reason).await.map(Answer::Cancel)
            }
            Operation::Redrive { redrive } => {
                self.redrive(now, &redrive).await.map(Answer::Redrive)
            }
            Operation::Prune { retention, limit } => {
                self.prune(now, &retention, limit).await.map(Answer::Prune)
            }
            Operation::Overview {} => self.overview(now).await.map(Answer::Overview),
            Operation::SetAlert { name, version, state } => {
                self.set_alert(&name, version, state.as_ref()).await.map(Answer::SetAlert)
            }
            Operation::SetSchedule { schedule } => {
                self.set_schedule(now, &schedule).await.map(Answer::SetSchedule)
            }
            Operation::SetScheduleState { name, state } => {
                self.set_schedule_state(now, &name, state).await.map(Answer::SetScheduleState)
            }
            Operation::Tick { limit } => self.tick(now, limit).await.map(Answer::Tick),
            Operation::RunSchedule { name } => {
                self.run_schedule(now, &name).await.map(Answer::RunSchedule)
            }
            Operation::Backfill { name, from, to } => {
                self.backfill(now, &name, from, to).await.map(Answer::Backfill)
            }
            Operation::Dead { filter } => self.dead(&filter).await.map(Answer::Dead),
            Operation::Letters { ids } => self.letters(&ids).await.map(Answer::Letters),
            Operation::Discard { ids, reason } => {
                self.discard(now, &ids, &reason).await.map(Answer::Discard)
            }
            Operation::ImportDead { letters } => {
                self.import_dead(now, &letters).await.map(Answer::ImportDead)
            }
            Operation::Peek { queues } => {
                let mut next = Vec::with_capacity(queues.len());
                for (queue, tasks) in &queues {
                    next.push(self.next_due(now, queue, tasks).await?);
                }
                Ok(Answer::Peek(next))
            }
            operation => self.inner.call(now, operation).await,
        }
    }

    fn wakeups(&self) -> Wakeups {
        match self.bug {
            Bug::WakesNobody => Box::pin(futures_util::stream::pending()),
            _ => self.inner.wakeups(),
        }
    }

    fn ended(&self, job: JobId) -> Ended {
        match self.bug {
            Bug::TellsNoEnds => Box::pin(futures_util::future::pending()),
            _ => self.inner.ended(job),
        }
    }
}

impl Broken {
    async fn enqueue(
        &self,
        now: Option<Timestamp>,
        batches: Vec<Batch>,
    ) -> Result<Vec<Result<Vec<Receipt>>>> {
        let mut batches: Vec<Batch> = batches.into_iter().map(|b| self.bent_batch(b)).collect();
        let marks = self.marks(&batches);
        if !marks.is_empty() {
            if self.odd(|odd| odd.marked.intersection(&marks).next().is_some()) {
                let of_nobody = batches.iter_mut().flat_map(|batch| &mut batch.triggers);
                of_nobody.for_each(|trigger| trigger.task = lost());
            }
            self.odd(|odd| odd.marked.extend(marks.iter().cloned()));
            tokio::task::yield_now().await;
            self.odd(|odd| odd.marked.retain(|key| !marks.contains(key)));
        }
        if self.bug == Bug::AcceptsMemberByMember {
            let mut receipts = Vec::new();
            for batch in batches {
                let mut of_batch = Vec::new();
                for trigger in batch.triggers {
                    let one = Batch { triggers: vec![trigger], dedup: batch.dedup.clone() };
                    of_batch.extend(self.inner.enqueue(now, vec![one]).await?.remove(0)?);
                    tokio::task::yield_now().await;
                }
                receipts.push(Ok(of_batch));
            }
            return Ok(receipts);
        }
        if self.bug == Bug::CutsLargeBatches {
            batches.iter_mut().for_each(|batch| batch.triggers.truncate(1_000));
        }
        let mut receipts = self.inner.enqueue(now, batches).await?;
        for receipt in receipts.iter_mut().flatten().flatten() {
            if let (Bug::CountsOneTooMany, Receipt::Debounced { triggers, .. }) =
                (self.bug, receipt)
            {
                *triggers += 1;
            }
        }
        if self.bug == Bug::AnswersOutOfOrder {
            receipts.iter_mut().flatten().for_each(|of_batch| of_batch.reverse());
        }
        Ok(receipts)
    }

    async fn claim(&self, now: Option<Timestamp>, claim: &Claim) -> Result<Claimed> {
        let (mut now, mut claim) = (now, claim.clone());
        match self.bug {
            Bug::StartsEarly => now = now.map(|now| now + Duration::from_secs(2)),
            Bug::ClaimsTheBacklog => claim.limit = usize::MAX,
            Bug::IgnoresWorkers => {
                let number = self.odd(|odd| {
                    odd.workers += 1;
                    odd.workers
                });
                claim.worker = WorkerId::new(format!("w{number}")).unwrap();
            }
            Bug::HandsOutUnknownTasks => {
                claim.tasks = self.odd(|odd| odd.tasks.iter().cloned().collect());
            }
            _ => {}
        }
        let mut claimed = self.inner.claim(now, &claim).await?;
        if self.bug == Bug::ForgetsLapses {
            claimed.jobs.iter_mut().for_each(|job| job.lapses = 0);
        }
        if self.bug == Bug::CountsEveryLapse {
            let starts = |job: &ClaimedJob| u32::try_from(job.token.starts()).unwrap();
            claimed.jobs.iter_mut().for_each(|job| job.lapses = starts(job) - 1);
        }
        Ok(claimed)
    }

    async fn renew(
        &self,
        now: Option<Timestamp>,
        leases: &[Lease],
        lease: Duration,
    ) -> Result<Vec<Renewal>> {
        let mut renewed = self.inner.renew(now, leases, lease).await?;
        if self.bug == Bug::RenewsWhatIsLost {
            let again = now.map(|now| now + lease);
            renewed.iter_mut().for_each(|one| *one = one.until().or(again).into());
        }
        Ok(renewed)
    }

    async fn settle(
        &self,
        now: Option<Timestamp>,
        settlements: Vec<Settlement>,
    ) -> Result<Vec<Settled>> {
        let mut bent = Vec::new();
        for Settlement { mut lease, outcome } in settlements {
            if self.bug == Bug::SettlesWithoutToken {
                lease = self.anyones(lease).await;
            }
            bent.push(Settlement { lease, outcome: self.bent_outcome(outcome) });
        }
        let settled = self.inner.settle(now, bent).await?;
        if self.bug == Bug::EndsTheNewerWindowToo {
            for one in settled.iter().filter(|one| one.became == SettledAs::Succeeded) {
                if let Some(Job { task, key: Some(key), .. }) =
                    self.inner.job(one.lease.job).await?
                {
                    self.inner.cancel_key(now, &task, &key).await?;
                }
            }
        }
        if self.bug == Bug::DropsTheDead {
            let keep = Retention { succeeded: None, dead: Some(Duration::ZERO) };
            self.inner.prune(now, &keep, usize::MAX).await?;
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
        let begun = self.inner.begin_effect(now, lease, name, key).await;
        let met = self.odd(|odd| odd.effects.insert(name.clone(), key.clone()));
        match (self.bug, begun) {
            (Bug::ForgetsEffects, Ok(_)) | (Bug::RecordsWithoutLease, Err(_)) => {
                Ok(Begun::New { key: key.clone() })
            }
            (Bug::ChangesKeysOfEffects, Ok(Begun::Intended { .. })) => {
                Ok(Begun::Intended { key: key.clone() })
            }
            (Bug::LosesEffectsOnTheWay, Ok(_)) if lease.token.starts() > 2 => {
                Ok(Begun::New { key: key.clone() })
            }
            (Bug::SharesEffects, Ok(begun)) => Ok(met.map_or(begun, |key| Begun::Intended { key })),
            (_, begun) => begun,
        }
    }

    async fn end_effect(
        &self,
        now: Option<Timestamp>,
        lease: &Lease,
        name: &EffectName,
        result: &Payload,
    ) -> Result<()> {
        let ended = self.inner.end_effect(now, lease, name, result).await;
        match self.bug {
            Bug::ForgetsEffects | Bug::RecordsWithoutLease | Bug::RecordsAnyResult => Ok(()),
            _ => ended,
        }
    }

    async fn effects(&self, id: JobId) -> Result<Vec<Effect>> {
        let effects = self.inner.effects(id).await?;
        if self.bug != Bug::KeepsEffectsOfRemovedJobs {
            return Ok(effects);
        }
        let kept = self.odd(|odd| odd.kept.get(&id).cloned()).filter(|_| effects.is_empty());
        self.odd(|odd| odd.kept.insert(id, effects.clone()));
        Ok(kept.unwrap_or(effects))
    }

    async fn reap(&self, now: Option<Timestamp>, limit: usize) -> Result<Vec<Lapsed>> {
        match self.bug {
            Bug::NeverReaps => Ok(Vec::new()),
            _ => self.inner.reap(now, limit).await,
        }
    }

    async fn workers(&self, now: Option<Timestamp>) -> Result<Workers> {
        let mut workers = self.inner.workers(now).await?;
        if self.bug == Bug::ForgetsWorkers {
            workers.rows.clear();
        }
        Ok(workers)
    }

    async fn next_due(
        &self,
        now: Option<Timestamp>,
        queue: &QueueName,
        tasks: &[TaskName],
    ) -> Result<NextDue> {
        let mut next = self.inner.next_due(now, queue, tasks).await?;
        match self.bug {
            Bug::TimeGoesBack => next.now = now.unwrap_or(next.now),
            Bug::LooksTooLate => next.due = next.due.map(|due| due + Duration::from_secs(1)),
            _ => {}
        }
        Ok(next)
    }

    async fn set_queue(&self, queue: &QueueName, settings: &QueueSettings) -> Result<()> {
        let mut settings = settings.clone();
        match self.bug {
            Bug::IgnoresPause => settings.paused = false,
            Bug::IgnoresLimits => {
                settings = QueueSettings {
                    paused: settings.paused,
                    debounce: settings.debounce,
                    ..QueueSettings::default()
                };
            }
            Bug::IgnoresRates => (settings.rate, settings.partition_rate) = (None, None),
            Bug::RefillsABucket => {
                let half = |rate: Rate| Rate { period: rate.period / 2, ..rate };
                settings.rate = settings.rate.map(half);
                settings.partition_rate = settings.partition_rate.map(half);
            }
            Bug::RestartsTheRate => {
                self.inner.set_queue(queue, &QueueSettings::default()).await?;
            }
            Bug::LimitsTheQueueForItsPartitions => {
                settings.concurrency = settings.partition_concurrency.or(settings.concurrency);
            }
            Bug::TakesAnySettings if settings.validate().is_err() => return Ok(()),
            _ => {}
        }
        self.inner.set_queue(queue, &settings).await
    }

    async fn delete_queue(&self, queue: &QueueName) -> Result<bool> {
        match self.bug {
            Bug::DeletesNothing => Ok(true),
            _ => self.inner.delete_queue(queue).await,
        }
    }

    async fn set_task(&self, task: &TaskName, settings: &TaskSettings) -> Result<()> {
        match self.bug {
            Bug::IgnoresPausedTasks => Ok(()),
            Bug::PausesTheQueuesOfATask => {
                let paused = QueueSettings { paused: settings.paused, ..QueueSettings::default() };
                self.inner.set_queue(&quell_conformance::rig::queue(), &paused).await?;
                self.inner.set_task(task, settings).await
            }
            _ => self.inner.set_task(task, settings).await,
        }
    }

    async fn result(&self, id: JobId) -> Result<Option<JobResult>> {
        let invented = JobResult { job: id, state: JobState::Succeeded, output: None, error: None };
        let known = self.inner.result(id).await?;
        Ok(known.or_else(|| (self.bug == Bug::InventsResults).then_some(invented)))
    }

    async fn jobs(&self, filter: &JobFilter) -> Result<Vec<Job>> {
        match self.bug {
            Bug::ListsNothing => Ok(Vec::new()),
            _ => self.inner.jobs(filter).await,
        }
    }

    async fn attempts(&self, id: JobId) -> Result<Vec<Attempt>> {
        let mut attempts = self.inner.attempts(id).await?;
        if self.bug == Bug::KeepsTheLastAttemptsOnly && attempts.len() > 20 {
            attempts.drain(..5);
        }
        Ok(attempts)
    }

    async fn explain(&self, target: &ExplainTarget) -> Result<Option<Explanation>> {
        match self.bug {
            Bug::ExplainsNothing => Ok(None),
            _ => self.inner.explain(target).await,
        }
    }

    async fn flush(
        &self,
        now: Option<Timestamp>,
        task: &TaskName,
        key: &Key,
    ) -> Result<Option<JobId>> {
        match self.bug {
            Bug::FlushesNothing => Ok(None),
            _ => self.inner.flush(now, task, key).await,
        }
    }

    async fn cancel(&self, now: Option<Timestamp>, id: JobId, reason: &str) -> Result<()> {
        let reason = if self.bug == Bug::CutsReasons { "cancelled" } else { reason };
        self.inner.cancel(now, id, reason).await
    }

    async fn redrive(&self, now: Option<Timestamp>, redrive: &Redrive) -> Result<SettledAs> {
        match self.bug {
            Bug::RedrivesNothing => Ok(SettledAs::Dead),
            _ => self.inner.redrive(now, redrive).await,
        }
    }

    async fn prune(
        &self,
        now: Option<Timestamp>,
        retention: &Retention,
        limit: usize,
    ) -> Result<Pruned> {
        let mut retention = *retention;
        if self.bug == Bug::PrunesAtOnce {
            let at_once = Some(Duration::ZERO);
            retention = Retention { succeeded: at_once, dead: at_once };
        }
        if self.bug == Bug::KeepsExpiredKeys && limit < usize::MAX {
            return Ok(Pruned::default());
        }
        self.inner.prune(now, &retention, limit).await
    }

    async fn overview(&self, now: Option<Timestamp>) -> Result<Overview> {
        let mut overview = self.inner.overview(now).await?;
        if self.bug == Bug::SeesNoTrouble {
            overview.lanes.clear();
        }
        Ok(overview)
    }

    async fn set_alert(
        &self,
        name: &AlertName,
        version: u64,
        state: Option<&AlertState>,
    ) -> Result<bool> {
        let mut version = version;
        if self.bug == Bug::WritesAlertsUnseen {
            let rows = self.inner.alerts().await?;
            version = rows.iter().find(|row| row.name == *name).map_or(0, |row| row.version);
        }
        self.inner.set_alert(name, version, state).await
    }

    async fn set_schedule(&self, now: Option<Timestamp>, schedule: &Schedule) -> Result<()> {
        let mut schedule = schedule.clone();
        match self.bug {
            Bug::CatchesUpNothing => schedule.catch_up = CatchUp::None,
            Bug::PlansAnewWhenSet => {
                let _unknown = self.inner.delete_schedule(now, &schedule.name).await;
            }
            _ => {}
        }
        self.inner.set_schedule(now, &schedule).await
    }

    async fn set_schedule_state(
        &self,
        now: Option<Timestamp>,
        name: &ScheduleName,
        state: ScheduleState,
    ) -> Result<()> {
        match self.bug {
            Bug::IgnoresPausesOfSchedules => Ok(()),
            _ => self.inner.set_schedule_state(now, name, state).await,
        }
    }

    async fn tick(&self, now: Option<Timestamp>, limit: usize) -> Result<Ticked> {
        let limit = match self.bug {
            Bug::FiresNoTicks => 0,
            Bug::IgnoresTheBoundOfTicks => usize::MAX,
            _ => limit,
        };
        let mut ticked = self.inner.tick(now, limit).await?;
        match self.bug {
            // Or everyone would ask again for ever.
            Bug::FiresNoTicks => ticked.next = None,
            Bug::FiresTicksTwice => ticked.fired.extend(ticked.fired.clone()),
            _ => {}
        }
        Ok(ticked)
    }

    async fn run_schedule(&self, now: Option<Timestamp>, name: &ScheduleName) -> Result<Receipt> {
        if self.bug == Bug::RunsSchedulesTwice {
            self.inner.run_schedule(now, name).await?;
        }
        self.inner.run_schedule(now, name).await
    }

    async fn backfill(
        &self,
        now: Option<Timestamp>,
        name: &ScheduleName,
        from: Timestamp,
        to: Timestamp,
    ) -> Result<u64> {
        let mut to = to;
        if self.bug == Bug::CutsBackfillsShort {
            to = to.min(now.unwrap_or(to));
        }
        let known = self.inner.schedules().await?;
        if let (Bug::ForgetsWhichTicksFired, Some(info)) =
            (self.bug, known.into_iter().find(|info| info.schedule.name == *name))
        {
            self.inner.delete_schedule(now, name).await?;
            self.inner.set_schedule(now, &info.schedule).await?;
        }
        self.inner.backfill(now, name, from, to).await
    }
}
