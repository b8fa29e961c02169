//! Which jobs this process was given: the end of an attempt names no key, and the scripts need the
//! name of its window's hash. They recognize the row of a first run by its token and times, without
//! decoding it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use quell_core::{
    Claim, ClaimedJob, JobId, Key, Lease, LeaseToken, QueueName, TaskName, Timestamp, WorkerId,
};

/// More jobs than a process runs at a time.
const MOST: usize = 20_000;

/// Jobs by their ids; where there are too many, the oldest are forgotten.
#[derive(Clone, Debug, Default)]
pub(crate) struct Held(Arc<Mutex<BTreeMap<JobId, HeldJob>>>);

/// What is known of a job that runs here.
#[derive(Clone, Debug)]
pub(crate) struct HeldJob {
    token: LeaseToken,
    pub(crate) queue: QueueName,
    pub(crate) task: TaskName,
    pub(crate) key: Option<Key>,
    pub(crate) worker: WorkerId,
    /// None where a script did not start it, or not for the first time.
    pub(crate) first_run: Option<FirstRun>,
}

/// What a script wrote of a job that it started for the first time.
#[derive(Clone, Debug)]
pub(crate) struct FirstRun {
    pub(crate) partition: Option<Key>,
    pub(crate) token: LeaseToken,
    pub(crate) started: Timestamp,
    pub(crate) until: Timestamp,
}

impl Held {
    fn jobs(&self) -> MutexGuard<'_, BTreeMap<JobId, HeldJob>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes note of jobs that one script started, each with its partition.
    pub(crate) fn note_first_runs(&self, claim: &Claim, given: &[(ClaimedJob, Option<Key>)]) {
        let Some((first, _)) = given.first() else { return };
        let until = first.lease_until;
        let started = until.before(claim.lease);
        let token = LeaseToken::of(1, claim.draw);
        let held = given.iter().map(|(job, partition)| {
            let is_first = job.token == token && job.attempt == 1;
            let first = || FirstRun { partition: partition.clone(), token, started, until };
            (job, is_first.then(first))
        });
        self.insert(claim, held);
    }

    fn insert<'j>(
        &self,
        claim: &Claim,
        given: impl Iterator<Item = (&'j ClaimedJob, Option<FirstRun>)>,
    ) {
        let mut jobs = self.jobs();
        for (job, first_run) in given {
            let held = HeldJob {
                token: job.token,
                queue: claim.queue.clone(),
                task: job.task.clone(),
                key: job.key.clone(),
                worker: claim.worker.clone(),
                first_run,
            };
            jobs.insert(job.id, held);
        }
        while jobs.len() > MOST {
            jobs.pop_first();
        }
    }

    /// The job of a lease: where the job was started again meanwhile, it may be in another queue.
    pub(crate) fn get(&self, lease: &Lease) -> Option<HeldJob> {
        self.jobs().get(&lease.job).filter(|held| held.token == lease.token).cloned()
    }

    pub(crate) fn forget(&self, ids: impl IntoIterator<Item = JobId>) {
        let mut jobs = self.jobs();
        for id in ids {
            jobs.remove(&id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_held_has_a_bound() {
        let held = Held::default();
        let name = |text: &str| TaskName::new(text).unwrap();
        let claim = Claim {
            queue: QueueName::new("q").unwrap(),
            tasks: [name("t")].into(),
            worker: quell_core::WorkerId::new("w").unwrap(),
            limit: 1,
            lease: std::time::Duration::from_secs(1),
            draw: quell_core::Draw::MIN,
        };
        let job = |id| ClaimedJob {
            id: JobId::new(id),
            token: quell_core::LeaseToken::new(1),
            task: name("t"),
            key: None,
            payload: quell_core::Payload::from_stored("1"),
            attempt: 1,
            failures: 0,
            crashes: 0,
            triggers: 1,
            first_at: quell_core::Timestamp::MIN,
            due_at: quell_core::Timestamp::MIN,
            lease_until: quell_core::Timestamp::MAX,
            traces: quell_core::trace::Traces::default(),
        };
        let all: Vec<(ClaimedJob, Option<Key>)> = (1..=20_001).map(|id| (job(id), None)).collect();
        held.note_first_runs(&claim, &all);
        let lease = |id, token| Lease { job: JobId::new(id), token: LeaseToken::new(token) };
        assert!(held.get(&lease(1, 1)).is_none());
        assert_eq!(held.get(&lease(20_001, 1)).unwrap().task, name("t"));
        assert!(held.get(&lease(20_001, 2)).is_none(), "another start of it");
        held.forget([JobId::new(20_001)]);
        assert!(held.get(&lease(20_001, 1)).is_none());
    }
}
