//! What a strict order of partitions reads (R41): the first job of each line, and the jobs that have
//! started before.
//!
//! These are in a sorted set for each queue, by when they are due. A member is the job's, and the line
//! that the job is in.

use std::cmp::Reverse;

use quell_core::{JobId, JobState, Key, QueueName, Result, Timestamp};
use quell_engine::{Entry, Note, Place, RowName, Scan, Seen};

use crate::keys::member;
use crate::known::Lane;
use crate::line::{At, Line, Page, lines_among};
use crate::look::{Read, Score, job_of};
use crate::open::Open;
use crate::portions::{Order, Walk};

/// Members that are read in one trip.
const PORTION: usize = 1_000;
/// Lines of a queue that are read at first.
const FIRST_LINES: usize = 64;

/// The lines of a queue that are due first, as far as they were read.
#[derive(Debug)]
pub(crate) struct Fronts {
    heads: Vec<(String, Timestamp)>,
    walk: Walk,
}

/// What a job is called among those that have started before.
pub(crate) fn begun_member(id: JobId, line: &str) -> String {
    format!("{} {line}", member(id))
}

impl Open {
    /// The jobs of partitions of a queue that have started before and may start again.
    pub(crate) async fn scan_begun(&mut self, queue: &QueueName, scan: &Scan) -> Result<Seen> {
        let key = self.keys().begun(queue);
        let (mut entries, mut walk) = (Vec::new(), Walk::new(key, Order::Lowest, Score::Min));
        while !walk.is_over() {
            let members = self.look(vec![walk.read(PORTION)]).await?.scored()?;
            for (member, at) in walk.take(members, PORTION) {
                entries.extend(self.begun_entry(&member, at)?);
            }
        }
        entries.sort_unstable();
        if let Some((place, name)) = &scan.after {
            entries.retain(|entry| (place, name) < (&entry.place, &entry.name));
        }
        let more = entries.len() > scan.limit;
        entries.truncate(scan.limit);
        Ok(Seen { entries, more })
    }

    /// None for one that cannot be decoded (R25), or whose lane another process has made since: then the
    /// step meets the new version of the names.
    fn begun_entry(&mut self, member: &str, at: Timestamp) -> Result<Option<Entry>> {
        let Some((job, line)) = member.split_once(' ') else { return Ok(None) };
        let Some((number, partition)) = line.split_once(' ') else { return Ok(None) };
        let lane = number.parse().ok().and_then(|number| self.known.lane(number));
        let (Some(lane), Ok(partition)) = (lane.cloned(), Key::new(partition)) else {
            return Ok(None);
        };
        let Lane { queue, task, priority } = lane;
        let id = job_of(job)?;
        self.lines.insert(id, line.to_owned());
        let (state, partition) = (JobState::Scheduled, Some(partition));
        let note = Some(Note { queue, task, state, partition, worker: None });
        let place = Place { rank: Reverse(priority), at };
        Ok(Some(Entry { place, name: RowName::Job(id), note }))
    }

    /// The lines of partitions of a lane, as far as they were read, and a page of their first jobs after a
    /// place.
    pub(crate) async fn heads_of(
        &mut self,
        queue: &QueueName,
        lane: u32,
        after: Option<&At>,
        limit: usize,
    ) -> Result<(Vec<Line>, Page)> {
        let mut read = FIRST_LINES;
        if !self.fronts.contains_key(queue) {
            self.read_fronts(queue, read).await?;
        }
        loop {
            let (mut lines, is_whole) = match self.fronts.get(queue) {
                Some(Fronts { heads, walk }) => {
                    let mut lines = lines_among(heads.iter(), lane)?;
                    // Of those that are due when the last one is, some may not have been read.
                    if !walk.is_over() {
                        let last = heads.last().map_or(Timestamp::MIN, |(_, due)| *due);
                        lines.retain(|line| line.first < last);
                    }
                    (lines, walk.is_over())
                }
                None => (Vec::new(), true),
            };
            lines.retain(|line| line.partition.is_some());
            // Each line has one job in the page at most.
            if lines.len() >= limit || is_whole {
                let mut page = self.page_of_heads(&lines, after, limit).await?;
                if page.jobs.len() >= limit || is_whole {
                    page.more |= !is_whole;
                    return Ok((lines, page));
                }
            }
            read = read.saturating_mul(4).min(PORTION);
            self.read_fronts(queue, read).await?;
        }
    }

    /// Reads as many more of the lines of a queue, in the order in which they are due.
    async fn read_fronts(&mut self, queue: &QueueName, count: usize) -> Result<()> {
        let key = self.keys().heads(queue);
        let mut fronts = self.fronts.remove(queue).unwrap_or_else(|| Fronts {
            heads: Vec::new(),
            walk: Walk::new(key, Order::Lowest, Score::Min),
        });
        let heads = self.look(vec![fronts.walk.read(count)]).await?.scored()?;
        fronts.heads.extend(fronts.walk.take(heads, count));
        self.fronts.insert(queue.clone(), fronts);
        Ok(())
    }

    /// The first job of each of these lines after a place, at most `limit`.
    async fn page_of_heads(
        &mut self,
        lines: &[Line],
        after: Option<&At>,
        limit: usize,
    ) -> Result<Page> {
        // They are in the order of their first jobs' times; among those of one time, ids decide.
        let from = after.map_or(0, |(at, _)| lines.partition_point(|line| line.first < *at));
        let last = lines.get(from.saturating_add(limit)).map(|line| line.first);
        let to = last.map_or(lines.len(), |last| lines.partition_point(|line| line.first <= last));
        let mut page = Page { jobs: Vec::new(), more: to < lines.len() };
        let read = lines.get(from..to).unwrap_or_default();
        if read.is_empty() {
            return Ok(page);
        }
        let firsts =
            read.iter().map(|line| Read::lowest(self.keys().line(&line.name), 1)).collect();
        let mut looked = self.look(firsts).await?;
        for number in from..to {
            let first = looked.scored()?.pop().map(|(member, at)| (at, member));
            let first = first.filter(|first| after.is_none_or(|after| first > after));
            page.jobs.extend(first.map(|first| (first, number)));
        }
        page.jobs.sort_unstable();
        page.more |= page.jobs.len() > limit;
        page.jobs.truncate(limit);
        Ok(page)
    }
}
