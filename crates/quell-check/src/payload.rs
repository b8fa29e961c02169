//! Handlers are given what the policy makes of the payloads of their triggers (P5), and windows close
//! where those do not fit, and only there (P8).

use std::collections::{BTreeMap, BTreeSet};

use quell_core::edge::Edge;
use quell_core::history::Event;
use quell_core::job::Shape;
use quell_core::payload::WINDOW_BYTES;
use quell_core::{Fold, JobId, LeaseToken, Payload, SettledAs, Timestamp, TriggerId};

use super::views::{OpState, TaskKey};
use super::{Book, Found, Line, Property};

/// P5: folds the payloads again, in the order of the events and as the calls asked, and compares at
/// each claim what its start says that the handler is given. P8: no window holds more than its bounds,
/// and one that closes had no room for the next trigger.
#[derive(Debug)]
pub(super) struct Payloads;

/// The start of each attempt. A worker records that at once, while the store's events of the same process may
/// wait for their order: what a handler is given is fixed by its claim.
pub(super) fn starts(lines: &[Line]) -> BTreeMap<(JobId, LeaseToken), &Event> {
    let started = |line: &'_ Line| match &line.event {
        Event::Start { job, token, .. } => Some((*job, *token)),
        _ => None,
    };
    lines.iter().filter_map(|line| Some((started(line)?, &line.event))).collect()
}

/// A job's payload as it must be; none where not all of its triggers are known.
#[derive(Clone, Debug, Default)]
struct Folded {
    payload: Option<Payload>,
    count: u64,
    fold: Fold,
    /// When its window last changed on record.
    at: Option<Timestamp>,
}

type Jobs = BTreeMap<JobId, Folded>;

impl Property for Payloads {
    fn on(&mut self, _: &Book, _: usize, _: &Line, _: &mut Found) {}

    fn finish(&mut self, book: &Book, lines: &[Line], found: &mut Found) {
        let mut jobs = Jobs::new();
        // Jobs that are absorbed by the next change of their successor's window.
        let mut taken: BTreeMap<JobId, JobId> = BTreeMap::new();
        let mut full = Full::default();
        let starts = starts(lines);
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
                | Event::Expire { job, became: SettledAs::Absorbed { by, .. }, .. }
                | Event::Redrive { job, became: SettledAs::Absorbed { by, .. }, .. } => {
                    taken.insert(*by, *job);
                }
                Event::Window { t, job, count, shape, .. } => {
                    let older = taken.remove(job);
                    window(book, &mut jobs, (*job, *count), &shape.fold, older);
                    if let Some(folded) = jobs.get_mut(job) {
                        folded.at = Some(*t);
                    }
                    full.on(book, &jobs, at, &line.event, found);
                }
                Event::Suppressed { job, count, .. } => {
                    if let Some(folded) = jobs.get_mut(job) {
                        folded.count = *count;
                    }
                }
                Event::Claimed { t, job, token, count, .. } => {
                    full.open.remove(job);
                    let Some(Event::Start { payload, .. }) = starts.get(&(*job, *token)) else {
                        continue;
                    };
                    let folded = jobs.get(job);
                    match payload {
                        None => found.cannot("P5", "payloads are not on record"),
                        Some(_) if folded.is_some_and(|it| it.may_lack(book, *job, *count, *t)) => {
                            found.cannot("P5", "a change of the job's window may be missing");
                        }
                        Some(given) => compare(folded, *job, given, at, found),
                    }
                }
                _ => {}
            }
        }
    }
}

/// What is known of windows that are full (R10).
#[derive(Debug, Default)]
struct Full {
    /// Jobs that were open windows at their last event.
    open: BTreeSet<JobId>,
    /// The window of a key that closed last, when, and where.
    closed: BTreeMap<TaskKey, (JobId, Timestamp, usize)>,
}

impl Full {
    fn on(&mut self, book: &Book, jobs: &Jobs, at: usize, event: &Event, found: &mut Found) {
        let Event::Window { t, job, task, key: Some(key), shape, .. } = event else { return };
        let Some(folded) = jobs.get(job) else { return };
        let task_key = (task.clone(), key.clone());
        if let Some((before, closed, line)) = self.closed.remove(&task_key)
            && closed == *t
            && before < *job
        {
            let had_room = jobs.get(&before).and_then(|full| full.has_room(book, shape, *job));
            let reported = format!("job {before} was closed, yet the next trigger fits into it");
            match had_room {
                Some(true) => found.broken("P8", [line, at], reported),
                Some(false) => found.holds("P8"),
                None => found.cannot("P8", "a payload of a window that was closed is not known"),
            }
        }
        if let Some(payload) = folded.payload.as_ref().filter(|_| folded.count > 1) {
            // The bounds of the newest trigger, where its call is on record.
            let newest = book.triggers.get(&TriggerId { job: *job, seq: folded.count });
            let asked = newest.and_then(|op| book.ops.get(op)?.debounce);
            let max_bytes = asked.map_or(shape.max_bytes, |debounce| debounce.max_bytes);
            let bounds = Shape { max_bytes, ..shape.clone() };
            let fits = shape.edge == Edge::Throttle || may_hold(&folded.fold, &bounds, payload);
            let message = format!("job {job} holds more than a window may");
            if fits { found.holds("P8") } else { found.broken("P8", [at], message) }
        }
        if !shape.closed {
            self.open.insert(*job);
        } else if self.open.remove(job) || book.jobs.get(job).is_some_and(|view| view.opened(at)) {
            self.closed.insert(task_key, (*job, *t, at));
        }
    }
}

impl Folded {
    /// Whether a change of the window may be missing before a start that covers this number of triggers, with an
    /// answer that was lost: the counts differ, and there is such an answer.
    fn may_lack(&self, book: &Book, job: JobId, count: u64, start: Timestamp) -> bool {
        let since = self.at.unwrap_or(Timestamp::MIN);
        book.lacks_change(job, (self.count, count), (since, start))
    }

    /// Whether the first trigger of the next window would have fitted into this one.
    fn has_room(&self, book: &Book, next: &Shape, into: JobId) -> Option<bool> {
        let op = book.ops.get(book.triggers.get(&TriggerId { job: into, seq: 1 })?)?;
        let fold = op.fold.as_ref()?;
        let joined = fold.join(self.payload.as_ref()?, op.payload.as_ref()?);
        let bounds = Shape { max_bytes: op.debounce?.max_bytes, ..next.clone() };
        Some(may_hold(fold, &bounds, &joined))
    }
}

/// The checker's own reading of the bounds.
fn may_hold(fold: &Fold, shape: &Shape, payload: &Payload) -> bool {
    let text = payload.as_str();
    let bytes = u64::from(shape.max_bytes.unwrap_or(WINDOW_BYTES));
    let fits = u64::try_from(text.len()).is_ok_and(|len| len <= bytes);
    match fold {
        Fold::Collect { cap } => {
            let elements: Vec<serde_json::Value> = serde_json::from_str(text).unwrap_or_default();
            fits && u64::try_from(elements.len()).is_ok_and(|count| count <= u64::from(*cap))
        }
        Fold::Merge | Fold::Accumulate { .. } => fits,
        _ => true,
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
    reported: &Fold,
    older: Option<JobId>,
) {
    let known = jobs.contains_key(&job);
    let mut folded = jobs.remove(&job).unwrap_or_default();
    if !known {
        folded.fold.clone_from(reported);
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
