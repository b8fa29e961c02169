//! No sooner than the quiet period, no later than the bound (P6, P7a).

use quell_core::JobId;
use quell_core::edge::Edge;
use quell_core::history::Event;
use quell_core::window::DueReason;

use super::policy::{Policies, Step};
use super::views::{ClaimView, JobView};
use super::{Act, Book, Found, Line, Property};

/// P6 and P7a: what windows and starts owe to the policy that callers asked for.
#[derive(Debug)]
pub(super) struct Windows;

impl Property for Windows {
    fn on(&mut self, book: &Book, at: usize, line: &Line, found: &mut Found) {
        match &line.event {
            Event::Window { job, due, bound: Some(bound), nb, .. } if *due > *bound.max(nb) => {
                found.broken("P7a", [at], format!("job {job} is due past its bound"));
            }
            Event::Claimed { t, job, due, .. } => {
                let Some(view) = book.jobs.get(job) else { return };
                let known = view.due.max(*due);
                if *t >= known {
                    found.holds("P6");
                    return;
                }
                let early = format!("job {job} started {:?} before it was due", known.since(*t));
                // A change of the window may be missing.
                let excuse = book.missing(view, *t).filter(|_| *t >= *due);
                found.unless(excuse, "P6", view.newest(1).chain([at]), early);
            }
            _ => {}
        }
    }

    fn finish(&mut self, book: &Book, _: &[Line], found: &mut Found) {
        for (id, job) in book.jobs.iter().filter(|(_, job)| job.key.is_some()) {
            let policies = Policies::of(book, *id, job);
            bounded(*id, job, &policies, found);
            for (index, claim) in job.claims.iter().enumerate() {
                quiet(book, (*id, job), (index, claim), &policies, found);
            }
        }
    }
}

/// P7a: from each join on, the window is due by first + max, or by the end of a backoff.
fn bounded(id: JobId, job: &JobView, policies: &Policies, found: &mut Found) {
    let Some(opened) = job.joins.first() else { return };
    if policies.0.iter().any(|step| step.debounce.edge == Edge::Throttle) {
        return;
    }
    if policies.0.is_empty() {
        found.cannot("P7a", "no call of known policy");
        return;
    }
    for Step { seq, debounce, .. } in &policies.0 {
        let max = debounce.thresholds.max();
        let bound = opened.t + max;
        let past =
            job.dues.iter().find(|(_, count, due, nb)| count >= seq && *due > bound.max(*nb));
        if let Some((at, ..)) = past {
            let late = format!("job {id} is due later than {max:?} after its first trigger");
            found.broken("P7a", [opened.at, *at], late);
            return;
        }
    }
    found.holds("P7a");
}

/// P6: a window starts once its key was quiet, or it has waited long enough, or is as full as a call
/// asked for.
fn quiet(
    book: &Book,
    (id, job): (JobId, &JobView),
    (index, claim): (usize, &ClaimView),
    policies: &Policies,
    found: &mut Found,
) {
    let by_time = matches!(claim.reason, DueReason::Quiet | DueReason::Max);
    // Another attempt starts when its backoff is over (P13).
    if index > 0 && !by_time {
        return;
    }
    // R10: a window that closed does not wait for quiet. Whether it had to close, P8 says.
    if job.closes.iter().any(|(_, closed)| *closed <= claim.t) {
        return;
    }
    let before = index.checked_sub(1).and_then(|before| job.claims.get(before));
    let since = before.map_or(0, |claim| claim.at);
    if job.run_now.iter().any(|at| (since..claim.at).contains(at)) {
        found.holds("P6");
        return;
    }
    let Some(opened) = job.joins.first() else { return };
    let Some(last) = job.joins.iter().rev().find(|joined| joined.at < claim.at) else { return };
    let Some(steps @ [first, ..]) = policies.upto(job, last.upto) else {
        found.cannot("P6", "a trigger of it is of no call of known policy");
        return;
    };
    let edge = |edges: &[Edge]| steps.iter().any(|step| edges.contains(&step.debounce.edge));
    // A leading edge that was released before it ran is due when it was opened, whatever joined it.
    let is_due_at_once = !by_time || claim.due <= opened.t;
    let leads = matches!(first.debounce.edge, Edge::Leading | Edge::Both) && is_due_at_once;
    // When those start, P8b says.
    if leads || edge(&[Edge::Throttle]) {
        return;
    }
    if let Some(why) = flushed(book, job, claim) {
        found.cannot("P6", why);
        return;
    }
    let bound = steps.iter().map(|step| opened.t + step.debounce.thresholds.max()).min();
    let newest = steps.last().unwrap_or(first);
    let asked = steps.iter().filter_map(Step::asked).max();
    let quiet = asked.into_iter().fold(last.t + newest.debounce.thresholds.min(), Ord::max);
    let soonest = bound.map_or(quiet, |bound| bound.min(quiet));
    if claim.t >= soonest || steps.iter().any(Step::is_full) {
        found.holds("P6");
        return;
    }
    let early = format!("job {id} started {:?} before its key was quiet", soonest.since(claim.t));
    let excuse =
        (!is_known(claim.reason)).then(|| "due for a reason that no call names".to_owned());
    found.unless(excuse, "P6", [opened.at, last.at, claim.at], early);
}

/// Why a window may be due because someone flushed it, if it may.
fn flushed(book: &Book, job: &JobView, claim: &ClaimView) -> Option<String> {
    // Due at another time than on record: a change of it may be missing.
    if claim.store_due != claim.due
        && let Some(why) = book.excuse(Act::Any, job.first, claim.t)
    {
        return Some(why);
    }
    let key = job.task_key().filter(|_| job.flushed || claim.reason == DueReason::Flushed)?;
    if book.flushes.contains(&key) {
        return Some("someone flushed the window".to_owned());
    }
    book.excuse(Act::Operate, job.first, claim.t)
}

/// The reasons whose times follow from the calls.
fn is_known(reason: DueReason) -> bool {
    matches!(
        reason,
        DueReason::Immediate
            | DueReason::Delayed
            | DueReason::Quiet
            | DueReason::Max
            | DueReason::MaxTriggers
            | DueReason::CollectFull
            | DueReason::Flushed
            | DueReason::Leading
            | DueReason::Throttled
            | DueReason::Backoff
    )
}
