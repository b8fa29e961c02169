//! One attempt at a time, fenced, and no lease lost without a reason (P9, P10, P18, P27).

use std::collections::{BTreeMap, BTreeSet};

use quell_core::history::Event;
use quell_core::{JobId, JobState, LeaseToken, SettledAs, Timestamp};

use super::doubts::{Doubt, Doubts};
use super::views::JobView;
use super::{Book, Found, Line, Property};

/// P9, P10, P18, P27.
#[derive(Debug, Default)]
pub(super) struct Leases {
    /// Where each effect of a job was committed, and by which attempt.
    effects: BTreeMap<(JobId, String), Vec<(usize, LeaseToken)>>,
    doubts: Doubts,
}

impl Property for Leases {
    fn on(&mut self, book: &Book, at: usize, line: &Line, found: &mut Found) {
        self.doubts.on(book, line, found);
        match &line.event {
            Event::Claimed { job, token, .. } => {
                if let Some(view) = book.jobs.get(job) {
                    fenced(view, (*job, *token), at, found);
                    alone(book, (*job, view), (at, line), &mut self.doubts, found);
                }
            }
            Event::Renew { t, job, token, .. } => {
                let Some(view) = book.jobs.get(job) else { return };
                let late = format!("job {job}: a lease that was lost was extended");
                let shown = view.newest(2).chain([at]);
                if holds(view, *token, *t) {
                    found.holds("P10");
                } else {
                    let looked_from = line.looked_from(*t);
                    let meanwhile = || ends_meanwhile(view, *token, looked_from);
                    let missing = book.missing(view, *t).or_else(meanwhile);
                    found.unless(missing, "P10", shown, late);
                }
            }
            Event::Expire { t, job, token, .. } => {
                if let Some(view) = book.jobs.get(job) {
                    expired(book, view, (*job, *token, *t), at, found);
                }
            }
            Event::Settle { .. } => settled(book, at, &line.event, found),
            Event::Effect { job, token, name } => {
                let place = self.effects.entry((*job, name.clone())).or_default();
                place.push((at, *token));
            }
            _ => {}
        }
    }

    fn finish(&mut self, book: &Book, _: &[Line], found: &mut Found) {
        self.doubts.finish(found);
        for ((job, name), committed) in &self.effects {
            if committed.len() > 1 {
                let twice = format!("effect {name} of job {job} was committed more than once");
                found.broken("P18", committed.iter().map(|(at, _)| *at), twice);
            }
            for (at, token) in committed {
                let Some(view) = book.jobs.get(job) else { continue };
                let claim = view.claims.iter().find(|claim| claim.token == *token);
                if matches!(claim.and_then(|claim| claim.end), Some((.., SettledAs::Succeeded))) {
                    found.holds("P18");
                    continue;
                }
                let stray = format!("effect {name} of job {job} is there without its success");
                found.unless(book.missing(view, Timestamp::MAX), "P18", [*at], stray);
            }
        }
    }
}

/// Whether an attempt's right holds at `t`.
fn holds(view: &JobView, token: LeaseToken, t: Timestamp) -> bool {
    view.state == JobState::Running && view.token == token && t < view.until
}

/// A renewal that looks from then on may see the job before the end of the same attempt is committed, and
/// take its time after the end has taken its own.
fn ends_meanwhile(view: &JobView, token: LeaseToken, looked_from: Timestamp) -> Option<String> {
    view.end_seen
        .is_some_and(|(ended, seen)| ended == token && looked_from < seen)
        .then(|| "the attempt ended while its lease was renewed".to_owned())
}

/// P10: each attempt has a fence of its own, higher than those before.
fn fenced(view: &JobView, (job, token): (JobId, LeaseToken), at: usize, found: &mut Found) {
    if token > view.token {
        found.holds("P10");
    } else {
        let again = format!("job {job}: fence {token} was given before");
        found.broken("P10", view.newest(2).chain([at]), again);
    }
}

/// P9: no lease of another job of the key lasts until after the claim.
fn alone(
    book: &Book,
    (job, view): (JobId, &JobView),
    (at, line): (usize, &Line),
    doubts: &mut Doubts,
    found: &mut Found,
) {
    let (Some(key), Some(t)) = (view.task_key(), line.event.at()) else { return };
    // The calls say whether attempts of the key may overlap.
    if book.overlaps.get(&key).copied().unwrap_or(view.shape.overlap) {
        return;
    }
    let mut clear = true;
    for other in &book.running {
        let Some(runs) = book.jobs.get(other) else { continue };
        if t < runs.until && runs.task_key().as_ref() == Some(&key) {
            clear = false;
            let both = format!("jobs {other} and {job} of {} {} run at once", key.0, key.1);
            let doubt = Doubt {
                property: "P9",
                t,
                done: line.seen_from().unwrap_or(t),
                running: BTreeSet::from([(*other, runs.token)]),
                ends: 1,
                shown: runs.newest(2).chain([at]).collect(),
                message: both,
            };
            doubts.unless(book.may_have_ended(*other, runs, t), doubt, book, found);
        }
    }
    if clear {
        found.holds("P9");
    }
}

fn expired(
    book: &Book,
    view: &JobView,
    (job, token, t): (JobId, LeaseToken, Timestamp),
    at: usize,
    found: &mut Found,
) {
    if view.state == JobState::Running && view.token == token && t < view.until {
        let alive = format!("job {job}: a lease was taken back while it held");
        found.broken("P10", view.newest(2).chain([at]), alive);
    } else {
        found.holds("P10");
    }
    // What a killed worker had asked for may be done after its death.
    let killed = view.worker.as_ref().is_some_and(|worker| book.killed.contains(worker.as_str()));
    // Harm to the renewal before may have made its worker give up before the last one came.
    let [_, before] = view.renewed;
    let harmed = killed || book.fault.is_some_and(|fault| fault > before);
    if !book.faults {
        found.cannot("P27", "not every fault is on record");
    } else if harmed || !book.processes.are_complete() {
        found.cannot("P27", "a fault was at work");
    } else {
        let unharmed = format!("job {job}: a lease expired though nothing was wrong");
        found.broken("P27", view.newest(2).chain([at]), unharmed);
    }
}

fn settled(book: &Book, at: usize, event: &Event, found: &mut Found) {
    let Event::Settle { t, job, token, in_tx, became, .. } = event else { return };
    let Some(view) = book.jobs.get(job) else { return };
    if *in_tx {
        found.cannot("P10", "the handler's own transaction ended the attempt, at a time before");
        return;
    }
    let right = holds(view, *token, *t);
    if *became == SettledAs::Refused {
        let wronged = format!("job {job}: a settlement was refused that had the right");
        let shown = view.newest(2).chain([at]);
        if right {
            found.unless(book.may_have_ended(*job, view, *t), "P10", shown, wronged);
        } else {
            found.holds("P10");
        }
        return;
    }
    if right {
        found.holds("P10");
        // A lease that reached its end is one that was not lost.
        found.holds("P27");
        return;
    }
    let settled = view.claims.iter().any(|c| c.token == *token && c.end.is_some());
    // What is missing can only have given rights, not a second settlement.
    let sure = settled || *token < view.token;
    let excuse = book.missing(view, *t).filter(|_| !sure);
    let stale = format!("job {job}: a settlement counted that had no right to");
    found.unless(excuse, "P10", view.newest(3).chain([at]), stale);
}
