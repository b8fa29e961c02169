//! How the attempts of this server ended, for failure rates.
//!
//! Only what ran to its end is counted: a success, or a failure of any kind. Snoozes and
//! cancellations are neither, and attempts that a shutdown gave back or whose server died were not
//! seen to end.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use quell::alert::Alert;
use quell::{QueueName, TaskError, TaskName};

use super::Counted;

/// Counts since the start of the server, by queue and task.
#[derive(Debug, Default)]
pub struct Tally(Mutex<BTreeMap<(QueueName, TaskName), Counted>>);

impl Tally {
    /// What an alert covers of it.
    pub(super) fn total(&self, alert: &Alert) -> Counted {
        let tally = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let covered = tally.iter().filter(|((queue, task), _)| alert.covers(queue, task));
        covered.fold(Counted::default(), |total, (_, counted)| Counted {
            succeeded: total.succeeded + counted.succeeded,
            failed: total.failed + counted.failed,
        })
    }

    /// Counts an attempt that workers elsewhere ended.
    pub fn add(&self, queue: &QueueName, task: &TaskName, failed: bool) {
        let mut tally = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let counted = tally.entry((queue.clone(), task.clone())).or_default();
        if failed {
            counted.failed += 1;
        } else {
            counted.succeeded += 1;
        }
    }
}

/// An attempt that is going to end. Dropped by a panic it failed; dropped otherwise it was released.
#[derive(Debug)]
pub struct Ended<'t> {
    tally: &'t Tally,
    queue: &'t QueueName,
    task: &'t TaskName,
}

impl<'t> Ended<'t> {
    /// An attempt of this task.
    #[must_use]
    pub fn begin(tally: &'t Tally, queue: &'t QueueName, task: &'t TaskName) -> Self {
        Ended { tally, queue, task }
    }

    /// Counts the outcome.
    pub fn record<T>(self, ended: &Result<T, TaskError>) {
        match ended {
            Ok(_) => self.tally.add(self.queue, self.task, false),
            Err(error) if error.is_failure() => self.tally.add(self.queue, self.task, true),
            Err(_) => {}
        }
    }
}

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.tally.add(self.queue, self.task, true);
        }
    }
}
