//! Handlers are given what the policy makes of the payloads of their triggers (P5).

use std::collections::BTreeMap;

use quell_core::history::Event;
use quell_core::{Fold, JobId, Payload, SettledAs, TriggerId};

use super::views::OpState;
use super::{Book, Found, Line, Property};

/// P5: folds the payloads again, in the order of the events and as the calls asked, and compares at
/// each start.
#[derive(Debug)]
pub(super) struct Payloads;

/// A job's payload as it must be; none where not all of its triggers are known.
#[derive(Clone, Debug, Default)]
struct Folded {
    payload: Option<Payload>,
    count: u64,
    fold: Fold,
}

type Jobs = BTreeMap<JobId, Folded>;

impl Property for Payloads {
    fn on(&mut self, _: &Book, _: usize, _: &Line, _: &mut Found) {}

    fn finish(&mut self, book: &Book, lines: &[Line], found: &mut Found) {
        let mut jobs = Jobs::new();
        // Jobs that are absorbed by the next change of their heir's window.
        let mut taken: BTreeMap<JobId, JobId> = BTreeMap::new();
        for (at, line) in lines.iter().enumerate() {
            match &line.event {
                // What it holds from now on is not on record.
                Event::Redrive { job, edited: true, became, .. } => {
                    jobs.entry(*job).or_default().payload = None;
                    if let SettledAs::Absorbed { by, .. } = became {
                        taken.insert(*by, *job);
                    }
                }
                Event::Settle { job, became: SettledAs::Absorbed { by, .. }, .. }
                | Event::Lapse { job, became: SettledAs::Absorbed { by, .. }, .. }
                | Event::Redrive { job, became: SettledAs::Absorbed { by, .. }, .. } => {
                    taken.insert(*by, *job);
                }
                Event::Window { job, count, shape, .. } => {
                    let older = taken.remove(job);
                    window(book, &mut jobs, (*job, *count), &shape.fold, older);
                }
                Event::Suppressed { job, count, .. } => {
                    if let Some(folded) = jobs.get_mut(job) {
                        folded.count = *count;
                    }
                }
                Event::Start { job, payload: Some(given), .. } => {
                    compare(jobs.get(job), *job, given, at, found);
                }
                Event::Start { payload: None, .. } => {
                    found.cannot("P5", "payloads are not on record");
                }
                _ => {}
            }
        }
    }
}

fn compare(folded: Option<&Folded>, job: JobId, given: &str, at: usize, found: &mut Found) {
    match folded.and_then(|folded| folded.payload.as_ref()) {
        None => found.cannot("P5", "a trigger of the job is of no call whose payload is known"),
        Some(expected) if expected.as_str() == given => found.holds("P5"),
        Some(expected) => {
            let other = format!("job {job} was given {given}, not {}", expected.as_str());
            found.broken("P5", [at], other);
        }
    }
}

fn window(
    book: &Book,
    jobs: &mut Jobs,
    (job, count): (JobId, u64),
    told: &Fold,
    older: Option<JobId>,
) {
    let known = jobs.contains_key(&job);
    let mut folded = jobs.remove(&job).unwrap_or_default();
    if !known {
        folded.fold.clone_from(told);
    }
    if let Some(older) = older {
        let older = jobs.get(&older).cloned().unwrap_or_default();
        let whole = folded.count.checked_add(older.count) == Some(count);
        let both = older.payload.zip(folded.payload).filter(|_| whole);
        folded.payload = both.map(|(older, newer)| folded.fold.absorb(&older, &newer));
    } else {
        for seq in folded.count + 1..=count {
            join(book, &mut folded, TriggerId { job, seq });
            if folded.payload.is_none() {
                break;
            }
        }
    }
    folded.count = count;
    jobs.insert(job, folded);
}

/// Takes in the payload of a trigger, by the fold that its call asked for.
fn join(book: &Book, folded: &mut Folded, trigger: TriggerId) {
    let op = book.triggers.get(&trigger).and_then(|op| book.ops.get(op));
    let Some(op) = op.filter(|op| matches!(op.state, OpState::Answered(..))) else {
        folded.payload = None;
        return;
    };
    if let Some(fold) = &op.fold {
        folded.fold.clone_from(fold);
    }
    let Some(came) = op.payload.clone() else {
        folded.payload = None;
        return;
    };
    folded.payload = match folded.payload.take() {
        None if trigger.seq == 1 => Some(folded.fold.open(&came)),
        None => None,
        Some(before) => Some(folded.fold.join(&before, &came)),
    };
}
