//! Each edge runs what it says (P8b), by the calls and the times at which their triggers came.

use std::collections::BTreeMap;
use std::time::Duration;

use quell_core::edge::Edge;
use quell_core::{JobId, JobState, Timestamp};

use super::policy::Step;
use super::views::{JobView, OpState, OpView, TaskKey};
use super::{Book, Found, Line, Property};

/// P8b: a leading edge runs the first trigger of a burst at once and no other, both edges run the
/// rest at its end, a trailing one runs nothing at once, and a throttled key starts once a period.
#[derive(Debug)]
pub(super) struct Edges;

/// A trigger of a key, and where it landed.
struct Landed<'b> {
    step: Step,
    at: usize,
    id: JobId,
    job: &'b JobView,
}

impl Landed<'_> {
    /// Whether the trigger opened a window because the one before was closed for it.
    fn overflows(&self, before: &Landed<'_>) -> bool {
        let closed = |at: Timestamp| before.job.closes.iter().any(|(_, closed)| *closed == at);
        self.step.seq == 1 && before.id != self.id && closed(self.step.t)
    }
}

/// The burst that a key is in.
#[derive(Clone, Copy, Debug)]
struct Burst {
    since: Timestamp,
    last: Timestamp,
    /// By the quiet periods that its triggers brought, which need not be those of the next one.
    expires: Timestamp,
    leader: JobId,
}

impl Property for Edges {
    fn on(&mut self, _: &Book, _: usize, _: &Line, _: &mut Found) {}

    fn finish(&mut self, book: &Book, _: &[Line], found: &mut Found) {
        let mut calls: BTreeMap<TaskKey, Vec<&OpView>> = BTreeMap::new();
        for op in book.ops.values() {
            if let Some(key) = op.key.clone() {
                calls.entry((op.task.clone(), key)).or_default().push(op);
            }
        }
        let mut jobs: BTreeMap<TaskKey, Vec<&JobView>> = BTreeMap::new();
        for job in book.jobs.values() {
            if let Some(key) = job.task_key() {
                jobs.entry(key).or_default().push(job);
            }
        }
        for (key, calls) in calls {
            let edges = calls.iter().filter_map(|op| Some(op.debounce?.edge));
            let edges: Vec<Edge> = edges.collect();
            if edges.contains(&Edge::Throttle) {
                throttled(&key, &calls, jobs.get(&key).map_or(&[], Vec::as_slice), found);
            } else {
                bursts(book, &calls, found);
            }
        }
    }
}

/// The triggers of a key in the order in which they came; none where one of them is not known.
fn landed<'b>(book: &'b Book, calls: &[&OpView]) -> Result<Vec<Landed<'b>>, &'static str> {
    let mut landed = Vec::new();
    for op in calls {
        let OpState::Answered(receipt, _) = &op.state else {
            if op.state == OpState::Failed {
                continue;
            }
            return Err("the outcome of a call of the key is not known");
        };
        let Some(trigger) = receipt.trigger() else {
            if matches!(receipt, quell_core::Receipt::Pending) {
                return Err("the outcome of a call of the key is not known");
            }
            continue;
        };
        let debounce = op.debounce.filter(|debounce| !debounce.from_default);
        let debounce = debounce.ok_or("the thresholds are the queue's or the process's")?;
        let joined = book
            .jobs
            .get(&trigger.job)
            .and_then(|job| job.joined_at(trigger.seq).map(|joined| (job, joined)));
        let (job, joined) = joined.ok_or("a trigger of the key is not on record")?;
        let (seq, t, when) = (trigger.seq, joined.t, op.when);
        let step = Step { seq, t, debounce, when, fold: op.fold.clone() };
        landed.push(Landed { step, at: joined.at, id: trigger.job, job });
    }
    landed.sort_by_key(|one| (one.step.t, one.at, one.step.seq));
    Ok(landed)
}

fn bursts(book: &Book, calls: &[&OpView], found: &mut Found) {
    let landed = match landed(book, calls) {
        Ok(landed) => landed,
        Err(why) => return found.cannot("P8b", why),
    };
    let mut burst: Option<Burst> = None;
    let mut before: Option<&Landed<'_>> = None;
    for one in &landed {
        let thresholds = one.step.debounce.thresholds;
        let t = one.step.t;
        // R10: what does not fit into a window leads another.
        let overflows = before.is_some_and(|before| one.overflows(before));
        let leads_anew = one.step.debounce.edge == Edge::Leading
            && (overflows || burst.is_some_and(|burst| leader_is_full(book, burst, t)));
        before = Some(one);
        let goes_on = burst.filter(|burst| {
            !leads_anew
                && t < burst.expires
                && t < burst.last + thresholds.min()
                && t < burst.since + thresholds.max()
        });
        edge(book, one, goes_on, found);
        if matches!(one.step.debounce.edge, Edge::Leading | Edge::Both) {
            let quiet = t + thresholds.min();
            let fresh = Burst { since: t, last: t, expires: quiet, leader: one.id };
            let more = |burst: Burst| Burst { last: t, expires: burst.expires.max(quiet), ..burst };
            burst = Some(goes_on.map_or(fresh, more));
        }
    }
}

fn edge(book: &Book, one: &Landed<'_>, burst: Option<Burst>, found: &mut Found) {
    let Landed { step, id, job, .. } = one;
    let suppressed = job.suppressed.contains(&step.seq);
    let opened = step.seq == 1;
    let first_due = job.dues.first().map(|(_, _, due, _)| *due);
    let at_once = first_due.is_some_and(|due| due <= step.t) || step.asked().is_some();
    let wrong = match (step.debounce.edge, burst) {
        (Edge::Leading, None) if suppressed => Some("was not run though it began a burst"),
        (Edge::Leading | Edge::Both, None) if opened && !at_once => Some("did not run at once"),
        (Edge::Leading, Some(burst)) if opened && leads(book, burst) => {
            Some("was run, as one of a burst that had run")
        }
        (Edge::Both, Some(_)) if opened && ran_at_once(step, job) => {
            Some("was run before the burst had ended")
        }
        (Edge::Both, _) if suppressed => Some("was not run at the end of the burst"),
        (Edge::Trailing, _) if opened && ran_at_once(step, job) => {
            Some("was run at the beginning of a burst")
        }
        _ => None,
    };
    match wrong {
        None => found.holds("P8b"),
        Some(wrong) => {
            let message =
                format!("trigger {id}.{} of {:?} edge {wrong}", step.seq, step.debounce.edge);
            // A burst that began before the record, or elsewhere, may go on.
            let shown = [one.at].into_iter().chain(job.newest(2));
            found.unless(book.elsewhere(), "P8b", shown, message);
        }
    }
}

/// Due at once, where neither a size nor a bound says so.
fn ran_at_once(step: &Step, job: &JobView) -> bool {
    let Some((at, count, due, _)) = job.dues.first() else { return false };
    let full = Step { seq: *count, ..step.clone() };
    let is_closed = job.closes.first().is_some_and(|(closed, _)| closed == at);
    *due <= step.t && !full.is_full() && !is_closed
}

fn leader_is_full(book: &Book, burst: Burst, t: Timestamp) -> bool {
    book.jobs.get(&burst.leader).is_some_and(|leader| leader.waits_closed(t))
}

/// Whether the job that leads a burst is there, so that a later trigger is counted on it.
fn leads(book: &Book, burst: Burst) -> bool {
    let leader = book.jobs.get(&burst.leader);
    leader.is_some_and(|job| {
        !job.pruned
            && !matches!(job.state, JobState::Cancelled | JobState::Dead | JobState::Absorbed)
    })
}

/// At most one start of a throttled key per period.
fn throttled((task, key): &TaskKey, calls: &[&OpView], jobs: &[&JobView], found: &mut Found) {
    // A key that met several policies promises none of them.
    let mut periods: Vec<Option<Duration>> = calls
        .iter()
        .map(|op| {
            let own = |debounce: &quell_core::window::Debounce| {
                debounce.edge == Edge::Throttle && !debounce.from_default
            };
            op.debounce.filter(own).map(|debounce| debounce.thresholds.min())
        })
        .collect();
    periods.sort_unstable();
    periods.dedup();
    let [Some(period)] = periods[..] else {
        found.cannot("P8b", "calls of the key asked for several policies");
        return;
    };
    let starts = jobs.iter().flat_map(|job| job.claims.iter().map(|claim| (claim.t, claim.at)));
    let mut starts: Vec<(Timestamp, usize)> = starts.collect();
    starts.sort_unstable();
    for pair in starts.windows(2) {
        let [(before, first), (t, second)] = pair else { continue };
        if t.since(*before) < period {
            let twice = format!("{task} {key} started twice within its period of {period:?}");
            found.broken("P8b", [*first, *second], twice);
        } else {
            found.holds("P8b");
        }
    }
}
