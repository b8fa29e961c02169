//! Worker rows: which workers there are, and when the store last received a sign of life of each
//! (R21, R25).
//!
//! A worker sends a [`Heartbeat`] every [`interval`]; the store keeps one [`WorkerRow`] for each
//! worker process. Operators list them, and [`crash`](crate::crash) uses them as evidence when a
//! lease expires.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::setters::setters;
use crate::{QueueName, Timestamp, WorkerId};

/// The longest time between two heartbeats.
const LONGEST_INTERVAL: Duration = Duration::from_secs(30);

/// Rows of workers that were not seen for longer than this are neither listed nor kept.
pub const KEPT_UNSEEN: Duration = Duration::from_secs(86_400);
/// The most rows of unseen workers that a store keeps: each new worker removes the oldest beyond
/// it.
pub const MOST_UNSEEN: usize = 1_000;
/// The most queues that a worker row names.
pub const MOST_QUEUES: usize = 100;
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
    /// How many attempts it runs at once at most.
    pub slots: u32,
    /// How many attempts it runs now.
    pub busy: u32,
    /// How long its leases last without renewal.
    pub lease: Duration,
    /// How long it has been running, by its own clock.
    pub age: Duration,
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
            queues: beat.queues.iter().take(MOST_QUEUES).cloned().collect(),
            slots: beat.slots,
            busy: beat.busy,
            lease: beat.lease,
            started_at: now.before(beat.age),
            steady_since: now,
            seen_at: now,
        }
    }

    /// The row after a further heartbeat; `self` is the row before it.
    #[must_use]
    pub fn again(&self, now: Timestamp, beat: &Heartbeat) -> Self {
        let is_steady = now.since(self.seen_at) <= longest_gap(beat.lease);
        WorkerRow {
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
    fn r25_texts_of_a_row_are_bounded_at_a_character() {
        let long = Heartbeat { host: "ä".repeat(200), ..beat("w") };
        assert_eq!(WorkerRow::first(at(0), &long).host, "ä".repeat(127));
    }
}
