//! A worker's place before a queue: its lanes, what limits leave of them, and which jobs are next
//! (R30, R31).
//!
//! A lane is what a store reads in one order: the jobs of one queue, task, priority and partition
//! that may start. A store reads the heads of lanes and counts what is taken; the choice is made
//! here, once for all stores that keep rows.

use std::collections::{BTreeMap, BTreeSet};

use crate::limit::{PartitionUsed, Used};
use crate::{Key, NextDue, QueueSettings, Timestamp};

/// A lane and when its jobs are due.
#[derive(Clone, Debug)]
pub struct DueLane {
    /// The store's number for it.
    pub id: i64,
    /// The priority of its jobs.
    pub priority: i64,
    /// Their partition, if any.
    pub partition: Option<Key>,
    /// The first of all.
    pub first: Option<Timestamp>,
    /// The first that is not due yet.
    pub later: Option<Timestamp>,
}

/// The lanes of a queue that a worker may take from, and what its limits leave.
#[derive(Debug)]
pub struct Line {
    /// The store's time of the line.
    pub now: Timestamp,
    /// The earliest end of a lease.
    pub expiry: Option<Timestamp>,
    /// The queue's settings; as paused, where it was deleted.
    pub settings: QueueSettings,
    /// Of the tasks that were asked for, by priority.
    pub lanes: Vec<DueLane>,
    /// What is taken of the limits.
    pub taken: Taken,
}

impl Line {
    /// Whether something may start now.
    #[must_use]
    pub fn is_due(&self) -> bool {
        let starts = || self.next().due.is_some_and(|due| due <= self.now);
        self.settings.room(&self.taken.used) > 0 && starts()
    }

    /// R31: a job waits for its partition's limits, and for the queue's rate.
    #[must_use]
    pub fn next(&self) -> NextDue {
        let starts = self.lanes.iter().filter_map(|lane| {
            self.settings.partition_start(lane.first?, &self.partition_used(lane))
        });
        let due = starts.min().map(|due| due.max(self.taken.free_at));
        NextDue { now: self.now, due, expiry: self.expiry }
    }

    /// What is taken of the limits of a lane's partition; nothing where it has none.
    #[must_use]
    pub fn partition_used(&self, lane: &DueLane) -> PartitionUsed {
        let used = lane.partition.as_ref().and_then(|name| self.taken.partitions.get(name));
        used.copied().unwrap_or_default()
    }

    /// The partitions of its lanes.
    #[must_use]
    pub fn partitions(&self) -> Vec<&Key> {
        let mut names: Vec<&Key> =
            self.lanes.iter().filter_map(|lane| lane.partition.as_ref()).collect();
        names.sort_unstable();
        names.dedup();
        names
    }
}

/// How much of a queue's limits is taken.
#[derive(Debug)]
pub struct Taken {
    /// Of the queue's own.
    pub used: Used,
    /// When the queue's rate lets the next one start.
    pub free_at: Timestamp,
    /// Of the partitions of the lanes that were looked at; others have nothing taken.
    pub partitions: BTreeMap<Key, PartitionUsed>,
}

impl Default for Taken {
    /// Nothing is taken.
    fn default() -> Self {
        let (used, partitions) = (Used::default(), BTreeMap::new());
        Taken { used, free_at: Timestamp::MIN, partitions }
    }
}

impl Taken {
    /// Counts a start that is not written yet.
    pub fn start(&mut self, partition: Option<&Key>) {
        if let Some(partition) = partition {
            let used = self.partitions.entry(partition.clone()).or_default();
            used.running = used.running.saturating_add(1);
            used.recent = used.recent.saturating_add(1);
        }
    }
}

/// A job's place in line: when it was due, its number, its lane.
pub type Place = (Timestamp, i64, i64);

/// Of lanes that share a priority, those that may hold some of the next jobs.
#[derive(Debug, Default)]
pub struct Candidates {
    /// Each with how many of it may start at most.
    pub lanes: Vec<(i64, usize)>,
    /// The partitions of those that have one.
    pub partitions: BTreeMap<i64, Key>,
    /// How many of each partition may start.
    rooms: BTreeMap<Key, usize>,
}

impl Candidates {
    /// Takes lanes by their first jobs, until these alone, one of each partition, make `left`.
    #[must_use]
    pub fn of(line: &Line, lanes: &[DueLane], left: usize) -> Candidates {
        let mut due: Vec<(Timestamp, &DueLane, usize)> = Vec::new();
        for lane in lanes {
            let Some(first) = lane.first.filter(|first| *first <= line.now) else { continue };
            let room = match &lane.partition {
                None => left,
                Some(_) => line.settings.partition_room(&line.partition_used(lane)).min(left),
            };
            if room > 0 {
                due.push((first, lane, room));
            }
        }
        due.sort_unstable_by_key(|(first, lane, _)| (*first, lane.id));
        let (mut candidates, mut last, mut met) = (Candidates::default(), None, 0_usize);
        for (first, lane, room) in due {
            // Among lanes whose first jobs are due at one moment, ids decide.
            if last.is_some_and(|last| last < first) {
                break;
            }
            candidates.lanes.push((lane.id, room));
            let is_new = lane.partition.as_ref().is_none_or(|partition| {
                candidates.partitions.insert(lane.id, partition.clone());
                candidates.rooms.insert(partition.clone(), room).is_none()
            });
            met = met.saturating_add(usize::from(is_new));
            if met >= left {
                last = last.or(Some(first));
            }
        }
        candidates
    }

    /// The first `left` of these places, at most `depth` of each lane, and when the
    /// next of each lane is due; none where a lane may hold more that belong to them.
    #[must_use]
    pub fn merge(
        &self,
        places: &[Place],
        left: usize,
        depth: usize,
    ) -> Option<(Vec<i64>, BTreeMap<i64, Timestamp>)> {
        let (mut chosen, mut next) = (Vec::with_capacity(left), BTreeMap::new());
        let (mut rooms, mut seen) = (self.rooms.clone(), BTreeMap::<i64, usize>::new());
        for (due, id, lane) in places {
            let room = self.partitions.get(lane).and_then(|partition| rooms.get_mut(partition));
            let is_open = room.as_ref().is_none_or(|room| **room > 0);
            if chosen.len() == left || !is_open {
                next.entry(*lane).or_insert(*due);
                continue;
            }
            let seen = seen.entry(*lane).or_default();
            *seen = seen.saturating_add(1);
            if *seen == depth {
                return None;
            }
            if let Some(room) = room {
                *room = room.saturating_sub(1);
            }
            chosen.push(*id);
        }
        Some((chosen, next))
    }

    /// Notes when the next job of each lane is due.
    pub fn note_next(&self, lanes: &mut [DueLane], next: impl Fn(i64) -> Option<Timestamp>) {
        let mine: BTreeSet<i64> = self.lanes.iter().map(|(lane, _)| *lane).collect();
        for lane in lanes.iter_mut().filter(|lane| mine.contains(&lane.id)) {
            lane.first = next(lane.id).or(lane.later);
        }
    }
}
