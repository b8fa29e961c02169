//! The indexes over the jobs of the memory store: which may start, wait and run.
//!
//! Invariant: they follow from the jobs, but for jobs elsewhere that [`Indexes::note_key`] records.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use super::part::TaskKey;
use crate::{Job, JobId, JobState, Key, QueueName, TaskName, Timestamp};

/// Jobs that may start, in the order of R30.
pub(super) type Ready = BTreeSet<(Reverse<i16>, Timestamp, JobId)>;
/// Jobs of one task that share a line: those of a partition, or those without one.
pub(super) type Lane = (QueueName, TaskName, Option<Key>);

/// The indexes over jobs.
#[derive(Clone, Debug, Default)]
pub(super) struct Indexes {
    /// Whether `ready` is kept: stores that use a part have their own order.
    has_lines: bool,
    pub(super) ready: BTreeMap<Lane, Ready>,
    pub(super) open: BTreeMap<TaskKey, JobId>,
    /// Full windows; the windows of a key run in the order of their ids (R10, R11).
    pub(super) closed: BTreeMap<TaskKey, BTreeSet<JobId>>,
    pub(super) running: BTreeSet<JobId>,
    pub(super) running_keys: BTreeMap<TaskKey, usize>,
}

impl Indexes {
    /// Those of a store that starts the jobs which come next.
    pub(super) fn with_lines() -> Self {
        Indexes { has_lines: true, ..Indexes::default() }
    }

    /// Notes jobs of a key that have no row here.
    pub(super) fn note_key(&mut self, task_key: &TaskKey, runs: bool, closed: Option<JobId>) {
        if runs {
            let count = self.running_keys.entry(task_key.clone()).or_insert(0);
            *count = count.saturating_add(1);
        }
        if let Some(closed) = closed {
            self.closed.entry(task_key.clone()).or_default().insert(closed);
        }
    }

    /// Takes a job out of the indexes.
    pub(super) fn leave(&mut self, job: &Job) {
        let id = job.id;
        if job.state == JobState::Running {
            self.running.remove(&id);
        }
        if job.state == JobState::Scheduled && !job.waits && self.has_lines {
            let lane = lane(job);
            if let Some(ready) = self.ready.get_mut(&lane) {
                ready.remove(&(Reverse(job.priority), job.window.due_at, id));
                if ready.is_empty() {
                    self.ready.remove(&lane);
                }
            }
        }
        let Some(key) = &job.key else { return };
        let task_key = (job.task.clone(), key.clone());
        match job.state {
            JobState::Scheduled if job.shape.closed => {
                if let Some(closed) = self.closed.get_mut(&task_key) {
                    closed.remove(&id);
                    if closed.is_empty() {
                        self.closed.remove(&task_key);
                    }
                }
            }
            JobState::Scheduled => drop(self.open.remove(&task_key)),
            JobState::Running => {
                if let Some(count) = self.running_keys.get_mut(&task_key) {
                    *count = count.saturating_sub(1);
                    if *count == 0 {
                        self.running_keys.remove(&task_key);
                    }
                }
            }
            JobState::Succeeded
            | JobState::Dead
            | JobState::Cancelled
            | JobState::Absorbed
            | JobState::Unreadable => {}
        }
    }

    /// Puts a job into the indexes.
    pub(super) fn enter(&mut self, job: &Job) {
        let id = job.id;
        if job.state == JobState::Running {
            self.running.insert(id);
        }
        if job.state == JobState::Scheduled && !job.waits && self.has_lines {
            let place = (Reverse(job.priority), job.window.due_at, id);
            self.ready.entry(lane(job)).or_default().insert(place);
        }
        let Some(key) = &job.key else { return };
        let task_key = || (job.task.clone(), key.clone());
        match job.state {
            JobState::Scheduled if job.shape.closed => {
                self.closed.entry(task_key()).or_default().insert(id);
            }
            JobState::Scheduled => {
                let other = self.open.insert(task_key(), id);
                assert!(other.is_none(), "two open windows for {key:?}: {other:?} and {id}");
            }
            JobState::Running => {
                let count = self.running_keys.entry(task_key()).or_insert(0);
                *count = count.saturating_add(1);
            }
            JobState::Succeeded
            | JobState::Dead
            | JobState::Cancelled
            | JobState::Absorbed
            | JobState::Unreadable => {}
        }
    }
}

pub(super) fn lane(job: &Job) -> Lane {
    (job.queue.clone(), job.task.clone(), job.partition.clone())
}
