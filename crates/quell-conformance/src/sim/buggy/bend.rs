//! What each bug makes of a call: of triggers, settlements, ticks and due times.

use std::time::Duration;

use quell_core::edge::Edge;
use quell_core::history::Event;
use quell_core::schedule::{Fired, TickedBy};
use quell_core::window::Thresholds;
use quell_core::{
    Batch, Claim, ClaimedJob, Error, ErrorKind, FailureKind, Job, JobFilter, JobId, JobState, Key,
    NewTrigger, NextDue, Outcome, Receipt, Result, Retention, Settled, SettledAs, Settlement,
    Store, TaskName, Timestamp, TriggerId,
};

use super::{Buggy, locked};
use crate::sim::bug::Bug;

impl Buggy {
    async fn key_runs(&self, task: &TaskName, key: &Key) -> Result<Option<Job>> {
        let filter = JobFilter {
            task: Some(task.clone()),
            key: Some(key.clone()),
            state: Some(JobState::Running),
            ..JobFilter::default()
        };
        Ok(self.inner.jobs(&filter).await?.pop())
    }

    async fn window(&self, task: &TaskName, key: &Key) -> Result<Option<Job>> {
        let filter = JobFilter {
            task: Some(task.clone()),
            key: Some(key.clone()),
            state: Some(JobState::Scheduled),
            ..JobFilter::default()
        };
        Ok(self.inner.jobs(&filter).await?.pop())
    }

    /// The trigger as this store understands it.
    fn bend(&self, trigger: &mut NewTrigger) {
        let Some(keyed) = &mut trigger.keyed else { return };
        let Thresholds { .. } = keyed.debounce.thresholds;
        let (min, max) = (keyed.debounce.thresholds.min(), keyed.debounce.thresholds.max());
        let bent = match self.bug {
            Bug::NeverCapped | Bug::CapNoticedOnJoin => Thresholds::new(min, max * 1_000),
            Bug::StartsEarly if keyed.debounce.edge == Edge::Trailing => {
                Thresholds::new(min / 2, max)
            }
            _ => return,
        };
        if let Ok(bent) = bent
            && keyed.debounce.edge != Edge::Throttle
        {
            keyed.debounce.thresholds = bent;
        }
    }

    /// What one batch of one trigger comes to where the bug decides; none where the model does.
    async fn odd_receipt(
        &self,
        trigger: &mut NewTrigger,
        now: Timestamp,
    ) -> Result<Option<Receipt>> {
        let dedup = trigger.dedup.as_ref().map(|dedup| (trigger.task.clone(), dedup.key.clone()));
        match self.bug {
            Bug::BurnsKey => {
                let Some(key) = dedup else { return Ok(None) };
                if let Some(job) = locked(&self.odd).burned.get(&key).copied() {
                    return Ok(Some(Receipt::Duplicate { job }));
                }
                if self.now_and_then() {
                    let job = JobId::new(9_000_000 + locked(&self.odd).calls);
                    locked(&self.odd).burned.insert(key, job);
                    return Err(Error::new(ErrorKind::Unavailable, "the write failed"));
                }
            }
            Bug::SuppressesTrailing => return self.suppress(trigger, now).await,
            Bug::AcksBeforeWrite if dedup.is_none() && self.now_and_then() => {
                let job = JobId::new(8_000_000 + locked(&self.odd).calls);
                let trigger = TriggerId { job, seq: 1 };
                return Ok(Some(Receipt::Accepted { job, trigger, due: now }));
            }
            Bug::JoinsRunning if dedup.is_none() => {
                let Some(keyed) = &trigger.keyed else { return Ok(None) };
                let running = self.key_runs(&trigger.task, &keyed.key).await?;
                if let Some(job) = running {
                    let triggers = job.window.triggers + 1;
                    let due = job.window.due_at;
                    let (job, id) = (job.id, TriggerId { job: job.id, seq: triggers });
                    return Ok(Some(Receipt::Debounced { job, trigger: id, triggers, due }));
                }
            }
            Bug::SecondWindow => {
                let Some(keyed) = &mut trigger.keyed else { return Ok(None) };
                // Attempts of such a key may overlap, so nothing else is wrong with them.
                if !keyed.debounce.overlap {
                    return Ok(None);
                }
                let is_open = self.window(&trigger.task, &keyed.key).await?.is_some();
                if is_open && self.now_and_then() {
                    keyed.key = Key::new(format!("{keyed}~", keyed = keyed.key))?;
                }
            }
            Bug::ForgetsIdempotency if self.now_and_then() => trigger.idempotency = None,
            Bug::NoExclusion => {
                if let Some(keyed) = &mut trigger.keyed {
                    keyed.debounce.overlap = true;
                }
            }
            _ => {}
        }
        Ok(None)
    }

    pub(super) async fn accept(
        &self,
        now: Option<Timestamp>,
        mut batch: Batch,
    ) -> Result<Vec<Receipt>> {
        for trigger in &mut batch.triggers {
            self.bend(trigger);
            self.misread(trigger);
        }
        if let [trigger] = &mut batch.triggers[..] {
            let at = now.unwrap_or(Timestamp::MIN);
            if let Some(receipt) = self.odd_receipt(trigger, at).await? {
                return Ok(vec![receipt]);
            }
        } else if self.has(Bug::NoExclusion) {
            for trigger in &mut batch.triggers {
                self.odd_receipt(trigger, Timestamp::MIN).await?;
            }
        }
        let mut receipts = self
            .inner
            .enqueue(now, vec![batch.clone()])
            .await?
            .pop()
            .unwrap_or_else(|| Ok(Vec::new()))?;
        if self.refuses(&batch.triggers) {
            return Err(Error::new(ErrorKind::Unavailable, "the answer was lost"));
        }
        self.misanswer(&batch.triggers, &mut receipts);
        if self.has(Bug::CapNoticedOnJoin) {
            for keyed in batch.triggers.iter().filter_map(|t| t.keyed.as_ref().map(|k| (t, k))) {
                self.notice_cap(
                    now,
                    &keyed.0.task,
                    &keyed.1.key,
                    keyed.1.debounce.thresholds.max(),
                )
                .await?;
            }
        }
        Ok(receipts)
    }

    async fn notice_cap(
        &self,
        now: Option<Timestamp>,
        task: &TaskName,
        key: &Key,
        bent_max: Duration,
    ) -> Result<()> {
        let Some(window) = self.window(task, key).await? else { return Ok(()) };
        let bound = window.window.first_at + bent_max / 1_000;
        if now.is_some_and(|now| now >= bound) {
            self.inner.flush(now, task, key).await?;
        }
        Ok(())
    }

    /// Lets a job that succeeded run once more.
    pub(super) async fn run_again(
        &self,
        now: Timestamp,
        claim: &Claim,
    ) -> Result<Option<ClaimedJob>> {
        let done = JobFilter { state: Some(JobState::Succeeded), ..JobFilter::default() };
        let jobs = self.inner.jobs(&done).await?;
        let known = |job: &&Job| job.queue == claim.queue && claim.tasks.contains(&job.task);
        let fresh = |job: &&Job| !locked(&self.odd).ran.contains(&job.id);
        let Some(job) = jobs.iter().filter(known).find(fresh) else { return Ok(None) };
        locked(&self.odd).ran.insert(job.id);
        let again = ClaimedJob {
            id: job.id,
            token: job.token.next(claim.draw),
            task: job.task.clone(),
            key: job.key.clone(),
            payload: job.payload.clone(),
            attempt: job.attempt + 1,
            failures: 0,
            lapses: 0,
            triggers: job.window.triggers,
            first_at: job.window.first_at,
            due_at: job.window.due_at,
            lease_until: now + claim.lease,
        };
        self.sink.record(&Event::claimed(now, claim, &again));
        Ok(Some(again))
    }

    /// The settlement that the model is given.
    pub(super) async fn bend_settlement(
        &self,
        now: Option<Timestamp>,
        mut one: Settlement,
    ) -> Result<Settlement> {
        let Some(job) = self.inner.job(one.lease.job).await? else { return Ok(one) };
        if let (Bug::ForgetsBackoff, Outcome::Failed(failure)) = (self.bug, &mut one.outcome)
            && let FailureKind::Transient { backoff, .. } = &mut failure.kind
        {
            *backoff = Duration::ZERO;
        }
        if self.has(Bug::NoFence) {
            one.lease.token = job.token;
        }
        let fails = matches!(one.outcome, Outcome::Failed(_));
        if let (Bug::AbsorbsNothing, true, Some(key)) = (self.bug, fails, &job.key)
            && job.is_held_by(one.lease.token, now.unwrap_or(Timestamp::MIN))
            && let Some(heir) = self.window(&job.task, key).await?
        {
            self.tell();
            self.inner.cancel(now, job.id, "lost").await?;
            self.hush();
            let became = SettledAs::Absorbed { by: heir.id, due: heir.window.due_at };
            self.sink.record(&Event::settled(now.unwrap_or(Timestamp::MIN), &one, became));
        }
        Ok(one)
    }

    /// What follows a settlement.
    pub(super) async fn after(&self, now: Option<Timestamp>, settled: &mut Settled) -> Result<()> {
        let Some(job) = self.inner.job(settled.lease.job).await? else { return Ok(()) };
        match (self.bug, settled.became) {
            (Bug::ClosesNewerWindow, SettledAs::Succeeded) => {
                if let Some(key) = &job.key {
                    self.tell();
                    self.inner.cancel_key(now, &job.task, key).await?;
                    self.hush();
                }
            }
            (Bug::DropsDead, SettledAs::Dead) => {
                self.tell();
                let drop = Retention { succeeded: None, dead: Some(Duration::ZERO) };
                self.inner.prune(now, &drop, 1_000).await?;
                self.hush();
            }
            (Bug::AbsorbDisarms, SettledAs::Absorbed { by, .. }) => {
                locked(&self.odd).disarmed.insert(by);
                let due = now.unwrap_or(Timestamp::MIN) + Duration::from_secs(3_600);
                settled.became = SettledAs::Absorbed { by, due };
            }
            _ => {}
        }
        Ok(())
    }

    /// Fires a tick once more.
    pub(super) async fn tick_again(&self, now: Timestamp, fired: &Fired) -> Result<()> {
        let receipt = self.inner.run_schedule(Some(now), &fired.schedule).await?;
        let again = Fired { receipt, ..fired.clone() };
        for event in locked(&self.draft.0).iter_mut() {
            if matches!(event, Event::ScheduleRun { .. }) {
                *event = Event::ticked(now, &again, TickedBy::Plan);
            }
        }
        Ok(())
    }

    /// What a claim or a look says of the next due time.
    pub(super) async fn bend_next(&self, mut next: NextDue) -> Result<NextDue> {
        let disarmed: Vec<JobId> = locked(&self.odd).disarmed.iter().copied().collect();
        for id in disarmed {
            let job = self.inner.job(id).await?;
            if job.is_some_and(|job| Some(job.window.due_at) == next.due) {
                next.due = None;
            }
        }
        Ok(next)
    }
}
