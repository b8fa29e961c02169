//! A span of one task's record, small enough to draw.

use std::collections::HashMap;

use quell::{Key, QueueName, TaskName, Timestamp};

use super::lane::{Accepted, Lane, Run};
use super::{Recent, State};

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
}

/// What happened in a span.
#[derive(Clone, Debug, Default)]
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
    /// From when on the record has all triggers, and all attempts; none where it has nothing of the task.
    pub complete: Option<(Timestamp, Timestamp)>,
}

/// How many triggers are copied while callers wait.
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
        let mut drawn = Drawn { span, key, ticks: vec![0; span.steps], ..Drawn::default() };
        let lanes = self.lanes_of_task(task, sees);
        {
            let state = self.state();
            lanes
                .iter()
                .filter_map(|lane| state.lanes.get(*lane))
                .for_each(|lane| drawn.runs_of(lane));
        }
        for number in lanes {
            let mut next = None;
            loop {
                let (portion, after) = self.portion(number, span, next);
                drawn.triggers_of(&portion);
                next = after;
                if next.is_none() {
                    break;
                }
            }
        }
        drawn.finish(&self.state())
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
        let lanes: Vec<usize> = self.lanes_of_task(task, sees);
        let mut found = Vec::new();
        for lane in lanes {
            let mut next = None;
            loop {
                let (portion, after) = self.portion(lane, span, next);
                found.extend(portion.iter().map(|one| ((one.key != 0).then_some(one.key), one.at)));
                next = after;
                if next.is_none() {
                    break;
                }
            }
        }
        found.sort_by_key(|(_, at)| *at);
        let older = found.len().saturating_sub(most);
        found.drain(..older);
        (found, older > 0)
    }

    /// From when on the record has all triggers of a task that were accepted here.
    #[must_use]
    pub fn complete(&self, task: &TaskName) -> Timestamp {
        let state = self.state();
        let lanes = state.lanes.iter().filter(|lane| lane.task == *task);
        lanes.map(|lane| lane.complete.0).max().unwrap_or(state.since)
    }

    fn lanes_of_task(&self, task: &TaskName, sees: impl Fn(&QueueName) -> bool) -> Vec<usize> {
        let state = self.state();
        let lanes = state.lanes.iter().enumerate();
        let is_wanted = |(_, lane): &(usize, &Lane)| lane.task == *task && sees(&lane.queue);
        lanes.filter(is_wanted).map(|(number, _)| number).collect()
    }

    /// Some triggers of a lane in a span, from a number on, and the number of the next one.
    fn portion(&self, lane: usize, span: Span, from: Option<u64>) -> (Vec<Accepted>, Option<u64>) {
        let state = self.state();
        let Some(lane) = state.lanes.get(lane) else { return (Vec::new(), None) };
        let begin = lane.accepted.partition_point(|one| one.at < span.from);
        let end = lane.accepted.partition_point(|one| one.at < span.to);
        let known = from.map(|from| from.saturating_sub(lane.forgotten));
        let begin = known.map_or(begin, |known| usize::try_from(known).unwrap_or(end)).min(end);
        let until = begin.saturating_add(PORTION).min(end);
        let after = (until < end).then(|| lane.forgotten.saturating_add(until as u64));
        (lane.accepted.range(begin..until).copied().collect(), after)
    }
}

impl Default for Span {
    fn default() -> Self {
        Span { from: Timestamp::MIN, to: Timestamp::MIN, steps: 0 }
    }
}

#[derive(Default)]
struct Drawn {
    span: Span,
    key: Option<u64>,
    ticks: Vec<u64>,
    keys: HashMap<u64, u64>,
    /// The triggers of all keys: the step and the key of each.
    steps: Vec<(u32, u64)>,
    triggers: u64,
    runs: Vec<Run>,
    complete: Option<(Timestamp, Timestamp)>,
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

    fn runs_of(&mut self, lane: &Lane) {
        let overlaps = |run: &&Run| {
            run.opened < self.span.to && run.ended.is_none_or(|ended| ended >= self.span.from)
        };
        let is_wanted = |run: &&Run| self.key.is_none_or(|key| key == run.key);
        self.runs.extend(lane.runs.iter().filter(is_wanted).filter(overlaps).copied());
        let (triggers, runs) = lane.complete;
        let (known_triggers, known_runs) = self.complete.unwrap_or(lane.complete);
        self.complete = Some((known_triggers.max(triggers), known_runs.max(runs)));
    }

    fn finish(mut self, state: &State) -> Timeline {
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
        let named = |(hash, triggers): (u64, u64)| {
            let ticks = by_key.get(&hash).map(|steps| sparse(steps)).unwrap_or_default();
            Some(KeyTicks { key: state.names.get(hash)?.clone(), triggers, ticks })
        };
        let keys = most.into_iter().filter_map(named).collect();
        self.runs.sort_by_key(|run| (run.started, run.job));
        let mut timeline = Timeline {
            triggers: self.triggers,
            ticks: sparse(&self.ticks),
            keys,
            distinct,
            runs: self.runs.len() as u64,
            complete: self.complete,
            ..Timeline::default()
        };
        if self.runs.len() <= MOST_RUNS {
            let bar = |run: &Run| Bar { run: *run, key: state.names.get(run.key).cloned() };
            timeline.bars = self.runs.iter().map(bar).collect();
        } else {
            timeline.starts = self.starts();
        }
        timeline
    }

    /// Starts and failures by step.
    fn starts(&self) -> (Ticks, Ticks) {
        let (mut starts, mut failures) = (vec![0; self.span.steps], vec![0; self.span.steps]);
        for run in &self.runs {
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
