//! Each failed attempt is charged, and what follows it is what the policy says (P12, P13).
//!
//! The policy is what the worker says that it runs the task with; timeouts and panics are transient
//! whatever the settlement says.

use std::collections::BTreeMap;
use std::time::Duration;

use quell_core::history::{Event, WorkerTask};
use quell_core::{AttemptOutcome, JobId, LeaseToken, SettledAs, Timestamp};

use super::views::JobView;
use super::{Book, Found, Line, Property};

/// P12: as many attempts as the policy says. P13: no sooner again than the backoff, nor later.
#[derive(Debug, Default)]
pub(super) struct Failures {
    /// The end of the backoff that holds for a job, and the line of the failure.
    held: BTreeMap<JobId, (Timestamp, usize)>,
}

/// A failed attempt.
struct Failed<'e> {
    at: usize,
    t: Timestamp,
    job: JobId,
    view: &'e JobView,
    became: SettledAs,
    permanent: bool,
    exhausted: bool,
    asked: bool,
    /// Whether the handler had no say: it panicked, or took too long.
    cut_short: bool,
}

impl Property for Failures {
    fn on(&mut self, book: &Book, at: usize, line: &Line, found: &mut Found) {
        match &line.event {
            Event::Claimed { t, job, attempt, .. } => {
                let Some(view) = book.jobs.get(job) else { return };
                charged(book, view, (*job, *t, *attempt), (&line.event, at), found);
                self.waited(view, (*job, *t), at, found);
            }
            Event::Settle {
                t, job, token, outcome, permanent, exhausted, asked, became, ..
            } => {
                let failed = matches!(
                    outcome,
                    AttemptOutcome::Failed | AttemptOutcome::Panicked | AttemptOutcome::TimedOut
                );
                let Some(view) = book.jobs.get(job) else { return };
                if !failed || *became == SettledAs::Refused || !is_newest(view, *token) {
                    return;
                }
                let (permanent, exhausted, asked) = (*permanent, *exhausted, *asked);
                let cut_short = *outcome != AttemptOutcome::Failed;
                let (t, job, became) = (*t, *job, *became);
                let failed =
                    Failed { at, t, job, view, became, permanent, exhausted, asked, cut_short };
                self.failed(book, &failed, found);
            }
            Event::Redrive { job, .. } | Event::Adjust { job, run_now: true, .. } => {
                self.held.remove(job);
            }
            _ => {}
        }
    }
}

/// What is reported of an attempt that is not the job's newest is judged by its fence (P10).
fn is_newest(view: &JobView, token: LeaseToken) -> bool {
    view.token == token
}

/// P12: the attempt has the number that follows from what came before.
fn charged(
    book: &Book,
    view: &JobView,
    (job, t, attempt): (JobId, Timestamp, u32),
    (event, at): (&Event, usize),
    found: &mut Found,
) {
    let expected = view.attempt.saturating_add(1);
    let gap = view.has_gap(event) && book.missing(view, t).is_some();
    if attempt == expected && !gap {
        found.holds("P12");
    } else if view.doubted || gap {
        let why = book.may_have_ended(job, view, t);
        found.cannot("P12", why.unwrap_or_else(|| "what came before is not on record".to_owned()));
    } else {
        let wrong = format!("job {job}: attempt {attempt} is attempt {expected}");
        found.unless(book.missing(view, t), "P12", view.newest(3).chain([at]), wrong);
    }
}

impl Failures {
    /// P13: a job waits for the end of the backoff, whichever way it came to it.
    fn waited(
        &mut self,
        view: &JobView,
        (job, t): (JobId, Timestamp),
        at: usize,
        found: &mut Found,
    ) {
        let Some((until, failure)) = self.held.remove(&job) else { return };
        if t >= until {
            found.holds("P13");
            return;
        }
        let early = format!("job {job} started {:?} before the backoff was over", until.since(t));
        found.broken("P13", view.newest(1).chain([failure, at]), early);
    }

    fn failed(&mut self, book: &Book, failed: &Failed<'_>, found: &mut Found) {
        let Failed { at, job, view, became, permanent, cut_short, .. } = *failed;
        if cut_short && permanent {
            let wrong = format!("job {job}: a panic or a timeout was taken for permanent");
            found.broken("P12", view.newest(2).chain([at]), wrong);
        }
        let worker = view.worker.as_ref().and_then(|worker| book.workers.get(worker));
        let task = worker.and_then(|tasks| tasks.iter().find(|known| known.task == view.task));
        let Some(task) = task else {
            found.cannot("P12", "the worker did not say what it runs");
            found.cannot("P13", "the worker did not say what it runs");
            return;
        };
        // Attempts that it was charged with may be missing, failures in a row too.
        if view.doubted {
            let why = "what came before is not on record";
            found.cannot("P12", why);
            found.cannot("P13", why);
            return;
        }
        ends_as_it_must(failed, task, found);
        if !permanent && became != SettledAs::Dead {
            self.backs_off(book, failed, task, found);
        }
    }

    /// P13: due again within the backoff's bounds; a window that took the job in waits as long.
    fn backs_off(
        &mut self,
        book: &Book,
        failed: &Failed<'_>,
        task: &WorkerTask,
        found: &mut Found,
    ) {
        let Failed { at, t, job, view, became, .. } = *failed;
        if failed.asked {
            found.cannot("P13", "the handler asked for a delay of its own");
            return;
        }
        let failures = view.failures.saturating_add(1);
        let soonest = t + task.retry.backoff(failures, 0.0);
        // The longest that the jitter allows.
        let latest = t + task.retry.backoff(failures, 1.0) + Duration::from_micros(1);
        let (due, waits, latest) = match became {
            SettledAs::Scheduled { due } => (due, job, latest),
            SettledAs::Absorbed { by, due } => {
                let successor = book.jobs.get(&by).map(|successor| successor.due);
                (due, by, successor.map_or(Timestamp::MAX, |own| own.max(latest)))
            }
            _ => return,
        };
        let shown = || view.newest(2).chain([at]);
        if due < soonest {
            let early = format!("job {job} is due again before its backoff is over");
            found.broken("P13", shown(), early);
        } else if due > latest {
            let late = format!("job {job} is due again {:?} after its backoff", due.since(latest));
            // A throttled key waits for its period too.
            let throttled = view.shape.period.is_some().then(|| "its key is throttled".to_owned());
            found.unless(throttled, "P13", shown(), late);
        } else {
            found.holds("P13");
        }
        let held = self.held.entry(waits).or_insert((soonest, at));
        *held = (*held).max((soonest, at));
    }
}

/// P12: the last attempt is the policy's last one, and only it or a permanent failure buries.
fn ends_as_it_must(failed: &Failed<'_>, task: &WorkerTask, found: &mut Found) {
    let Failed { at, job, view, became, permanent, exhausted, .. } = *failed;
    let max = task.retry.max_attempts;
    let last = view.attempt >= max;
    if !permanent && exhausted != last {
        let attempt = view.attempt;
        let wrong = format!(
            "job {job}: attempt {attempt} of {max} was reported as the last one: {exhausted}"
        );
        found.broken("P12", view.newest(2).chain([at]), wrong);
        return;
    }
    let buried = became == SettledAs::Dead;
    let again = matches!(became, SettledAs::Scheduled { .. });
    let must_end = permanent || last;
    if (buried && !must_end) || (again && must_end) || (permanent && !buried) {
        let wrong = format!("job {job}: no attempt left {must_end}, buried {buried}");
        found.broken("P12", view.newest(2).chain([at]), wrong);
    } else {
        found.holds("P12");
    }
}
