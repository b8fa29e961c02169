//! Only legal moves, in the right order, by those who may (P8, P11, P23, P24).

use std::cmp::Reverse;

use quell_core::history::Event;
use quell_core::{JobId, JobState, SettledAs, Timestamp};

use super::limits::partition_has_room;
use super::views::JobView;
use super::{Book, Line as HistoryLine, Property, Violation, broken};

/// P8: one open window per key. P11: the moves between states are those of the contract.
#[derive(Debug)]
pub(super) struct Moves;

impl Property for Moves {
    fn on(&mut self, book: &Book, at: usize, line: &HistoryLine, found: &mut Vec<Violation>) {
        let job = |id: &JobId| book.jobs.get(id);
        match &line.event {
            Event::Window { job: id, .. } => {
                one_window(book, *id, at, line, found);
                let ended = job(id).filter(|job| job.state != JobState::Scheduled);
                if let Some(job) = ended.filter(|_| book.complete) {
                    illegal(job, *id, "its window changed", at, found);
                }
            }
            Event::Claimed { job: id, .. } => {
                let wrong = job(id).filter(|job| job.state != JobState::Scheduled);
                // What a killed process did not record may have come between.
                let sure = |job: &&JobView| book.complete || job.state.is_ended();
                if let Some(job) = wrong.filter(sure) {
                    illegal(job, *id, "it started", at, found);
                }
                if job(id).is_none() && book.complete {
                    let unknown = format!("job {id} started and never was");
                    broken(found, "P3", [at], unknown);
                }
            }
            Event::Lapse { job: id, became, .. } => {
                let wrong = job(id).filter(|job| job.state != JobState::Running);
                if let Some(job) = wrong.filter(|_| book.complete) {
                    illegal(job, *id, "its lease lapsed", at, found);
                }
                self.back(book, *id, *became, at, found);
            }
            Event::Settle { job: id, became, .. } => self.back(book, *id, *became, at, found),
            Event::Cancel { job: id, .. } => {
                let wrong = job(id).filter(|job| job.state.is_ended());
                if let Some(job) = wrong.filter(|_| book.complete) {
                    illegal(job, *id, "it was cancelled", at, found);
                }
            }
            Event::Redrive { job: id, became, .. } => {
                let wrong = job(id).filter(|job| job.state != JobState::Dead);
                if let Some(job) = wrong.filter(|_| book.complete) {
                    illegal(job, *id, "it was put back", at, found);
                }
                self.back(book, *id, *became, at, found);
            }
            Event::Discard { job: id, .. } => {
                let wrong = job(id).filter(|job| job.state != JobState::Dead);
                if let Some(job) = wrong.filter(|_| book.complete) {
                    illegal(job, *id, "it was discarded", at, found);
                }
            }
            Event::Import { job: id, .. } => {
                if let Some(job) = job(id) {
                    illegal(job, *id, "it was imported", at, found);
                }
            }
            Event::Prune { job: id, .. } => {
                let wrong = job(id).filter(|job| !job.state.is_ended());
                if let Some(job) = wrong.filter(|_| book.complete) {
                    illegal(job, *id, "it was removed", at, found);
                }
            }
            _ => {}
        }
    }
}

impl Moves {
    /// A job that goes back opens a second window, or joins one that is there (P8, P14).
    fn back(
        &self,
        book: &Book,
        id: JobId,
        became: SettledAs,
        at: usize,
        found: &mut Vec<Violation>,
    ) {
        let Some(job) = book.jobs.get(&id) else { return };
        if let SettledAs::Absorbed { by, .. } = became {
            let heir = book.jobs.get(&by);
            let fits = |heir: &JobView| {
                by != id
                    && heir.state == JobState::Scheduled
                    && (&heir.task, &heir.key) == (&job.task, &job.key)
            };
            // Its events may be lost with a killed process.
            if heir.map_or(book.complete, |heir| book.complete && !fits(heir)) {
                let wrong = format!("job {id} was absorbed by job {by}, which is no window of it");
                broken(found, "P14", job.newest(2).chain([at]), wrong);
            }
        }
    }
}

fn one_window(book: &Book, id: JobId, at: usize, line: &HistoryLine, found: &mut Vec<Violation>) {
    let Event::Window { task, key: Some(key), .. } = &line.event else { return };
    let open = book.open.get(&(task.clone(), key.clone()));
    let other = open.and_then(|open| open.iter().find(|other| **other != id));
    if let Some(other) = other.filter(|_| book.complete) {
        let shown = book.jobs.get(other).into_iter().flat_map(|job| job.newest(1));
        let two = format!("jobs {other} and {id} are open windows of {task} {key} at once");
        broken(found, "P8", shown.chain([at]), two);
    }
}

fn illegal(job: &JobView, id: JobId, what: &str, at: usize, found: &mut Vec<Violation>) {
    let message = format!("job {id} is {}, yet {what}", job.state);
    broken(found, "P11", job.newest(2).chain([at]), message);
}

/// P23: who is first in line starts first. P24: nothing starts in a paused queue, of a paused task,
/// or at a worker that does not know its task.
#[derive(Debug)]
pub(super) struct Line;

impl Property for Line {
    fn on(&mut self, book: &Book, at: usize, line: &HistoryLine, found: &mut Vec<Violation>) {
        let Event::Claimed { t, job: id, task, queue, worker, .. } = &line.event else { return };
        let knows = book.workers.get(worker);
        if knows.is_some_and(|tasks| tasks.iter().all(|known| known.task != *task)) {
            let stranger =
                format!("worker {worker} got job {id} of {task}, which it does not know");
            broken(found, "P24", [at], stranger);
        }
        if !book.complete {
            return;
        }
        if book.queues.get(queue).is_some_and(|settings| settings.paused) {
            broken(found, "P24", [at], format!("job {id} started while queue {queue} is paused"));
        }
        if book.paused.contains(task) {
            broken(found, "P24", [at], format!("job {id} started while task {task} is paused"));
        }
        let (Some(job), Some(knows)) = (book.jobs.get(id), knows) else { return };
        let mine = (Reverse(job.priority), job.due, *id);
        let first = book.scheduled.iter().find(|other| {
            **other != *id
                && book.jobs.get(other).is_some_and(|view| {
                    view.queue == *queue
                        && knows.iter().any(|known| known.task == view.task)
                        && may_start(book, view, *t)
                        && (Reverse(view.priority), view.due, **other) < mine
                })
        });
        if let Some(other) = first {
            let shown = book.jobs.get(other).into_iter().flat_map(|job| job.newest(1));
            let passed = format!("job {id} started before job {other}, which was first in line");
            broken(found, "P23", shown.chain(job.newest(1)).chain([at]), passed);
        }
    }
}

/// Whether nothing holds a scheduled job back at `t`.
fn may_start(book: &Book, job: &JobView, t: Timestamp) -> bool {
    job.due <= t
        && (job.shape.overlap || !key_runs(book, job))
        && !book.paused.contains(&job.task)
        && partition_has_room(book, job, t)
}

/// Whether an attempt of the job's key runs, or its lease lapsed and was not taken back yet.
pub(super) fn key_runs(book: &Book, job: &JobView) -> bool {
    let Some(key) = job.task_key() else { return false };
    let mut running = book.running.iter().filter_map(|id| book.jobs.get(id));
    running.any(|other| other.task_key().as_ref() == Some(&key))
}
