//! Idempotency keys: the first trigger wins, and later ones learn what became of it (P26).

use std::collections::BTreeMap;

use quell_core::history::Event;
use quell_core::{JobId, JobState, Payload, Receipt, Timestamp};

use super::dedup::end_of_work;
use super::views::{OpId, OpState, OpView, TaskKey};
use super::{Book, Found, Line, Property};

/// The error kind of a trigger that came with a used key and another payload.
const CONFLICT: &str = "IdempotencyConflict";

/// P26: one trigger of a key and payload at a time; the same payload is answered with its job,
/// state and output, and another payload with a conflict.
#[derive(Debug, Default)]
pub(super) struct Idempotent {
    /// Calls that were refused, by the line of the answer.
    conflicts: Vec<(usize, OpId)>,
    /// The first output that was answered for a job, and where.
    outputs: BTreeMap<JobId, (usize, Option<Payload>)>,
}

/// A time that a key was taken for.
#[derive(Clone, Copy, Debug)]
struct Hold<'b> {
    op: &'b OpView,
    print: &'b str,
    job: JobId,
    /// The line of the answer, for a reader.
    answered: usize,
    from: (Timestamp, usize),
    /// Free from here on; none while it lasts.
    to: Option<Timestamp>,
}

impl Property for Idempotent {
    fn on(&mut self, book: &Book, at: usize, line: &Line, found: &mut Found) {
        match &line.event {
            Event::TriggerFail { op, kind } if kind == CONFLICT => {
                self.conflicts.push((at, (line.p.clone(), *op)));
            }
            Event::TriggerOk { op, receipt: Receipt::Existing { job, state, output } } => {
                let asked = book.ops.get(&(line.p.clone(), *op)).map_or(at, |op| op.at);
                self.result(book, (*job, *state, output.as_ref()), (asked, at), found);
            }
            _ => {}
        }
    }

    fn finish(&mut self, book: &Book, _: &[Line], found: &mut Found) {
        let mut by_key: BTreeMap<TaskKey, Vec<&OpView>> = BTreeMap::new();
        for op in book.ops.values() {
            if let Some((idempotency, _)) = &op.idempotency {
                by_key.entry((op.task.clone(), idempotency.key.clone())).or_default().push(op);
            }
        }
        for (task_key, ops) in &by_key {
            let mut holds: Vec<Hold<'_>> = ops.iter().filter_map(|op| hold(book, op)).collect();
            holds.sort_unstable_by_key(|hold| hold.from);
            taken_twice(task_key, &holds, found);
            for op in ops {
                existing(book, (task_key, ops, &holds), op, found);
            }
        }
        self.refused(book, &by_key, found);
    }
}

impl Idempotent {
    /// The state that was answered is the job's, and its output never changes.
    fn result(
        &mut self,
        book: &Book,
        (id, state, output): (JobId, JobState, Option<&Payload>),
        (asked, at): (usize, usize),
        found: &mut Found,
    ) {
        let known = book.knows_order() && book.processes.are_complete();
        if let Some(job) = book.jobs.get(&id).filter(|_| known) {
            // What changed while the answer was on its way may be answered or not.
            let moved = job.lines.last().is_some_and(|last| *last > asked);
            let succeeded =
                book.may_have_succeeded(id, job).filter(|_| state == JobState::Succeeded);
            if job.state == state {
                found.holds("P26");
            } else if !moved {
                let other = format!("job {id} is {}, but the answer says {state}", job.state);
                found.unless(succeeded, "P26", job.newest(1).chain([asked, at]), other);
            }
        }
        if state != JobState::Succeeded {
            if output.is_some() {
                let early = format!("job {id} is {state}, but the answer has its output");
                found.broken("P26", [asked, at], early);
            }
            return;
        }
        let (first, known) = self.outputs.entry(id).or_insert((at, output.cloned()));
        if known.as_ref() != output {
            let other = format!("job {id} was answered with two outputs");
            found.broken("P26", [*first, at], other);
        }
    }

    /// A conflict has a cause: the key came with another payload, in this batch or before. One
    /// member that conflicts refuses its whole batch, whose answers follow each other.
    fn refused(&self, book: &Book, by_key: &BTreeMap<TaskKey, Vec<&OpView>>, found: &mut Found) {
        let mut rest = self.conflicts.iter().peekable();
        while let Some((first, id)) = rest.next() {
            let mut batch = vec![id];
            let mut last = *first;
            while let Some((at, id)) =
                rest.next_if(|(at, other)| *at == last + 1 && other.0 == id.0)
            {
                batch.push(id);
                last = *at;
            }
            let ops = || batch.iter().filter_map(|id| book.ops.get(*id));
            let answered = if book.knows_order() { last } else { usize::MAX };
            let caused = ops().any(|op| has_rival(by_key, op, answered, ops().map(|op| op.at)));
            if caused {
                found.holds("P26");
            } else {
                let shown = ops().map(|op| op.at).chain([last]);
                let none = "a conflict was answered for a key that no other payload has".to_owned();
                found.unless(book.elsewhere(), "P26", shown, none);
            }
        }
    }
}

/// Whether the key of a call came with another payload: in its own batch, or in a call before the
/// answer that may have been accepted.
fn has_rival(
    by_key: &BTreeMap<TaskKey, Vec<&OpView>>,
    op: &OpView,
    answered: usize,
    batch: impl Iterator<Item = usize> + Clone,
) -> bool {
    let Some((idempotency, print)) = &op.idempotency else { return false };
    let others = by_key.get(&(op.task.clone(), idempotency.key.clone()));
    let differs = |other: &&&OpView| {
        let other_print = other.idempotency.as_ref().map(|(_, print)| print);
        let may = other.state != OpState::Failed || batch.clone().any(|at| at == other.at);
        other_print != Some(print) && other.at < answered && may
    };
    others.into_iter().flatten().any(|other| differs(&other))
}

/// The time that an accepted trigger takes its key for.
fn hold<'b>(book: &Book, op: &'b OpView) -> Option<Hold<'b>> {
    let (idempotency, print) = op.idempotency.as_ref()?;
    let OpState::Answered(receipt, answered) = &op.state else { return None };
    let trigger = receipt.trigger()?;
    let joined = book.jobs.get(&trigger.job)?.joined_at(trigger.seq)?;
    let kept = joined.t + idempotency.retention;
    // Where events may be missing, so may be the end.
    let last = book.last_successor(trigger.job);
    let may_have_ended = book.jobs.get(&last).and_then(|view| book.may_have_succeeded(last, view));
    let ended = if book.processes.are_complete() && may_have_ended.is_none() {
        end_of_work(book, trigger.job, joined.at).map(|(t, _)| t)
    } else {
        Some(kept)
    };
    let (job, from) = (trigger.job, (joined.t, joined.at));
    let to = ended.map(|ended| ended.max(kept));
    Some(Hold { op, print, job, answered: *answered, from, to })
}

fn taken_twice((task, key): &TaskKey, holds: &[Hold<'_>], found: &mut Found) {
    for pair in holds.windows(2) {
        let [before, after] = pair else { continue };
        if before.to.is_some_and(|to| to <= after.from.0) {
            found.holds("P26");
        } else {
            let shown = [before.op.at, before.answered, after.op.at, after.answered];
            let twice = format!("idempotency key {key} of {task} was accepted twice");
            found.broken("P26", shown, twice);
        }
    }
}

/// An answer of what exists names the job of the call that took the key, with the same payload.
fn existing(
    book: &Book,
    ((task, key), ops, holds): (&TaskKey, &[&OpView], &[Hold<'_>]),
    op: &OpView,
    found: &mut Found,
) {
    let OpState::Answered(Receipt::Existing { job, .. }, at) = &op.state else { return };
    let Some((_, print)) = &op.idempotency else { return };
    let live = |hold: &&Hold<'_>| {
        book.came_before(hold.from, op, *at)
            && hold.to.is_none_or(|to| to >= op.since)
            && (hold.job == *job || book.last_successor(hold.job) == book.last_successor(*job))
    };
    let holder = holds.iter().find(live);
    if let Some(other) = holder.filter(|hold| hold.print != print) {
        let wrong = format!("idempotency key {key} of {task} was given out for another payload");
        found.broken("P26", [other.op.at, op.at, *at], wrong);
        return;
    }
    // A call of unknown outcome may have taken the key.
    let unknown = ops.iter().any(|other| {
        let same = other.idempotency.as_ref().is_some_and(|(_, of)| of == print);
        same && other.state == OpState::Unknown && (!book.knows_order() || other.at < *at)
    });
    let known = book.jobs.get(job);
    let fits = known.is_some_and(|view| view.task == op.task);
    let absorbed = |hold: &Hold<'_>| {
        let held = book.jobs.get(&hold.job).filter(|held| held.state == JobState::Absorbed);
        hold.print == print
            && held.is_some_and(|held| known.is_some_and(|view| view.key == held.key))
    };
    if holder.is_some() {
        found.holds("P26");
    } else if fits && holds.iter().any(absorbed) {
        found.cannot("P26", "the job that held the key was absorbed, and P14 judges by whom");
    } else if unknown && (fits || !book.processes.are_complete()) {
        found.cannot("P26", "a call of unknown outcome may have taken the key");
    } else {
        let none = format!("idempotency key {key} of {task} is not job {job}'s");
        found.unless(book.elsewhere(), "P26", [op.at, *at], none);
    }
}
