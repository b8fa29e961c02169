//! Alerts (R27): what is watched, when a notice is due, and which sinks have not received it yet.
//!
//! An [`Alert`] is the setting; an [`AlertState`] is its state in the store, one row that
//! servers change by compare and set. So of several servers one raises and one clears, and a notice
//! stands in the row from the moment of the change until its sink has taken it.

mod notice;

use std::collections::BTreeSet;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::setters::setters;
use crate::{AlertName, Error, QueueName, Result, TaskName, Timestamp};
pub use notice::{NOTICE_LEASE, Notice};

/// What an alert measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Measure {
    /// How many jobs are dead.
    Dead,
    /// How many jobs are set aside because their rows cannot be decoded.
    Unreadable,
    /// How late the oldest due job is, in microseconds, whatever holds it back.
    Lateness,
    /// Of the attempts that ended within the window, how many failed, per million.
    FailureRate {
        /// How far back attempts count. Buckets of a thirtieth of it fall out one by one.
        window: Duration,
        /// With fewer attempts than this in the window, the rate is 0.
        min_attempts: u64,
    },
}

impl Measure {
    /// Its name, as configured and shown.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Measure::Dead => "dead",
            Measure::Unreadable => "unreadable",
            Measure::Lateness => "lateness",
            Measure::FailureRate { .. } => "failure_rate",
        }
    }

    /// A value of it, for people.
    ///
    /// ```
    /// use quell_core::alert::Measure;
    ///
    /// assert_eq!(Measure::Dead.describe(3), "3 dead jobs");
    /// assert_eq!(Measure::Lateness.describe(90_000_000), "90s late");
    /// ```
    #[must_use]
    pub fn describe(self, value: u64) -> String {
        match self {
            Measure::Dead if value == 1 => "1 dead job".to_owned(),
            Measure::Dead => format!("{value} dead jobs"),
            Measure::Unreadable if value == 1 => "1 unreadable job".to_owned(),
            Measure::Unreadable => format!("{value} unreadable jobs"),
            Measure::Lateness => format!("{:?} late", Duration::from_micros(value)),
            Measure::FailureRate { .. } => {
                // A hundredth of a per cent is as fine as people want it.
                let hundredths = value / 100;
                format!("{}.{:02} % of attempts failed", hundredths / 100, hundredths % 100)
            }
        }
    }
}

/// The dead and unreadable jobs and the oldest waiting one of a queue's task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaneOverview {
    /// The queue.
    pub queue: QueueName,
    /// The task.
    pub task: TaskName,
    /// How many of its jobs are dead: exact below [`Overview::MOST`], and at least that where there
    /// are more.
    pub dead: u64,
    /// How many of its jobs are set aside as unreadable, counted in the same way.
    #[serde(default)]
    pub unreadable: u64,
    /// When the first of its scheduled jobs is due, whatever holds it back.
    pub first_due: Option<Timestamp>,
}

/// What alerts are measured by, at one moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Overview {
    /// The store's time.
    pub now: Timestamp,
    /// By queue and task; those with no dead, unreadable or scheduled job are left out.
    pub lanes: Vec<LaneOverview>,
    /// How many jobs are set aside as unreadable, with those whose queue and task are unknown.
    #[serde(default)]
    pub unreadable: u64,
}

impl LaneOverview {
    /// A queue's task with no dead, unreadable or waiting job.
    #[must_use]
    pub fn new(queue: QueueName, task: TaskName) -> Self {
        LaneOverview { queue, task, dead: 0, unreadable: 0, first_due: None }
    }
}

impl Overview {
    /// What a store found at `now`.
    #[must_use]
    pub fn new(now: Timestamp, lanes: Vec<LaneOverview>, unreadable: u64) -> Self {
        Overview { now, lanes, unreadable }
    }

    /// A store may stop counting the dead or unreadable jobs of one queue, task and priority here,
    /// so that looking stays cheap. Each has a count of its own, so none hides those of another.
    pub const MOST: u64 = 10_000;
}

/// What is watched, and the sinks that are notified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Alert {
    /// Its name; its state in the store goes by it.
    pub name: AlertName,
    /// What is measured.
    pub on: Measure,
    /// Only of this queue.
    pub queue: Option<QueueName>,
    /// Only of this task.
    pub task: Option<TaskName>,
    /// It is raised once the measure is above this.
    pub above: u64,
    /// It is cleared once the measure is no more than this: at most `above`.
    pub clear: u64,
    /// The sinks that are notified of each change, by name.
    pub sinks: BTreeSet<String>,
}

setters!(Alert {
    queue? QueueName,
    task? TaskName,
    clear: u64,
    sinks: BTreeSet<String>,
});

impl Alert {
    /// An alert without sinks, on every queue and task: raised once the measure is above `above`,
    /// and cleared once it is no longer.
    ///
    /// ```
    /// use quell_core::AlertName;
    /// use quell_core::alert::{Alert, Measure};
    ///
    /// let alert = Alert::new(AlertName::new("dead")?, Measure::Dead, 5).clear(0);
    /// assert!(alert.validate().is_ok());
    /// # Ok::<(), quell_core::Error>(())
    /// ```
    #[must_use]
    pub fn new(name: AlertName, on: Measure, above: u64) -> Self {
        let sinks = BTreeSet::new();
        Alert { name, on, queue: None, task: None, above, clear: above, sinks }
    }

    /// Refuses what cannot be meant (R40).
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) that names the field.
    pub fn validate(&self) -> Result<()> {
        if self.clear > self.above {
            let (clear, above) = (self.on.describe(self.clear), self.on.describe(self.above));
            let message = format!(
                "clear ({clear}) is above threshold ({above}): it would be raised and over at once"
            );
            return Err(Error::invalid("clear", message));
        }
        let most = Overview::MOST;
        if matches!(self.on, Measure::Dead | Measure::Unreadable) && self.above >= most {
            let message = format!(
                "threshold is {} jobs, but at most {most} are counted: lower it",
                self.above
            );
            return Err(Error::invalid("threshold", message));
        }
        let Measure::FailureRate { window, .. } = self.on else { return Ok(()) };
        if self.above >= MILLION {
            let message = "threshold is a share below 1, such as 0.2: no more than all can fail";
            return Err(Error::invalid("threshold", message));
        }
        if window < SHORTEST_WINDOW {
            let message = format!("window of {window:?} is shorter than {SHORTEST_WINDOW:?}");
            return Err(Error::invalid("window", message));
        }
        Ok(())
    }

    /// Whether it watches this task in this queue.
    #[must_use]
    pub fn covers(&self, queue: &QueueName, task: &TaskName) -> bool {
        self.queue.as_ref().is_none_or(|own| own == queue)
            && self.task.as_ref().is_none_or(|own| own == task)
    }

    /// What it measures now.
    #[must_use]
    pub fn measure(&self, overview: &Overview, state: &AlertState) -> u64 {
        let lanes = overview.lanes.iter().filter(|lane| self.covers(&lane.queue, &lane.task));
        match self.on {
            Measure::Dead => lanes.map(|lane| lane.dead).fold(0, u64::saturating_add),
            Measure::Unreadable => {
                let placed = lanes.map(|lane| lane.unreadable).fold(0, u64::saturating_add);
                let is_of_all = self.queue.is_none() && self.task.is_none();
                if is_of_all { placed.max(overview.unreadable) } else { placed }
            }
            Measure::Lateness => {
                let first = lanes.filter_map(|lane| lane.first_due).min();
                let late = first.map(|first| overview.now.since(first)).unwrap_or_default();
                u64::try_from(late.as_micros()).unwrap_or(u64::MAX)
            }
            Measure::FailureRate { window, min_attempts } => {
                state.rate(overview.now, window, min_attempts)
            }
        }
    }
}

/// All, where a share is counted per million.
pub const MILLION: u64 = 1_000_000;
/// The shortest window of a failure rate.
const SHORTEST_WINDOW: Duration = Duration::from_secs(30);
/// Into how many buckets a window is cut.
const BUCKETS: u32 = 30;

/// What the store keeps of an alert.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct AlertState {
    /// Whether it is raised.
    pub raised: bool,
    /// When it was last raised or cleared; none before the first time.
    pub since: Option<Timestamp>,
    /// What was measured then.
    pub value: u64,
    /// How often it was raised or cleared.
    pub changes: u64,
    /// Attempts that ended, for a failure rate; oldest first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub counted: Vec<Bucket>,
    /// Notices that sinks have not received yet, oldest first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notices: Vec<Notice>,
}

/// The attempts that ended in a part of the window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Bucket {
    /// When it begins.
    pub at: Timestamp,
    /// How many attempts went well.
    pub succeeded: u64,
    /// How many failed.
    pub failed: u64,
}

impl AlertState {
    /// Adds attempts that ended about now; what lies before the window falls out.
    pub fn count(&mut self, now: Timestamp, window: Duration, succeeded: u64, failed: u64) {
        self.counted.retain(|bucket| now.since(bucket.at) < window);
        let width = window.checked_div(BUCKETS).unwrap_or(window);
        match self.counted.last_mut().filter(|bucket| now.since(bucket.at) < width) {
            Some(bucket) => {
                bucket.succeeded = bucket.succeeded.saturating_add(succeeded);
                bucket.failed = bucket.failed.saturating_add(failed);
            }
            None => self.counted.push(Bucket { at: now, succeeded, failed }),
        }
    }

    /// The share of the attempts in the window that failed, per million.
    fn rate(&self, now: Timestamp, window: Duration, min_attempts: u64) -> u64 {
        let inside = self.counted.iter().filter(|bucket| now.since(bucket.at) < window);
        let (succeeded, failed) = inside.fold((0_u64, 0_u64), |(succeeded, failed), bucket| {
            (succeeded.saturating_add(bucket.succeeded), failed.saturating_add(bucket.failed))
        });
        let all = succeeded.saturating_add(failed);
        if all < min_attempts {
            return 0;
        }
        failed.saturating_mul(MILLION).checked_div(all).unwrap_or(0)
    }

    /// Takes a measurement in: raises the alert, or clears it, once; says whether it did. Each of
    /// its sinks then has a notice to come.
    pub fn observe(&mut self, alert: &Alert, value: u64, now: Timestamp) -> bool {
        let raised = match self.raised {
            false => value > alert.above,
            true => value > alert.clear,
        };
        if raised == self.raised {
            return false;
        }
        self.raised = raised;
        self.since = Some(now);
        self.value = value;
        self.changes = self.changes.saturating_add(1);
        self.notify(alert, now);
        true
    }
}

/// An alert's state with its place in the order of changes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AlertRow {
    /// The alert.
    pub name: AlertName,
    /// How often the row was written; the next write names the version that it replaces.
    pub version: u64,
    /// The state.
    pub state: AlertState,
}

impl AlertRow {
    /// A row that was written `version` times.
    #[must_use]
    pub fn new(name: AlertName, version: u64, state: AlertState) -> Self {
        AlertRow { name, version, state }
    }
}

#[cfg(test)]
mod tests;
