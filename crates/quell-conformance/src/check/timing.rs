//! No sooner than the quiet period, no later than the bound (P6, P7a, P7b, P8b).

use std::collections::BTreeMap;

use quell_core::edge::Edge;
use quell_core::history::Event;
use quell_core::trigger::When;
use quell_core::window::{Debounce, DueReason};
use quell_core::{JobId, QueueName, QueueSettings, TaskName, Timestamp, TriggerId};

use super::views::{ClaimView, JobView, TaskKey};
use super::{Book, Line, Property, Violation, broken};

/// P6, P7a and P8b: what windows and starts owe to the policy that callers asked for.
#[derive(Debug)]
pub(super) struct Windows;

impl Property for Windows {
    fn on(&mut self, book: &Book, at: usize, line: &Line, found: &mut Vec<Violation>) {
        match &line.event {
            Event::Window { job, due, bound: Some(bound), nb, .. } if *due > *bound.max(nb) => {
                broken(found, "P7a", [at], format!("job {job} is due past its bound"));
            }
            Event::Claimed { t, job, due, .. } => {
                let known = book.jobs.get(job).filter(|_| book.complete).map(|view| view.due);
                let due = known.unwrap_or(*due).max(*due);
                if *t < due {
                    let shown = book.jobs.get(job).into_iter().flat_map(|view| view.newest(1));
                    let early = format!("job {job} started {:?} before it was due", due.since(*t));
                    broken(found, "P6", shown.chain([at]), early);
                }
            }
            _ => {}
        }
    }

    fn finish(&mut self, book: &Book, _: &[Line], found: &mut Vec<Violation>) {
        let mut starts: BTreeMap<TaskKey, Vec<(Timestamp, usize)>> = BTreeMap::new();
        for (id, job) in &book.jobs {
            let policies = Policies::of(book, *id, job);
            bounded(*id, job, &policies, found);
            job.claims.iter().for_each(|claim| quiet(*id, job, claim, &policies, found));
            if let Some(key) = job.task_key().filter(|_| job.shape.edge == Edge::Throttle) {
                starts.entry(key).or_default().extend(job.claims.iter().map(|c| (c.t, c.at)));
            }
        }
        for (key, mut starts) in starts {
            starts.sort_unstable();
            throttled(book, &key, &starts, found);
        }
    }
}

/// The policies that a job's triggers brought, where calls and receipts tell.
struct Policies(Vec<(u64, Timestamp, Debounce, When)>);

impl Policies {
    fn of(book: &Book, id: JobId, job: &JobView) -> Self {
        let of_job = TriggerId { job: id, seq: 0 }..=TriggerId { job: id, seq: u64::MAX };
        let known = book.triggers.range(of_job).filter_map(|(trigger, op)| {
            let op = book.ops.get(op)?;
            // A queue's own thresholds may have taken the place of a default.
            let debounce = op.debounce.filter(|debounce| !debounce.from_default)?;
            Some((trigger.seq, job.joined_at(trigger.seq)?.t, debounce, op.when))
        });
        Policies(known.collect())
    }
}

/// P7a: from each join on, the window is due by first + max, or by the end of a backoff.
fn bounded(id: JobId, job: &JobView, policies: &Policies, found: &mut Vec<Violation>) {
    if job.shape.edge == Edge::Throttle {
        return;
    }
    let Some(opened) = job.joins.first() else { return };
    for (seq, _, debounce, _) in &policies.0 {
        let bound = opened.t + debounce.thresholds.max();
        let late =
            job.dues.iter().find(|(_, count, due, nb)| count >= seq && *due > bound.max(*nb));
        if let Some((at, ..)) = late {
            let past = format!(
                "job {id} is due later than {:?} after its first trigger",
                debounce.thresholds.max()
            );
            broken(found, "P7a", [opened.at, *at], past);
            return;
        }
    }
}

/// P6: a window that started because its key was quiet, or had waited long enough, was and had.
fn quiet(
    id: JobId,
    job: &JobView,
    claim: &ClaimView,
    policies: &Policies,
    found: &mut Vec<Violation>,
) {
    let by_time = matches!(claim.reason, DueReason::Quiet | DueReason::Max);
    if !by_time || job.flushed || job.shape.edge == Edge::Throttle {
        return;
    }
    let Some(opened) = job.joins.first() else { return };
    let mut joins = job.joins.iter().rev();
    let Some(last) = joins.find(|joined| joined.at < claim.at) else { return };
    let Some((_, _, debounce, _)) = policies.0.iter().find(|(seq, ..)| *seq == last.upto) else {
        return;
    };
    let upto = policies.0.iter().filter(|(seq, ..)| *seq <= last.upto);
    let bound = upto.map(|(_, _, debounce, _)| opened.t + debounce.thresholds.max()).min();
    let quiet = last.t + debounce.thresholds.min();
    let soonest = bound.map_or(quiet, |bound| bound.min(quiet));
    if claim.t < soonest {
        let early =
            format!("job {id} started {:?} before its key was quiet", soonest.since(claim.t));
        broken(found, "P6", [opened.at, last.at, claim.at], early);
    }
}

/// P8b: at most one start of a throttled key per period.
fn throttled(
    book: &Book,
    (task, key): &TaskKey,
    starts: &[(Timestamp, usize)],
    found: &mut Vec<Violation>,
) {
    let of_key = |op: &&super::OpView| op.task == *task && op.key.as_ref() == Some(key);
    let periods = book.ops.values().filter(of_key).map(|op| {
        op.debounce.filter(|debounce| debounce.edge == Edge::Throttle && !debounce.from_default)
    });
    // A key that met several policies promises none of them.
    let mut periods: Vec<_> =
        periods.map(|debounce| debounce.map(|debounce| debounce.thresholds.min())).collect();
    periods.sort_unstable();
    periods.dedup();
    let [Some(period)] = periods[..] else { return };
    for pair in starts.windows(2) {
        if let [(before, first), (t, second)] = pair
            && t.since(*before) < period
        {
            let twice = format!("{task} {key} started twice within its period of {period:?}");
            broken(found, "P8b", [*first, *second], twice);
        }
    }
}

/// P7b: once no harm is done, what is due and held back by nothing starts at once.
#[derive(Debug, Default)]
pub(super) struct Punctual {
    /// When the last attempt of a key ended.
    key_free: BTreeMap<TaskKey, Timestamp>,
    /// When a queue last was paused, full, or had its settings changed.
    queue_free: BTreeMap<QueueName, Timestamp>,
    /// When a task last was paused or resumed.
    task_free: BTreeMap<TaskName, Timestamp>,
}

impl Property for Punctual {
    fn on(&mut self, book: &Book, at: usize, line: &Line, found: &mut Vec<Violation>) {
        match &line.event {
            Event::Settle { t, job, .. }
            | Event::Lapse { t, job, .. }
            | Event::Cancel { t, job } => {
                let Some(view) = book.jobs.get(job) else { return };
                if let Some(key) = view.task_key() {
                    self.key_free.insert(key, *t);
                }
                // A slot may have come free.
                if book.queues.get(&view.queue).is_some_and(QueueSettings::limits_concurrency) {
                    self.queue_free.insert(view.queue.clone(), *t);
                }
            }
            Event::Queue { t, queue, .. } => {
                self.queue_free.insert(queue.clone(), *t);
            }
            Event::TaskChanged { t, task, .. } => {
                self.task_free.insert(task.clone(), *t);
            }
            Event::Claimed { t, job, .. } => {
                if let Some(view) = book.jobs.get(job) {
                    self.started(book, view, (*job, *t), at, found);
                }
            }
            _ => {}
        }
    }
}

impl Punctual {
    fn started(
        &self,
        book: &Book,
        view: &JobView,
        (job, t): (JobId, Timestamp),
        at: usize,
        found: &mut Vec<Violation>,
    ) {
        let calm = if book.any_fault { book.healed } else { Some(Timestamp::MIN) };
        let (Some(calm), Some(punctual)) = (calm, book.punctual) else { return };
        let key_free = view.task_key().and_then(|key| self.key_free.get(&key));
        if book.queues.get(&view.queue).is_some_and(QueueSettings::limits_rate) {
            // A rate may hold it back for as long as its period.
            return;
        }
        let queue_free = self.queue_free.get(&view.queue);
        let task_free = self.task_free.get(&view.task);
        // A window that was joined or moved is due anew, and news takes its way.
        let moved = view.dues.last().map(|(line, ..)| *line).and_then(|line| {
            view.joins.iter().find(|joined| joined.at == line).map(|joined| joined.t)
        });
        let held = [Some(&view.due), Some(&calm), key_free, queue_free, task_free, moved.as_ref()];
        let free = held.into_iter().flatten().max().copied().unwrap_or(calm);
        let late = t.since(free);
        if late > punctual {
            let waited = format!("job {job} started {late:?} late though nothing held it back");
            broken(found, "P7b", view.newest(2).chain([at]), waited);
        }
    }
}
