//! How long attempts of a task take, and which of its keys are triggered most.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::time::Duration;

use quell::{Key, QueueName, TaskName, Timestamp};

use super::lane::{Accepted, Run};
use super::noting::is_failure;
use super::series::Tally;
use super::timeline::in_portions;
use super::{Recent, Span};

/// The most keys that are named.
const MOST_KEYS: usize = 10;

/// Attempts that took at least as long as those of the group before, and less than `below`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Took {
    /// A power of two of milliseconds.
    pub below: Duration,
    /// How many attempts ended.
    pub attempts: u64,
    /// How many of them failed.
    pub failed: u64,
}

/// A key and its numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyHabit {
    /// The key.
    pub key: Key,
    /// Its triggers.
    pub triggers: u64,
    /// Its attempts.
    pub attempts: u64,
}

/// What is typical of a task, by all that the record has of it.
#[derive(Clone, Debug)]
pub struct Habits {
    /// The last hour, and the last week.
    pub hour: Tally,
    /// The last week.
    pub week: Tally,
    /// Attempts that ended, by how long they took: from the shortest group to the longest that has any.
    pub took: Vec<Took>,
    /// How long half of them took at most, how long 99 in 100, and the longest.
    pub longest: Option<[Duration; 3]>,
    /// How many triggers the keys are counted from.
    pub triggers: u64,
    /// How many different keys they have, and how many of those came once.
    pub keys: (usize, usize),
    /// The keys with the most triggers.
    pub most: Vec<KeyHabit>,
    /// From when on the record has all triggers, and all attempts.
    pub complete: (Timestamp, Timestamp),
}

impl Recent {
    /// What is typical of a task in the queues that are seen. It reads all that the record has of the task, and
    /// callers of the store wait for a portion of it at most.
    #[must_use]
    pub fn habits(&self, task: &TaskName, sees: impl Fn(&QueueName) -> bool) -> Habits {
        let lanes = self.lanes_of_task(task, sees);
        let complete = self.complete_of(&lanes);
        let (mut hour, mut week) = (Tally::default(), Tally::default());
        let mut keys: HashMap<u64, (u64, u64)> = HashMap::new();
        let (mut lengths, mut triggers) = (Vec::new(), 0_u64);
        let always = Span { from: Timestamp::MIN, to: Timestamp::MAX, steps: 1 };
        let now = self.now();
        for lane in lanes {
            if let Some(activity) = self.activity(lane) {
                hour.add(&activity.hour);
                week.add(&activity.week);
            }
            in_portions(
                |next| self.some_triggers(lane, always, next),
                |portion: &[Accepted]| {
                    triggers = triggers.saturating_add(portion.len() as u64);
                    for one in portion.iter().filter(|one| one.key != 0) {
                        keys.entry(one.key).or_default().0 += 1;
                    }
                },
            );
            in_portions(
                |next| self.some_runs(lane, next),
                |portion: &[Run]| {
                    for run in portion.iter().map(|run| run.at(now)) {
                        if let Some((_, attempts)) = keys.get_mut(&run.key) {
                            *attempts += 1;
                        }
                        lengths.extend(length(&run));
                    }
                },
            );
        }
        let single = keys.values().filter(|(triggers, _)| *triggers == 1).count();
        Habits {
            hour,
            week,
            took: groups(&lengths),
            longest: longest(&mut lengths),
            triggers,
            keys: (keys.len(), single),
            most: self.most(keys),
            complete,
        }
    }

    fn most(&self, keys: HashMap<u64, (u64, u64)>) -> Vec<KeyHabit> {
        let mut all: Vec<(u64, (u64, u64))> = keys.into_iter().collect();
        all.sort_unstable_by_key(|(key, (triggers, _))| (Reverse(*triggers), *key));
        all.truncate(MOST_KEYS);
        let names = self.names_of(&all.iter().map(|(key, _)| *key).collect::<Vec<_>>());
        let named = |(key, (triggers, attempts)): (u64, (u64, u64))| {
            Some(KeyHabit { key: names.get(&key)?.clone(), triggers, attempts })
        };
        all.into_iter().filter_map(named).collect()
    }
}

/// How long an attempt took whose end is known, and whether it failed.
fn length(run: &Run) -> Option<(Duration, bool)> {
    let outcome = run.outcome?;
    Some((run.ended?.since(run.started), is_failure(outcome)))
}

/// The attempts by powers of two of milliseconds.
fn groups(lengths: &[(Duration, bool)]) -> Vec<Took> {
    let group = |took: Duration| u128::BITS - took.as_millis().leading_zeros();
    let mut groups: HashMap<u32, (u64, u64)> = HashMap::new();
    for (took, failed) in lengths {
        let (attempts, failures) = groups.entry(group(*took)).or_default();
        *attempts += 1;
        *failures += u64::from(*failed);
    }
    let (first, last) = (groups.keys().min().copied(), groups.keys().max().copied());
    let Some((first, last)) = first.zip(last) else { return Vec::new() };
    let of = |group| {
        let (attempts, failed) = groups.get(&group).copied().unwrap_or_default();
        let below = Duration::from_millis(1_u64.checked_shl(group).unwrap_or(u64::MAX));
        Took { below, attempts, failed }
    };
    (first..=last).map(of).collect()
}

fn longest(lengths: &mut [(Duration, bool)]) -> Option<[Duration; 3]> {
    lengths.sort_unstable();
    // By nearest rank.
    let at = |percent: usize| {
        let rank = lengths.len().saturating_mul(percent).div_ceil(100);
        lengths.get(rank.checked_sub(1)?).map(|(took, _)| *took)
    };
    Some([at(50)?, at(99)?, at(100)?])
}
