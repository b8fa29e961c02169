//! Partitions of strict order: who is next starts next (P34).

use quell_core::history::Event;
use quell_core::turn::Turn;
use quell_core::{JobId, JobState, Timestamp};

use super::limits::changed;
use super::order::is_held;
use super::views::JobView;
use super::{Book, Found, Line, Property};

/// P34: in a queue of strict order, a job starts after all of its partition that come before it.
#[derive(Debug)]
pub(super) struct Turns;

impl Property for Turns {
    fn on(&mut self, book: &Book, at: usize, line: &Line, found: &mut Found) {
        let Event::Claimed { t, job: id, queue, .. } = &line.event else { return };
        let Some(job) = book.jobs.get(id) else { return };
        let is_strict = book.queues.get(queue).is_some_and(|settings| settings.is_strict());
        if !is_strict || job.partition.is_none() {
            return;
        }
        let looked_from = line.looked_from(*t);
        let before = comes_before(book, (*id, job), looked_from.before(book.slack));
        let Some((other, view)) = before else {
            return found.holds("P34");
        };
        let excuse = changed(book, queue, (looked_from, *t));
        let excuse = excuse.or_else(|| book.missing(view, *t)).or_else(|| book.missing(job, *t));
        let early = format!("job {id} started before job {other}, whose turn it was");
        found.unless(excuse, "P34", view.newest(2).chain(job.newest(1)).chain([at]), early);
    }
}

/// The place of a job that waits in its partition.
fn turn(id: JobId, job: &JobView) -> Turn {
    Turn::of(job.token.starts() > 0, job.due, id)
}

/// A job that is before this one in its partition, and has been since `t`.
pub(super) fn comes_before<'b>(
    book: &'b Book,
    (id, job): (JobId, &JobView),
    t: Timestamp,
) -> Option<(JobId, &'b JobView)> {
    let mine = turn(id, job);
    book.scheduled.iter().filter(|other| **other != id).find_map(|other| {
        let view = book.jobs.get(other)?;
        let is_before = view.state == JobState::Scheduled
            && view.queue == job.queue
            && view.partition == job.partition
            && view.seen_from <= t
            && turn(*other, view) < mine
            && (view.token.starts() > 0 || view.due <= t)
            && !is_held(book, (*other, view), t);
        is_before.then_some((*other, view))
    })
}

/// Whether a job is the next one of a partition of strict order.
pub(super) fn is_in_front(book: &Book, id: JobId, job: &JobView) -> bool {
    let is_strict = book.queues.get(&job.queue).is_some_and(|settings| settings.is_strict());
    is_strict && job.partition.is_some() && has_turn(book, id, job)
}

/// Whether a job may start as far as the order of its partition is concerned.
pub(super) fn has_turn(book: &Book, id: JobId, job: &JobView) -> bool {
    let is_strict = book.queues.get(&job.queue).is_some_and(|settings| settings.is_strict());
    if !is_strict || job.partition.is_none() {
        return true;
    }
    let mine = turn(id, job);
    let waiting = book.scheduled.iter().filter(|other| **other != id);
    waiting.filter_map(|other| Some((*other, book.jobs.get(other)?))).all(|(other, view)| {
        view.queue != job.queue || view.partition != job.partition || mine < turn(other, view)
    })
}
