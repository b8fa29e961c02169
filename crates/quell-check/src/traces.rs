//! Handlers are given the trace contexts of their triggers (P33).

use std::collections::BTreeMap;

use quell_core::history::Event;
use quell_core::trace::Traces;
use quell_core::{JobId, SettledAs, Timestamp, TriggerId};

use super::payload::starts;
use super::views::OpState;
use super::{Book, Found, Line, Property};

/// P33: gathers the contexts again, in the order of the events, and compares at each claim what its start
/// says that the handler is given.
#[derive(Debug)]
pub(super) struct Contexts;

/// The contexts that a job must have; none where not all of its triggers are known.
#[derive(Clone, Debug, Default)]
struct Kept {
    traces: Option<Traces>,
    count: u64,
    /// When its window last changed on record.
    at: Option<Timestamp>,
}

impl Property for Contexts {
    fn on(&mut self, _: &Book, _: usize, _: &Line, _: &mut Found) {}

    fn finish(&mut self, book: &Book, lines: &[Line], found: &mut Found) {
        let mut jobs: BTreeMap<JobId, Kept> = BTreeMap::new();
        // Jobs that are absorbed by the next change of their successor's window.
        let mut taken: BTreeMap<JobId, JobId> = BTreeMap::new();
        let starts = starts(lines);
        for (at, line) in lines.iter().enumerate() {
            match &line.event {
                Event::Settle { job, became: SettledAs::Absorbed { by, .. }, .. }
                | Event::Expire { job, became: SettledAs::Absorbed { by, .. }, .. }
                | Event::Redrive { job, became: SettledAs::Absorbed { by, .. }, .. } => {
                    taken.insert(*by, *job);
                }
                Event::Window { t, job, count, .. } => {
                    let older = taken.remove(job).map(|older| jobs.get(&older).cloned());
                    let kept = jobs.entry(*job).or_insert_with(|| Kept {
                        traces: Some(Traces::default()),
                        ..Kept::default()
                    });
                    match older {
                        Some(older) => kept.absorb(older.unwrap_or_default(), *count),
                        None => kept.gather(book, *job, *count),
                    }
                    kept.at = Some(*t);
                }
                Event::Suppressed { job, count, .. } => {
                    if let Some(kept) = jobs.get_mut(job) {
                        kept.count = *count;
                    }
                }
                Event::Claimed { t, job, token, count, .. } => {
                    let Some(Event::Start { traces, .. }) = starts.get(&(*job, *token)) else {
                        continue;
                    };
                    match jobs.get(job) {
                        Some(kept) if kept.may_lack(book, *job, *count, *t) => {
                            found.cannot("P33", "a change of the job's window may be missing");
                        }
                        kept => compare(kept, *job, traces, at, found),
                    }
                }
                _ => {}
            }
        }
    }
}

impl Kept {
    /// Takes in the contexts of the triggers up to this number.
    fn gather(&mut self, book: &Book, job: JobId, count: u64) {
        for seq in self.count + 1..=count {
            let op = book.triggers.get(&TriggerId { job, seq }).and_then(|op| book.ops.get(op));
            match op.filter(|op| matches!(op.state, OpState::Answered(..))) {
                None => self.traces = None,
                Some(op) => {
                    if let (Some(traces), Some(context)) = (&mut self.traces, &op.trace) {
                        traces.push(context);
                    }
                }
            }
            if self.traces.is_none() {
                break;
            }
        }
        self.count = count;
    }

    /// Takes in an older job, whose triggers came first.
    fn absorb(&mut self, older: Kept, count: u64) {
        let is_whole = self.count.checked_add(older.count) == Some(count);
        let both = older.traces.zip(self.traces.take()).filter(|_| is_whole);
        self.traces = both.map(|(mut older, newer)| {
            older.append(&newer);
            older
        });
        self.count = count;
    }

    /// As for payloads: the counts differ, and an answer was lost.
    fn may_lack(&self, book: &Book, job: JobId, count: u64, start: Timestamp) -> bool {
        let since = self.at.unwrap_or(Timestamp::MIN);
        book.lacks_change(job, (self.count, count), (since, start))
    }
}

/// Starts of jobs that have no context, and should have none, are no case.
fn compare(kept: Option<&Kept>, job: JobId, given: &Traces, at: usize, found: &mut Found) {
    match kept.and_then(|kept| kept.traces.as_ref()) {
        None => found.cannot("P33", "a trigger of the job is of no call that is known"),
        Some(expected) if expected == given && given.is_empty() => {}
        Some(expected) if expected == given => found.holds("P33"),
        Some(expected) => {
            let shown = |traces: &Traces| traces.as_str().unwrap_or("none").replace('\n', ", ");
            let (given, expected) = (shown(given), shown(expected));
            let other = format!("job {job} was given the traces {given}, not {expected}");
            found.broken("P33", [at], other);
        }
    }
}
