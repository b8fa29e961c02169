//! Idempotency records in the memory store, and results of jobs (R19, R37).

use super::state::State;
use crate::dedup::Hold;
use crate::idempotency::Record;
use crate::part::TaskKey;
use crate::store::Lead;
use crate::{JobId, JobResult, JobState, Key, TaskName};

impl State {
    /// The result of a job, or of the successor that absorbed it.
    pub(super) fn result(&self, id: JobId) -> Option<JobResult> {
        let mut id = id;
        while let Some(job) = self.job(id) {
            match job.absorbed_by {
                Some(successor) if job.state == JobState::Absorbed => id = successor,
                _ => return Some(JobResult::of(job)),
            }
        }
        let kept = self.records.values().find(|record| record.job == id)?.kept.as_ref()?;
        Some(JobResult::kept(id, kept))
    }

    /// Keeps in the job's records what its row says, which is about to go.
    pub(super) fn keep_result(&mut self, id: JobId) {
        let Some(job) = self.job(id).cloned() else { return };
        self.records.values_mut().filter(|r| r.job == id).for_each(|record| record.keep(&job));
    }

    /// The row of a job that is restored says how it stands.
    pub(super) fn forget_results(&mut self, id: JobId) {
        self.records.values_mut().filter(|r| r.job == id).for_each(|record| record.kept = None);
    }

    /// The records of an absorbed job are its successor's.
    pub(super) fn hand_over_records(&mut self, from: JobId, to: JobId) {
        self.records.values_mut().filter(|r| r.job == from).for_each(|record| record.job = to);
    }

    /// A key that was free while its job was dead is not taken again by a redrive.
    pub(super) fn free_records_of(&mut self, id: JobId) {
        let now = self.now();
        self.records.retain(|_, record| record.job != id || now < record.expires_at);
    }

    /// Where an idempotency key leads, of each task that is meant.
    pub(super) fn leads_of_records(&self, task: Option<&TaskName>, key: &Key) -> Vec<Lead> {
        let is_meant = |of: &&TaskKey| of.1 == *key && task.is_none_or(|task| *task == of.0);
        let meant = self.records.iter().filter(|(of, _)| is_meant(of));
        let lead = |(of, record): (&TaskKey, &Record)| {
            Lead::of_record(self.now(), &of.0, record, self.job(record.job))
        };
        meant.filter_map(lead).collect()
    }

    /// Where a dedup key leads, of each task that is meant.
    pub(super) fn leads_of_holds(&self, task: Option<&TaskName>, key: &Key) -> Vec<Lead> {
        let is_meant = |of: &&TaskKey| of.1 == *key && task.is_none_or(|task| *task == of.0);
        let meant = self.holds.iter().filter(|(of, _)| is_meant(of));
        let lead = |(of, hold): (&TaskKey, &Hold)| {
            Lead::of_hold(self.now(), &of.0, hold, self.job(hold.job))
        };
        meant.filter_map(lead).collect()
    }

    /// Forgets keys that are free.
    pub(super) fn prune_records(&mut self) {
        let now = self.now();
        let mut records = std::mem::take(&mut self.records);
        records.retain(|_, record| record.holds(now, self.job(record.job).map(|job| job.state)));
        self.records = records;
    }
}
