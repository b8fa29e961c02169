//! Which lines of partitions a claim is likely to need: their keys must be named before the script
//! runs, and only the script sees which they are.
//!
//! Each claim returns the lines that come next. A wrong or missing entry here costs one more call.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use quell_core::{QueueName, TaskName};

/// The most entries that are kept; more than a process has workers.
const MOST: usize = 256;

/// A queue and the tasks that are asked for.
type Scope = (QueueName, Arc<[TaskName]>);

/// Lines that come next, by the queue and the tasks that claims ask for.
#[derive(Debug, Default)]
pub(crate) struct Lines(Mutex<BTreeMap<Scope, Arc<[String]>>>);

impl Lines {
    fn known(&self) -> MutexGuard<'_, BTreeMap<Scope, Arc<[String]>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn get(&self, queue: &QueueName, tasks: &Arc<[TaskName]>) -> Arc<[String]> {
        let scope = (queue.clone(), Arc::clone(tasks));
        self.known().get(&scope).cloned().unwrap_or_default()
    }

    pub(crate) fn set(&self, queue: &QueueName, tasks: &Arc<[TaskName]>, lines: Vec<String>) {
        let scope = (queue.clone(), Arc::clone(tasks));
        let mut known = self.known();
        if lines.is_empty() {
            known.remove(&scope);
            return;
        }
        if known.len() >= MOST && !known.contains_key(&scope) {
            known.clear();
        }
        known.insert(scope, lines.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_has_a_bound() {
        let lines = Lines::default();
        let tasks: Arc<[TaskName]> = [TaskName::new("t").unwrap()].into();
        let queue = |number: usize| QueueName::new(format!("q{number}")).unwrap();
        for number in 0..10 * MOST {
            lines.set(&queue(number), &tasks, vec!["1 p".to_owned()]);
            assert_eq!(*lines.get(&queue(number), &tasks), ["1 p".to_owned()]);
        }
        assert!(lines.known().len() <= MOST);
        lines.set(&queue(10 * MOST - 1), &tasks, Vec::new());
        assert!(lines.get(&queue(10 * MOST - 1), &tasks).is_empty());
    }
}
