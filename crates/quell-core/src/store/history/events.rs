//! Constructors of events, from the values that stores and clients have at hand.

use super::Event;
use crate::idempotency::Fingerprint;
use crate::schedule::{Fired, ScheduleInfo, TickedBy};
use crate::{
    AttemptOutcome, Claim, ClaimedJob, Error, ErrorKind, FailureKind, Job, Lease, NewTrigger,
    Origin, Outcome, SettledAs, Settlement, Timestamp,
};

impl Event {
    /// A call that is about to be made.
    #[must_use]
    pub fn invoked(op: u64, trigger: &NewTrigger, with_payload: bool) -> Event {
        let keyed = trigger.keyed.as_ref();
        Event::TriggerInvoke {
            op,
            task: trigger.task.clone(),
            queue: Some(trigger.queue.clone()),
            partition: trigger.partition.clone(),
            priority: trigger.priority,
            key: keyed.map(|keyed| keyed.key.clone()),
            dedup: trigger.dedup.as_ref().map(|dedup| dedup.key.clone()),
            hold: trigger.dedup.as_ref().map(|dedup| dedup.until),
            idempotency: trigger.idempotency.clone(),
            fingerprint: trigger
                .idempotency
                .as_ref()
                .map(|_| Fingerprint::of(&trigger.payload).to_string()),
            debounce: keyed.map(|keyed| keyed.debounce),
            when: trigger.when,
            fold: Some(trigger.fold.clone()),
            payload: with_payload.then(|| trigger.payload.as_str().to_owned()),
            trace: trigger.trace.clone(),
        }
    }

    /// How a call that ended in `error` is recorded: unknown, or surely not accepted.
    #[must_use]
    pub fn failed(op: u64, error: &Error) -> Event {
        if error.kind() == ErrorKind::UnknownOutcome {
            Event::TriggerInfo { op }
        } else {
            Event::TriggerFail { op, kind: format!("{:?}", error.kind()) }
        }
    }

    /// When it happened, in store time; none for an event of a caller or a worker, which only reckons it.
    #[must_use]
    pub fn at(&self) -> Option<Timestamp> {
        match self {
            Event::Window { t, .. }
            | Event::Suppressed { t, .. }
            | Event::Claimed { t, .. }
            | Event::Renew { t, .. }
            | Event::Expire { t, .. }
            | Event::Settle { t, .. }
            | Event::Cancel { t, .. }
            | Event::Adjust { t, .. }
            | Event::Redrive { t, .. }
            | Event::Discard { t, .. }
            | Event::Import { t, .. }
            | Event::Prune { t, .. }
            | Event::SetAside { t, .. }
            | Event::Restored { t, .. }
            | Event::Queue { t, .. }
            | Event::QueueDeleted { t, .. }
            | Event::TaskChanged { t, .. }
            | Event::Schedule { t, .. }
            | Event::Unscheduled { t, .. }
            | Event::Ticked { t, .. }
            | Event::ScheduleRun { t, .. }
            | Event::Fault { t, .. }
            | Event::Heal { t } => Some(*t),
            Event::Begin { .. }
            | Event::End
            | Event::Unanswered { .. }
            | Event::CallFailed { .. }
            | Event::Record { .. }
            | Event::TriggerInvoke { .. }
            | Event::TriggerOk { .. }
            | Event::TriggerFail { .. }
            | Event::TriggerInfo { .. }
            | Event::Worker { .. }
            | Event::Start { .. }
            | Event::Lost { .. }
            | Event::SettleIn { .. }
            | Event::Effect { .. }
            | Event::Performed { .. }
            | Event::FlushInvoke { .. }
            | Event::Row { .. }
            | Event::Stamp { .. }
            | Event::StampOk { .. }
            | Event::Read { .. }
            | Event::ReadOk { .. } => None,
        }
    }

    /// A scheduled job's window after a change.
    #[must_use]
    pub fn window(t: Timestamp, job: &Job) -> Event {
        Event::Window {
            t,
            job: job.id,
            task: job.task.clone(),
            queue: job.queue.clone(),
            partition: job.partition.clone(),
            key: job.key.clone(),
            priority: job.priority,
            first: job.window.first_at,
            last: job.window.last_at,
            count: job.window.triggers,
            suppressed: job.suppressed,
            due: job.window.due_at,
            bound: job.window.bound_at,
            nb: job.window.not_before,
            reason: job.window.reason,
            shape: job.shape.clone(),
        }
    }

    /// A trigger that a leading edge counted on `job` and does not run.
    #[must_use]
    pub fn suppressed(t: Timestamp, job: &Job) -> Event {
        let (count, suppressed) = (job.window.triggers, job.suppressed);
        Event::Suppressed { t, job: job.id, count, suppressed }
    }

    /// A lease that a claim gave.
    #[must_use]
    pub fn claimed(t: Timestamp, claim: &Claim, job: &ClaimedJob) -> Event {
        Event::Claimed {
            t,
            job: job.id,
            token: job.token,
            task: job.task.clone(),
            queue: claim.queue.clone(),
            key: job.key.clone(),
            worker: claim.worker.clone(),
            count: job.triggers,
            due: job.due_at,
            attempt: job.attempt,
            until: job.lease_until,
        }
    }

    /// A dead job that came in.
    #[must_use]
    pub fn imported(t: Timestamp, job: &Job, of: Origin) -> Event {
        Event::Import {
            t,
            job: job.id,
            of,
            task: job.task.clone(),
            queue: job.queue.clone(),
            key: job.key.clone(),
            first: job.window.first_at,
            count: job.window.triggers,
        }
    }

    /// A settlement and what became of it.
    #[must_use]
    pub fn settled(t: Timestamp, settlement: &Settlement, became: SettledAs) -> Event {
        let Lease { job, token } = settlement.lease;
        let in_tx = matches!(settlement.outcome, Outcome::InTransaction(_))
            && became == SettledAs::Succeeded;
        let failure = settlement.outcome.failure().filter(|_| !in_tx);
        let outcome = if in_tx { AttemptOutcome::Succeeded } else { settlement.outcome.counted() };
        let (permanent, exhausted, asked) = match failure.map(|failure| failure.kind) {
            Some(FailureKind::Permanent) => (true, false, false),
            Some(FailureKind::Transient { last, asked, .. }) => (false, last, asked),
            None => (false, false, false),
        };
        Event::Settle { t, job, token, outcome, permanent, exhausted, asked, in_tx, became }
    }

    /// A schedule as it stands.
    #[must_use]
    pub fn schedule(t: Timestamp, info: &ScheduleInfo) -> Event {
        let trigger = &info.schedule.trigger;
        let keyed = trigger.keyed.as_ref();
        Event::Schedule {
            t,
            schedule: info.schedule.name.clone(),
            spec: info.schedule.spec.clone(),
            catch_up: info.schedule.catch_up,
            state: info.state,
            handled: info.handled,
            task: trigger.task.clone(),
            key: keyed.map(|keyed| keyed.key.clone()),
            dedup: trigger.dedup.clone(),
            debounce: keyed.map(|keyed| keyed.debounce),
            fold: Some(trigger.fold.clone()),
            when: trigger.when,
        }
    }

    /// A tick that fired.
    #[must_use]
    pub fn ticked(t: Timestamp, fired: &Fired, by: TickedBy) -> Event {
        let Fired { schedule, tick, receipt, .. } = fired.clone();
        Event::Ticked { t, schedule, tick, by, receipt }
    }

    /// A job's row at the end.
    #[must_use]
    pub fn row(job: &Job) -> Event {
        Event::Row {
            job: job.id,
            task: job.task.clone(),
            key: job.key.clone(),
            state: job.state,
            count: job.window.triggers,
            last: job.window.last_at,
            started: job.started_at,
            by: job.absorbed_by,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::Failure;

    #[test]
    fn r24_r25_a_settlement_says_what_kind_of_failure_it_reports() {
        let lease = Lease { job: crate::JobId::new(1), token: crate::LeaseToken::new(1) };
        let reported = |kind| {
            let ended = AttemptOutcome::TimedOut;
            let outcome = Outcome::Failed(Failure { error: String::new(), ended, kind });
            let t = Timestamp::from_secs(0);
            let event = Event::settled(t, &Settlement { lease, outcome }, SettledAs::Dead);
            let Event::Settle { permanent, exhausted, asked, in_tx, .. } = event else {
                panic!("{event:?}")
            };
            (permanent, exhausted, asked, in_tx)
        };
        let transient =
            |last, asked| FailureKind::Transient { backoff: Duration::ZERO, last, asked };
        assert_eq!(reported(FailureKind::Permanent), (true, false, false, false));
        assert_eq!(reported(transient(true, false)), (false, true, false, false));
        assert_eq!(reported(transient(false, true)), (false, false, true, false));
    }

    #[test]
    fn an_expired_lease_keeps_its_names_on_record() {
        fn written(value: &impl serde::Serialize) -> serde_json::Value {
            serde_json::to_value(value).unwrap()
        }
        let (job, token, t) =
            (crate::JobId::new(1), crate::LeaseToken::new(1), Timestamp::from_secs(0));
        let became = SettledAs::Scheduled { due: t };
        let event = Event::Expire { t, job, token, became, crash: true };
        assert_eq!(written(&event)["event"], "lapse");
        assert_eq!(written(&AttemptOutcome::LeaseExpired), "lapsed");
        assert_eq!(written(&crate::window::DueReason::LeaseExpired), "lapsed");
        let next = crate::NextDue { now: t, due: None, expiry: Some(t) };
        assert_eq!(written(&next)["lapse"], written(&t));
        let task = crate::TaskName::new("t").unwrap();
        let queue = crate::QueueName::new("q").unwrap();
        let trigger = NewTrigger::new(task, queue, crate::Payload::from_stored("1"));
        let waiting = Job { crashes: 3, ..Job::unkeyed(job, &trigger, t) };
        assert_eq!(written(&waiting)["lapses"], 3);
    }

    #[test]
    fn a_call_is_unknown_or_surely_not_accepted() {
        let failed = |kind| Event::failed(4, &Error::new(kind, "m"));
        assert_eq!(failed(ErrorKind::UnknownOutcome), Event::TriggerInfo { op: 4 });
        let kind = "Full".to_owned();
        assert_eq!(failed(ErrorKind::Full), Event::TriggerFail { op: 4, kind });
    }
}
