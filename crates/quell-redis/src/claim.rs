//! Who comes next, and starting it (R11, R28, R30, R31).
//!
//! A look reads the heads of the lines of a queue and what its limits count; the choice is the
//! core's. Where nothing is due, nothing is written.

use std::collections::{BTreeMap, BTreeSet};

use quell_core::line::{Candidates, DueLane, Line, Place, Taken};
use quell_core::{
    Claim, ClaimedJob, JobId, Key, NextDue, QueueName, Result, TaskName, Timestamp, WorkerId,
};

use crate::keys::{slot_changes, slot_of_partition, slot_of_worker, task_key};
use crate::look::{Looked, Read, Score, job_of};
use crate::row::decode_starts;
use crate::tx::{Cell, Tx};
use crate::write::{number, starts_field};

/// Lines of one queue that a look sees at most, those that are due first.
const MOST_LINES: usize = 10_000;

/// What a look at a queue showed.
#[derive(Debug)]
pub(crate) struct Seen {
    pub(crate) line: Line,
    /// What the lines are called, by their number in the look.
    lanes: Vec<String>,
}

/// What came of a try to start jobs.
#[derive(Debug)]
pub(crate) enum Tried {
    /// Nothing may start.
    Nothing(NextDue),
    /// These did, at this time, once the step has committed.
    Started(Timestamp, Vec<ClaimedJob>),
}

impl Tx<'_> {
    /// Looks at a queue for those who know these tasks.
    pub(crate) async fn line(
        &mut self,
        queue: &QueueName,
        tasks: &[TaskName],
        worker: Option<&WorkerId>,
    ) -> Result<Seen> {
        let settings = self.known.settings(queue);
        let slots: Vec<String> = std::iter::once(queue.to_string())
            .chain(worker.map(|worker| slot_of_worker(queue, worker)))
            .chain(worker.map(|_| slot_changes(queue)))
            .collect();
        let keys = &self.shard.keys;
        let mut looked = self
            .look(vec![
                Read::lowest(keys.heads(queue), MOST_LINES),
                Read::lowest(keys.leases(), 1),
                Read::Fields(keys.slots(), slots.clone()),
                Read::Fields(keys.starts(), vec![starts_field(queue, None)]),
            ])
            .await?;
        let (mut lanes, mut names) = (Vec::new(), Vec::new());
        for (member, first) in looked.scored()? {
            let Some(lane) = self.due_lane(&member, first, tasks, names.len())? else { continue };
            lanes.push(lane);
            names.push(member);
        }
        // By priority, as the core walks them.
        lanes.sort_by_key(|lane| std::cmp::Reverse(lane.priority));
        let lapse = looked.scored()?.pop().map(|(_, until)| until);
        let mut line = Line { now: self.now, lapse, settings, lanes, taken: Taken::default() };
        self.count_whole(&mut line, &mut looked, queue, &slots)?;
        self.count_partitions(&mut line, queue).await?;
        Ok(Seen { line, lanes: names })
    }

    /// A line by its name; none where it is of a task that is unknown (R28) or paused (R33).
    fn due_lane(
        &self,
        member: &str,
        first: Timestamp,
        tasks: &[TaskName],
        number: usize,
    ) -> Result<Option<DueLane>> {
        let (lane, partition) = match member.split_once(' ') {
            Some((lane, partition)) => (lane, Some(Key::new(partition)?)),
            None => (member, None),
        };
        let Some(lane) = lane.parse().ok().and_then(|lane| self.known.lane(lane)) else {
            return Ok(None);
        };
        let paused = self.known.tasks.get(&lane.task).is_some_and(|settings| settings.paused);
        if paused || !tasks.contains(&lane.task) {
            return Ok(None);
        }
        let id = i64::try_from(number).unwrap_or(i64::MAX);
        let priority = i64::from(lane.priority);
        Ok(Some(DueLane { id, priority, partition, first: Some(first), later: None }))
    }

    /// What is taken of the queue's own limits. What limits depend on must still be so when the
    /// step commits (R31).
    fn count_whole(
        &mut self,
        line: &mut Line,
        looked: &mut Looked,
        queue: &QueueName,
        slots: &[String],
    ) -> Result<()> {
        let counts = looked.fields()?;
        let mut running = counts.iter().map(|count| count.as_deref().map_or(0, as_count));
        if line.settings.limits_concurrency() {
            line.taken.used.running = running.next().unwrap_or(0);
            line.taken.used.by_worker = running.next().unwrap_or(0);
            for (slot, count) in slots.iter().zip(counts) {
                self.note(self.shard.keys.slots(), slot, count);
            }
        }
        let log = looked.text()?;
        if let Some(rate) = line.settings.rate {
            if let Some(log) = log.as_deref().map(decode_starts).transpose()? {
                line.taken.used.recent = log.recent(&rate, line.now);
                line.taken.free_at = log.free_at(&rate, line.now);
            }
            self.note(self.shard.keys.starts(), &starts_field(queue, None), log);
        }
        Ok(())
    }

    /// What is taken of the limits of the partitions that have jobs in line.
    async fn count_partitions(&mut self, line: &mut Line, queue: &QueueName) -> Result<()> {
        let settings = &line.settings;
        if settings.partition_concurrency.is_none() && settings.partition_rate.is_none() {
            return Ok(());
        }
        let partitions: Vec<Key> = line.partitions().into_iter().cloned().collect();
        let (slots, starts) = (self.shard.keys.slots(), self.shard.keys.starts());
        let mut cells = Vec::new();
        for partition in &partitions {
            if settings.partition_concurrency.is_some() {
                cells.push(Cell::new(slots.clone(), slot_of_partition(queue, partition)));
            }
            if settings.partition_rate.is_some() {
                cells.push(Cell::new(starts.clone(), starts_field(queue, Some(partition))));
            }
        }
        self.fetch(cells, Vec::new()).await?;
        for partition in partitions {
            let running = self.cell(slots.clone(), &slot_of_partition(queue, &partition));
            let running = running.map_or(0, as_count);
            let log = self.cell(starts.clone(), &starts_field(queue, Some(&partition)));
            let log = log.map(decode_starts).transpose()?;
            let used = line.taken.partitions.entry(partition).or_default();
            if line.settings.partition_concurrency.is_some() {
                used.running = running;
            }
            if let Some((rate, log)) = line.settings.partition_rate.zip(log) {
                used.recent = log.recent(&rate, line.now);
                used.free_at = log.free_at(&rate, line.now);
            }
        }
        Ok(())
    }

    /// Starts at most as many due jobs as asked for, in the order of R30. None where what was read
    /// does not fit together.
    pub(crate) async fn start(&mut self, claim: &Claim) -> Result<Option<Tried>> {
        let seen = self.line(&claim.queue, &claim.tasks, Some(&claim.worker)).await?;
        if claim.limit == 0 || !seen.line.is_due() {
            return Ok(Some(Tried::Nothing(seen.line.next())));
        }
        let Some((ids, partitions)) = self.choose(claim, seen).await? else {
            return Ok(None);
        };
        self.load_jobs(ids.iter().copied()).await?;
        let mut cells = Vec::new();
        for id in &ids {
            match self.rows.jobs.get(id) {
                Some(job) if job.may_start(self.now) && job.queue == claim.queue => {
                    let field = job.key.as_ref().map(|key| task_key(&job.task, key));
                    cells.extend(field.map(|field| Cell::new(self.shard.keys.runs(), field)));
                }
                // Somebody else has it by now.
                Some(_) | None => return Ok(None),
            }
        }
        self.fetch(cells, Vec::new()).await?;
        self.take_settings_of_jobs();
        if self.known.settings(&claim.queue).limits_rate() {
            let mut scopes: Vec<Option<Key>> = partitions.into_iter().map(Some).collect();
            scopes.push(None);
            self.load_starts(&claim.queue, &scopes).await?;
        }
        let now = self.now;
        Ok(self.step(|part| part.start(claim, &ids)).map(|jobs| Tried::Started(now, jobs)))
    }

    /// The next jobs, and the partitions that they are of. None where a line is not what its head
    /// promised.
    async fn choose(
        &mut self,
        claim: &Claim,
        mut seen: Seen,
    ) -> Result<Option<(Vec<JobId>, BTreeSet<Key>)>> {
        let line = &mut seen.line;
        let room = claim.limit.min(line.settings.room(&line.taken.used));
        let (mut chosen, mut partitions) = (Vec::new(), BTreeSet::new());
        let lanes = std::mem::take(&mut line.lanes);
        for of_priority in lanes.chunk_by(|a, b| a.priority == b.priority) {
            let left = room.saturating_sub(chosen.len());
            if left == 0 {
                break;
            }
            let candidates = Candidates::of(line, of_priority, left);
            let Some(places) = self.first_of(&candidates, &seen.lanes, left).await? else {
                return Ok(None);
            };
            for (id, lane) in places {
                if let Some(partition) = candidates.partitions.get(&lane) {
                    line.taken.start(Some(partition));
                    partitions.insert(partition.clone());
                }
                chosen.push(id);
            }
        }
        Ok(Some((chosen, partitions)))
    }

    /// The first `left` jobs of these lines, with the number of their line.
    async fn first_of(
        &mut self,
        candidates: &Candidates,
        names: &[String],
        left: usize,
    ) -> Result<Option<Vec<(JobId, i64)>>> {
        if candidates.lanes.is_empty() {
            return Ok(Some(Vec::new()));
        }
        let share = left.div_ceil(candidates.lanes.len()).saturating_add(2);
        // Mostly each line has its share, so that reading `left` of each is rarely needed.
        for depth in [share, left.saturating_add(1)] {
            let places = self.heads_of(candidates, names, depth).await?;
            if let Some((ids, _)) = candidates.merge(&places, left, depth) {
                let lane_of: BTreeMap<i64, i64> =
                    places.iter().map(|(_, id, lane)| (*id, *lane)).collect();
                let chosen = ids.into_iter().filter_map(|id| {
                    let job = JobId::new(u64::try_from(id).ok()?);
                    Some((job, *lane_of.get(&id)?))
                });
                return Ok(Some(chosen.collect()));
            }
        }
        Ok(None)
    }

    /// The first due jobs of each of these lines, at most so many, as places in line.
    async fn heads_of(
        &mut self,
        candidates: &Candidates,
        names: &[String],
        depth: usize,
    ) -> Result<Vec<Place>> {
        let (mut reads, mut lanes) = (Vec::new(), Vec::new());
        for (lane, _) in &candidates.lanes {
            let Some(name) = usize::try_from(*lane).ok().and_then(|lane| names.get(lane)) else {
                continue;
            };
            let (from, to) = (Score::Min, Score::At(self.now));
            reads.push(Read::Lowest { key: self.shard.keys.line(name), from, to, limit: depth });
            lanes.push(*lane);
        }
        let mut looked = self.look(reads).await?;
        let mut places = Vec::new();
        for lane in lanes {
            for (member, due) in looked.scored()? {
                let id = i64::try_from(job_of(&member)?.get()).unwrap_or(i64::MAX);
                places.push((due, id, lane));
            }
        }
        places.sort_unstable();
        Ok(places)
    }
}

fn as_count(bytes: &[u8]) -> usize {
    number(bytes).and_then(|count| usize::try_from(count).ok()).unwrap_or(0)
}
