//! Jobs in the order of their ids, newest first.
//!
//! Ids are given out in order and no index has them, so a page looks for one id after the other. Where
//! many in a row have no job, because ids were left out ([`RedisOptions::skip_ids`]) or their jobs were
//! removed long ago, it looks through the rows instead where that takes fewer trips: what a page costs
//! grows with the rows there are, and not with the ids that there ever were. Rows that are added or
//! removed meanwhile may be on it or not; so may others where another server takes over meanwhile.
//!
//! [`RedisOptions::skip_ids`]: crate::RedisOptions::skip_ids

use std::collections::{BTreeSet, VecDeque};

use quell_core::{JobId, Result};
use quell_engine::{Entry, Place, RowName, Scan, Seen};

use crate::look::{Read, job_of};
use crate::open::{Cell, Open};
use crate::row::number;
use crate::shard::OwnIds;

/// Rows that are read in one trip.
pub(crate) const CHUNK: usize = 500;
/// Reads in a row that found no job, after which rows may be looked through.
const MOST_EMPTY: usize = 8;
/// Rows that are looked through in one trip; only their ids leave the server.
const SCANNED: usize = 100;
/// Ids that one pass through all rows remembers.
const REMEMBERED: usize = 20 * CHUNK;

/// How far the jobs were listed.
#[derive(Debug)]
pub(crate) struct Listing {
    ids: OwnIds,
    /// The turns of ids that were not looked for yet: up to this one.
    top: u64,
    /// Rows that were not met yet, where the listing began with the newest; none where it did not.
    left: Option<u64>,
    /// How many rows there are that were not met yet, at most.
    rows: u64,
    /// Reads in a row that found no job.
    empty: usize,
    /// Ids that a pass through the rows has found.
    found: VecDeque<JobId>,
    /// Jobs whose rows were read.
    read: VecDeque<JobId>,
    /// The last job of the page before.
    last: Option<JobId>,
}

impl Listing {
    fn id(&self, turn: u64) -> JobId {
        JobId::new(self.ids.first.saturating_add(turn.saturating_mul(self.ids.step)))
    }

    /// In steps of its own from the first id, whatever number the page before ended with.
    fn turn(&self, id: u64) -> u64 {
        id.saturating_sub(self.ids.first).checked_div(self.ids.step).unwrap_or(0)
    }

    /// Whether there is nothing left to look for: nothing is below the oldest job that is there.
    fn is_over(&self) -> bool {
        (self.top == 0 && self.found.is_empty()) || self.left == Some(0)
    }

    /// The next ids to look for.
    fn next(&mut self) -> Vec<JobId> {
        if !self.found.is_empty() {
            let count = self.found.len().min(CHUNK);
            return self.found.drain(..count).collect();
        }
        let bottom = self.top.saturating_sub(u64::try_from(CHUNK).unwrap_or(u64::MAX));
        let ids = (bottom.saturating_add(1)..=self.top).rev().map(|turn| self.id(turn)).collect();
        self.top = bottom;
        ids
    }

    fn note(&mut self, met: Vec<JobId>) {
        self.empty = if met.is_empty() { self.empty.saturating_add(1) } else { 0 };
        let count = u64::try_from(met.len()).unwrap_or(u64::MAX);
        self.rows = self.rows.saturating_sub(count);
        self.left = self.left.map(|left| left.saturating_sub(count));
        self.read.extend(met);
    }

    /// Whether to look through the rows is fewer trips than to look for the ids that are left.
    fn is_sparse(&mut self) -> bool {
        if self.empty < MOST_EMPTY || self.top == 0 {
            return false;
        }
        self.empty = 0;
        let trips = |rows: u64, in_one: usize| rows / u64::try_from(in_one).unwrap_or(u64::MAX);
        trips(self.top, CHUNK) > trips(self.rows, SCANNED)
    }
}

/// The newest ids up to one, a bounded number.
struct Newest {
    top: JobId,
    found: BTreeSet<JobId>,
}

impl Newest {
    fn note(&mut self, id: JobId) {
        if id <= self.top {
            self.found.insert(id);
        }
        if self.found.len() > REMEMBERED {
            self.found.pop_first();
        }
    }

    /// Where others may be: below this id.
    fn rest(&self) -> Option<JobId> {
        self.found.first().copied().filter(|_| self.found.len() == REMEMBERED)
    }
}

impl Open {
    /// A page of all jobs. The rows are kept, as the engine loads them next.
    pub(crate) async fn scan_jobs(&mut self, scan: &Scan) -> Result<Seen> {
        let goes_on = |listing: &Listing| match &scan.after {
            Some((_, RowName::Job(id))) => listing.last == Some(*id),
            _ => false,
        };
        let mut listing = match self.listing.take().filter(goes_on) {
            Some(listing) => listing,
            None => self.begin_listing(scan).await?,
        };
        while listing.read.len() < scan.limit && !listing.is_over() {
            let ids = listing.next();
            let met = self.read_ahead(&ids).await?;
            listing.note(met);
            if listing.is_sparse() {
                self.look_through(&mut listing).await?;
            }
        }
        let count = listing.read.len().min(scan.limit);
        let ids: Vec<JobId> = listing.read.drain(..count).collect();
        listing.last = ids.last().copied();
        let names = ids.into_iter().map(RowName::Job);
        let entry = |name| Entry { place: Place::NONE, name, note: None };
        let entries = names.map(entry).collect();
        let more = !(listing.read.is_empty() && listing.is_over());
        self.listing = Some(listing);
        Ok(Seen { entries, more })
    }

    async fn begin_listing(&mut self, scan: &Scan) -> Result<Listing> {
        // Both of one moment: what is added later is no reason to stop sooner.
        let reads = vec![Read::Count(self.keys().jobs()), Read::Text(self.keys().seq())];
        let mut looked = self.look(reads).await?;
        let rows = looked.number()?;
        let newest = looked.text()?.as_deref().and_then(number).unwrap_or(0);
        let before = match &scan.after {
            Some((_, RowName::Job(id))) => Some(id.get().saturating_sub(1)),
            _ => None,
        };
        let mut listing = Listing {
            ids: self.shard.ids,
            top: 0,
            left: before.is_none().then_some(rows),
            rows,
            empty: 0,
            found: VecDeque::new(),
            read: VecDeque::new(),
            last: None,
        };
        listing.top = listing.turn(before.map_or(newest, |before| newest.min(before)));
        Ok(listing)
    }

    /// Reads the rows of jobs for later; returns those that are there.
    async fn read_ahead(&mut self, ids: &[JobId]) -> Result<Vec<JobId>> {
        let (key, mut left, mut met) = (self.keys().jobs(), ids, Vec::new());
        while !left.is_empty() {
            let fields = left.iter().map(ToString::to_string).collect();
            let rows = self.look(vec![Read::Bounded(key.clone(), fields)]).await?.fields()?;
            let (read, rest) = left.split_at(rows.len().clamp(1, left.len()));
            left = rest;
            for (id, row) in read.iter().zip(rows) {
                if row.is_some() {
                    met.push(*id);
                    self.keep(Cell::new(key.clone(), id.to_string()), row);
                }
            }
        }
        Ok(met)
    }

    /// Finds the newest jobs that are left by looking through all rows.
    async fn look_through(&mut self, listing: &mut Listing) -> Result<()> {
        let top = listing.id(listing.top);
        let (mut newest, mut cursor) = (Newest { top, found: BTreeSet::new() }, "0".to_owned());
        loop {
            let reads = vec![Read::Scan(self.keys().jobs(), cursor, SCANNED)];
            let (next, fields) = self.look(reads).await?.scanned()?;
            for field in fields {
                newest.note(job_of(&field)?);
            }
            if next == "0" {
                break;
            }
            cursor = next;
        }
        let below = |id: JobId| listing.turn(id.get().saturating_sub(1));
        listing.top = newest.rest().map_or(0, below);
        listing.found = newest.found.into_iter().rev().collect();
        Ok(())
    }
}
