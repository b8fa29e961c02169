//! Worker rows: which workers there are, and when the store last received a sign of life of each
//! (R21, R25).
//!
//! A worker sends a [`Heartbeat`] every [`interval`]; the store keeps one [`WorkerRow`] for each
//! worker process. Operators list them, and [`crash`](crate::crash) uses them as evidence when a
//! lease expires.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::queue::check_text;
use crate::setters::setters;
use crate::{QueueName, Result, TaskName, Timestamp, WorkerId};

/// The longest time between two heartbeats.
const LONGEST_INTERVAL: Duration = Duration::from_secs(30);

/// Rows of workers that were not seen for longer than this are neither listed nor kept.
pub const KEPT_UNSEEN: Duration = Duration::from_secs(86_400);
/// The most rows of unseen workers that a store keeps: each new worker removes the oldest beyond
/// it.
pub const MOST_UNSEEN: usize = 1_000;
/// The most queues that a worker row names.
pub const MOST_QUEUES: usize = 100;
/// The most tasks that a worker row names; the row of a worker with more names none.
pub const MOST_TASKS: usize = 100;
/// The most bytes of a host name or a version in a worker row.
pub const MOST_TEXT: usize = 255;

/// The time between two heartbeats of a worker with this lease: a third of it, as between two
/// renewals, and 30 s at most. It depends on nothing else: not on jobs, queues or load.
///
/// ```
/// use std::time::Duration;
/// use quell_core::heartbeat::interval;
///
/// assert_eq!(interval(Duration::from_secs(30)), Duration::from_secs(10));
/// assert_eq!(interval(Duration::from_secs(600)), Duration::from_secs(30));
/// ```
#[must_use]
pub fn interval(lease: Duration) -> Duration {
    lease.checked_div(3).unwrap_or_default().min(LONGEST_INTERVAL)
}

/// The longest time between two heartbeats that still counts as unbroken: one and a half intervals.
#[must_use]
pub fn longest_gap(lease: Duration) -> Duration {
    let interval = interval(lease);
    interval.saturating_mul(3).checked_div(2).unwrap_or_default()
}

/// What a worker reports about itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Heartbeat {
    /// Its name.
    pub worker: WorkerId,
    /// A random number, different in an earlier process of the same name.
    pub incarnation: u32,
    /// The host that it runs on.
    pub host: String,
    /// Its process id.
    pub pid: u32,
    /// The version of Quell that it runs.
    pub version: String,
    /// The queues that it claims from. A row keeps the first [`MOST_QUEUES`].
    pub queues: Vec<QueueName>,
    /// The tasks that it knows; none where it does not say, or where they are more than [`MOST_TASKS`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tasks: Option<Vec<TaskName>>,
    /// How many attempts it runs at once at most.
    pub slots: u32,
    /// How many attempts it runs now.
    pub busy: u32,
    /// How long its leases last without renewal.
    pub lease: Duration,
    /// How long it has been running, by its own clock.
    pub age: Duration,
}

/// What a worker learns with a heartbeat.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Beaten {
    /// Whether an operator drains it: it claims nothing more until it is resumed (R29).
    pub drained: bool,
}

/// That an operator drains a worker (R29).
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Drained {
    /// The store's time of the step that drained it.
    pub since: Timestamp,
    /// Who drained it, by the words of that caller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
}

/// What an operator wants of the processes of a worker that are listed now (R29).
///
/// ```
/// use quell_core::WorkerId;
/// use quell_core::heartbeat::WorkerDrain;
///
/// let drain = WorkerDrain::new(WorkerId::new("mail-1")?, true).by("ann".to_owned());
/// assert!(drain.validate().is_ok());
/// # Ok::<(), quell_core::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerDrain {
    /// The worker's name.
    pub worker: WorkerId,
    /// Whether it is drained, or resumed.
    pub drains: bool,
    /// Who asks for it: 255 bytes at most. The caller of the first drain stays on record.
    pub by: Option<String>,
}

setters!(WorkerDrain { by? String });

impl WorkerDrain {
    /// A drain, or a resume, by no one who gave a name.
    #[must_use]
    pub fn new(worker: WorkerId, drains: bool) -> Self {
        WorkerDrain { worker, drains, by: None }
    }

    /// Refuses what cannot be meant (R40).
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) that names the field.
    pub fn validate(&self) -> Result<()> {
        check_text("by", self.by.as_deref())
    }
}

/// What a store keeps about a worker. All times are store times.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct WorkerRow {
    /// Its name.
    pub worker: WorkerId,
    /// A random number, different in an earlier process of the same name.
    pub incarnation: u32,
    /// The host that it runs on.
    pub host: String,
    /// Its process id.
    pub pid: u32,
    /// The version of Quell that it runs.
    pub version: String,
    /// The queues that it claims from, [`MOST_QUEUES`] at most.
    pub queues: Vec<QueueName>,
    /// The tasks that it knows, all of them; none where that is not known: the worker runs an earlier
    /// version, or knows more than [`MOST_TASKS`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tasks: Option<Vec<TaskName>>,
    /// How many attempts it runs at once at most.
    pub slots: u32,
    /// How many attempts it ran at its last heartbeat.
    pub busy: u32,
    /// How long its leases last without renewal.
    pub lease: Duration,
    /// When it started.
    pub started_at: Timestamp,
    /// Since when its heartbeats have come without a gap over [`longest_gap`].
    pub steady_since: Timestamp,
    /// When its last heartbeat came.
    pub seen_at: Timestamp,
    /// Since when an operator drains it; none where it takes jobs. Stores keep it apart from the row,
    /// which only heartbeats change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drained: Option<Drained>,
}

impl WorkerRow {
    /// The row after the first heartbeat of a worker.
    #[must_use]
    pub fn first(now: Timestamp, beat: &Heartbeat) -> Self {
        WorkerRow {
            worker: beat.worker.clone(),
            incarnation: beat.incarnation,
            host: clipped(&beat.host),
            pid: beat.pid,
            version: clipped(&beat.version),
            queues: merged(&[], &beat.queues, MOST_QUEUES),
            tasks: beat.tasks.as_deref().and_then(|tasks| listed(merged(&[], tasks, usize::MAX))),
            slots: beat.slots,
            busy: beat.busy,
            lease: beat.lease,
            started_at: now.before(beat.age),
            steady_since: now,
            seen_at: now,
            drained: None,
        }
    }

    /// The row after a further heartbeat; `self` is the row before it.
    ///
    /// Queues and tasks are added to those of the row: a worker that pulls its jobs names them one
    /// claim after the other, perhaps to several servers.
    #[must_use]
    pub fn again(&self, now: Timestamp, beat: &Heartbeat) -> Self {
        let is_steady = now.since(self.seen_at) <= longest_gap(beat.lease);
        let tasks = self.tasks.as_deref().zip(beat.tasks.as_deref());
        WorkerRow {
            queues: merged(&self.queues, &beat.queues, MOST_QUEUES),
            tasks: tasks.and_then(|(known, new)| listed(merged(known, new, usize::MAX))),
            busy: beat.busy,
            steady_since: if is_steady { self.steady_since } else { now },
            seen_at: self.seen_at.max(now),
            ..self.clone()
        }
    }

    /// Whether its heartbeats are overdue: three in a row are missing.
    #[must_use]
    pub fn is_unseen(&self, now: Timestamp) -> bool {
        now.since(self.seen_at) > interval(self.lease).saturating_mul(3)
    }

    /// Whether it takes jobs from a queue, as far as the row says: it names [`MOST_QUEUES`] at most.
    #[must_use]
    pub fn may_take_from(&self, queue: &QueueName) -> bool {
        self.queues.contains(queue) || self.queues.len() >= MOST_QUEUES
    }

    /// Whether it knows a task, as far as the row says.
    #[must_use]
    pub fn may_know(&self, task: &TaskName) -> bool {
        self.tasks.as_ref().is_none_or(|tasks| tasks.contains(task))
    }

    /// Whether its row may be listed and kept.
    #[must_use]
    pub fn is_kept(&self, now: Timestamp) -> bool {
        now.since(self.seen_at) <= KEPT_UNSEEN
    }
}

/// The workers that a store knows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Workers {
    /// The store time of the answer.
    pub now: Timestamp,
    /// Their rows, by name and incarnation.
    pub rows: Vec<WorkerRow>,
}

impl Workers {
    /// These rows, which a store read at `now`.
    #[must_use]
    pub fn new(now: Timestamp, rows: Vec<WorkerRow>) -> Self {
        Workers { now, rows }
    }
}

setters!(WorkerRow { started_at: Timestamp, steady_since: Timestamp, seen_at: Timestamp });

/// Which rows a store removes when a new worker's first heartbeat comes: those not seen for
/// [`KEPT_UNSEEN`], and of the other unseen ones all but the newest [`MOST_UNSEEN`].
#[must_use]
pub fn outdated(now: Timestamp, rows: &[WorkerRow]) -> Vec<(WorkerId, u32)> {
    let mut unseen: Vec<&WorkerRow> = rows.iter().filter(|row| row.is_unseen(now)).collect();
    let name = |row: &WorkerRow| (row.worker.clone(), row.incarnation);
    unseen.sort_by_key(|row| (std::cmp::Reverse(row.seen_at), name(row)));
    let old = |(place, row): &(usize, &WorkerRow)| *place >= MOST_UNSEEN || !row.is_kept(now);
    unseen.into_iter().enumerate().filter(old).map(|(_, row)| name(row)).collect()
}

/// The tasks as a heartbeat and a row name them: none where they are more than [`MOST_TASKS`].
#[must_use]
pub fn listed(tasks: Vec<TaskName>) -> Option<Vec<TaskName>> {
    (tasks.len() <= MOST_TASKS).then_some(tasks)
}

/// Those of a row and the new ones of a heartbeat, the first `most`.
fn merged<T: Clone + PartialEq>(known: &[T], new: &[T], most: usize) -> Vec<T> {
    let mut all = known.to_vec();
    for one in new.iter().take(most) {
        if all.len() < most && !all.contains(one) {
            all.push(one.clone());
        }
    }
    all
}

fn clipped(text: &str) -> String {
    let mut end = text.len().min(MOST_TEXT);
    while !text.is_char_boundary(end) {
        end = end.saturating_sub(1);
    }
    text.get(..end).unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn beat(name: &str) -> Heartbeat {
        Heartbeat {
            worker: WorkerId::new(name).unwrap(),
            incarnation: 1,
            host: "h".to_owned(),
            pid: 1,
            version: "0".to_owned(),
            queues: Vec::new(),
            tasks: None,
            slots: 1,
            busy: 0,
            lease: Duration::from_secs(30),
            age: Duration::from_secs(2),
        }
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_secs(second)
    }

    #[test]
    fn r25_a_row_is_steady_until_a_heartbeat_comes_late() {
        let first = WorkerRow::first(at(100), &beat("w"));
        assert_eq!((first.started_at, first.steady_since), (at(98), at(100)));
        let second = first.again(at(115), &beat("w"));
        assert_eq!((second.steady_since, second.seen_at), (at(100), at(115)));
        let late = second.again(at(131), &Heartbeat { busy: 3, ..beat("w") });
        assert_eq!((late.steady_since, late.seen_at, late.busy), (at(131), at(131), 3));
        assert_eq!(late.started_at, at(98));
    }

    #[test]
    fn r25_a_worker_is_unseen_after_three_missing_heartbeats() {
        let row = WorkerRow::first(at(100), &beat("w"));
        assert!(!row.is_unseen(at(130)));
        assert!(row.is_unseen(at(131)));
    }

    #[test]
    fn r25_rows_of_unseen_workers_are_bounded_in_time_and_number() {
        let row = |name: String, second| WorkerRow::first(at(second), &beat(&name));
        let day = 86_400;
        let live = (0..1_500).map(|n| row(format!("live-{n}"), day));
        let unseen = (0..1_002).map(|n| row(format!("gone-{n}"), 1_000 + n));
        let rows: Vec<_> = live.chain(unseen).chain([row("old".into(), -1)]).collect();
        let names: Vec<String> =
            outdated(at(day), &rows).iter().map(|(name, _)| name.to_string()).collect();
        assert_eq!(names, ["gone-1", "gone-0", "old"]);
    }

    #[test]
    fn r15_a_row_names_all_tasks_of_its_worker_or_none() {
        let names = |from: usize, to: usize| -> Option<Vec<TaskName>> {
            Some((from..to).map(|n| TaskName::new(format!("t{n}")).unwrap()).collect())
        };
        let row = |tasks| WorkerRow::first(at(0), &Heartbeat { tasks, ..beat("w") });
        let again = |row: &WorkerRow, tasks| row.again(at(1), &Heartbeat { tasks, ..beat("w") });
        assert_eq!(row(names(0, MOST_TASKS)).tasks, names(0, MOST_TASKS));
        assert_eq!(row(names(0, MOST_TASKS + 1)).tasks, None);
        let some = again(&row(names(0, 2)), names(1, 3));
        assert_eq!(some.tasks, names(0, 3));
        assert_eq!(again(&some, names(0, MOST_TASKS + 1)).tasks, None);
        assert_eq!(again(&some, None).tasks, None, "an earlier version sent it");
        assert_eq!(again(&row(None), names(0, 2)).tasks, None, "it may know others");
        let [first, last] = [0, 7].map(|n| names(n, n + 1).unwrap().remove(0));
        assert!(some.may_know(&first) && !some.may_know(&last) && row(None).may_know(&last));
    }

    #[test]
    fn r25_a_row_gains_the_queues_that_a_later_heartbeat_names() {
        let queues = |names: &[&str]| -> Vec<QueueName> {
            names.iter().map(|name| QueueName::new(*name).unwrap()).collect()
        };
        let row = WorkerRow::first(at(0), &Heartbeat { queues: queues(&["a"]), ..beat("w") });
        let row = row.again(at(1), &Heartbeat { queues: queues(&["b", "a"]), ..beat("w") });
        assert_eq!(row.queues, queues(&["a", "b"]));
    }

    #[test]
    fn r25_an_earlier_version_reads_rows_and_heartbeats_that_name_no_task() {
        let row = WorkerRow::first(at(0), &beat("w"));
        let text = serde_json::to_string(&row).unwrap();
        assert!(!text.contains("tasks"), "{text}");
        assert_eq!(serde_json::from_str::<WorkerRow>(&text).unwrap(), row);
    }

    #[test]
    fn r25_texts_of_a_row_are_bounded_at_a_character() {
        let long = Heartbeat { host: "ä".repeat(200), ..beat("w") };
        assert_eq!(WorkerRow::first(at(0), &long).host, "ä".repeat(127));
    }
}
