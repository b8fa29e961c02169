//! Handlers are given what the policy makes of the payloads of their triggers (P5).

use std::collections::BTreeMap;

use quell_core::history::Event;
use quell_core::{Fold, JobId, Payload, SettledAs, TriggerId};

use super::views::{OpId, OpState};
use super::{Book, Line, Property, Violation, broken};

/// P5: folds the payloads again, in the order of the events, and compares at each start.
#[derive(Debug)]
pub(super) struct Payloads;

/// A job's payload as it must be; none where a call of unknown outcome is in it.
type Folded = BTreeMap<JobId, (Option<Payload>, u64)>;

impl Property for Payloads {
    fn on(&mut self, _: &Book, _: usize, _: &Line, _: &mut Vec<Violation>) {}

    fn finish(&mut self, book: &Book, lines: &[Line], found: &mut Vec<Violation>) {
        let recorded = book.ops.values().any(|op| op.payload.is_some());
        if !recorded || !book.complete {
            return;
        }
        let mut folded = Folded::new();
        // Jobs that are absorbed by the next change of their heir's window.
        let mut taken: BTreeMap<JobId, JobId> = BTreeMap::new();
        for (at, line) in lines.iter().enumerate() {
            match &line.event {
                // What it holds from now on is not on record.
                Event::Redrive { job, edited: true, became, .. } => {
                    let count = folded.get(job).map_or(0, |(_, count)| *count);
                    folded.insert(*job, (None, count));
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
                    window(book, &mut folded, (*job, *count), &shape.fold, older);
                }
                Event::Suppressed { job, count, .. } => {
                    if let Some((_, before)) = folded.get_mut(job) {
                        *before = *count;
                    }
                }
                Event::Start { job, payload: Some(given), .. } => {
                    let expected = folded.get(job).and_then(|(payload, _)| payload.as_ref());
                    if let Some(expected) = expected.filter(|expected| expected.as_str() != given) {
                        let other =
                            format!("job {job} was given {}, not {}", given, expected.as_str());
                        broken(found, "P5", [at], other);
                    }
                }
                _ => {}
            }
        }
    }
}

fn window(
    book: &Book,
    folded: &mut Folded,
    (job, count): (JobId, u64),
    fold: &Fold,
    older: Option<JobId>,
) {
    let (mut payload, before) = folded.remove(&job).unwrap_or((None, 0));
    if let Some(older) = older {
        let older = folded.get(&older).and_then(|(payload, _)| payload.clone());
        payload = older.zip(payload).map(|(older, newer)| fold.absorb(&older, &newer));
    } else {
        for seq in before + 1..=count {
            let came = of_trigger(book, TriggerId { job, seq });
            payload = match (came, payload) {
                (None, _) => None,
                (Some((_, came)), None) if seq == 1 => Some(fold.open(&came)),
                (Some((_, came)), Some(folded)) => Some(fold.join(&folded, &came)),
                (Some(_), None) => None,
            };
        }
    }
    folded.insert(job, (payload, count));
}

fn of_trigger(book: &Book, trigger: TriggerId) -> Option<(OpId, Payload)> {
    let id = book.triggers.get(&trigger)?;
    let op = book.ops.get(id)?;
    let answered = matches!(op.state, OpState::Answered(..));
    Some((id.clone(), op.payload.clone().filter(|_| answered)?))
}
