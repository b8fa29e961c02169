//! What an onlooker remembers of what went before, to judge a store by its answers alone.

use std::collections::{BTreeMap, BTreeSet};

use quell_core::dedup::HoldUntil;
use quell_core::{Job, JobId, JobState, TriggerId};

use super::model::HELD;

/// The onlooker's memory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Ghost {
    /// Every trigger that was accepted.
    pub(super) triggers: Vec<Known>,
    /// No attempt of a job may start before this: a backoff, or when it was redriven.
    pub(super) not_before: BTreeMap<JobId, i64>,
    /// Who took in whom.
    pub(super) successors: BTreeMap<JobId, JobId>,
    /// Windows that someone flushed.
    pub(super) flushed: BTreeSet<JobId>,
    /// The last start of each debounce key.
    pub(super) started: BTreeMap<String, i64>,
    /// Who took the dedup key last, how long for, and when; none once it is free.
    pub(super) hold: Option<(JobId, HoldUntil, i64)>,
}

/// One accepted trigger.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Known {
    pub(super) id: TriggerId,
    pub(super) at: i64,
    /// No earlier than this: the delay it asked for.
    pub(super) asked: i64,
    /// The attempt that covers it: a job's start after it was accepted.
    pub(super) covered_by: Option<(JobId, u64)>,
    /// Whether such an attempt succeeded.
    pub(super) done: bool,
}

impl Ghost {
    /// The job that has a job's triggers now: the end of its chain of successors.
    pub(super) fn home(&self, from: JobId) -> JobId {
        let mut id = from;
        while let Some(successor) = self.successors.get(&id) {
            id = *successor;
        }
        id
    }

    /// Remembers who took in whom, for when the row is gone.
    pub(super) fn follow(&mut self, jobs: &BTreeMap<JobId, Job>) {
        let absorbed = jobs.values().filter_map(|job| Some((job.id, job.absorbed_by?)));
        self.successors.extend(absorbed.filter(|(id, by)| id != by));
    }

    /// The accepted triggers that a job has now.
    pub(super) fn of(&self, job: JobId) -> impl Iterator<Item = &Known> {
        self.triggers.iter().filter(move |known| self.home(known.id.job) == job)
    }

    /// All that a job has is covered by this start of it.
    pub(super) fn start(&mut self, job: JobId, start: Option<(JobId, u64)>) {
        let covered: Vec<bool> =
            self.triggers.iter().map(|known| self.home(known.id.job) == job).collect();
        for (known, covered) in self.triggers.iter_mut().zip(covered) {
            known.covered_by = if covered { start } else { known.covered_by };
        }
    }

    /// The triggers that opened or joined the job's own window.
    pub(super) fn own(&self, job: JobId) -> impl Iterator<Item = &Known> {
        self.triggers.iter().filter(move |known| known.id.job == job)
    }

    pub(super) fn not_before(&self, job: JobId) -> i64 {
        self.not_before.get(&job).copied().unwrap_or(i64::MIN)
    }

    pub(super) fn hold_back(&mut self, job: JobId, until: i64) {
        let known = self.not_before(job);
        self.not_before.insert(job, until.max(known));
    }

    /// Forgets a dedup key once it is free (R16).
    pub(super) fn free_key(&mut self, jobs: &BTreeMap<JobId, Job>, now: i64) {
        let Some((job, until, at)) = self.hold else { return };
        let held = match until {
            HoldUntil::Started => jobs
                .get(&job)
                .is_some_and(|job| job.state == JobState::Scheduled && job.starts() == 0),
            HoldUntil::Done => jobs.get(&self.home(job)).is_some_and(|job| !job.state.is_ended()),
            _ => now < at + HELD,
        };
        if !held {
            self.hold = None;
        }
    }
}
