//! Only legal moves, in the right order, by those who may (P8, P11, P14, P23, P24).

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use quell_core::history::Event;
use quell_core::{JobId, JobState, SettledAs, Timestamp, TriggerId};

use super::limits::partition_has_room;
use super::read::job_of;
use super::turns::has_turn;
use super::views::JobView;
use super::{Act, Book, Found, Line as HistoryLine, Property};

/// How long a job may be passed over whose notification was lost, on PostgreSQL.
const PASSED_OVER: Duration = Duration::from_secs(10);
/// What takes longer to commit may come to stand before jobs that have started.
const COMMITS: Duration = Duration::from_millis(20);

/// P8: one open window per key, and all windows of a key start in the order of their ids. P11: the
/// moves between states are those of the contract. P14: an absorbed job has one successor, which takes its
/// triggers.
#[derive(Debug)]
pub(super) struct Moves;

impl Property for Moves {
    fn on(&mut self, book: &Book, at: usize, line: &HistoryLine, found: &mut Found) {
        let running = |state| state == JobState::Running;
        let dead = |state| state == JobState::Dead;
        match &line.event {
            Event::Window { t, job, .. } => {
                one_window(book, (*job, *t), at, line, found);
                let waits = |state| state == JobState::Scheduled;
                moves(book, (*job, *t), waits, "its window changed", at, found);
            }
            Event::Claimed { t, job, .. } => {
                in_order(book, (*job, *t), (at, line), found);
                let waits = |state| state == JobState::Scheduled;
                moves(book, (*job, *t), waits, "it started", at, found);
            }
            Event::Expire { t, job, became, .. } => {
                moves(book, (*job, *t), running, "its lease expired", at, found);
                absorbed(book, (*job, *t), *became, at, found);
            }
            Event::Settle { t, job, became, .. } => absorbed(book, (*job, *t), *became, at, found),
            Event::Cancel { t, job } => {
                let waits = |state: JobState| !state.is_ended();
                moves(book, (*job, *t), waits, "it was cancelled", at, found);
            }
            Event::Adjust { t, job, .. } => {
                let waits = |state| state == JobState::Scheduled;
                moves(book, (*job, *t), waits, "it was changed as one that waits", at, found);
            }
            Event::Redrive { t, job, became, .. } => {
                moves(book, (*job, *t), dead, "it was redriven", at, found);
                absorbed(book, (*job, *t), *became, at, found);
            }
            Event::Discard { t, job, .. } => {
                moves(book, (*job, *t), dead, "it was discarded", at, found);
            }
            Event::Import { job, .. } if book.jobs.contains_key(job) => {
                found.broken("P11", [at], format!("job {job} was there, yet it was imported"));
            }
            Event::Prune { t, job } => {
                moves(book, (*job, *t), JobState::is_ended, "it was removed", at, found);
            }
            _ => {}
        }
    }

    fn finish(&mut self, book: &Book, _: &[HistoryLine], found: &mut Found) {
        for (id, job) in &book.jobs {
            let Some((successor, shown)) = job.successor else { continue };
            if shown.is_some() {
                found.holds("P14");
                continue;
            }
            let view = book.jobs.get(&successor);
            let successor_at = view.map_or(job.newest_at, |successor| successor.newest_at);
            let excuse = book.excuse(Act::Any, job.newest_at.min(successor_at), Timestamp::MAX);
            // A join that is not on record changes the count by which the triggers are known.
            let excuse = excuse.or_else(|| view.and_then(|view| book.perhaps_joined(view)));
            let lost = format!("job {successor} absorbed job {id} but did not take its triggers");
            found.unless(excuse, "P14", job.newest(2), lost);
        }
    }
}

/// P11: whether a job is in a state from which it may move so.
fn moves(
    book: &Book,
    (id, t): (JobId, Timestamp),
    may: impl Fn(JobState) -> bool,
    what: &str,
    at: usize,
    found: &mut Found,
) {
    let Some(job) = book.jobs.get(&id) else { return };
    if may(job.state) {
        found.holds("P11");
        return;
    }
    let message = format!("job {id} is {}, yet {what}", job.state);
    let succeeded = book.may_have_succeeded(id, job).filter(|_| may(JobState::Succeeded));
    let excuse = succeeded.or_else(|| book.missing(job, t));
    found.unless(excuse, "P11", job.newest(2).chain([at]), message);
}

/// P14: a job that goes back joins the window of its key that is there, and no other.
fn absorbed(
    book: &Book,
    (id, t): (JobId, Timestamp),
    became: SettledAs,
    at: usize,
    found: &mut Found,
) {
    let (Some(job), SettledAs::Absorbed { by, .. }) = (book.jobs.get(&id), became) else { return };
    let successor = book.jobs.get(&by);
    let fits = successor.is_some_and(|successor| {
        by != id
            && successor.state == JobState::Scheduled
            && !successor.shape.closed
            && (&successor.task, &successor.key) == (&job.task, &job.key)
    });
    if fits {
        found.holds("P14");
        return;
    }
    let excuse = match successor {
        Some(successor) => book.missing(successor, t),
        None => book.unrecorded(&job.task, job.key.as_ref(), t),
    };
    let wrong = format!("job {id} was absorbed by job {by}, which is no window of it");
    found.unless(excuse, "P14", job.newest(2).chain([at]), wrong);
}

fn one_window(
    book: &Book,
    (id, t): (JobId, Timestamp),
    at: usize,
    line: &HistoryLine,
    found: &mut Found,
) {
    let Event::Window { task, key: Some(key), shape, .. } = &line.event else { return };
    if shape.closed {
        return;
    }
    let open = book.open.get(&(task.clone(), key.clone()));
    let other = open.and_then(|open| open.iter().find(|other| **other != id));
    let Some((other, job)) = other.and_then(|id| Some((id, book.jobs.get(id)?))) else {
        found.holds("P8");
        return;
    };
    let two = format!("jobs {other} and {id} are open windows of {task} {key} at once");
    // The other one may have committed after this call looked, and started before this one opened.
    let looked_from = line.looked_from(t);
    let meanwhile = !book.slack.is_zero() && looked_from < job.seen_from;
    let excuse = meanwhile.then(|| "two calls changed windows of the key meanwhile".to_owned());
    let excuse = excuse.or_else(|| book.missing(job, t));
    found.unless(excuse, "P8", job.newest(1).chain([at]), two);
}

/// P8: a window starts after the older ones of its key.
fn in_order(
    book: &Book,
    (id, t): (JobId, Timestamp),
    (at, line): (usize, &HistoryLine),
    found: &mut Found,
) {
    let Some(job) = book.jobs.get(&id) else { return };
    let overlaps = || job.task_key().and_then(|key| book.overlaps.get(&key).copied());
    if job.key.is_none() || job.shape.overlap || overlaps().unwrap_or(false) {
        return;
    }
    let looked_from = line.looked_from(t);
    let older = comes_before(book, id, job, looked_from.before(book.slack));
    let Some((first, view)) = older else { return found.holds("P8") };
    let early = format!("job {id} started before job {first}, an older window of its key");
    let excuse = book.missing(view, t).or_else(|| book.missing(job, t));
    found.unless(excuse, "P8", view.newest(1).chain(job.newest(1)).chain([at]), early);
}

/// The first of the older windows of the job's key that wait since `t` (R10).
fn comes_before<'b>(
    book: &'b Book,
    id: JobId,
    job: &JobView,
    t: Timestamp,
) -> Option<(JobId, &'b JobView)> {
    let key = job.task_key()?;
    let waiting = |all: &'b BTreeMap<_, BTreeSet<JobId>>| all.get(&key).into_iter().flatten();
    let older = waiting(&book.closed).chain(waiting(&book.open)).filter(|other| **other < id);
    let views = older.filter_map(|other| Some((*other, book.jobs.get(other)?)));
    views.filter(|(_, view)| view.seen_from <= t).min_by_key(|(other, _)| *other)
}

/// P23: who is first in line starts first. P24: nothing starts in a paused queue, of a paused task,
/// or at a worker that does not know its task.
#[derive(Debug, Default)]
pub(super) struct Line {
    /// Jobs that were passed over, and the claims that did so, until it is known whether another
    /// call changed them at the same time.
    passed: BTreeMap<JobId, Vec<Passed>>,
}

/// A claim that passed a job over.
#[derive(Debug)]
struct Passed {
    /// When it had committed, at the latest.
    done: Timestamp,
    by: String,
    shown: Vec<usize>,
    message: String,
}

impl Property for Line {
    fn on(&mut self, book: &Book, at: usize, line: &HistoryLine, found: &mut Found) {
        self.changed(book, line, found);
        let Event::Claimed { t, job: id, task, queue, worker, .. } = &line.event else { return };
        let time = (line.looked_from(*t), *t);
        let knows = book.workers.get(worker);
        match knows {
            Some(tasks) if tasks.iter().all(|known| known.task != *task) => {
                let stranger =
                    format!("worker {worker} got job {id} of {task}, which it does not know");
                found.broken("P24", [at], stranger);
            }
            Some(_) => found.holds("P24"),
            None => found.cannot("P24", "the worker did not say what it runs"),
        }
        let queue_closed = book.queues.get(queue).is_some_and(|settings| settings.paused);
        let paused = format!("job {id} started while queue {queue} is paused");
        paused_since(book, (queue_closed, book.queue_set.get(queue)), time, at, paused, found);
        let paused = format!("job {id} started while task {task} is paused");
        let task_closed = book.paused.contains(task);
        paused_since(book, (task_closed, book.task_set.get(task)), time, at, paused, found);
        self.first_in_line(book, at, line, found);
    }

    fn finish(&mut self, _: &Book, _: &[HistoryLine], found: &mut Found) {
        for passed in std::mem::take(&mut self.passed).into_values().flatten() {
            found.broken("P23", passed.shown, passed.message);
        }
    }
}

/// P24 of a queue or a task.
fn paused_since(
    book: &Book,
    (closed, set): (bool, Option<&Timestamp>),
    (looked_from, t): (Timestamp, Timestamp),
    at: usize,
    message: String,
    found: &mut Found,
) {
    let Some(set) = set else { return };
    if !closed {
        found.holds("P24");
        return;
    }
    let is_just = looked_from.since(*set) < book.slack;
    let just = is_just.then(|| "it was paused at the same moment".to_owned());
    let excuse = just.or_else(|| book.excuse(Act::Operate, *set, t));
    found.unless(excuse, "P24", [at], message);
}

impl Line {
    /// A call that changes a job holds its row from before its change is visible, and a claim passes rows
    /// over that others hold.
    fn changed(&mut self, book: &Book, line: &HistoryLine, found: &mut Found) {
        let (Some(id), Some(t)) = (job_of(&line.event), line.event.at()) else { return };
        let looked_from = line.looked_from(t);
        let is_claim = match line.event {
            Event::Claimed { .. } => true,
            Event::Renew { .. } | Event::Settle { became: SettledAs::Refused, .. } => return,
            _ => false,
        };
        for passed in self.passed.remove(&id).unwrap_or_default() {
            let other = passed.by != line.p || !is_claim;
            let before = match line.c {
                Some(_) => looked_from < passed.done,
                None => looked_from.since(passed.done) < book.slack,
            };
            let at_once = other && before;
            let excuse = at_once.then(|| "another call changed the job meanwhile".to_owned());
            found.unless(excuse, "P23", passed.shown, passed.message);
        }
    }

    fn first_in_line(&mut self, book: &Book, at: usize, line: &HistoryLine, found: &mut Found) {
        let Event::Claimed { t, job: id, queue, worker, .. } = &line.event else { return };
        let (Some(job), Some(knows)) = (book.jobs.get(id), book.workers.get(worker)) else {
            found.cannot("P23", "the job's window or what the worker runs is not on record");
            return;
        };
        let mine = (Reverse(priority(book, *id, job)), job.due, *id);
        let ready = line.looked_from(*t).before(book.slack);
        let first = book.scheduled.iter().filter(|other| **other != *id).find_map(|other| {
            let view = book.jobs.get(other)?;
            let reachable =
                view.queue == *queue && knows.iter().any(|known| known.task == view.task);
            let waits = reachable
                && view.seen_from <= ready
                && view.due <= ready
                && (Reverse(priority(book, *other, view)), view.due, *other) < mine
                && may_start(book, (*other, view), ready);
            waits.then_some((other, view))
        });
        let Some((other, view)) = first else {
            found.holds("P23");
            return;
        };
        let done = line.seen_from().unwrap_or(*t);
        let excuse = moved_ahead(book, view, *t).or_else(|| book.missing(view, *t));
        let excuse = excuse.or_else(|| book.missing(job, *t));
        let excuse = excuse.or_else(|| book.was_held(line.looked_from(*t), done));
        if let Some(why) = excuse {
            found.cannot("P23", why);
            return;
        }
        let shown: Vec<usize> = view.newest(1).chain(job.newest(1)).chain([at]).collect();
        let message = format!("job {id} started before job {other}, which was first in line");
        if book.slack.is_zero() {
            found.broken("P23", shown, message);
        } else {
            let passed = Passed { done, by: line.p.clone(), shown, message };
            self.passed.entry(*other).or_default().push(passed);
        }
    }
}

/// R30: on PostgreSQL, a job that moved ahead of jobs that have started, or whose commit took its time, may
/// be passed over for a limited time, where the notification of it was lost.
fn moved_ahead(book: &Book, view: &JobView, t: Timestamp) -> Option<String> {
    let took_long = view.seen_from.since(view.newest_at) > COMMITS;
    let moved = took_long || view.token.starts() > 0 || !view.joins.is_empty() && view.count > 1;
    let is_early = t.since(view.seen_from.max(view.due)) < PASSED_OVER;
    let may = !book.slack.is_zero() && moved && is_early;
    may.then(|| "a job that moved ahead may be passed over for a limited time".to_owned())
}

/// What the calls asked for, or what the store says where a call did not say. Triggers that a
/// leading edge does not run ask for nothing.
fn priority(book: &Book, id: JobId, job: &JobView) -> i16 {
    if job.reprioritised {
        return job.priority;
    }
    let of_job = TriggerId { job: id, seq: 0 }..=TriggerId { job: id, seq: job.count };
    let runs = book.triggers.range(of_job).filter(|(one, _)| !job.suppressed.contains(&one.seq));
    let asked: Option<Vec<i16>> = runs.map(|(_, op)| book.ops.get(op)?.priority).collect();
    let known = |asked: &Vec<i16>| asked.len().checked_add(job.suppressed.len());
    let all =
        |asked: &Vec<i16>| known(asked).and_then(|n| u64::try_from(n).ok()) == Some(job.count);
    asked.filter(all).and_then(|asked| asked.into_iter().max()).unwrap_or(job.priority)
}

/// Whether nothing holds a scheduled job back at `t`.
fn may_start(book: &Book, (id, job): (JobId, &JobView), t: Timestamp) -> bool {
    job.due <= t
        && !is_held(book, (id, job), t)
        && !book.paused.contains(&job.task)
        && partition_has_room(book, job, t)
        && has_turn(book, id, job)
}

/// Whether others of its key hold a job back at `t`, or may have.
pub(super) fn is_held(book: &Book, (id, job): (JobId, &JobView), t: Timestamp) -> bool {
    let is_held = || {
        let comes_before = comes_before(book, id, job, Timestamp::MAX);
        key_runs(book, job) || key_ran_lately(book, job, t) || comes_before.is_some()
    };
    !job.shape.overlap && is_held()
}

/// Whether an attempt of the job's key ended so shortly before `t` that a claim may have met it.
fn key_ran_lately(book: &Book, job: &JobView, t: Timestamp) -> bool {
    let Some(key) = job.task_key() else { return false };
    book.ended_lately(t).any(|other| other.task_key().as_ref() == Some(&key))
}

/// Whether an attempt of the job's key runs, or its lease expired and was not reclaimed yet.
pub(super) fn key_runs(book: &Book, job: &JobView) -> bool {
    let Some(key) = job.task_key() else { return false };
    let mut running = book.running.iter().filter_map(|id| book.jobs.get(id));
    running.any(|other| other.task_key().as_ref() == Some(&key))
}
