//! Which processes wrote all that they did, and what the others may have taken with them.
//!
//! A process begins its record with [`Event::Begin`] and ends it with [`Event::End`]. One whose
//! last line is no end was killed, or could not write on. What it lost is bounded, because each
//! event is written with one `write`, and in this order:
//!
//! - A call to trigger is written before it is made. So a killed caller lost no call, only answers:
//!   a call without an answer may have been accepted, and nothing else of its keys was triggered.
//! - What a store committed is written right after the commit, in the order of commits. So what is
//!   missing was committed no earlier than the newest event of the process, and no later than its
//!   death, but for statements that a server still finished: [`AFTER_DEATH`].
//! - A live process records a call without an answer and its duration ([`Event::Unanswered`]). The
//!   store may have committed it in that time, or a little later.
//! - A live process records a call that failed and its duration ([`Event::CallFailed`]), too. The store may
//!   have held rows for it in that time, or a little longer where the client fell silent.
//! - A process that has recorded work (claims, ends of attempts) but no operator's act, such as a
//!   pause or a cancel, was not in the middle of its first one.
//!
//! So an event that does not fit what came before it is a violation, unless the time between the
//! two overlaps the last moments of such a process. Then the case counts as not
//! judged. A process that recorded nothing but its begin may have done anything since then. Where no
//! [`Event::Fault`] says when it was killed, its last moments have no end.
//!
//! Events of processes whose histories are not given cannot be distinguished from events that never were:
//! give all of them, or say that there are more ([`elsewhere`]).

use std::collections::BTreeMap;
use std::time::Duration;

use quell_core::Timestamp;
use quell_core::history::Event;

use super::Line;

/// How long a server may still work on a call after its client died or gave up.
pub const AFTER_DEATH: Duration = Duration::from_secs(5);

/// A line that stands for processes whose histories are not given: anything of theirs may be
/// missing, at any time.
#[must_use]
pub fn elsewhere() -> Line {
    Line::new("a process elsewhere", Event::Begin { t: Timestamp::MIN })
}

/// What kind of event may be missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// A claim, a renewal, the end of an attempt, a tick, a removal.
    Work,
    /// What an operator does: settings, schedules, flushes, cancels, redrives, discards.
    Operate,
    /// Either.
    Any,
}

/// What a process's record shows of it.
#[derive(Clone, Debug, Default)]
struct Process {
    begun: Option<Timestamp>,
    first: Option<Timestamp>,
    newest: Option<Timestamp>,
    /// Whether the last line so far is its end.
    ended: bool,
    works: bool,
    operates: bool,
    /// Whether it wrote anything but its begin.
    speaks: bool,
    killed: Option<Timestamp>,
}

/// A time in which unrecorded events may have happened.
#[derive(Clone, Debug)]
struct Gap {
    why: &'static str,
    works: bool,
    operates: bool,
    from: Timestamp,
    to: Timestamp,
}

const KILLED: &str = "a process that was killed may have taken an event with it";
const ELSEWHERE: &str = "what came before the record, or from elsewhere, may have done it";
const UNANSWERED: &str = "a call that got no answer may have been done";

/// The calls that an operator makes; all others are work.
const OPERATING: &[&str] = &[
    "set_queue",
    "replace_queue",
    "delete_queue",
    "set_task",
    "replace_task",
    "flush",
    "cancel_key",
    "cancel",
    "adjust",
    "redrive",
    "discard",
    "import_dead",
    "restore",
    "set_schedule",
    "set_schedule_state",
    "delete_schedule",
    "run_schedule",
    "backfill",
];

/// The calls whose effects no store records.
const SILENT: &[&str] =
    &["heartbeat", "drain_worker", "remove_worker", "set_alert", "begin_effect", "end_effect"];

/// All processes of a record.
#[derive(Clone, Debug, Default)]
pub struct Processes {
    each: BTreeMap<String, Process>,
    gaps: Vec<Gap>,
    /// From when to when the store may have held rows for calls that failed.
    failed: Vec<(Timestamp, Timestamp)>,
}

impl Processes {
    /// The processes of a history.
    #[must_use]
    pub fn of(lines: &[Line]) -> Self {
        let mut each = BTreeMap::<String, Process>::new();
        let mut kills = Vec::new();
        for line in lines {
            match &line.event {
                Event::Fault { t, what, whom } if what == "kill" => kills.push((whom.clone(), *t)),
                // What a test says of the run, and rows that were read afterwards.
                Event::Record { .. } | Event::Fault { .. } | Event::Heal { .. } => {}
                Event::Row { .. } => {}
                event => each.entry(line.p.clone()).or_default().take(event),
            }
        }
        for (whom, t) in kills {
            let named = format!("{whom}-");
            let mut killed = each.iter_mut().filter(|(p, _)| **p == whom || p.starts_with(&named));
            killed.by_ref().for_each(|(_, process)| process.killed = process.killed.max(Some(t)));
        }
        // A host whose clock runs ahead of the store's says nothing about when it began.
        let ahead =
            |process: &Process| process.begun.zip(process.first).is_some_and(|(b, f)| b > f);
        let trusted = !each.values().any(ahead);
        let last_moments = |process: &Process| {
            let begun = process.begun.filter(|_| trusted).unwrap_or(Timestamp::MIN);
            let from = process.newest.unwrap_or(begun);
            let to = process.killed.map_or(Timestamp::MAX, |killed| killed + AFTER_DEATH);
            let (works, operates) =
                (process.works || !process.speaks, process.operates || !process.speaks);
            let is_elsewhere = process.begun == Some(Timestamp::MIN) && !process.speaks;
            let why = if is_elsewhere { ELSEWHERE } else { KILLED };
            Gap { why, works, operates, from, to: to.max(from) }
        };
        let mut gaps: Vec<Gap> =
            each.values().filter(|process| !process.ended).map(last_moments).collect();
        // A recorder that numbers all lines also records commits whose answers were lost.
        let unnumbered = lines.iter().filter(|line| line.n.is_none());
        gaps.extend(unnumbered.filter_map(|line| unanswered(&line.event, trusted)));
        let failed = lines.iter().filter_map(|line| failed(&line.event, trusted)).collect();
        Processes { each, gaps, failed }
    }

    /// How many there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.each.len()
    }

    /// Those that did not write all that they did.
    pub fn incomplete(&self) -> impl Iterator<Item = &str> {
        self.each.iter().filter(|(_, process)| !process.ended).map(|(p, _)| p.as_str())
    }

    /// Whether everything that happened is on record.
    #[must_use]
    pub fn are_complete(&self) -> bool {
        self.gaps.is_empty()
    }

    /// Whether the store may have held rows between these times for a call that failed.
    #[must_use]
    pub fn held_for_failed(&self, from: Timestamp, to: Timestamp) -> bool {
        self.failed.iter().any(|(since, t)| *since < to && from < *t)
    }

    /// Why such an event between these times may be missing, if it may.
    #[must_use]
    pub fn lost(&self, act: Act, from: Timestamp, to: Timestamp) -> Option<&'static str> {
        let may = |gap: &&Gap| {
            let does = match act {
                Act::Work => gap.works,
                Act::Operate => gap.operates,
                Act::Any => gap.works || gap.operates,
            };
            does && gap.from < to && from <= gap.to
        };
        self.gaps.iter().find(may).map(|gap| gap.why)
    }
}

/// When the store may have worked on a call that its client ended at `t`; `trusted` is whether hosts'
/// clocks agree with the store's.
fn worked_on(since: Timestamp, t: Timestamp, trusted: bool) -> (Timestamp, Timestamp) {
    if trusted { (since, t + AFTER_DEATH) } else { (Timestamp::MIN, Timestamp::MAX) }
}

/// When the store may have held rows for a call that failed.
fn failed(event: &Event, trusted: bool) -> Option<(Timestamp, Timestamp)> {
    let Event::CallFailed { t, since, .. } = event else { return None };
    Some(worked_on(*since, *t, trusted))
}

/// The gap that a call without an answer leaves.
fn unanswered(event: &Event, trusted: bool) -> Option<Gap> {
    let Event::Unanswered { t, since, call } = event else { return None };
    if SILENT.contains(&call.as_str()) {
        return None;
    }
    let operates = OPERATING.contains(&call.as_str());
    let (from, to) = worked_on(*since, *t, trusted);
    Some(Gap { why: UNANSWERED, works: !operates, operates, from, to })
}

impl Process {
    fn take(&mut self, event: &Event) {
        self.ended = matches!(event, Event::End);
        if let Event::Begin { t } = event {
            self.begun = Some(*t);
            return;
        }
        self.speaks = true;
        if let Some(t) = event.at() {
            self.first.get_or_insert(t);
            self.newest = self.newest.max(Some(t));
        }
        match event {
            Event::Worker { .. }
            | Event::Claimed { .. }
            | Event::Renew { .. }
            | Event::Expire { .. }
            | Event::Settle { .. }
            | Event::Prune { .. }
            | Event::Ticked { .. } => self.works = true,
            Event::Cancel { .. }
            | Event::Adjust { .. }
            | Event::Redrive { .. }
            | Event::Discard { .. }
            | Event::Import { .. }
            | Event::Queue { .. }
            | Event::QueueDeleted { .. }
            | Event::TaskChanged { .. }
            | Event::Schedule { .. }
            | Event::Unscheduled { .. }
            | Event::ScheduleRun { .. } => self.operates = true,
            _ => {}
        }
    }
}
