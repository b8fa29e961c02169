//! What is known of the jobs that `quell tail` follows, and what the difference of two looks at one means.
//!
//! It knows no server, no store and no clock. Invariant: at most [`MOST`] jobs are known; of those that ended,
//! the oldest are forgotten first.

use std::collections::BTreeMap;

use jiff::Timestamp;
use quell::{JobId, JobState};

use crate::view::Job;

/// The most jobs that are known.
pub(super) const MOST: usize = 10_000;

/// What happened to a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Happening {
    Accepted,
    Started,
    /// An attempt failed, and the job is retried.
    Failed,
    /// An attempt ended without an end of the job: it was snoozed or released, or its lease expired.
    Released,
    Late,
    Succeeded,
    Died,
    Cancelled,
    Absorbed,
    Unreadable,
    /// A job that had ended waits again.
    Redriven,
    /// It is not there any more: it was discarded, or its retention was over.
    Removed,
}

impl Happening {
    pub(super) fn name(self) -> &'static str {
        match self {
            Happening::Accepted => "accepted",
            Happening::Started => "started",
            Happening::Failed => "failed",
            Happening::Released => "released",
            Happening::Late => "late",
            Happening::Succeeded => "succeeded",
            Happening::Died => "died",
            Happening::Cancelled => "cancelled",
            Happening::Absorbed => "absorbed",
            Happening::Unreadable => "unreadable",
            Happening::Redriven => "redriven",
            Happening::Removed => "removed",
        }
    }

    /// The state that the job is in by it; none of a job that is gone.
    pub(super) fn state(self) -> Option<JobState> {
        Some(match self {
            Happening::Started => JobState::Running,
            Happening::Succeeded => JobState::Succeeded,
            Happening::Died => JobState::Dead,
            Happening::Cancelled => JobState::Cancelled,
            Happening::Absorbed => JobState::Absorbed,
            Happening::Unreadable => JobState::Unreadable,
            Happening::Accepted
            | Happening::Failed
            | Happening::Released
            | Happening::Late
            | Happening::Redriven => JobState::Scheduled,
            Happening::Removed => return None,
        })
    }

    fn end(state: JobState) -> Option<Self> {
        match state {
            JobState::Scheduled | JobState::Running => None,
            JobState::Succeeded => Some(Happening::Succeeded),
            JobState::Dead => Some(Happening::Died),
            JobState::Cancelled => Some(Happening::Cancelled),
            JobState::Absorbed => Some(Happening::Absorbed),
            JobState::Unreadable => Some(Happening::Unreadable),
        }
    }
}

/// A happening with the row that showed it.
#[derive(Clone, Debug)]
pub(super) struct Event {
    pub(super) what: Happening,
    pub(super) job: Job,
}

/// One look at a job.
#[derive(Clone, Debug)]
struct Look {
    row: Job,
    /// Whether a line said that it is late.
    late: bool,
    /// The round of the last look.
    round: u64,
}

/// The jobs that are followed.
#[derive(Debug, Default)]
pub(super) struct Known {
    jobs: BTreeMap<JobId, Look>,
    round: u64,
    /// Those who came before the first round are no news: the newest of them, by id and by time.
    before: Option<(JobId, Option<Timestamp>)>,
    /// Jobs up to this one were known once and are forgotten.
    forgotten: Option<JobId>,
    /// How many that had not ended were forgotten.
    pub(super) lost: u64,
}

impl Known {
    /// Begins a round: all rows until the next are of one look.
    pub(super) fn begin_round(&mut self) {
        self.round += 1;
    }

    /// Takes a row of a job that is no news.
    pub(super) fn learn(&mut self, row: Job) {
        let newest = self.before.take();
        let (id, first_at) = newest.unwrap_or((row.id, None));
        self.before = Some((id.max(row.id), first_at.max(first_at_of(&row))));
        self.put(row);
    }

    /// Whether a job is known.
    pub(super) fn has(&self, id: JobId) -> bool {
        self.jobs.contains_key(&id) || self.forgotten.is_some_and(|last| id <= last)
    }

    /// Takes a row and returns what happened since the row before it.
    pub(super) fn observe(&mut self, row: Job) -> Vec<Event> {
        let happened = match self.jobs.get(&row.id) {
            Some(look) => changes(&look.row, &row),
            None if self.is_new(&row) => first_look(&row),
            // It was there before, and is met because it changed or newer ones went.
            None if row.state == JobState::Running => vec![Happening::Started],
            None => Vec::new(),
        };
        let event = |what| Event { what, job: row.clone() };
        let events = happened.into_iter().map(event).collect();
        self.put(row);
        events
    }

    /// A job was not there although the page that would have it was read.
    pub(super) fn remove(&mut self, id: JobId) -> Option<Event> {
        let look = self.jobs.remove(&id)?;
        let had_ended = look.row.state.is_ended();
        (!had_ended).then_some(Event { what: Happening::Removed, job: look.row })
    }

    /// The newest jobs up to `below` that have not ended and had no look in this round.
    pub(super) fn unseen(&self, below: Option<JobId>, most: usize) -> Vec<JobId> {
        let open = self.jobs.iter().rev().filter(|(id, look)| {
            below.is_none_or(|below| **id < below)
                && !look.row.state.is_ended()
                && look.round != self.round
        });
        open.map(|(id, _)| *id).take(most).collect()
    }

    /// The jobs that wait and are late by `is_late`, each once.
    pub(super) fn late(&mut self, is_late: impl Fn(&Job) -> bool) -> Vec<Event> {
        let waiting = self.jobs.values_mut().filter(|look| {
            !look.late && look.row.state == JobState::Scheduled && is_late(&look.row)
        });
        let event = |look: &mut Look| {
            look.late = true;
            Event { what: Happening::Late, job: look.row.clone() }
        };
        waiting.map(event).collect()
    }

    fn is_new(&self, row: &Job) -> bool {
        if self.forgotten.is_some_and(|last| row.id <= last) {
            return false;
        }
        // Stores of several shards hand out ids that do not follow time.
        self.before
            .as_ref()
            .is_none_or(|(id, first_at)| row.id > *id || first_at_of(row) > *first_at)
    }

    fn put(&mut self, row: Job) {
        let round = self.round;
        let late =
            self.jobs.get(&row.id).is_some_and(|look| look.late && look.row.due_at == row.due_at);
        self.jobs.insert(row.id, Look { row, late, round });
        while self.jobs.len() > MOST {
            let ended = self.jobs.iter().find(|(_, look)| look.row.state.is_ended());
            let Some(id) = ended.or_else(|| self.jobs.first_key_value()).map(|(id, _)| *id) else {
                return;
            };
            let look = self.jobs.remove(&id);
            self.lost += u64::from(look.is_some_and(|look| !look.row.state.is_ended()));
            self.forgotten = self.forgotten.max(Some(id));
        }
    }
}

/// When its first trigger was accepted.
fn first_at_of(row: &Job) -> Option<Timestamp> {
    row.first_at.as_ref()?.parse().ok()
}

/// What a job that is new went through before the first look at it.
fn first_look(row: &Job) -> Vec<Happening> {
    let mut happened = vec![Happening::Accepted];
    if row.starts > 0 {
        happened.push(Happening::Started);
    }
    if row.failures > 0 && row.state != JobState::Dead {
        happened.push(Happening::Failed);
    }
    happened.extend(Happening::end(row.state));
    happened
}

/// What happened between two looks.
fn changes(before: &Job, row: &Job) -> Vec<Happening> {
    let mut happened = Vec::new();
    let started = row.starts > before.starts;
    let waits_again = before.state.is_ended() && (!row.state.is_ended() || started);
    if waits_again {
        happened.push(Happening::Redriven);
    }
    let failed = row.failures > before.failures && row.state != JobState::Dead;
    // Of an attempt that ran before, the end comes first.
    if failed && before.state == JobState::Running {
        happened.push(Happening::Failed);
    }
    if started {
        happened.push(Happening::Started);
    }
    if failed && before.state != JobState::Running {
        happened.push(Happening::Failed);
    }
    let left = row.state == JobState::Scheduled && (before.state == JobState::Running || started);
    if left && !failed {
        happened.push(Happening::Released);
    }
    if row.state != before.state || (started && row.state.is_ended()) {
        happened.extend(Happening::end(row.state));
    }
    happened
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::live::sample_job;

    /// A row of a job: id, state, starts, failures.
    fn row(id: u64, state: &str, starts: u64, failures: u32) -> Job {
        let named = |one: &JobState| one.name() == state;
        let state = JobState::ALL.into_iter().find(named).unwrap();
        Job { state, starts, failures, ..sample_job(id) }
    }

    fn names(events: Vec<Event>) -> Vec<&'static str> {
        events.iter().map(|event| event.what.name()).collect()
    }

    #[test]
    fn two_looks_tell_what_happened_between_them() {
        let table: [(_, _, &[&str]); 12] = [
            (("scheduled", 0, 0), ("scheduled", 0, 0), &[]),
            (("scheduled", 0, 0), ("running", 1, 0), &["started"]),
            (("scheduled", 0, 0), ("succeeded", 1, 0), &["started", "succeeded"]),
            (("running", 1, 0), ("succeeded", 1, 0), &["succeeded"]),
            (("running", 1, 0), ("scheduled", 1, 1), &["failed"]),
            (("running", 1, 0), ("running", 2, 1), &["failed", "started"]),
            (("scheduled", 0, 0), ("scheduled", 1, 1), &["started", "failed"]),
            (("running", 1, 0), ("scheduled", 1, 0), &["released"]),
            (("running", 1, 0), ("dead", 1, 1), &["died"]),
            (("dead", 1, 1), ("scheduled", 1, 0), &["redriven"]),
            (("dead", 1, 1), ("dead", 2, 1), &["redriven", "started", "died"]),
            (("scheduled", 0, 0), ("cancelled", 0, 0), &["cancelled"]),
        ];
        for (before, after, expected) in table {
            let mut known = Known::default();
            known.learn(row(7, before.0, before.1, before.2));
            let events = known.observe(row(7, after.0, after.1, after.2));
            assert_eq!(names(events), expected, "{before:?} {after:?}");
        }
    }

    #[test]
    fn a_job_is_news_once_and_older_ones_that_come_to_light_are_none() {
        let mut known = Known::default();
        known.learn(row(5, "scheduled", 0, 0));
        assert_eq!(
            names(known.observe(row(6, "succeeded", 1, 0))),
            ["accepted", "started", "succeeded"]
        );
        assert_eq!(names(known.observe(row(6, "succeeded", 1, 0))), [""; 0]);
        assert_eq!(names(known.observe(row(3, "succeeded", 1, 0))), [""; 0]);
        assert_eq!(names(known.observe(row(4, "running", 1, 0))), ["started"]);
        // A lower id of another shard, and a later time.
        let mut other = row(2, "scheduled", 0, 0);
        other.first_at = Some("2026-11-28T00:01:00Z".to_owned());
        assert_eq!(names(known.observe(other)), ["accepted"]);
        assert_eq!(names(known.remove(JobId::new(5)).into_iter().collect()), ["removed"]);
        assert!(known.remove(JobId::new(6)).is_none(), "it had ended");
    }

    #[test]
    fn what_is_known_is_bounded_and_what_was_forgotten_is_no_news() {
        let mut known = Known::default();
        let most = MOST as u64;
        for id in 1..=most + 10 {
            known.observe(row(id, if id == 1 { "scheduled" } else { "succeeded" }, 0, 0));
        }
        assert_eq!((known.jobs.len(), known.lost), (MOST, 0));
        assert!(known.has(JobId::new(1)), "it has not ended");
        assert_eq!(names(known.observe(row(5, "succeeded", 1, 0))), [""; 0]);
        known.begin_round();
        assert_eq!(known.unseen(None, 10), [JobId::new(1)]);
        assert_eq!(known.unseen(Some(JobId::new(1)), 10), []);
    }

    #[test]
    fn a_job_is_late_once_until_it_is_due_again() {
        let mut known = Known::default();
        known.learn(row(1, "scheduled", 0, 0));
        assert_eq!(names(known.late(|_| true)), ["late"]);
        known.observe(row(1, "scheduled", 0, 0));
        assert_eq!(names(known.late(|_| true)), [""; 0]);
        let mut again = row(1, "scheduled", 1, 1);
        again.due_at = Some("2026-11-28T00:05:00Z".to_owned());
        assert_eq!(names(known.observe(again)), ["started", "failed"]);
        assert_eq!(names(known.late(|_| true)), ["late"]);
    }
}
