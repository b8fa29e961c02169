//! Nothing accepted is lost, made up or counted twice (P2, P3, P4).

use std::collections::{BTreeMap, BTreeSet};

use quell_core::edge::Edge;
use quell_core::history::Event;
use quell_core::{JobId, JobState, Receipt, SettledAs, TaskName, Timestamp, TriggerId};

use super::book::UNKNOWN_MAKER;
use super::views::{JobView, OpId, OpState, OpView, TaskKey};
use super::{Book, Found, Line, Property};

const NO_STORE: &str = "no store wrote to the record";
const NO_CALLER: &str = "no caller wrote to the record";

/// Every accepted trigger is in one job, and that job ran after it or ended on record.
#[derive(Debug, Default)]
pub(super) struct Coverage {
    seen: BTreeMap<TriggerId, usize>,
}

/// Whether a trigger was covered.
enum Covered {
    Yes,
    No(String),
    Unknown(String),
}

impl Property for Coverage {
    fn on(&mut self, book: &Book, at: usize, line: &Line, found: &mut Found) {
        if let Event::Claimed { t, job, task, key, .. } = &line.event {
            match book.jobs.get(job) {
                Some(_) => found.holds("P3"),
                None => {
                    let unknown = format!("job {job} started and never was");
                    found.unless(book.unrecorded(task, key.as_ref(), *t), "P3", [at], unknown);
                }
            }
        }
        let (Event::TriggerOk { receipt, .. }
        | Event::Ticked { receipt, .. }
        | Event::ScheduleRun { receipt, .. }) = &line.event
        else {
            return;
        };
        let Some(trigger) = receipt.trigger() else { return };
        match self.seen.insert(trigger, at) {
            Some(before) => {
                let twice = format!("trigger {trigger} was given out twice");
                found.broken("P4", [before, at], twice);
            }
            None => found.holds("P4"),
        }
    }

    fn finish(&mut self, book: &Book, _: &[Line], found: &mut Found) {
        for op in book.ops.values() {
            if let OpState::Answered(receipt, at) = &op.state {
                answered(book, op, receipt, *at, found);
            }
        }
        if book.has_store && book.ops.is_empty() {
            found.cannot("P3", NO_CALLER);
        } else if book.has_store {
            keyed(book, found);
            unkeyed(book, found);
        }
    }
}

fn answered(book: &Book, op: &OpView, receipt: &Receipt, at: usize, found: &mut Found) {
    let Some(trigger) = receipt.trigger() else { return };
    if !book.has_store {
        found.cannot("P2", NO_STORE);
        found.cannot("P4", NO_STORE);
        return;
    }
    let Some(job) = book.jobs.get(&trigger.job) else {
        // The process that answered had written what it did before.
        let lost = format!("trigger {trigger} was accepted, but its job never was");
        found.broken("P2", [op.at, at], lost);
        return;
    };
    if job.task != op.task || job.key != op.key {
        let other = format!("trigger {trigger} went to a job of another task or key");
        found.broken("P4", [op.at, at].into_iter().chain(job.lines.first().copied()), other);
    }
    counted(job, trigger, receipt, at, found);
    match covered(book, job, op, trigger) {
        Covered::Yes => found.holds("P2"),
        Covered::Unknown(why) => found.cannot("P2", why),
        Covered::No(why) => {
            let last = book.jobs.get(&book.last_successor(trigger.job)).into_iter();
            let shown = [op.at, at].into_iter().chain(job.newest(3));
            let shown: Vec<usize> = shown.chain(last.flat_map(|last| last.newest(3))).collect();
            let lost = format!("trigger {trigger} was accepted and lost: {why}");
            found.broken("P2", shown, lost);
        }
    }
}

/// P4: a receipt says what happened to the window.
fn counted(job: &JobView, trigger: TriggerId, receipt: &Receipt, at: usize, found: &mut Found) {
    let Some(joined) = job.joined_at(trigger.seq) else {
        let shown = job.newest(2).chain([at]);
        let never = format!("job {} never counted trigger {trigger}", trigger.job);
        found.broken("P4", shown, never);
        return;
    };
    let opened = matches!(receipt, Receipt::Accepted { .. });
    if opened == (trigger.seq == 1) {
        found.holds("P4");
    } else {
        let wrong = format!("the receipt of {trigger} does not say what became of it");
        found.broken("P4", [joined.at, at], wrong);
    }
}

/// Whether a trigger was run, or ended on record. What a leading edge does not run is no loss where
/// its call asked for that edge; which triggers that are, P8b says.
fn covered(book: &Book, job: &JobView, op: &OpView, trigger: TriggerId) -> Covered {
    let asked = op.debounce.is_none_or(|debounce| debounce.edge == Edge::Leading);
    if asked && job.suppressed.contains(&trigger.seq) {
        return Covered::Yes;
    }
    let (mut id, mut seq) = (trigger.job, Some(trigger.seq));
    for _ in 0..=book.jobs.len() {
        let Some(job) = book.jobs.get(&id) else {
            return unknown_successor(book, id);
        };
        match job.state {
            JobState::Succeeded => return succeeded(id, job, seq),
            JobState::Dead | JobState::Cancelled | JobState::Unreadable => return Covered::Yes,
            JobState::Scheduled | JobState::Running => return waits(book, id, job),
            JobState::Absorbed => match job.successor {
                // P14 judges whether the successor has its triggers.
                Some((successor, _)) => (id, seq) = (successor, None),
                None => return Covered::No(format!("job {id} was absorbed by no job")),
            },
        }
    }
    Covered::No(format!("job {id} absorbs itself"))
}

fn unknown_successor(book: &Book, id: JobId) -> Covered {
    match book.excuse(super::Act::Any, Timestamp::MIN, Timestamp::MAX) {
        Some(why) => Covered::Unknown(why),
        None => Covered::No(format!("job {id} is unknown")),
    }
}

fn succeeded(id: JobId, job: &JobView, seq: Option<u64>) -> Covered {
    let last = job.claims.last();
    let ran = last.filter(|claim| matches!(claim.end, Some((.., SettledAs::Succeeded))));
    // A claim that a kill took with it: the row says when it was.
    let Some(ran) = ran else {
        return Covered::Unknown("the claim of the attempt that succeeded is missing".to_owned());
    };
    match seq {
        Some(seq) if seq > ran.count => {
            let only = ran.count;
            Covered::No(format!("job {id} succeeded, but its run covered {only} triggers only"))
        }
        _ => Covered::Yes,
    }
}

/// A job that waits or runs at the end, by its events.
fn waits(book: &Book, id: JobId, job: &JobView) -> Covered {
    if !book.is_drained() {
        return Covered::Unknown("the run had not come to rest".to_owned());
    }
    if !book.has_rows || job.row.is_some_and(|row| !row.is_ended()) {
        return Covered::Unknown("it waits at the end, which P32 judges".to_owned());
    }
    let succeeded = job.row.filter(|row| *row == JobState::Succeeded);
    let succeeded = succeeded.and_then(|_| book.may_have_succeeded(id, job));
    match succeeded.or_else(|| book.missing(job, Timestamp::MAX)) {
        Some(why) => Covered::Unknown(why),
        None => Covered::No(format!("job {id} is {} at the end", job.state)),
    }
}

/// Triggers that were surely accepted, and those that may have been.
#[derive(Clone, Copy, Debug, Default)]
struct Made {
    accepted: u64,
    perhaps: u64,
}

impl Made {
    fn add(&mut self, op: &OpView) {
        match &op.state {
            OpState::Answered(receipt, _) if receipt.trigger().is_some() => self.accepted += 1,
            // A transaction of the caller's own may have been rolled back.
            OpState::Answered(Receipt::Pending, _) | OpState::Unknown => self.perhaps += 1,
            OpState::Answered(..) | OpState::Failed => {}
        }
    }
}

/// What the jobs of a key count.
#[derive(Debug, Default)]
struct Counted {
    count: u64,
    lines: BTreeSet<usize>,
    excuse: Option<String>,
}

/// P3: no key counts more triggers than were made, and P4: none counts fewer than were accepted.
fn keyed(book: &Book, found: &mut Found) {
    let mut made: BTreeMap<TaskKey, Made> = BTreeMap::new();
    for op in book.ops.values() {
        if let Some(key) = op.key.clone() {
            made.entry((op.task.clone(), key)).or_default().add(op);
        }
    }
    for (key, counted) in counted_by_key(book) {
        let Made { accepted, perhaps } = made.get(&key).copied().unwrap_or_default();
        let came = book.imported.get(&key).copied().unwrap_or_default();
        let (count, most) = (counted.count, accepted + perhaps + came);
        let (task, name) = (&key.0, &key.1);
        let phantom = format!("{task} {name} counts {count} triggers of {most} that were made");
        let counted = Counted { excuse: counted.excuse.or_else(|| book.elsewhere()), ..counted };
        judge(count <= most, "P3", &counted, phantom, found);
        let few = format!("{task} {name} counts {count} triggers of {accepted} accepted ones");
        judge(count >= accepted, "P4", &counted, few, found);
    }
}

fn judge(ok: bool, property: &'static str, counted: &Counted, why: String, found: &mut Found) {
    if ok {
        found.holds(property);
    } else {
        found.unless(counted.excuse.clone(), property, counted.lines.iter().copied(), why);
    }
}

fn counted_by_key(book: &Book) -> BTreeMap<TaskKey, Counted> {
    let mut by_key: BTreeMap<TaskKey, Counted> = BTreeMap::new();
    for job in book.jobs.values() {
        let Some(key) = job.task_key() else { continue };
        let counted = by_key.entry(key).or_default();
        // An absorbed job is counted by its successor, once that shows it (P14).
        let shown = matches!(job.successor, Some((_, Some(_))));
        if job.state != JobState::Absorbed {
            counted.count += job.count;
        } else if !shown {
            counted.excuse =
                Some("an absorbed job is not counted by its successor (P14)".to_owned());
        }
        let waits = !job.state.is_ended();
        if job.doubted || waits {
            let missing = || book.missing(job, Timestamp::MAX);
            counted.excuse = counted.excuse.take().or_else(missing);
        }
        counted.lines.extend(job.newest(1));
    }
    by_key
}

/// P3 and P4 of jobs without a key: each is of one call, and no two are of the same.
fn unkeyed(book: &Book, found: &mut Found) {
    let mut perhaps: BTreeMap<&TaskName, u64> = BTreeMap::new();
    for op in book.ops.values().filter(|op| op.key.is_none()) {
        let mut made = Made::default();
        made.add(op);
        *perhaps.entry(&op.task).or_default() += made.perhaps;
    }
    let called = |job: JobId| -> Option<&OpId> { book.triggers.get(&TriggerId { job, seq: 1 }) };
    for (id, job) in book.jobs.iter().filter(|(_, job)| job.key.is_none()) {
        if job.count > 1 {
            let many = format!("job {id} has no key and counts {} triggers", job.count);
            found.broken("P3", job.newest(2), many);
        } else if called(*id).is_some() || book.imported_jobs.contains(id) {
            found.holds("P3");
        } else if let Some(left) = perhaps.get_mut(&job.task).filter(|left| **left > 0) {
            *left -= 1;
            found.cannot("P3", UNKNOWN_MAKER);
        } else {
            let made = format!("job {id} of {} is of no call that was accepted", job.task);
            let excuse = book.unrecorded(&job.task, None, job.first);
            found.unless(excuse, "P3", job.lines.iter().copied().take(2), made);
        }
    }
}
