//! A span of one task's record, small enough to draw.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;

use quell::{Key, QueueName, TaskName, Timestamp};

use super::Recent;
use super::lane::{Accepted, Lane, Run};

/// The most attempts of an answer; where there are more, they are counted by step.
const MOST_RUNS: usize = 400;
/// The most keys of an answer: those with the most triggers.
const MOST_KEYS: usize = 12;

/// What is looked at.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    /// From here.
    pub from: Timestamp,
    /// To here, excluded.
    pub to: Timestamp,
    /// In how many steps triggers are counted.
    pub steps: usize,
}

impl Span {
    /// Which step a moment is in.
    fn step(&self, at: Timestamp) -> Option<usize> {
        if at < self.from || at >= self.to {
            return None;
        }
        let (since, all) = (at.since(self.from).as_micros(), self.to.since(self.from).as_micros());
        let step = since.checked_mul(self.steps as u128)?.checked_div(all)?;
        usize::try_from(step).ok()
    }
}

/// Counts by step: those without any are left out.
type Ticks = Vec<(usize, u64)>;

/// An attempt with the name of its key.
#[derive(Clone, Debug)]
pub struct Bar {
    /// The attempt.
    pub run: Run,
    /// Its key, if it has one whose name is known.
    pub key: Option<Key>,
}

/// The triggers of one key.
#[derive(Clone, Debug)]
pub struct KeyTicks {
    /// The key.
    pub key: Key,
    /// How many triggers it had in the span.
    pub triggers: u64,
    /// By step.
    pub ticks: Ticks,
    /// Where all attempts are too many: its starts by step, and those of attempts that failed.
    pub starts: (Ticks, Ticks),
}

/// What happened in a span.
#[derive(Clone, Debug)]
pub struct Timeline {
    /// How many triggers were accepted.
    pub triggers: u64,
    /// By step.
    pub ticks: Ticks,
    /// The keys with the most triggers, unless one was asked for.
    pub keys: Vec<KeyTicks>,
    /// How many keys had triggers.
    pub distinct: usize,
    /// How many attempts overlap the span.
    pub runs: u64,
    /// The attempts, where there are few.
    pub bars: Vec<Bar>,
    /// Starts by step, where there are many; the same of attempts that failed.
    pub starts: (Ticks, Ticks),
    /// From when on the record has all triggers, and all attempts.
    pub complete: (Timestamp, Timestamp),
}

/// How many triggers or attempts are copied while callers wait.
const PORTION: usize = 1 << 15;

impl Recent {
    /// What a task did in a span, in the queues that are seen; of one key, if one is given. It reads all
    /// triggers of the span, and callers of the store wait for a portion of them at most.
    #[must_use]
    pub fn timeline(
        &self,
        task: &TaskName,
        sees: impl Fn(&QueueName) -> bool,
        key: Option<&Key>,
        span: Span,
    ) -> Timeline {
        let key = key.map(|key| self.hash_of(key));
        let lanes = self.lanes_of_task(task, sees);
        let complete = self.complete_of(&lanes);
        let (now, ticks) = (self.now(), vec![0; span.steps]);
        let mut drawn = Drawn {
            span,
            now,
            key,
            ticks,
            keys: HashMap::new(),
            steps: Vec::new(),
            triggers: 0,
            runs: Vec::new(),
        };
        for lane in lanes {
            in_portions(|next| self.some_runs(lane, next), |portion| drawn.runs_of(portion));
            in_portions(
                |next| self.some_triggers(lane, span, next),
                |some| drawn.triggers_of(some),
            );
        }
        Timeline { complete, ..drawn.finish(|hashes| self.names_of(hashes)) }
    }

    /// The newest triggers of a task in a span, at most `most`: the number of the key of each, if it has one,
    /// and when it was accepted. In the order of time, and whether older ones were left out.
    #[must_use]
    pub fn triggers(
        &self,
        task: &TaskName,
        sees: impl Fn(&QueueName) -> bool,
        span: Span,
        most: usize,
    ) -> (Vec<(Option<u64>, Timestamp)>, bool) {
        let (mut found, mut cut) = (Vec::new(), false);
        let mut keep_newest = |found: &mut Vec<(Option<u64>, Timestamp)>| {
            found.sort_by_key(|(_, at)| *at);
            let older = found.len().saturating_sub(most);
            cut |= older > 0;
            found.drain(..older);
        };
        for lane in self.lanes_of_task(task, sees) {
            let more = |next| self.some_triggers(lane, span, next);
            in_portions(more, |portion: &[Accepted]| {
                let one = |one: &Accepted| ((one.key != 0).then_some(one.key), one.at);
                found.extend(portion.iter().map(one));
                if found.len() > most.saturating_mul(2) {
                    keep_newest(&mut found);
                }
            });
        }
        keep_newest(&mut found);
        (found, cut)
    }

    /// From when on the record has all triggers of a task, and all its attempts.
    #[must_use]
    pub fn complete(&self, task: &TaskName) -> (Timestamp, Timestamp) {
        self.complete_of(&self.lanes_of_task(task, |_| true))
    }

    pub(super) fn complete_of(&self, lanes: &[usize]) -> (Timestamp, Timestamp) {
        let state = self.state();
        // What came to no lane, as there are too many, is not known.
        let of_none =
            if lanes.is_empty() { state.left_out.unwrap_or(state.since) } else { state.since };
        let later = |(a, b): (Timestamp, Timestamp), (c, d)| (a.max(c), b.max(d));
        let complete =
            lanes.iter().filter_map(|lane| state.lanes.get(*lane)).map(|lane| lane.complete);
        complete.fold((of_none, of_none), later)
    }

    pub(super) fn names_of(&self, hashes: &[u64]) -> HashMap<u64, Key> {
        let state = self.state();
        let name = |hash: &u64| Some((*hash, state.names.get(*hash)?.clone()));
        hashes.iter().filter_map(name).collect()
    }

    pub(super) fn lanes_of_task(
        &self,
        task: &TaskName,
        sees: impl Fn(&QueueName) -> bool,
    ) -> Vec<usize> {
        let state = self.state();
        let lanes = state.lanes.iter().enumerate();
        let is_wanted = |(_, lane): &(usize, &Lane)| lane.task == *task && sees(&lane.queue);
        lanes.filter(is_wanted).map(|(number, _)| number).collect()
    }

    /// Some triggers of a lane in a span, from a number on, and the number of the next one.
    pub(super) fn some_triggers(
        &self,
        lane: usize,
        span: Span,
        from: Option<u64>,
    ) -> Portion<Accepted> {
        let state = self.state();
        let Some(lane) = state.lanes.get(lane) else { return (Vec::new(), None) };
        let begin = lane.accepted.partition_point(|one| one.at < span.from);
        let end = lane.accepted.partition_point(|one| one.at < span.to);
        some(&lane.accepted, lane.forgotten, from, begin..end)
    }

    /// The same of its attempts, of all times.
    pub(super) fn some_runs(&self, lane: usize, from: Option<u64>) -> Portion<Run> {
        let state = self.state();
        let Some(lane) = state.lanes.get(lane) else { return (Vec::new(), None) };
        some(&lane.runs, lane.dropped, from, 0..lane.runs.len())
    }
}

/// A portion, and the number of what comes after it.
pub(super) type Portion<T> = (Vec<T>, Option<u64>);

/// Takes portions until there is no next one.
pub(super) fn in_portions<T>(more: impl Fn(Option<u64>) -> Portion<T>, mut take: impl FnMut(&[T])) {
    let mut next = None;
    loop {
        let (portion, after) = more(next);
        take(&portion);
        if after.is_none() {
            return;
        }
        next = after;
    }
}

/// A portion of a queue's range whose first `gone` elements were dropped.
fn some<T: Copy>(
    all: &VecDeque<T>,
    gone: u64,
    from: Option<u64>,
    range: Range<usize>,
) -> Portion<T> {
    let known = from.map(|from| usize::try_from(from.saturating_sub(gone)).unwrap_or(range.end));
    let begin = known.unwrap_or(range.start).min(range.end);
    let until = begin.saturating_add(PORTION).min(range.end);
    let after = (until < range.end).then(|| gone.saturating_add(until as u64));
    (all.range(begin..until).copied().collect(), after)
}

struct Drawn {
    span: Span,
    now: Timestamp,
    key: Option<u64>,
    ticks: Vec<u64>,
    keys: HashMap<u64, u64>,
    /// The triggers of all keys: the step and the key of each.
    steps: Vec<(u32, u64)>,
    triggers: u64,
    runs: Vec<Run>,
}

impl Drawn {
    fn triggers_of(&mut self, portion: &[Accepted]) {
        let wanted = self.key;
        for one in portion.iter().filter(|one| wanted.is_none_or(|key| key == one.key)) {
            let Some(step) = self.span.step(one.at) else { continue };
            if let Some(count) = self.ticks.get_mut(step) {
                *count += 1;
            }
            self.triggers += 1;
            if wanted.is_none() && one.key != 0 {
                *self.keys.entry(one.key).or_default() += 1;
                self.steps.push((u32::try_from(step).unwrap_or(u32::MAX), one.key));
            }
        }
    }

    fn runs_of(&mut self, portion: &[Run]) {
        let overlaps = |run: &Run| {
            run.opened < self.span.to && run.ended.is_none_or(|ended| ended >= self.span.from)
        };
        let is_wanted = |run: &&Run| self.key.is_none_or(|key| key == run.key);
        let known = portion.iter().filter(is_wanted).map(|run| run.at(self.now));
        self.runs.extend(known.filter(overlaps));
    }

    /// Sums up; `names_of` finds the names of a few keys.
    fn finish(mut self, names_of: impl FnOnce(&[u64]) -> HashMap<u64, Key>) -> Timeline {
        let distinct = self.keys.len();
        let mut most: Vec<(u64, u64)> = self.keys.drain().collect();
        most.sort_by_key(|(key, count)| (std::cmp::Reverse(*count), *key));
        most.truncate(MOST_KEYS);
        let mut by_key: HashMap<u64, Vec<u64>> =
            most.iter().map(|(key, _)| (*key, vec![0; self.span.steps])).collect();
        for (step, key) in &self.steps {
            let count = by_key.get_mut(key).and_then(|steps| steps.get_mut(*step as usize));
            if let Some(count) = count {
                *count += 1;
            }
        }
        self.runs.sort_by_key(|run| (run.started, run.job));
        let drawn: &[Run] = if self.runs.len() <= MOST_RUNS { &self.runs } else { &[] };
        let hashes = most.iter().map(|(hash, _)| *hash).chain(drawn.iter().map(|run| run.key));
        let names = names_of(&hashes.collect::<Vec<_>>());
        let is_drawn = !drawn.is_empty();
        let named = |(hash, triggers): &(u64, u64)| {
            let ticks = by_key.get(hash).map(|steps| sparse(steps)).unwrap_or_default();
            let starts =
                if is_drawn { Default::default() } else { self.starts(|run| run.key == *hash) };
            Some(KeyTicks { key: names.get(hash)?.clone(), triggers: *triggers, ticks, starts })
        };
        let bar = |run: &Run| Bar { run: *run, key: names.get(&run.key).cloned() };
        let starts = if is_drawn { Default::default() } else { self.starts(|_| true) };
        Timeline {
            triggers: self.triggers,
            ticks: sparse(&self.ticks),
            keys: most.iter().filter_map(named).collect(),
            distinct,
            runs: self.runs.len() as u64,
            bars: drawn.iter().map(bar).collect(),
            starts,
            complete: (Timestamp::MIN, Timestamp::MIN),
        }
    }

    /// Starts and failures by step, of these attempts.
    fn starts(&self, is_wanted: impl Fn(&Run) -> bool) -> (Ticks, Ticks) {
        let (mut starts, mut failures) = (vec![0; self.span.steps], vec![0; self.span.steps]);
        for run in self.runs.iter().filter(|run| is_wanted(run)) {
            let failed = run.outcome.is_some_and(super::noting::is_failure);
            for (counts, counted) in [(&mut starts, true), (&mut failures, failed)] {
                let count = self.span.step(run.started).and_then(|step| counts.get_mut(step));
                if let (Some(count), true) = (count, counted) {
                    *count += 1;
                }
            }
        }
        (sparse(&starts), sparse(&failures))
    }
}

fn sparse(counts: &[u64]) -> Ticks {
    counts.iter().copied().enumerate().filter(|(_, count)| *count > 0).collect()
}
