//! Dedup keys: one trigger at a time, and no key without a holder (P16, P17).

use std::collections::BTreeMap;

use quell_core::dedup::HoldUntil;
use quell_core::{JobId, Receipt, SettledAs, Timestamp};

use super::views::{OpState, OpView, TaskKey};
use super::{Act, Book, Found, Line, Property};

/// Why the holder of a key is not known.
const UNKNOWN: &str = "a call of unknown outcome may hold the key";

/// Why the order in which two processes took a key is unknown.
const UNCLEAR: &str = "it was released and taken at the same moment";

/// P16 and P17.
#[derive(Debug)]
pub(super) struct Dedup;

/// A time that a key was taken for, by store time and by the order of events.
#[derive(Clone, Copy, Debug)]
struct Hold {
    job: JobId,
    /// The line of the answer, for a reader.
    answered: usize,
    from: (Timestamp, usize),
    /// Whether a time ends it, and no event.
    timed: bool,
    /// Whether the first start of its job ends it.
    until_start: bool,
    /// None while it lasts.
    to: Option<(Timestamp, usize)>,
    /// When its start and its end were visible to every process.
    seen: (Timestamp, Option<Timestamp>),
}

impl Property for Dedup {
    fn finish(&mut self, book: &Book, lines: &[Line], found: &mut Found) {
        let mut by_key: BTreeMap<TaskKey, Vec<&OpView>> = BTreeMap::new();
        for op in book.ops.values() {
            if let Some(key) = op.dedup.clone() {
                by_key.entry((op.task.clone(), key)).or_default().push(op);
            }
        }
        for ((task, key), ops) in by_key {
            let mut holds: Vec<Hold> = ops.iter().filter_map(|op| hold(book, lines, op)).collect();
            holds.sort_unstable_by_key(|hold| hold.from);
            for pair in holds.windows(2) {
                let [before, after] = pair else { continue };
                if before.to.is_some_and(|to| to <= after.from) {
                    found.holds("P16");
                    continue;
                }
                let twice = format!("dedup key {key} of {task} was taken twice at once");
                // The end of the job that held it may be missing.
                let ended =
                    book.jobs.get(&book.last_successor(before.job)).filter(|_| !before.timed);
                // It may have read the clock first, and then waited for the end.
                let waited = before.to.is_some_and(|(to, _)| {
                    to <= after.seen.0 && to.since(after.from.0) < book.slack
                });
                let excuse = waited.then(|| UNCLEAR.to_owned()).or(ended.and_then(|view| {
                    let id = book.last_successor(before.job);
                    let ended = view.ended.map(|(_, t)| t).filter(|_| !view.doubted);
                    ended.is_none().then(|| book.may_have_ended(id, view, after.from.0)).flatten()
                }));
                // Or its first start, where another one is on record.
                let started = || book.excuse(Act::Work, before.from.0, after.from.0);
                let excuse = excuse.or_else(|| before.until_start.then(started).flatten());
                found.unless(excuse, "P16", [before.answered, after.answered], twice);
            }
            let unclear = |op: &&OpView| {
                matches!(op.state, OpState::Unknown | OpState::Answered(Receipt::Pending, _))
            };
            let unknown = ops.iter().any(unclear);
            for op in &ops {
                refused(book, op, &holds, unknown, found);
            }
        }
    }

    fn on(&mut self, _: &Book, _: usize, _: &Line, _: &mut Found) {}
}

/// The time that an accepted trigger takes its key for.
fn hold(book: &Book, lines: &[Line], op: &OpView) -> Option<Hold> {
    let OpState::Answered(receipt, answered) = &op.state else { return None };
    let trigger = receipt.trigger()?;
    let job = book.jobs.get(&trigger.job)?;
    let from = job.joined_at(trigger.seq).map(|joined| (joined.t, joined.at))?;
    let to = match op.hold? {
        HoldUntil::Elapsed(ttl) => Some((from.0 + ttl, 0)),
        HoldUntil::Started => {
            // It is free once its job has started, or ended without; at once where it had before.
            let started = job.claims.first().map(|claim| (claim.t, claim.at));
            started.or(job.ended.map(|(at, t)| (t, at))).map(|to| to.max(from))
        }
        HoldUntil::Done => end_of_work(book, trigger.job, from.1).map(|to| to.max(from)),
        _ => None,
    };
    let timed = matches!(op.hold, Some(HoldUntil::Elapsed(_)));
    let seen_from = |(t, at): (Timestamp, usize)| {
        lines.get(at).filter(|_| !book.slack.is_zero()).and_then(Line::seen_from).unwrap_or(t)
    };
    let over = to.map(|to| if timed { to.0 } else { seen_from(to) });
    Some(Hold {
        job: trigger.job,
        answered: *answered,
        from,
        timed,
        until_start: matches!(op.hold, Some(HoldUntil::Started)),
        to,
        seen: (seen_from(from), over),
    })
}

/// When a job's work first came to an end, in it or in the successors that took it in. A redrive takes
/// no key, so what comes after it does not count.
pub(super) fn end_of_work(book: &Book, job: JobId, since: usize) -> Option<(Timestamp, usize)> {
    let (mut next, mut since) = (Some(job), since);
    for _ in 0..=book.jobs.len() {
        let Some(view) = next.and_then(|job| book.jobs.get(&job)) else { break };
        let mut ends = view.claims.iter().filter_map(|claim| claim.end);
        let buried = |(at, _, became): &(usize, Timestamp, SettledAs)| {
            *at > since && *became == SettledAs::Dead
        };
        if let Some((at, t, _)) = ends.find(buried) {
            return Some((t, at));
        }
        next = view.successor.map(|(successor, _)| successor);
        since = view.ended.map_or(since, |(at, _)| at);
        if next.is_none() {
            return view.ended.map(|(at, t)| (t, at));
        }
    }
    None
}

/// P17: the answer to a duplicate names a job that is there and holds the key.
fn refused(book: &Book, op: &OpView, holds: &[Hold], unknown: bool, found: &mut Found) {
    let OpState::Answered(Receipt::Duplicate { job }, at) = &op.state else { return };
    let key = op.dedup.as_ref().map(ToString::to_string).unwrap_or_default();
    let Some(view) = book.jobs.get(job) else {
        let burned = format!("dedup key {key} is held by job {job}, which never was");
        let lost = book.unrecorded(&op.task, op.key.as_ref(), Timestamp::MAX);
        found.unless(lost, "P17", [op.at, *at], burned);
        return;
    };
    // A call of unknown outcome may hold the key too.
    let is_live = |hold: &&Hold| {
        book.came_before(hold.from, op, *at) && hold.seen.1.is_none_or(|over| over >= op.since)
    };
    let live = || holds.iter().filter(is_live);
    if live().any(|hold| is_successor(book, hold, *job)) {
        found.holds("P17");
        return;
    }
    // The event that absorbed the holder may be missing.
    let lost = || {
        let last = |hold: &Hold| book.jobs.get(&book.last_successor(hold.job));
        let until = op.answered.unwrap_or(Timestamp::MAX);
        live().filter_map(last).find_map(|last| book.missing(last, until))
    };
    let burned = format!("dedup key {key} was refused for job {job}, which does not hold it");
    let excuse = unknown.then(|| UNKNOWN.to_owned());
    let excuse = excuse.or_else(|| view.doubted.then(|| UNKNOWN.to_owned()));
    let excuse = excuse.or_else(lost).or_else(|| book.elsewhere());
    let holders = holds.iter().filter_map(|hold| book.jobs.get(&hold.job));
    let shown = holders.chain([view]).flat_map(|view| view.newest(2)).chain([op.at, *at]);
    found.unless(excuse, "P17", shown, burned);
}

/// Whether `job` is the hold's job or one that took it in.
fn is_successor(book: &Book, hold: &Hold, job: JobId) -> bool {
    hold.job == job || book.last_successor(hold.job) == book.last_successor(job)
}
