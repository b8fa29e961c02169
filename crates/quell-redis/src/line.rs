//! The jobs of a queue and task that may start, in the order of the engine (R30).
//!
//! Each priority has a lane, and each partition a line of its own in it. A page is merged from the lines
//! that are due first.

use std::cmp::Reverse;

use quell_core::{JobState, Key, QueueName, Result, TaskName, Timestamp};
use quell_engine::{Entry, Lanes, Note, Place, RowName, Scan, Seen};

use crate::commit::lane_member;
use crate::keys::member;
use crate::look::{Read, job_of};
use crate::merge::Merge;
use crate::open::Open;
use crate::scan::id_of;

/// Lines of one queue that a step sees at most, those that are due first.
const MOST_LINES: usize = 10_000;

/// Portions of lines that one script reads at most.
const PORTIONS: usize = 1_000;

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

    /// The first jobs of these lines after a place, at most `limit`, and fewer only where there are no more.
    async fn page_of(&mut self, lines: &[Line], after: Option<At>, limit: usize) -> Result<Page> {
        let mut merge = Merge::new(lines, after, limit);
        loop {
            let next = merge.next_lines(self.keys());
            if next.is_empty() {
                return Ok(merge.page());
            }
            for numbers in next.chunks(PORTIONS) {
                let reads = numbers.iter().filter_map(|number| merge.read(*number)).collect();
                let mut looked = self.look(reads).await?;
                for number in numbers {
                    merge.take(*number, looked.scored()?);
                }
            }
        }
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
