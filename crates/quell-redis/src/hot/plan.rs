//! Which batches of a call one script takes, in which order, and which of their triggers fold into
//! one before that (R6, R7).

use std::collections::{HashMap, HashSet};

use quell_core::edge::Edge;
use quell_core::trace::Traces;
use quell_core::trigger::Keyed;
use quell_core::{Batch, Fold, Key, NewTrigger, TaskName, When};

use quell_engine::Part;

use super::{exact, exact_moment};
use crate::known::{Known, Lane};

/// Triggers that one script takes, unless one batch has more.
const MOST_TRIGGERS: usize = 1_000;

/// Parts of a call that are taken in their order. Of more, those that one script takes come first:
/// a few triggers of another kind must not slow down the calls of others.
const MOST_PARTS: usize = 4;

/// The parts of a call, in the order in which they are taken.
pub(crate) fn parts(known: &Known, batches: &[Batch]) -> Vec<Part> {
    let hot: Vec<bool> = batches.iter().map(|batch| is_common(known, batch)).collect();
    let mut parts: Vec<Part> = Vec::new();
    for (place, is_hot) in hot.iter().copied().enumerate() {
        match parts.last_mut() {
            Some(part) if part.is_hot == is_hot => part.batches.push(place),
            _ => parts.push(Part { is_hot, batches: vec![place] }),
        }
    }
    if parts.len() > MOST_PARTS { in_two(batches, &hot) } else { parts }
}

/// The common batches, and then the others with those that meet a key after one of them.
fn in_two(batches: &[Batch], hot: &[bool]) -> Vec<Part> {
    let mut met = HashSet::new();
    let (mut first, mut others) = (Vec::new(), Vec::new());
    for (place, (batch, is_hot)) in batches.iter().zip(hot).enumerate() {
        let keys = keys_of(batch);
        if *is_hot && !keys.iter().any(|key| met.contains(key)) {
            first.push(place);
        } else {
            met.extend(keys);
            others.push(place);
        }
    }
    vec![Part { is_hot: true, batches: first }, Part { is_hot: false, batches: others }]
}

/// The keys whose windows the triggers of a batch may join.
fn keys_of(batch: &Batch) -> Vec<(&TaskName, &Key)> {
    batch.triggers.iter().filter_map(task_key).collect()
}

fn task_key(trigger: &NewTrigger) -> Option<(&TaskName, &Key)> {
    trigger.keyed.as_ref().map(|keyed| (&trigger.task, &keyed.key))
}

fn is_common(known: &Known, batch: &Batch) -> bool {
    let is_common = |trigger: &NewTrigger| {
        trigger.dedup.is_none()
            && trigger.idempotency.is_none()
            && trigger
                .keyed
                .as_ref()
                .map_or_else(|| is_alone(trigger), |keyed| folds(trigger, keyed))
            && known.lane_number(&lane_of(trigger)).is_some()
            && known.queues.contains_key(&trigger.queue)
            && known.tasks.contains_key(&trigger.task)
    };
    batch.dedup.is_none() && batch.triggers.iter().all(is_common)
}

/// Whether its job keeps its payload as it is, and its delay, if it has one, is one that scripts can
/// compute.
fn is_alone(trigger: &NewTrigger) -> bool {
    let is_exact = match trigger.when {
        When::Now => true,
        When::After(delay) => exact(delay).is_some(),
        When::At(at) => exact_moment(at).is_some(),
    };
    trigger.is_bare() && is_exact
}

/// Whether it is of the common debounced kind.
fn folds(trigger: &NewTrigger, keyed: &Keyed) -> bool {
    let debounce = &keyed.debounce;
    trigger.when == When::Now
        && trigger.fold == Fold::Last
        && debounce.edge == Edge::Trailing
        && debounce.max_triggers.is_none()
        && !debounce.overlap
        && exact(debounce.thresholds.max()).is_some()
}

/// The lane of a trigger's job.
pub(super) fn lane_of(trigger: &NewTrigger) -> Lane {
    let (queue, task) = (trigger.queue.clone(), trigger.task.clone());
    Lane { queue, task, priority: trigger.priority }
}

/// The triggers of one key, or one trigger without a key.
#[derive(Debug)]
pub(super) struct Burst<'b> {
    /// The last of them, whose payload stays.
    pub(super) last: &'b NewTrigger,
    /// Where they are: the batch's place in the call, and their own in the batch.
    pub(super) members: Vec<(usize, usize)>,
    pub(super) traces: Traces,
}

/// What one script takes.
#[derive(Debug, Default)]
pub(super) struct Gathered<'b> {
    pub(super) bursts: Vec<Burst<'b>>,
    /// How many of the batches.
    pub(super) batches: usize,
    /// Whether it takes all of them or none, because a batch is more than one keyed trigger.
    pub(super) is_whole: bool,
}

impl<'b> Gathered<'b> {
    /// As many of these batches as one script takes, from the first on; none where the first has
    /// triggers of one key that do not fold.
    pub(super) fn of(batches: &'b [Batch], places: &[usize]) -> Self {
        let mut gathered = Gathered::default();
        let mut by_key: HashMap<(&TaskName, &Key), usize> = HashMap::new();
        let mut triggers = 0_usize;
        for place in places {
            let Some(batch) = batches.get(*place) else { break };
            triggers = triggers.saturating_add(batch.triggers.len());
            let is_full = triggers > MOST_TRIGGERS && gathered.batches > 0;
            if is_full || !gathered.takes(&by_key, batch) {
                break;
            }
            for (own, trigger) in batch.triggers.iter().enumerate() {
                gathered.add(&mut by_key, trigger, (*place, own));
            }
            gathered.batches = gathered.batches.saturating_add(1);
            let is_keyed = batch.triggers.iter().any(|trigger| trigger.keyed.is_some());
            gathered.is_whole |= is_keyed && batch.triggers.len() > 1;
        }
        gathered
    }

    /// Whether the batch's triggers fold with those of their keys that are there, and with each
    /// other.
    fn takes(&self, by_key: &HashMap<(&TaskName, &Key), usize>, batch: &Batch) -> bool {
        let mut own: HashMap<(&TaskName, &Key), &NewTrigger> = HashMap::new();
        batch.triggers.iter().all(|trigger| {
            let Some(key) = task_key(trigger) else { return true };
            let there = by_key.get(&key).and_then(|burst| self.bursts.get(*burst));
            let other = own.insert(key, trigger).or(there.map(|burst| burst.last));
            other.is_none_or(|other| {
                let rule =
                    |trigger: &'_ NewTrigger| trigger.keyed.as_ref().map(|keyed| keyed.debounce);
                rule(other) == rule(trigger)
                    && lane_of(other) == lane_of(trigger)
                    && other.partition == trigger.partition
            })
        })
    }

    fn add(
        &mut self,
        by_key: &mut HashMap<(&'b TaskName, &'b Key), usize>,
        trigger: &'b NewTrigger,
        member: (usize, usize),
    ) {
        let next = self.bursts.len();
        let place = task_key(trigger).map_or(next, |key| *by_key.entry(key).or_insert(next));
        let traces = trigger.trace.iter();
        match self.bursts.get_mut(place) {
            Some(burst) => {
                burst.last = trigger;
                burst.members.push(member);
                traces.for_each(|context| burst.traces.push(context));
            }
            None => {
                let (members, traces) = (vec![member], traces.collect());
                self.bursts.push(Burst { last: trigger, members, traces });
            }
        }
    }
}
