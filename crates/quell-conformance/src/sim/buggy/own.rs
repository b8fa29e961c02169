//! Bugs that one property alone catches: each spoils one answer or one event, and the rest of the
//! store's story stays as it must be.

use quell_core::edge::Edge;
use quell_core::history::Event;
use quell_core::{
    Claimed, Job, JobFilter, JobId, JobState, NewTrigger, Payload, QueueSettings, Receipt, Result,
    SettledAs, Store, Timestamp, TriggerId,
};

use super::{Buggy, locked};
use crate::sim::bug::Bug;

impl Buggy {
    /// What this store reads instead of the trigger that it was given.
    pub(super) fn misread(&self, trigger: &mut NewTrigger) {
        match self.bug {
            Bug::TakesKeyTwice if trigger.dedup.is_some() && self.now_and_then() => {
                trigger.dedup = None;
            }
            Bug::OutOfOrder if self.now_and_then() => {
                trigger.priority = trigger.priority.saturating_add(1);
            }
            Bug::NeverFull => {
                if let Some(keyed) = &mut trigger.keyed {
                    keyed.debounce.max_bytes = None;
                }
            }
            Bug::LeadsLate => {
                if let Some(keyed) = &mut trigger.keyed
                    && keyed.debounce.edge == Edge::Leading
                {
                    keyed.debounce.edge = Edge::Trailing;
                }
            }
            _ => {}
        }
    }

    /// Whether a call that was accepted is answered as one that failed.
    pub(super) fn refuses(&self, triggers: &[NewTrigger]) -> bool {
        let plain = |one: &NewTrigger| {
            one.keyed.is_none() && one.dedup.is_none() && one.idempotency.is_none()
        };
        self.has(Bug::RunsRefused) && triggers.iter().all(plain) && self.now_and_then()
    }

    /// What this store answers instead.
    pub(super) fn misanswer(&self, triggers: &[NewTrigger], receipts: &mut [Receipt]) {
        if triggers.iter().any(|trigger| trigger.dedup.is_some() || trigger.idempotency.is_some()) {
            return;
        }
        for receipt in receipts {
            if let Receipt::Debounced { trigger, .. } = receipt
                && self.has(Bug::SameTrigger)
                && trigger.seq > 2
                && self.now_and_then()
            {
                trigger.seq -= 1;
            }
        }
    }

    /// Counts a trigger of a trailing task on the key's last job, which has run.
    pub(super) async fn suppress(
        &self,
        trigger: &NewTrigger,
        now: Timestamp,
    ) -> Result<Option<Receipt>> {
        let Some(keyed) = &trigger.keyed else { return Ok(None) };
        if keyed.debounce.edge != Edge::Trailing
            || trigger.dedup.is_some()
            || trigger.idempotency.is_some()
        {
            return Ok(None);
        }
        let of_key = JobFilter {
            task: Some(trigger.task.clone()),
            key: Some(keyed.key.clone()),
            limit: 1,
            ..JobFilter::default()
        };
        let last = self.inner.jobs(&of_key).await?.pop();
        let Some(job) = last.filter(|job| job.state == JobState::Succeeded) else {
            return Ok(None);
        };
        if !locked(&self.odd).ran.insert(job.id) {
            return Ok(None);
        }
        let (id, count, due) = (job.id, job.window.triggers + 1, job.window.due_at);
        self.sink.record(&Event::Suppressed { t: now, job: id, count, suppressed: 1 });
        let trigger = TriggerId { job: id, seq: count };
        Ok(Some(Receipt::Debounced { job: id, trigger, triggers: count, due }))
    }

    /// The claimed jobs as this store hands them out.
    pub(super) fn mishand(&self, claimed: &mut Claimed) {
        for job in &mut claimed.jobs {
            if self.has(Bug::MangledPayload) && job.key.is_some() && job.triggers > 1 {
                job.payload = Payload::from_stored("{}");
            }
            if self.has(Bug::ChargesLapses) && job.lapses > 0 {
                job.attempt += 1;
                for event in locked(&self.draft.0).iter_mut() {
                    if let Event::Claimed { job: id, attempt, .. } = event
                        && *id == job.id
                    {
                        *attempt = job.attempt;
                    }
                }
            }
        }
    }

    /// The settings that this store heeds, where it keeps others.
    pub(super) fn heeded(&self, settings: &QueueSettings) -> QueueSettings {
        let kept = settings.clone();
        match self.bug {
            Bug::OverLimits => {
                QueueSettings { paused: kept.paused, debounce: kept.debounce, ..Default::default() }
            }
            Bug::StartsPaused => QueueSettings { paused: false, ..kept },
            _ => kept,
        }
    }

    /// What this store writes down instead of an event.
    pub(super) fn miswrite(&self, event: &mut Event) {
        if !self.has(Bug::AbsorbsElsewhere) {
            return;
        }
        let mut odd = locked(&self.odd);
        let (became, job) = match event {
            Event::Settle { became: SettledAs::Succeeded, job, .. } => {
                odd.elsewhere = Some(*job);
                return;
            }
            // A failure would hold back another job, too.
            Event::Settle { outcome: quell_core::AttemptOutcome::Failed, .. } => return,
            Event::Settle { became, job, .. } | Event::Lapse { became, job, .. } => (became, *job),
            _ => return,
        };
        if let (SettledAs::Absorbed { by, .. }, Some(other)) = (became, odd.elsewhere)
            && other != job
        {
            *by = other;
        }
    }

    /// Whether a listing shows a job.
    pub(super) fn shows(&self, job: &Job) -> bool {
        let gone = |id: JobId| id.get().is_multiple_of(3);
        !self.has(Bug::Vanishes) || job.state != JobState::Succeeded || !gone(job.id)
    }
}
