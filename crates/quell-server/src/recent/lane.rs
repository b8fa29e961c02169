//! What one task did in one queue.

use std::collections::VecDeque;
use std::time::Duration;

use quell::job::AttemptOutcome;
use quell::{JobId, QueueName, TaskName, Timestamp};

use super::series::{Series, Tally};

/// A minute's tallies are kept for an hour, and an hour's for a week.
pub(super) const MINUTES: u16 = 60;
pub(super) const HOURS: u16 = 168;

/// A trigger that was accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Accepted {
    pub(super) at: Timestamp,
    pub(super) job: JobId,
    /// The hash of its debounce key; 0 for none.
    pub(super) key: u64,
}

/// An attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// The job.
    pub job: JobId,
    /// The hash of its debounce key; 0 for none.
    pub(super) key: u64,
    /// Its first trigger.
    pub opened: Timestamp,
    /// When it was due.
    pub due: Timestamp,
    /// When the attempt started.
    pub started: Timestamp,
    /// Until when it holds its lease, as far as this process knows.
    pub(super) until: Timestamp,
    /// When it ended, if it has.
    pub ended: Option<Timestamp>,
    /// How it ended.
    pub outcome: Option<AttemptOutcome>,
    /// Whether its end is not known: its lease was lost, its job was cancelled, or it ended in another process.
    pub lost: bool,
    /// Whether its job died by it.
    pub died: bool,
    /// The newer window of its key that took the job in.
    pub absorbed_by: Option<JobId>,
    /// Which attempt, from 1.
    pub attempt: u32,
    /// How many triggers it covers.
    pub triggers: u64,
}

impl Run {
    /// The same as it is known at `now`: an attempt whose lease has ended is lost, noticed or not.
    pub(super) fn at(self, now: Timestamp) -> Run {
        if self.ended.is_some() || self.until >= now {
            return self;
        }
        Run { ended: Some(self.until), lost: true, ..self }
    }
}

/// The record of one task in one queue.
#[derive(Debug)]
pub(super) struct Lane {
    pub(super) queue: QueueName,
    pub(super) task: TaskName,
    pub(super) minutes: Series,
    pub(super) hours: Series,
    /// In the order of their acceptance.
    pub(super) accepted: VecDeque<Accepted>,
    /// How many triggers were dropped before the first one.
    pub(super) forgotten: u64,
    /// In the order of their starts.
    pub(super) runs: VecDeque<Run>,
    /// How many runs were dropped before the first one.
    pub(super) dropped: u64,
    /// The record of triggers is complete from here on; the same of runs.
    pub(super) complete: (Timestamp, Timestamp),
}

impl Lane {
    pub(super) fn new(queue: QueueName, task: TaskName, since: Timestamp) -> Self {
        Lane {
            queue,
            task,
            minutes: Series::new(Duration::from_secs(60), MINUTES),
            hours: Series::new(Duration::from_secs(3_600), HOURS),
            accepted: VecDeque::new(),
            forgotten: 0,
            runs: VecDeque::new(),
            dropped: 0,
            complete: (since, since),
        }
    }

    /// Counts something in both series.
    pub(super) fn count(&mut self, at: Timestamp, change: impl Fn(&mut Tally)) {
        change(self.minutes.at(at));
        change(self.hours.at(at));
    }

    /// The run with this number among all that there ever were.
    pub(super) fn run(&mut self, number: u64) -> Option<&mut Run> {
        let at = usize::try_from(number.checked_sub(self.dropped)?).ok()?;
        self.runs.get_mut(at)
    }

    /// Drops the oldest triggers.
    pub(super) fn drop_accepted(&mut self, count: usize) {
        for _ in 0..count {
            let Some(dropped) = self.accepted.pop_front() else { return };
            self.forgotten = self.forgotten.saturating_add(1);
            self.complete.0 = self.complete.0.max(dropped.at);
        }
        self.accepted.shrink_to(self.accepted.len().saturating_add(count));
    }

    /// Drops the oldest runs.
    pub(super) fn drop_runs(&mut self, count: usize) {
        for _ in 0..count {
            let Some(run) = self.runs.pop_front() else { return };
            self.dropped = self.dropped.saturating_add(1);
            self.complete.1 = self.complete.1.max(run.started);
        }
        self.runs.shrink_to(self.runs.len().saturating_add(count));
    }
}
