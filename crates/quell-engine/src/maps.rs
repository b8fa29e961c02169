//! The smallest backend: maps in memory, behind one lock.
//!
//! It keeps nothing through a restart and has no clock: without a `now` it uses the highest time it was
//! ever given.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use quell_core::checkup::Checkup;
use quell_core::part::{Ids, Notifications};
use quell_core::{Capabilities, Error, ErrorKind, Job, JobId, Result, Timestamp};
use tokio::sync::{Mutex, OwnedMutexGuard};

use crate::backend::{
    Access, Backend, Beginning, Changes, Committed, Entry, Index, Kind, Note, Place, Scan, Seen,
    Tally, Time, add_to,
};
use crate::rows::{Row, RowName};

/// Where a row stands in an index.
type At = (Place, RowName);

/// Rows in memory. Clones are the same rows.
#[derive(Clone, Debug)]
pub struct Maps(Arc<Mutex<Kept>>);

/// What is kept.
#[derive(Debug)]
pub struct Kept {
    now: Timestamp,
    next_id: u64,
    /// Jobs, in the order in which they are listed.
    jobs: BTreeMap<JobId, Row>,
    /// All other rows.
    rows: HashMap<RowName, Row>,
    indexes: BTreeMap<Index, BTreeMap<At, Option<Note>>>,
    counts: Tally,
}

impl Maps {
    /// No rows, at `now`.
    #[must_use]
    pub fn new(now: Timestamp) -> Self {
        let (jobs, rows, indexes) = (BTreeMap::new(), HashMap::new(), BTreeMap::new());
        let counts = Tally::new();
        Maps(Arc::new(Mutex::new(Kept { now, next_id: 1, jobs, rows, indexes, counts })))
    }
}

impl Kept {
    fn seen(&self, scan: &Scan) -> Seen {
        if scan.index == Index::Jobs {
            let last = match scan.after {
                Some((_, RowName::Job(id))) => Bound::Excluded(id),
                _ => Bound::Unbounded,
            };
            let jobs = self.jobs.range((Bound::Unbounded, last)).rev();
            let entry = |(id, _): (&JobId, _)| Entry {
                place: Place::NONE,
                name: RowName::Job(*id),
                note: None,
            };
            return page(jobs.map(entry), scan.limit);
        }
        let Some(entries) = self.indexes.get(&scan.index) else { return Seen::default() };
        let (first, last) = bounds(scan);
        let entry = |((place, name), note): (&At, &Option<Note>)| Entry {
            place: *place,
            name: name.clone(),
            note: note.clone(),
        };
        let from = |(place, _): &At| scan.from.is_none_or(|from| from <= place.at);
        let to = |(place, _): &At| scan.to.is_none_or(|to| place.at <= to);
        // Only lines have ranks, and with them times that do not ascend.
        let ascends = !matches!(scan.index, Index::Line(..));
        if scan.index.is_descending() {
            let found = entries.range((Bound::Unbounded, last)).rev();
            let within = found.take_while(|(at, _)| from(at)).filter(|(at, _)| to(at));
            page(within.map(entry), scan.limit)
        } else {
            let found = entries.range((first, Bound::Unbounded));
            let within = found.take_while(|(at, _)| !ascends || to(at));
            page(within.filter(|(at, _)| from(at) && to(at)).map(entry), scan.limit)
        }
    }

    fn row(&self, name: &RowName) -> Option<&Row> {
        match name {
            RowName::Job(id) => self.jobs.get(id),
            name => self.rows.get(name),
        }
    }

    fn apply(&mut self, changes: Changes) {
        for (lane, by) in changes.counts {
            add_to(&mut self.counts, lane, by);
        }
        self.next_id = self.next_id.saturating_add(changes.ids);
        for (name, row) in changes.rows {
            if let Some(kind) = Kind::of(&name) {
                let all = self.indexes.entry(Index::Rows(kind)).or_default();
                match row {
                    Some(_) => all.insert((Place::NONE, name.clone()), None),
                    None => all.remove(&(Place::NONE, name.clone())),
                };
            }
            match (name, row) {
                (RowName::Job(id), Some(row)) => self.jobs.insert(id, row),
                (RowName::Job(id), None) => self.jobs.remove(&id),
                (name, Some(row)) => self.rows.insert(name, row),
                (name, None) => self.rows.remove(&name),
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

/// The name before all others.
const FIRST: RowName = RowName::Job(JobId::new(0));

/// Where the entries of a scan begin in ascending order, and where they end in descending order.
fn bounds(scan: &Scan) -> (Bound<At>, Bound<At>) {
    if let Some(after) = &scan.after {
        return (Bound::Excluded(after.clone()), Bound::Excluded(after.clone()));
    }
    let from = scan.from.filter(|_| !matches!(scan.index, Index::Line(..)));
    let first = from.map_or(Bound::Unbounded, |at| Bound::Included((Place::at(at), FIRST)));
    let to = scan.to.filter(|to| *to < Timestamp::MAX).map(|to| to + Duration::from_micros(1));
    let last = to.map_or(Bound::Unbounded, |at| Bound::Excluded((Place::at(at), FIRST)));
    (first, last)
}

/// The first of what was found; no more of it is looked at.
fn page(mut found: impl Iterator<Item = Entry>, limit: usize) -> Seen {
    let entries = found.by_ref().take(limit).collect();
    Seen { entries, more: found.next().is_some() }
}

#[async_trait]
impl Backend for Maps {
    type Tx = OwnedMutexGuard<Kept>;

    fn capabilities(&self) -> Capabilities {
        Capabilities::all().with_transactions(false).with_timed(false)
    }

    fn page(&self) -> usize {
        16
    }

    fn longest_pause(&self) -> Duration {
        Duration::ZERO
    }

    async fn begin(&self, time: Time, _: Access) -> Result<Beginning<Self::Tx>> {
        let mut tx = Arc::clone(&self.0).lock_owned().await;
        if let Some(Some(now)) = time.asked() {
            // R38: store time never goes back.
            tx.now = tx.now.max(now);
        }
        let (now, ids) = (tx.now, Ids { next: tx.next_id, step: 1 });
        Ok(Beginning { tx, now, ids })
    }

    async fn load(
        &self,
        tx: &mut Self::Tx,
        names: &BTreeSet<RowName>,
    ) -> Result<Vec<(RowName, Row)>> {
        let found = names.iter().filter_map(|name| Some((name.clone(), tx.row(name)?.clone())));
        Ok(found.collect())
    }

    async fn scan(&self, tx: &mut Self::Tx, scans: &[Scan]) -> Result<Vec<Seen>> {
        Ok(scans.iter().map(|scan| tx.seen(scan)).collect())
    }

    async fn commit(
        &self,
        mut tx: Self::Tx,
        changes: Changes,
        _: &Notifications,
    ) -> Result<Committed> {
        tx.apply(changes);
        Ok(Committed::Done)
    }

    async fn load_aside(&self, _: &mut Self::Tx, _: JobId) -> Result<Option<Row>> {
        Ok(None)
    }

    async fn load_in_part(&self, _: &mut Self::Tx, _: JobId) -> Result<Option<Job>> {
        Ok(None)
    }

    async fn counts(&self, tx: &mut Self::Tx) -> Result<Tally> {
        Ok(tx.counts.clone())
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
    /// The kind of a row, where all rows of its kind may be asked for.
    #[must_use]
    pub fn of(name: &RowName) -> Option<Self> {
        match name {
            RowName::Queue(_) => Some(Kind::Queues),
            RowName::Task(_) => Some(Kind::Tasks),
            RowName::Starts(..) => Some(Kind::Starts),
            RowName::Worker(..) => Some(Kind::Workers),
            RowName::Alert(_) => Some(Kind::Alerts),
            RowName::Schedule(_) => Some(Kind::Schedules),
            _ => None,
        }
    }
}
