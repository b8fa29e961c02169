//! What waits and runs in the partitions of a queue (R31), for people.
//!
//! A look reads at most as many waiting jobs as it was asked to, however long the backlog is. They are
//! spread over the queue's lines, each of a task and a priority, so that none hides another: what a short
//! line leaves of its share goes to the long ones. See [`Spread`].

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::setters::setters;
use crate::{Key, QueueName, Timestamp};

/// Whose backlog to look at, and how much of it.
///
/// ```
/// use quell_core::{BacklogOf, QueueName};
///
/// let of = BacklogOf::new(QueueName::new("mail")?).partitions(3);
/// assert_eq!((of.most_partitions(), of.most_entries()), (3, BacklogOf::MOST_ENTRIES));
/// # Ok::<(), quell_core::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BacklogOf {
    /// The queue.
    pub queue: QueueName,
    /// At most this many partitions; 0 means [`BacklogOf::PARTITIONS`].
    #[serde(default)]
    pub partitions: usize,
    /// From at most this many waiting jobs; 0 means [`BacklogOf::MOST_ENTRIES`], which is the most.
    #[serde(default)]
    pub entries: usize,
}

impl BacklogOf {
    /// How many partitions where no number is asked for.
    pub const PARTITIONS: usize = 50;
    /// The most waiting jobs that are looked at.
    pub const MOST_ENTRIES: usize = 10_000;

    /// All that one look says of a queue.
    #[must_use]
    pub fn new(queue: QueueName) -> Self {
        BacklogOf { queue, partitions: 0, entries: 0 }
    }

    /// How many partitions are meant.
    #[must_use]
    pub fn most_partitions(&self) -> usize {
        let asked = if self.partitions == 0 { Self::PARTITIONS } else { self.partitions };
        asked.min(Self::MOST_ENTRIES)
    }

    /// How many waiting jobs are looked at.
    #[must_use]
    pub fn most_entries(&self) -> usize {
        let asked = if self.entries == 0 { Self::MOST_ENTRIES } else { self.entries };
        asked.min(Self::MOST_ENTRIES)
    }
}

setters!(BacklogOf { partitions: usize, entries: usize });

/// What waits in a partition.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Waiting {
    /// Jobs that are due. Some may wait for an attempt of their key, too (R11).
    pub due: u64,
    /// Jobs that are not due yet.
    pub later: u64,
    /// When the first of them is due, or was.
    pub first_due: Option<Timestamp>,
}

impl Waiting {
    /// Counts a job that is due at this time.
    pub fn count(&mut self, due_at: Timestamp, now: Timestamp) {
        let is_due = due_at <= now;
        let one =
            Waiting { due: u64::from(is_due), later: u64::from(!is_due), first_due: Some(due_at) };
        self.add(one);
    }

    /// Adds others.
    pub fn add(&mut self, others: Waiting) {
        self.due = self.due.saturating_add(others.due);
        self.later = self.later.saturating_add(others.later);
        self.first_due = self.first_due.into_iter().chain(others.first_due).min();
    }

    /// How many there are.
    #[must_use]
    pub fn jobs(&self) -> u64 {
        self.due.saturating_add(self.later)
    }
}

/// A partition of a queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartitionBacklog {
    /// Its name; none for the jobs without a partition.
    pub partition: Option<Key>,
    /// What waits in it.
    pub waiting: Waiting,
    /// How many attempts run in it.
    pub running: u64,
}

/// The partitions of a queue, that with the most waiting jobs first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Backlog {
    /// The store's time.
    pub now: Timestamp,
    /// Those with the most waiting jobs, then those in which most runs.
    pub partitions: Vec<PartitionBacklog>,
    /// Whether all waiting jobs and all partitions are in it. Otherwise there may be more of each.
    pub is_whole: bool,
}

impl Backlog {
    /// What waits and what runs, by partition.
    #[must_use]
    pub fn new(
        now: Timestamp,
        of: &BacklogOf,
        (waiting, is_whole): (Partitions, bool),
        running: BTreeMap<Option<Key>, u64>,
    ) -> Self {
        let mut all: BTreeMap<Option<Key>, PartitionBacklog> = BTreeMap::new();
        let empty = |partition: &Option<Key>| PartitionBacklog {
            partition: partition.clone(),
            waiting: Waiting::default(),
            running: 0,
        };
        for (partition, waiting) in waiting {
            all.entry(partition).or_insert_with_key(empty).waiting = waiting;
        }
        for (partition, running) in running {
            all.entry(partition).or_insert_with_key(empty).running = running;
        }
        Backlog::of_all(now, of, all.into_values(), is_whole)
    }

    /// The same of several parts of one store, such as shards.
    #[must_use]
    pub fn merged(of: &BacklogOf, parts: impl IntoIterator<Item = Backlog>) -> Self {
        let (mut now, mut is_whole) = (Timestamp::MIN, true);
        let mut all: BTreeMap<Option<Key>, PartitionBacklog> = BTreeMap::new();
        for part in parts {
            now = now.max(part.now);
            is_whole &= part.is_whole;
            for one in part.partitions {
                match all.get_mut(&one.partition) {
                    Some(known) => {
                        known.waiting.add(one.waiting);
                        known.running = known.running.saturating_add(one.running);
                    }
                    None => drop(all.insert(one.partition.clone(), one)),
                }
            }
        }
        Backlog::of_all(now, of, all.into_values(), is_whole)
    }

    fn of_all(
        now: Timestamp,
        of: &BacklogOf,
        all: impl Iterator<Item = PartitionBacklog>,
        is_whole: bool,
    ) -> Self {
        let used = |one: &PartitionBacklog| one.waiting.jobs() > 0 || one.running > 0;
        let mut partitions: Vec<PartitionBacklog> = all.filter(used).collect();
        // By name where they are alike: the sort is stable.
        partitions.sort_by_key(|one| std::cmp::Reverse((one.waiting.jobs(), one.running)));
        let is_whole = is_whole && partitions.len() <= of.most_partitions();
        partitions.truncate(of.most_partitions());
        Backlog { now, partitions, is_whole }
    }
}

/// What waits, by partition.
pub type Partitions = BTreeMap<Option<Key>, Waiting>;

/// What was seen of one line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// What waits in it, by partition.
    pub waiting: Partitions,
    /// Whether it has more than the limit allowed to look at.
    pub is_cut: bool,
}

impl Seen {
    /// Counts a job of a partition that is due at this time.
    pub fn count(&mut self, partition: Option<&Key>, due_at: Timestamp, now: Timestamp) {
        self.waiting.entry(partition.cloned()).or_default().count(due_at, now);
    }
}

/// How often the lines that were not read to their end are read again, with a larger share.
const ROUNDS: usize = 4;

/// Spreads a bounded look over the lines of a queue. A caller reads the lines that [`Spread::next_lines`] names,
/// each from its beginning and up to the limit, and passes what it saw to [`Spread::add`].
#[derive(Clone, Debug)]
pub struct Spread<L> {
    left: usize,
    limit: usize,
    rounds: usize,
    /// Lines that have more, with what was seen of them last.
    open: Vec<(L, Seen)>,
    waiting: Partitions,
    is_whole: bool,
}

impl<L: Clone> Spread<L> {
    /// Over these lines; `is_whole` is false where there are more.
    #[must_use]
    pub fn new(of: &BacklogOf, lines: impl IntoIterator<Item = L>, is_whole: bool) -> Self {
        let left = of.most_entries();
        let mut open: Vec<(L, Seen)> =
            lines.into_iter().map(|line| (line, Seen::default())).collect();
        let is_whole = is_whole && open.len() <= left;
        open.truncate(left);
        Spread { left, limit: 0, rounds: 0, open, waiting: Partitions::new(), is_whole }
    }

    /// The lines to read next, and how many jobs of each; none where nothing more is to be read.
    #[must_use]
    pub fn next_lines(&mut self) -> Option<(Vec<L>, usize)> {
        let share = self.left.checked_div(self.open.len())?;
        if share <= self.limit || self.rounds >= ROUNDS {
            return None;
        }
        (self.limit, self.rounds) = (share, self.rounds.saturating_add(1));
        Some((self.open.iter().map(|(line, _)| line.clone()).collect(), share))
    }

    /// Takes what was seen of those lines, in their order.
    pub fn add(&mut self, seen: impl IntoIterator<Item = Seen>) {
        let lines = std::mem::take(&mut self.open).into_iter().map(|(line, _)| line);
        for (line, seen) in lines.zip(seen) {
            if seen.is_cut {
                self.open.push((line, seen));
            } else {
                self.take(seen);
            }
        }
    }

    fn take(&mut self, seen: Seen) {
        for (partition, waiting) in seen.waiting {
            let jobs = usize::try_from(waiting.jobs()).unwrap_or(usize::MAX);
            self.left = self.left.saturating_sub(jobs);
            self.waiting.entry(partition).or_default().add(waiting);
        }
    }

    /// What waits, by partition, and whether that is all.
    #[must_use]
    pub fn end(mut self) -> (Partitions, bool) {
        let is_whole = self.is_whole && self.open.is_empty();
        for (_, seen) in std::mem::take(&mut self.open) {
            self.take(seen);
        }
        (self.waiting, is_whole)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(text: &str) -> Key {
        Key::new(text).unwrap()
    }

    /// Lines of these numbers of jobs, each with a partition of its own.
    fn looked(entries: usize, lines: &[usize]) -> (Vec<u64>, bool, usize) {
        let of = BacklogOf::new(QueueName::new("q").unwrap()).entries(entries);
        let mut spread = Spread::new(&of, 0..lines.len(), true);
        let mut rounds = 0;
        while let Some((asked, limit)) = spread.next_lines() {
            rounds += 1;
            let seen = asked.into_iter().map(|line| {
                let (mut seen, jobs) = (Seen::default(), lines[line]);
                seen.is_cut = jobs > limit;
                for _ in 0..jobs.min(limit) {
                    let due = Timestamp::from_secs(1);
                    seen.count(Some(&key(&line.to_string())), due, due);
                }
                seen
            });
            let seen: Vec<Seen> = seen.collect();
            spread.add(seen);
        }
        let (waiting, is_whole) = spread.end();
        let count = |line| waiting.get(&Some(key(&format!("{line}")))).map_or(0, Waiting::jobs);
        ((0..lines.len()).map(count).collect(), is_whole, rounds)
    }

    #[test]
    fn r31_short_lines_leave_their_share_to_the_long_ones() {
        assert_eq!(looked(100, &[5, 60, 10]), (vec![5, 60, 10], true, 2));
        assert_eq!(looked(100, &[5, 5_000, 10]), (vec![5, 85, 10], false, 2));
        assert_eq!(looked(100, &[5_000, 5_000]), (vec![50, 50], false, 1));
        assert_eq!(looked(100, &[100]), (vec![100], true, 1));
        assert_eq!(looked(100, &[101]), (vec![100], false, 1));
        assert_eq!(looked(2, &[1, 1, 1]), (vec![1, 1, 0], false, 1));
        assert_eq!(looked(100, &[]), (vec![], true, 0));
    }

    #[test]
    fn r31_partitions_come_by_what_waits_and_parts_are_added_up() {
        let of = BacklogOf::new(QueueName::new("q").unwrap()).partitions(2);
        let part = |second, jobs: &[(&str, u64)], running: &[(&str, u64)]| {
            let waits = |(name, due): &(&str, u64)| {
                let waiting = Waiting { due: *due, ..Waiting::default() };
                (Some(key(name)), waiting)
            };
            let runs = running.iter().map(|(name, jobs)| (Some(key(name)), *jobs)).collect();
            let waiting = jobs.iter().map(waits).collect();
            let all = BacklogOf { partitions: 9, ..of.clone() };
            Backlog::new(Timestamp::from_secs(second), &all, (waiting, true), runs)
        };
        let merged = Backlog::merged(
            &of,
            [part(1, &[("a", 3), ("b", 4)], &[]), part(2, &[("a", 2)], &[("a", 1), ("c", 9)])],
        );
        let shown = |one: &PartitionBacklog| {
            let name = one.partition.as_ref().map(|name| name.as_str().to_owned());
            (name.unwrap_or_default(), one.waiting.due, one.running)
        };
        let shown: Vec<_> = merged.partitions.iter().map(shown).collect();
        assert_eq!(shown, [("a".to_owned(), 5, 1), ("b".to_owned(), 4, 0)]);
        assert_eq!((merged.now, merged.is_whole), (Timestamp::from_secs(2), false));
    }
}
