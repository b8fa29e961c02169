//! Tasks that a worker claims no jobs of for a while, because a handler asked for it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use quell_core::{NextDue, TaskName, Timestamp};

/// The tasks, with the worker's time until which none of their jobs are claimed.
#[derive(Debug, Default)]
pub(crate) struct HoldOff(Mutex<BTreeMap<TaskName, Timestamp>>);

impl HoldOff {
    fn tasks(&self) -> MutexGuard<'_, BTreeMap<TaskName, Timestamp>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Holds a task off until then, or for longer where that was asked before.
    pub(crate) fn add(&self, task: &TaskName, until: Timestamp) {
        let mut tasks = self.tasks();
        let known = tasks.entry(task.clone()).or_insert(until);
        *known = until.max(*known);
    }

    /// Those of these tasks that are not held off, and when the first of the others is free again.
    pub(crate) fn split(
        &self,
        tasks: &Arc<[TaskName]>,
        now: Timestamp,
    ) -> (Arc<[TaskName]>, Option<Timestamp>) {
        let mut held = self.tasks();
        held.retain(|_, until| now < *until);
        if held.is_empty() {
            return (Arc::clone(tasks), None);
        }
        let first = tasks.iter().filter_map(|task| held.get(task)).min().copied();
        let free = tasks.iter().filter(|task| !held.contains_key(*task)).cloned().collect();
        (free, first)
    }
}

/// The same with a look no later than `at`, in store time.
pub(crate) fn sooner(next: NextDue, at: Option<Timestamp>) -> NextDue {
    NextDue { due: next.due.into_iter().chain(at).min(), ..next }
}
