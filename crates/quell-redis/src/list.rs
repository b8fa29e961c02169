//! Pages of jobs, newest first.
//!
//! Ids are given out in order and no index has them, so a page looks for one id after the other. Where
//! many in a row have no job, because ids were left out ([`RedisOptions::skip_ids`]) or their jobs were
//! removed long ago, it looks through the rows instead where that takes fewer trips: what a page costs
//! grows with the rows there are, and not with the ids that there ever were. Rows that are added or
//! removed meanwhile may be on it or not; so may others where another server takes over meanwhile.
//!
//! [`RedisOptions::skip_ids`]: crate::RedisOptions::skip_ids

use std::collections::BTreeSet;

use quell_core::{Job, JobFilter, JobId, JobState, Result};

use crate::look::{Read, Score, job_of};
use crate::portions::{Order, Walk};
use crate::read::CHUNK;
use crate::shard::Time;
use crate::store::ShardStore;
use crate::write::number;

/// Reads in a row that found no job, after which rows may be looked through.
const MOST_EMPTY: usize = 8;
/// Rows that are looked through in one trip; only their ids leave the server.
const SCANNED: usize = 100;
/// Members of an index that are read in one trip.
const PORTION: usize = 1_000;
/// Ids that one pass through all rows or an index remembers.
const REMEMBERED: usize = 20 * CHUNK;

/// A page that is being filled.
struct Page<'f> {
    filter: &'f JobFilter,
    /// Rows that were not met yet.
    left: u64,
    jobs: Vec<Job>,
}

/// The newest ids up to one, at most so many.
struct Newest {
    top: JobId,
    found: BTreeSet<JobId>,
}

impl Newest {
    fn up_to(top: JobId) -> Self {
        Newest { top, found: BTreeSet::new() }
    }

    fn note(&mut self, id: JobId) {
        if id <= self.top {
            self.found.insert(id);
        }
        if self.found.len() > REMEMBERED {
            self.found.pop_first();
        }
    }

    /// Where others may be: up to this id.
    fn rest(&self) -> Option<u64> {
        let lowest = self.found.first().filter(|_| self.found.len() == REMEMBERED);
        lowest.map(|lowest| lowest.get().saturating_sub(1))
    }

    /// The newest first.
    fn into_ids(self) -> Vec<JobId> {
        self.found.into_iter().rev().collect()
    }
}

impl Page<'_> {
    /// Nothing is below the oldest job that is there.
    fn is_full(&self) -> bool {
        self.jobs.len() >= self.filter.page() || (self.left == 0 && self.filter.before.is_none())
    }

    fn take(&mut self, jobs: Vec<Job>) {
        self.left = self.left.saturating_sub(u64::try_from(jobs.len()).unwrap_or(u64::MAX));
        self.jobs.extend(jobs.into_iter().filter(|job| self.filter.matches(job)));
    }
}

impl ShardStore {
    /// A page of jobs, newest first.
    pub(crate) async fn list(&self, filter: &JobFilter) -> Result<Vec<Job>> {
        let keys = &self.shard.keys;
        let index = match filter.state {
            Some(JobState::Running) => Some(keys.leases()),
            Some(JobState::Dead) => Some(keys.dead()),
            Some(_) | None => None,
        };
        let mut page = Page { filter, left: u64::MAX, jobs: Vec::new() };
        if let Some(index) = index {
            self.pick(&mut page, index).await?;
        } else {
            // Both of one moment: what is added later is no reason to stop sooner.
            let reads = [Read::Count(keys.jobs()), Read::Text(keys.seq())];
            let mut looked = self.shard.look("list jobs", Time::Last, &reads).await?;
            page.left = looked.number()?;
            let newest = looked.text()?.as_deref().and_then(number).unwrap_or(0);
            self.walk(&mut page, newest).await?;
        }
        page.jobs.truncate(filter.page());
        Ok(page.jobs)
    }

    /// Fills a page with jobs of an index, which is not in the order of ids: it is gone through as
    /// often as it takes, as a rule once.
    async fn pick(&self, page: &mut Page<'_>, index: String) -> Result<()> {
        let mut top = page.filter.before.map_or(u64::MAX, |before| before.get().saturating_sub(1));
        while !page.is_full() {
            let mut newest = Newest::up_to(JobId::new(top));
            let mut walk = Walk::new(index.clone(), Order::Lowest, Score::Min);
            while let Some(members) = walk.next(&self.shard, "list jobs", PORTION).await? {
                for (member, _) in members {
                    newest.note(job_of(&member)?);
                }
            }
            let more = newest.rest();
            self.fill(page, &newest.into_ids()).await?;
            match more {
                Some(below) => top = below,
                None => break,
            }
        }
        Ok(())
    }

    /// Fills a page with those of these jobs that match.
    async fn fill(&self, page: &mut Page<'_>, ids: &[JobId]) -> Result<()> {
        for ids in ids.chunks(CHUNK) {
            if page.is_full() {
                return Ok(());
            }
            page.take(self.read_jobs(ids).await?);
        }
        Ok(())
    }

    /// Fills a page from the newest job back.
    async fn walk(&self, page: &mut Page<'_>, newest: u64) -> Result<()> {
        let before = page.filter.before.map(|before| before.get().saturating_sub(1));
        let top = before.map_or(newest, |before| newest.min(before));
        let ids = self.shard.ids;
        // In steps of its own from the first id, whatever number the page before ended with.
        let mut top = top.saturating_sub(ids.first).checked_div(ids.step).unwrap_or(0);
        let chunk = u64::try_from(CHUNK).unwrap_or(u64::MAX);
        let mut empty = 0;
        while top > 0 && !page.is_full() {
            let bottom = top.saturating_sub(chunk);
            let id =
                |turn: u64| JobId::new(ids.first.saturating_add(turn.saturating_mul(ids.step)));
            let chunk: Vec<JobId> = (bottom.saturating_add(1)..=top).rev().map(id).collect();
            let left = page.left;
            self.fill(page, &chunk).await?;
            empty = if page.left == left { empty + 1 } else { 0 };
            top = bottom;
            let trips = |rows: u64, in_one: usize| rows / u64::try_from(in_one).unwrap_or(u64::MAX);
            if empty == MOST_EMPTY {
                empty = 0;
                if trips(top, CHUNK) <= trips(page.left, SCANNED) {
                    continue;
                }
                let newest = self.rows_up_to(id(top)).await?;
                let turn = |below: u64| below.saturating_sub(ids.first) / ids.step;
                top = newest.rest().map_or(0, turn);
                self.fill(page, &newest.into_ids()).await?;
            }
        }
        Ok(())
    }

    /// The newest jobs up to an id, found by looking through all rows.
    async fn rows_up_to(&self, top: JobId) -> Result<Newest> {
        let (mut newest, mut cursor) = (Newest::up_to(top), "0".to_owned());
        loop {
            let reads = [Read::Scan(self.shard.keys.jobs(), cursor, SCANNED)];
            let mut looked = self.shard.look("list jobs", Time::Last, &reads).await?;
            let (next, fields) = looked.scanned()?;
            for field in fields {
                newest.note(job_of(&field)?);
            }
            if next == "0" {
                return Ok(newest);
            }
            cursor = next;
        }
    }
}
