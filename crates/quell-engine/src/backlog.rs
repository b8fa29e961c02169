//! What waits and runs in the partitions of a queue (R31), from the indexes alone.
//!
//! A line is one priority of a task. Which lines there are is found by jumps over the index, each of one
//! entry; then each line is read up to its share. Jobs that wait for their key are in an index of all
//! queues, which is a line of its own.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use quell_core::backlog::{Backlog, BacklogOf, Seen, Spread};
use quell_core::{JobId, JobState, Key, Result, TaskName, Timestamp};

use crate::backend::{Backend, Index, Place, Scan};
use crate::rows::RowName;
use crate::step::Step;

/// How many priorities of one task are found; jobs of lower ones are read with the last of them.
const MOST_PRIORITIES: usize = 32;

/// Jobs that wait for their key that are looked at. A backend may have no note of them, and then does not count them.
const MOST_OF_KEYS: usize = 1_000;

/// Where jobs wait.
#[derive(Clone, Debug)]
enum Line {
    /// Those of a task that come after a place: of one priority, or of all that are lower.
    Task { task: TaskName, after: Option<(Place, RowName)>, only: Option<Reverse<i16>> },
    /// Those that wait for their key.
    Key,
}

/// A line that is read.
#[derive(Debug)]
struct Reading {
    scan: Scan,
    only: Option<Reverse<i16>>,
    seen: Seen,
    is_over: bool,
    /// Whether there were jobs whose queue and partition the index does not say.
    is_blind: bool,
}

impl Reading {
    fn new(of: &BacklogOf, line: &Line, limit: usize) -> Self {
        let (scan, only) = match line {
            Line::Task { task, after, only } => {
                let line = Index::Line(of.queue.clone(), task.clone());
                (Scan { after: after.clone(), ..Scan::first(line, limit) }, *only)
            }
            Line::Key => (Scan::first(Index::Waiting, limit.min(MOST_OF_KEYS)), None),
        };
        Reading { scan, only, seen: Seen::default(), is_over: false, is_blind: false }
    }

    /// Notes where the next page begins, if there is one.
    fn goes_on(&mut self, found: &crate::backend::Seen) {
        let last = found.entries.last().map(|entry| (entry.place, entry.name.clone()));
        self.scan.limit = self.scan.limit.saturating_sub(found.entries.len());
        self.seen.is_cut = found.more;
        self.is_over = !found.more || self.scan.limit == 0 || last.is_none();
        self.scan.after = last;
    }
}

impl<B: Backend> Step<'_, B> {
    /// The partitions of a queue with the most waiting jobs.
    pub(crate) async fn backlog(&mut self, of: &BacklogOf) -> Result<Backlog> {
        let lines = self.lines_of_backlog(of).await?;
        let mut spread = Spread::new(of, lines, true);
        while let Some((lines, limit)) = spread.next_lines() {
            let seen = self.read_lines(of, &lines, limit).await?;
            spread.add(seen);
        }
        let running = self.running_in(of).await?;
        Ok(Backlog::new(self.now, of, spread.end(), running))
    }

    /// The lines in which jobs may be.
    async fn lines_of_backlog(&mut self, of: &BacklogOf) -> Result<Vec<Line>> {
        let counts = self.counts().await?.into_iter();
        let waits = counts.filter(|of_lane| {
            of_lane.state == JobState::Scheduled && of_lane.queue == of.queue && of_lane.jobs > 0
        });
        let tasks: BTreeSet<TaskName> = waits.map(|of_lane| of_lane.task).collect();
        if tasks.is_empty() {
            return Ok(Vec::new());
        }
        let mut lines = vec![Line::Key];
        let mut asked: Vec<(TaskName, Option<(Place, RowName)>)> =
            tasks.into_iter().map(|task| (task, None)).collect();
        for _ in 0..MOST_PRIORITIES {
            if asked.is_empty() || lines.len() > of.most_entries() {
                break;
            }
            let scan = |(task, after): &(TaskName, Option<(Place, RowName)>)| {
                let line = Index::Line(of.queue.clone(), task.clone());
                Scan { after: after.clone(), ..Scan::first(line, 1) }
            };
            let scans: Vec<Scan> = asked.iter().map(scan).collect();
            let seen = self.scan(&scans).await?;
            let mut next = Vec::new();
            for ((task, after), seen) in asked.into_iter().zip(seen) {
                let Some(rank) = seen.entries.first().map(|entry| entry.place.rank) else {
                    continue;
                };
                let end = Place { rank, at: Timestamp::MAX };
                next.push((task.clone(), Some((end, RowName::Job(JobId::new(u64::MAX))))));
                lines.push(Line::Task { task, after, only: Some(rank) });
            }
            asked = next;
        }
        let rest = asked.into_iter().map(|(task, after)| Line::Task { task, after, only: None });
        lines.extend(rest);
        Ok(lines)
    }

    /// The first jobs of each line.
    async fn read_lines(
        &mut self,
        of: &BacklogOf,
        lines: &[Line],
        limit: usize,
    ) -> Result<Vec<Seen>> {
        let mut all: Vec<Reading> =
            lines.iter().map(|line| Reading::new(of, line, limit)).collect();
        loop {
            // A page may be short although there is more.
            let mut left: Vec<&mut Reading> = all.iter_mut().filter(|one| !one.is_over).collect();
            if left.is_empty() {
                let seen = all
                    .into_iter()
                    .map(|one| Seen { is_cut: one.seen.is_cut || one.is_blind, ..one.seen });
                return Ok(seen.collect());
            }
            let scans: Vec<Scan> = left.iter().map(|one| one.scan.clone()).collect();
            let found = self.scan(&scans).await?;
            for (reading, found) in left.iter_mut().zip(found) {
                reading.goes_on(&found);
                for entry in found.entries {
                    if reading.only.is_some_and(|only| entry.place.rank != only) {
                        // What follows is another line.
                        (reading.is_over, reading.seen.is_cut) = (true, false);
                        break;
                    }
                    // Its row, with its payload, is too much to read for a look.
                    let Some(note) = &entry.note else {
                        reading.is_blind = true;
                        continue;
                    };
                    if note.queue == of.queue {
                        reading.seen.count(note.partition.as_ref(), entry.place.at, self.now);
                    }
                }
            }
        }
    }

    /// How many attempts run, by partition.
    async fn running_in(&mut self, of: &BacklogOf) -> Result<BTreeMap<Option<Key>, u64>> {
        let count = |jobs: usize| u64::try_from(jobs).unwrap_or(u64::MAX);
        let mut all: BTreeMap<Option<Key>, u64> = BTreeMap::new();
        if let Some(running) = self.running(&of.queue, None).await? {
            let within: usize = running.by_partition.values().sum();
            all.insert(None, count(running.all.saturating_sub(within)));
            let named = running.by_partition.into_iter();
            all.extend(named.map(|(partition, jobs)| (Some(partition), count(jobs))));
            return Ok(all);
        }
        // Their number is bounded by the slots of all workers.
        let leases = self.scan_all(Scan::first(Index::Leases, crate::load::PAGE)).await?;
        for note in leases.into_iter().filter_map(|entry| entry.note) {
            if note.queue == of.queue {
                let jobs = all.entry(note.partition).or_default();
                *jobs = jobs.saturating_add(1);
            }
        }
        Ok(all)
    }
}
