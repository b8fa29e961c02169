//! Which job a dedup key or an idempotency key leads to (R15, R16, R19).
//!
//! A store finds the rows of the key, one of each task that is meant, and the jobs that they name; this
//! chooses among them. A key that is free leads nowhere, whether or not its row is still there.

use crate::dedup::Hold;
use crate::idempotency::Record;
use crate::{Error, ErrorKind, ExplainTarget, Job, JobId, JobState, Result, TaskName, Timestamp};

/// A key that is taken, and the job that it names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lead {
    task: TaskName,
    job: JobId,
    names: Names,
}

/// What is known of the job that a key names.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Names {
    /// Its row is there.
    Row,
    /// Its row was removed while a dedup key was taken, which lasts until this time.
    Held(Timestamp),
    /// Its row was removed, and the record of an idempotency key says how it ended, where it does.
    Kept(Option<JobState>),
}

impl Lead {
    /// Where a dedup key leads at `now`; `job` is its job, where that is there.
    #[must_use]
    pub fn of_hold(
        now: Timestamp,
        task: &TaskName,
        hold: &Hold,
        job: Option<&Job>,
    ) -> Option<Lead> {
        let holder = job.map(|job| (job.state, job.starts() > 0));
        let names = if job.is_some() { Names::Row } else { Names::Held(hold.expires_at) };
        let lead = Lead { task: task.clone(), job: hold.job, names };
        hold.holds(now, holder).then_some(lead)
    }

    /// Where an idempotency key leads at `now`; `job` is its job, where that is there.
    #[must_use]
    pub fn of_record(
        now: Timestamp,
        task: &TaskName,
        record: &Record,
        job: Option<&Job>,
    ) -> Option<Lead> {
        let kept = || Names::Kept(record.kept.as_ref().map(|kept| kept.state));
        let names = if job.is_some() { Names::Row } else { kept() };
        let lead = Lead { task: task.clone(), job: record.job, names };
        record.holds(now, job.map(|job| job.state)).then_some(lead)
    }

    /// The job to explain: the newest whose row is there. None where no key is taken.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] with what is known where each job's row was removed.
    pub fn newest(leads: impl IntoIterator<Item = Lead>) -> Result<Option<JobId>> {
        let newest = leads.into_iter().max_by_key(|lead| (lead.names == Names::Row, lead.job));
        match newest {
            Some(Lead { names: Names::Row, job, .. }) => Ok(Some(job)),
            Some(gone) => Err(gone.into_error()),
            None => Ok(None),
        }
    }

    fn into_error(self) -> Error {
        let Lead { task, job, names } = self;
        let message = match names {
            Names::Row => format!("job {job} of task {task} is there"),
            Names::Held(until) => format!(
                "the dedup key is held by job {job} of task {task} until {until}, but the job has \
                 ended and its row was removed after its retention or by a discard: nothing else \
                 is known of it"
            ),
            Names::Kept(Some(state)) => format!(
                "the idempotency key leads to job {job} of task {task}, which ended as {state}; its \
                 row was removed after its retention or by a discard: `quell result {job}` shows \
                 what is kept of it"
            ),
            Names::Kept(None) => format!(
                "the idempotency key leads to job {job} of task {task}, but its row was removed \
                 after its retention or by a discard: nothing else is known of it"
            ),
        };
        Error::new(ErrorKind::NotFound, message)
    }
}

impl ExplainTarget {
    /// The job that a target names by its id alone; none for one that a key names.
    #[must_use]
    pub fn job(&self) -> Option<JobId> {
        match self {
            ExplainTarget::Job(id) => Some(*id),
            ExplainTarget::Trigger(trigger) => Some(trigger.job),
            ExplainTarget::Key { .. }
            | ExplainTarget::IdempotencyKey { .. }
            | ExplainTarget::DedupKey { .. } => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::dedup::{Dedup, HoldUntil};
    use crate::idempotency::{Fingerprint, Idempotency, Kept};
    use crate::{Key, NewTrigger, Payload, QueueName};

    fn task(name: &str) -> TaskName {
        TaskName::new(name).unwrap()
    }

    fn job(id: u64) -> Job {
        let payload = Payload::from_stored("1");
        let trigger = NewTrigger::new(task("t"), QueueName::new("q").unwrap(), payload);
        Job::unkeyed(JobId::new(id), &trigger, Timestamp::from_secs(100))
    }

    #[test]
    fn r15_r16_a_dedup_key_leads_to_its_holder_as_long_as_it_is_held() {
        let (now, key) = (Timestamp::from_secs(100), Key::new("k").unwrap());
        let hold = |until| Dedup { key: key.clone(), until }.hold(JobId::new(7), now);
        let elapses = hold(HoldUntil::default());
        let lead = |at, job: Option<&Job>| Lead::of_hold(at, &task("t"), &elapses, job);
        assert_eq!(Lead::newest(lead(now, Some(&job(7)))).unwrap(), Some(JobId::new(7)));
        let gone = Lead::newest(lead(now, None)).unwrap_err();
        assert_eq!(gone.kind(), ErrorKind::NotFound);
        assert!(gone.to_string().contains("held by job 7 of task t until"), "{gone}");
        assert_eq!(
            Lead::newest(lead(now + Duration::from_secs(3_600), Some(&job(7)))).unwrap(),
            None
        );
        assert_eq!(Lead::of_hold(now, &task("t"), &hold(HoldUntil::Done), None), None);
    }

    #[test]
    fn r15_r19_of_several_tasks_the_newest_job_that_is_there_counts() {
        let now = Timestamp::from_secs(100);
        let record = |id, state: Option<JobState>| {
            let key = Idempotency::new(Key::new("k").unwrap());
            let fingerprint = Fingerprint::of(&Payload::from_stored("1"));
            let mut record = key.record(fingerprint, JobId::new(id), now);
            record.kept = state.map(|state| Kept { state, output: None });
            record
        };
        let there = Lead::of_record(now, &task("t"), &record(7, None), Some(&job(7)));
        let gone = Lead::of_record(now, &task("u"), &record(8, Some(JobState::Succeeded)), None);
        let led = Lead::of_record(now, &task("v"), &record(9, None), None);
        let newest = Lead::newest(there.into_iter().chain(gone.clone()).chain(led.clone()));
        assert_eq!(newest.unwrap(), Some(JobId::new(7)));
        let text = Lead::newest(gone).unwrap_err().to_string();
        assert!(text.contains("job 8 of task u, which ended as succeeded"), "{text}");
        let text = Lead::newest(led).unwrap_err().to_string();
        assert!(text.contains("job 9 of task v, but its row was removed"), "{text}");
    }
}
