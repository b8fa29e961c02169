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

use crate::look::{Read, job_of};
use crate::read::CHUNK;
use crate::shard::Time;
use crate::store::ShardStore;
use crate::write::number;

/// Reads in a row that found no job, after which rows may be looked through.
const MOST_EMPTY: usize = 8;
/// Rows that are looked through in one trip; only their ids leave the server.
const SCANNED: usize = 100;
/// Ids that one pass through all rows remembers.
const REMEMBERED: usize = 20 * CHUNK;

/// A page that is being filled.
struct Page<'f> {
    filter: &'f JobFilter,
    /// Rows that were not met yet.
    left: u64,
    jobs: Vec<Job>,
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
        let is_indexed = index.is_some();
        let from = index.map_or(Read::Text(keys.seq()), |index| Read::lowest(index, usize::MAX));
        // Both of one moment: what is added later is no reason to stop sooner.
        let reads = [Read::Count(keys.jobs()), from];
        let mut looked = self.shard.look("list jobs", Time::Last, &reads).await?;
        let mut page = Page { filter, left: looked.number()?, jobs: Vec::new() };
        if is_indexed {
            let members = looked.scored()?;
            let ids: Result<BTreeSet<JobId>> =
                members.iter().map(|(member, _)| job_of(member)).collect();
            let ids: Vec<JobId> = ids?.into_iter().rev().collect();
            self.fill(&mut page, &ids).await?;
        } else {
            let newest = looked.text()?.as_deref().and_then(number).unwrap_or(0);
            self.walk(&mut page, newest).await?;
        }
        page.jobs.truncate(filter.page());
        Ok(page.jobs)
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
                let found = self.rows_up_to(id(top)).await?;
                self.fill(page, &found).await?;
                let lowest = found.last().filter(|_| found.len() == REMEMBERED);
                let turn = |lowest: &JobId| lowest.get().saturating_sub(ids.first) / ids.step;
                top = lowest.map_or(0, |lowest| turn(lowest).saturating_sub(1));
            }
        }
        Ok(())
    }

    /// The newest jobs up to an id, newest first, found by looking through all rows.
    async fn rows_up_to(&self, top: JobId) -> Result<Vec<JobId>> {
        let (mut found, mut cursor) = (BTreeSet::new(), "0".to_owned());
        loop {
            let reads = [Read::Scan(self.shard.keys.jobs(), cursor, SCANNED)];
            let mut looked = self.shard.look("list jobs", Time::Last, &reads).await?;
            let (next, fields) = looked.scanned()?;
            for field in fields {
                let id = job_of(&field)?;
                if id <= top {
                    found.insert(id);
                }
                if found.len() > REMEMBERED {
                    found.pop_first();
                }
            }
            if next == "0" {
                return Ok(found.into_iter().rev().collect());
            }
            cursor = next;
        }
    }
}
