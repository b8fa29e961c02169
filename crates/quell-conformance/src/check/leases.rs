//! One attempt at a time, fenced, each charged as it should be (P9, P10, P12, P13, P18, P27).

use std::collections::BTreeMap;

use quell_core::history::{Event, WorkerTask};
use quell_core::{AttemptOutcome, JobId, JobState, SettledAs, Timestamp};

use super::views::JobView;
use super::{Book, Line, Property, Violation, broken};

/// P9, P10, P12, P13, P18, P27.
#[derive(Debug, Default)]
pub(super) struct Leases {
    /// Where each effect of a job was committed, and by which attempt.
    effects: BTreeMap<(JobId, String), Vec<(usize, u64)>>,
}

impl Property for Leases {
    fn on(&mut self, book: &Book, at: usize, line: &Line, found: &mut Vec<Violation>) {
        match &line.event {
            Event::Claimed { .. } => claimed(book, at, &line.event, found),
            Event::Renew { t, job, token, .. } => {
                let lost = book.jobs.get(job).filter(|view| !holds(view, token.get(), *t));
                if let Some(view) = lost.filter(|_| book.complete) {
                    let late = format!("job {job}: a lease that was lost was extended");
                    broken(found, "P10", view.newest(2).chain([at]), late);
                }
            }
            Event::Lapse { t, job, token, .. } => {
                if let Some(view) = book.jobs.get(job) {
                    lapsed(book, view, (*job, token.get(), *t), at, found);
                }
            }
            Event::Settle { .. } => settled(book, at, &line.event, found),
            Event::Effect { job, token, name } => {
                let place = self.effects.entry((*job, name.clone())).or_default();
                place.push((at, token.get()));
            }
            _ => {}
        }
    }

    fn finish(&mut self, book: &Book, _: &[Line], found: &mut Vec<Violation>) {
        for ((job, name), committed) in &self.effects {
            if committed.len() > 1 {
                let twice = format!("effect {name} of job {job} was committed more than once");
                broken(found, "P18", committed.iter().map(|(at, _)| *at), twice);
            }
            for (at, token) in committed {
                let claims = book.jobs.get(job).map(|view| &view.claims);
                let claim = claims.and_then(|claims| claims.iter().find(|c| c.token == *token));
                let ended = claim.and_then(|claim| claim.end);
                if book.complete && !matches!(ended, Some((.., SettledAs::Succeeded))) {
                    let stray = format!("effect {name} of job {job} is there without its success");
                    broken(found, "P18", [*at], stray);
                }
            }
        }
    }
}

/// Whether an attempt's right holds at `t`.
fn holds(view: &JobView, token: u64, t: Timestamp) -> bool {
    view.state == JobState::Running && view.token == token && t < view.until
}

fn claimed(book: &Book, at: usize, event: &Event, found: &mut Vec<Violation>) {
    let Event::Claimed { t, job, token, attempt, .. } = event else { return };
    let Some(view) = book.jobs.get(job) else { return };
    if token.get() <= view.token {
        let again = format!("job {job}: fence {} was given before", token.get());
        broken(found, "P10", view.newest(2).chain([at]), again);
    }
    let expected = view.attempt.saturating_add(1);
    if book.complete && *attempt != expected {
        let wrong = format!("job {job}: attempt {attempt} is attempt {expected}");
        broken(found, "P12", view.newest(3).chain([at]), wrong);
    }
    let Some(key) = view.task_key() else { return };
    if book.overlaps.get(&key).copied().unwrap_or(view.shape.overlap) {
        return;
    }
    for other in &book.running {
        let Some(runs) = book.jobs.get(other) else { continue };
        // A killed process may have settled it, or given it back, and not said so. One that is heard
        // of later has said all that it did.
        let speaks = book.heard.get(&runs.by).is_some_and(|last| last > t);
        let sure = book.complete || (other == job && speaks);
        if sure && *t < runs.until && runs.task_key().as_ref() == Some(&key) {
            let both = format!("jobs {other} and {job} of {} {} run at once", key.0, key.1);
            broken(found, "P9", runs.newest(2).chain([at]), both);
        }
    }
}

fn lapsed(
    book: &Book,
    view: &JobView,
    (job, token, t): (JobId, u64, Timestamp),
    at: usize,
    found: &mut Vec<Violation>,
) {
    if view.state == JobState::Running && view.token == token && t < view.until {
        let alive = format!("job {job}: a lease was taken back while it held");
        broken(found, "P10", view.newest(2).chain([at]), alive);
    }
    // What a killed worker had asked for may be done after its death.
    let killed = view.worker.as_ref().is_some_and(|worker| book.killed.contains(worker.as_str()));
    // Harm to the renewal before may have made its worker give up before the last one came.
    let [_, before] = view.renewed;
    let harmed = killed || book.fault.is_some_and(|fault| fault > before);
    if book.complete && book.faults && !harmed {
        let unharmed = format!("job {job}: a lease lapsed though nothing was wrong");
        broken(found, "P27", view.newest(2).chain([at]), unharmed);
    }
}

fn settled(book: &Book, at: usize, event: &Event, found: &mut Vec<Violation>) {
    let Event::Settle { t, job, token, outcome, last, became } = event else { return };
    let Some(view) = book.jobs.get(job) else { return };
    let right = holds(view, token.get(), *t);
    if *became == SettledAs::Refused {
        if right && book.complete {
            let wronged = format!("job {job}: a settlement was refused that had the right");
            broken(found, "P10", view.newest(2).chain([at]), wronged);
        }
        return;
    }
    let settled = view.claims.iter().any(|c| c.token == token.get() && c.end.is_some());
    // What a killed process did not record can only have given rights, not a second settlement.
    if !right && (book.complete || settled || token.get() < view.token) {
        let stale = format!("job {job}: a settlement counted that had no right to");
        broken(found, "P10", view.newest(3).chain([at]), stale);
    }
    let failed = matches!(
        outcome,
        AttemptOutcome::Failed | AttemptOutcome::Panicked | AttemptOutcome::TimedOut
    );
    let known = view.worker.as_ref().and_then(|worker| book.workers.get(worker));
    let task = known.and_then(|tasks| tasks.iter().find(|known| known.task == view.task));
    if let Some(task) = task.filter(|_| failed && book.complete) {
        failure(view, (*job, *t), (*last, *became), task, at, found);
    }
}

/// P12: as many attempts as the policy says. P13: no sooner again than the backoff.
fn failure(
    view: &JobView,
    (job, t): (JobId, Timestamp),
    (last, became): (bool, SettledAs),
    task: &WorkerTask,
    at: usize,
    found: &mut Vec<Violation>,
) {
    if !last && view.attempt >= task.retry.max_attempts {
        let more = format!("job {job}: attempt {} was not the last one", view.attempt);
        broken(found, "P12", view.newest(2).chain([at]), more);
    }
    let buried = became == SettledAs::Dead;
    let again = matches!(became, SettledAs::Scheduled { .. });
    if (buried && !last) || (again && last) {
        let wrong = format!("job {job}: last attempt {last}, buried {buried}");
        broken(found, "P12", view.newest(2).chain([at]), wrong);
    }
    let soonest = t + task.retry.backoff(view.failures.saturating_add(1), 0.0);
    if let SettledAs::Scheduled { due } = became
        && due < soonest
    {
        let early = format!("job {job} is due again before its backoff is over");
        broken(found, "P13", view.newest(2).chain([at]), early);
    }
}
