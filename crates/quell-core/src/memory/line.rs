//! Who comes next: the jobs that may start, seen through the limits (R30, R31, R34).
//!
//! Each task has a line in each queue for every partition, and one for jobs without a partition;
//! only the heads of lines are looked at, so a full partition costs one look.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::ops::Bound;

use super::indexes::{Lane, Ready};
use super::state::State;
use crate::turn::Turn;
use crate::{Job, JobId, Key, NextDue, QueueName, TaskName, Timestamp};

impl State {
    /// The next job in the order of R30 that is due in the queue, of one of these tasks and a
    /// partition that has room.
    pub(super) fn first_due(
        &self,
        queue: &QueueName,
        tasks: &[TaskName],
        has_room: impl Fn(&Key) -> bool,
    ) -> Option<JobId> {
        let is_strict = self.settings(queue).is_strict();
        let is_open = |partition: &Key| if is_strict { false } else { has_room(partition) };
        let open = self.lanes(queue, tasks).filter(|(partition, _)| partition.is_none_or(is_open));
        let firsts = open.flat_map(|(_, ready)| firsts(ready)).copied();
        let turns = is_strict.then(|| self.turns(queue, tasks)).into_iter().flatten();
        let next = turns
            .filter(|(partition, _)| has_room(partition))
            .map(|(_, job)| (Reverse(job.priority), job.window.due_at, job.id));
        let (_, _, id) = firsts.chain(next).filter(|(_, due, _)| *due <= self.now()).min()?;
        Some(id)
    }

    /// The job whose turn it is in each partition of the queue, where it is of these tasks and its task
    /// is not paused (R41).
    fn turns<'s>(
        &'s self,
        queue: &'s QueueName,
        tasks: &'s [TaskName],
    ) -> impl Iterator<Item = (&'s Key, &'s Job)> {
        let mut turns: BTreeMap<&Key, Turn> = BTreeMap::new();
        let in_line = self.indexes.ready.iter().filter(|(lane, _)| lane.0 == *queue);
        for (_, _, id) in in_line.flat_map(|(_, ready)| ready) {
            let job = self.job(*id);
            let Some((partition, turn)) =
                job.and_then(|job| job.partition.as_ref().zip(job.turn()))
            else {
                continue;
            };
            let first = turns.entry(partition).or_insert(turn);
            *first = turn.min(*first);
        }
        let is_mine = |job: &&Job| tasks.contains(&job.task) && !self.limits.is_paused(&job.task);
        turns.into_iter().filter_map(move |(partition, turn)| {
            Some((partition, self.job(turn.job()).filter(is_mine)?))
        })
    }

    pub(super) fn next_due(&self, queue: &QueueName, tasks: &[TaskName]) -> NextDue {
        let settings = self.settings(queue);
        let start_in = |partition: &Key, due: Timestamp| {
            let used = self.partition_used(&settings, queue, partition);
            settings.partition_start(due, &used)
        };
        let starts = self.lanes(queue, tasks).filter_map(|(partition, ready)| {
            let due = firsts(ready).map(|(_, due, _)| *due).min()?;
            match partition {
                None => Some(due),
                Some(_) if settings.is_strict() => None,
                Some(partition) => start_in(partition, due),
            }
        });
        let turns = settings.is_strict().then(|| self.turns(queue, tasks)).into_iter().flatten();
        let next = turns.filter_map(|(partition, job)| start_in(partition, job.window.due_at));
        let free_at = self.rate_free_at(&settings, queue);
        NextDue {
            now: self.now(),
            due: starts.chain(next).min().map(|due| due.max(free_at)),
            expiry: self.running().filter_map(|job| job.lease_until).min(),
        }
    }

    /// The lines of these tasks, unless they are paused, with their partitions.
    fn lanes<'s>(
        &'s self,
        queue: &'s QueueName,
        tasks: &'s [TaskName],
    ) -> impl Iterator<Item = (Option<&'s Key>, &'s Ready)> {
        let working = tasks.iter().filter(|task| !self.limits.is_paused(task));
        working.flat_map(move |task| {
            let first = (queue.clone(), task.clone(), None);
            let of_task = move |(lane, _): &(&Lane, &Ready)| lane.0 == *queue && lane.1 == *task;
            let lanes = self.indexes.ready.range(first..).take_while(of_task);
            lanes.map(|(lane, ready)| (lane.2.as_ref(), ready))
        })
    }
}

/// The job of each priority that is due first, found without walking those behind it.
fn firsts(ready: &Ready) -> impl Iterator<Item = &(Reverse<i16>, Timestamp, JobId)> {
    let behind = |(priority, _, _): &(Reverse<i16>, Timestamp, JobId)| {
        let last = (*priority, Timestamp::MAX, JobId::new(u64::MAX));
        ready.range((Bound::Excluded(last), Bound::Unbounded)).next()
    };
    std::iter::successors(ready.first(), move |first| behind(first))
}
