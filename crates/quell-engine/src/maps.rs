//! The smallest backend: ordered maps in memory, behind one lock.
//!
//! It keeps nothing through a restart and has no clock: without a `now` it uses the highest time it was
//! ever given.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use async_trait::async_trait;
use quell_core::checkup::Checkup;
use quell_core::part::{Ids, News};
use quell_core::{Capabilities, Error, ErrorKind, Job, JobId, Result, Timestamp};
use tokio::sync::{Mutex, OwnedMutexGuard};

use crate::backend::{
    Backend, Begun, Changes, Committed, Entry, Index, Kind, Note, Place, Scan, Seen, Time,
};
use crate::rows::{Row, RowName};

/// Where a row stands in an index.
type At = (Place, RowName);

/// Rows in memory.
#[derive(Debug)]
pub struct Maps(Arc<Mutex<Kept>>);

/// What is kept.
#[derive(Debug)]
pub struct Kept {
    now: Timestamp,
    next_id: u64,
    rows: BTreeMap<RowName, Row>,
    indexes: BTreeMap<Index, BTreeMap<At, Option<Note>>>,
}

impl Maps {
    /// No rows, at `now`.
    #[must_use]
    pub fn new(now: Timestamp) -> Self {
        let (rows, indexes) = (BTreeMap::new(), BTreeMap::new());
        Maps(Arc::new(Mutex::new(Kept { now, next_id: 1, rows, indexes })))
    }
}

impl Kept {
    fn seen(&self, scan: &Scan) -> Seen {
        let all: Vec<Entry> = match &scan.index {
            Index::Jobs => self.names(|name| matches!(name, RowName::Job(_))),
            Index::Rows(kind) => self.names(|name| kind.is_of(name)),
            index => {
                let entries = self.indexes.get(index).into_iter().flatten();
                let entry = |((place, name), note): (&At, &Option<Note>)| Entry {
                    place: *place,
                    name: name.clone(),
                    note: note.clone(),
                };
                entries.map(entry).collect()
            }
        };
        let is_within = |entry: &&Entry| {
            scan.from.is_none_or(|from| from <= entry.place.at)
                && scan.to.is_none_or(|to| entry.place.at <= to)
        };
        let comes_after = |entry: &&Entry| {
            scan.after.as_ref().is_none_or(|(place, name)| {
                let (here, there) = ((entry.place, &entry.name), (*place, name));
                if scan.index.is_descending() { here < there } else { here > there }
            })
        };
        let mut found: Vec<Entry> =
            all.iter().filter(is_within).filter(comes_after).cloned().collect();
        if scan.index.is_descending() {
            found.reverse();
        }
        let more = found.len() > scan.limit;
        found.truncate(scan.limit);
        Seen { entries: found, more }
    }

    fn names(&self, is_meant: impl Fn(&RowName) -> bool) -> Vec<Entry> {
        let names = self.rows.keys().filter(|name| is_meant(name)).cloned();
        names.map(|name| Entry { place: Place::NONE, name, note: None }).collect()
    }

    fn apply(&mut self, changes: Changes) {
        self.next_id = self.next_id.saturating_add(changes.ids);
        for (name, row) in changes.rows {
            match row {
                Some(row) => self.rows.insert(name, row),
                None => self.rows.remove(&name),
            };
        }
        for (index, place, name) in changes.leave {
            if let Some(entries) = self.indexes.get_mut(&index) {
                entries.remove(&(place, name));
                if entries.is_empty() {
                    self.indexes.remove(&index);
                }
            }
        }
        for (index, Entry { place, name, note }) in changes.enter {
            self.indexes.entry(index).or_default().insert((place, name), note);
        }
    }
}

#[async_trait]
impl Backend for Maps {
    type Tx = OwnedMutexGuard<Kept>;

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            dedup: true,
            transactions: false,
            push: true,
            timed: false,
            priorities: true,
            exact_limits: true,
            listing: true,
            across_queues: true,
            large_batches: true,
        }
    }

    async fn begin(&self, time: Time, _: usize) -> Result<Begun<Self::Tx>> {
        let mut tx = Arc::clone(&self.0).lock_owned().await;
        if let Time::At(now) = time {
            // R38: store time never goes back.
            tx.now = tx.now.max(now);
        }
        let (now, ids) = (tx.now, Ids { next: tx.next_id, step: 1 });
        Ok(Begun { tx, now, ids })
    }

    async fn load(
        &self,
        tx: &mut Self::Tx,
        names: &BTreeSet<RowName>,
    ) -> Result<Vec<(RowName, Row)>> {
        let found =
            names.iter().filter_map(|name| Some((name.clone(), tx.rows.get(name)?.clone())));
        Ok(found.collect())
    }

    async fn scan(&self, tx: &mut Self::Tx, scans: &[Scan]) -> Result<Vec<Seen>> {
        Ok(scans.iter().map(|scan| tx.seen(scan)).collect())
    }

    async fn commit(&self, mut tx: Self::Tx, changes: Changes, _: &News) -> Result<Committed> {
        tx.apply(changes);
        Ok(Committed::Done)
    }

    async fn load_aside(&self, _: &mut Self::Tx, _: JobId) -> Result<Option<Row>> {
        Ok(None)
    }

    async fn load_in_part(&self, _: &mut Self::Tx, _: JobId) -> Result<Option<Job>> {
        Ok(None)
    }

    async fn checkup(&self) -> Result<Checkup> {
        Err(Error::new(ErrorKind::Unsupported, "rows in memory have no health to check"))
    }
}

impl Index {
    /// Whether the last place comes first.
    #[must_use]
    pub fn is_descending(&self) -> bool {
        matches!(self, Index::Dead | Index::Unreadable | Index::Jobs)
    }
}

impl Kind {
    /// Whether a row of this name is of this kind.
    #[must_use]
    pub fn is_of(self, name: &RowName) -> bool {
        match self {
            Kind::Queues => matches!(name, RowName::Queue(_)),
            Kind::Tasks => matches!(name, RowName::Task(_)),
            Kind::Starts => matches!(name, RowName::Starts(..)),
            Kind::Workers => matches!(name, RowName::Worker(..)),
            Kind::Alerts => matches!(name, RowName::Alert(_)),
            Kind::Schedules => matches!(name, RowName::Schedule(_)),
        }
    }
}
