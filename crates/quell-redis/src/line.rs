//! The jobs of a queue and task that may start, in the order of the engine (R30).
//!
//! Each priority has a lane, and each partition a line of its own in it. A page is merged from the first
//! jobs of the lines that are due first: as far as no line with more jobs could be next.

use std::cmp::Reverse;

use quell_core::{JobState, Key, QueueName, Result, TaskName, Timestamp};
use quell_engine::{Entry, Lanes, Note, Place, RowName, Scan, Seen};

use crate::commit::lane_member;
use crate::keys::member;
use crate::look::{Read, Score, job_of};
use crate::open::Open;
use crate::portions::Order;
use crate::scan::id_of;

/// Lines of one queue that a step sees at most, those that are due first.
const MOST_LINES: usize = 10_000;

/// A place in a lane: when a job is due, and its member.
pub(crate) type At = (Timestamp, String);

/// A line, its partition, and when its first job is due.
pub(crate) struct Line {
    pub(crate) name: String,
    pub(crate) partition: Option<Key>,
    pub(crate) first: Timestamp,
}

impl Line {
    /// That of jobs without a partition.
    fn plain(lane: u32) -> Self {
        Line { name: lane_member(lane, None), partition: None, first: Timestamp::MIN }
    }
}

/// A page of one lane.
pub(crate) struct Page {
    /// The jobs, each with the number of its line.
    pub(crate) jobs: Vec<(At, usize)>,
    /// Whether there may be more.
    pub(crate) more: bool,
}

impl Open {
    /// Reads a page of the lanes of a queue and task.
    pub(crate) async fn scan_line(
        &mut self,
        queue: &QueueName,
        task: &TaskName,
        scan: &Scan,
    ) -> Result<Seen> {
        let of_task = self.known.lanes().filter(|(_, lane)| lane.queue == *queue);
        let of_task = of_task.filter(|(_, lane)| lane.task == *task);
        let mut lanes: Vec<(Reverse<i16>, u32)> =
            of_task.map(|(number, lane)| (Reverse(lane.priority), number)).collect();
        lanes.sort_unstable();
        let mut seen = Seen::default();
        for (rank, lane) in lanes {
            let after = match &scan.after {
                Some((place, _)) if place.rank > rank => continue,
                Some((place, _)) if place.rank == rank && place.at == Timestamp::MAX => continue,
                Some((place, name)) if place.rank == rank => {
                    Some((place.at, id_of(name).map(member).unwrap_or_default()))
                }
                Some(_) | None => None,
            };
            let limit = scan.limit.saturating_sub(seen.entries.len());
            if limit == 0 {
                // There is a line of a lower priority, or there may be.
                seen.more |=
                    scan.lanes != Lanes::All || !self.lines_of(queue, lane).await?.is_empty();
                continue;
            }
            let (lines, page) = match scan.lanes {
                Lanes::Heads => self.heads_of(queue, lane, after.as_ref(), limit).await?,
                Lanes::Plain => {
                    let line = vec![Line::plain(lane)];
                    let page = self.page_of(&line, after, limit).await?;
                    (line, page)
                }
                Lanes::All => {
                    let lines = self.lines_of(queue, lane).await?;
                    let page = self.page_of(&lines, after, limit).await?;
                    (lines, page)
                }
            };
            for ((at, member), number) in page.jobs {
                let Some(line) = lines.get(number) else { continue };
                let id = job_of(&member)?;
                self.lines.insert(id, line.name.clone());
                let note = Note {
                    queue: queue.clone(),
                    task: task.clone(),
                    state: JobState::Scheduled,
                    partition: line.partition.clone(),
                    worker: None,
                };
                let place = Place { rank, at };
                seen.entries.push(Entry { place, name: RowName::Job(id), note: Some(note) });
            }
            if page.more {
                seen.more = true;
                break;
            }
        }
        Ok(seen)
    }

    /// The lines of a lane in which jobs are, the one that is due first in front.
    async fn lines_of(&mut self, queue: &QueueName, lane: u32) -> Result<Vec<Line>> {
        if !self.heads.contains_key(queue) {
            let reads = vec![Read::lowest(self.keys().heads(queue), MOST_LINES)];
            let heads = self.look(reads).await?.scored()?;
            self.heads.insert(queue.clone(), heads);
        }
        lines_among(self.heads.get(queue).into_iter().flatten(), lane)
    }

    /// The first jobs of these lines after a place, at most `limit`, and one at least where there is one.
    async fn page_of(&mut self, lines: &[Line], after: Option<At>, limit: usize) -> Result<Page> {
        let begun = lines.iter().filter(|line| after.as_ref().is_some_and(|at| line.first <= at.0));
        let mut read = begun.count().saturating_add(limit.saturating_add(1)).min(lines.len());
        let mut depth = limit.checked_div(read).unwrap_or(0).saturating_add(2);
        loop {
            let page = self.merged(lines, (read, depth), after.as_ref(), limit).await?;
            if !page.jobs.is_empty() || !page.more {
                return Ok(page);
            }
            // Nothing that was read comes before the first line that was not: as where more lines than a
            // page has jobs are due at one moment.
            if read < lines.len() {
                read = read.saturating_mul(4).min(lines.len());
            } else {
                depth = depth.saturating_mul(4);
            }
        }
    }

    /// The same from the first `depth` jobs of each of the first `read` lines.
    async fn merged(
        &mut self,
        lines: &[Line],
        (read, depth): (usize, usize),
        after: Option<&At>,
        limit: usize,
    ) -> Result<Page> {
        let (lines, unread) = lines.split_at_checked(read).unwrap_or((lines, &[]));
        if lines.is_empty() {
            return Ok(Page { jobs: Vec::new(), more: false });
        }
        let reads = lines.iter().map(|line| {
            let key = self.keys().line(&line.name);
            match after {
                Some((at, member)) => Read::Portion {
                    key,
                    order: Order::Lowest,
                    from: Score::At(*at),
                    after: Some(member.clone()),
                    limit: depth,
                },
                None => Read::lowest(key, depth),
            }
        });
        let reads = reads.collect();
        let mut looked = self.look(reads).await?;
        // Nothing behind this is known.
        let mut end: Option<At> = unread.iter().map(|line| (line.first, String::new())).min();
        let mut jobs = Vec::new();
        for number in 0..lines.len() {
            let members = looked.scored()?;
            let is_cut = members.len() >= depth;
            let places = members.into_iter().map(|(member, at)| (at, member));
            let places: Vec<At> = places.collect();
            if let Some(last) = places.last().filter(|_| is_cut) {
                let last = last.clone();
                end = Some(end.map_or(last.clone(), |end| end.min(last)));
            }
            let follows = |at: &At| after.is_none_or(|after| at > after);
            jobs.extend(places.into_iter().filter(follows).map(|at| (at, number)));
        }
        jobs.sort_unstable();
        if let Some(end) = &end {
            jobs.retain(|(at, _)| at <= end);
        }
        let more = end.is_some() || jobs.len() > limit;
        jobs.truncate(limit);
        Ok(Page { jobs, more })
    }
}

/// The lines of a lane among these heads.
pub(crate) fn lines_among<'h>(
    heads: impl Iterator<Item = &'h (String, Timestamp)>,
    lane: u32,
) -> Result<Vec<Line>> {
    let mut lines = Vec::new();
    for (name, first) in heads {
        let (number, partition) = match name.split_once(' ') {
            Some((number, partition)) => (number, Some(Key::new(partition)?)),
            None => (name.as_str(), None),
        };
        if number.parse() == Ok(lane) {
            lines.push(Line { name: name.clone(), partition, first: *first });
        }
    }
    Ok(lines)
}
