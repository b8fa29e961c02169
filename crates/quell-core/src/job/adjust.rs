//! What an operator changes of a job that waits: when it is due, and its priority (R15).
//!
//! Nothing else of the job changes. Its key still has one attempt at a time (R11), and a throttled
//! key still starts once a period (R13): a store that applies an adjustment calls [`Job::apply_key`] next.

use serde::{Deserialize, Serialize};

use super::{Job, JobState};
use crate::setters::setters;
use crate::{Error, ErrorKind, Result, Timestamp};

/// A change of a job that waits.
///
/// ```
/// use quell_core::job::Adjustment;
///
/// assert!(Adjustment::default().priority(5).validate().is_ok());
/// assert!(Adjustment::default().validate().is_err(), "it changes nothing");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Adjustment {
    /// Whether the job is due now: no quiet period, delay, backoff or snooze holds it any longer.
    pub run_now: bool,
    /// Its priority from now on.
    pub priority: Option<i16>,
}

setters!(Adjustment {
    run_now: bool,
    priority? i16,
});

impl Adjustment {
    /// Checks that something changes (R40).
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for an adjustment that asks for nothing.
    pub fn validate(&self) -> Result<()> {
        if self.run_now || self.priority.is_some() {
            return Ok(());
        }
        Err(Error::invalid("priority", "nothing is asked for: give a priority, or run the job now"))
    }
}

/// A job as an adjustment left it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Adjusted {
    /// When it is due.
    pub due_at: Timestamp,
    /// Its priority.
    pub priority: i16,
    /// Whether another job of its key goes first (R11).
    pub waits: bool,
}

impl Job {
    /// Changes a job that waits, as an operator asked.
    ///
    /// # Errors
    /// [`ErrorKind::IllegalMove`] for a job that does not wait.
    pub fn adjust(&mut self, now: Timestamp, adjustment: &Adjustment) -> Result<()> {
        if self.state != JobState::Scheduled {
            let (id, state) = (self.id, self.state);
            let message = format!("job {id} is {state}: only a job that waits can be changed");
            return Err(Error::new(ErrorKind::IllegalMove, message));
        }
        if adjustment.run_now {
            self.window = self.window.run_now(now);
        }
        self.priority = adjustment.priority.unwrap_or(self.priority);
        Ok(())
    }

    /// What an adjustment answers.
    #[must_use]
    pub fn adjusted(&self) -> Adjusted {
        Adjusted { due_at: self.window.due_at, priority: self.priority, waits: self.waits }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::window::{DueReason, Window};
    use crate::{JobId, Payload, QueueName, TaskName};

    fn at(secs: i64) -> Timestamp {
        Timestamp::from_secs(secs)
    }

    fn job(window: Window) -> Job {
        let (task, queue) = (TaskName::new("t").unwrap(), QueueName::new("q").unwrap());
        Job::new(JobId::new(1), task, queue, Payload::from_stored("1"), window)
    }

    #[test]
    fn r15_a_run_now_ends_every_wait_and_keeps_the_place_of_a_due_job() {
        let due = Window::unkeyed(at(5), Timestamp::MIN);
        let table = [
            (due, at(5), DueReason::Immediate),
            (Window::unkeyed(at(5), at(90)), at(20), DueReason::Flushed),
            (due.requeue(at(90), DueReason::Backoff), at(20), DueReason::Flushed),
            (due.requeue(at(90), DueReason::Snoozed), at(20), DueReason::Flushed),
            // Its bound passed during the backoff.
            (
                Window { bound_at: Some(at(12)), ..due }.requeue(at(90), DueReason::Backoff),
                at(20),
                DueReason::Flushed,
            ),
        ];
        for (window, due_at, reason) in table {
            let mut job = job(window);
            job.adjust(at(20), &Adjustment::default().run_now(true)).unwrap();
            assert_eq!((job.window.due_at, job.window.reason), (due_at, reason), "{window:?}");
            assert!(job.may_start(at(20)), "{window:?}");
        }
    }

    #[test]
    fn r15_a_new_priority_moves_no_due_time_and_others_than_waiting_jobs_are_refused() {
        let window = Window::unkeyed(at(5), at(90));
        let adjustment = Adjustment::default().priority(7);
        let mut waiting = job(window);
        waiting.adjust(at(20), &adjustment).unwrap();
        assert_eq!((waiting.priority, waiting.window), (7, window));
        for state in JobState::ALL.into_iter().filter(|state| *state != JobState::Scheduled) {
            let before = job(window).with_state(state);
            let mut job = before.clone();
            let refused = job.adjust(at(20), &adjustment).unwrap_err();
            assert_eq!((refused.kind(), &job), (ErrorKind::IllegalMove, &before), "{state}");
        }
    }
}
