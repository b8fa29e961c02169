//! One partition of a table as a backend of the engine.
//!
//! A row of the engine is a row of the table, and so is each place in an index. A step knows the versions
//! of the rows that it loaded, so one batch writes what it changes if all of it is as it was. Ids come in
//! blocks, so that no row is written by every trigger.

use std::collections::{BTreeMap, BTreeSet};
use std::ops;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use futures_util::future::{join3, try_join_all};
use quell_core::checkup::{Checkup, ClockReading};
use quell_core::part::{Ids, Notifications};
use quell_core::{
    Capabilities, Error, ErrorKind, Job, JobId, JobState, QueueName, Result, Timestamp,
};
use quell_engine::{
    Access, Backend, Beginning, Changes, Committed, Entry, Index, Note, Place, Row, RowName, Scan,
    Seen, Tally, Time,
};

use crate::beside::{self, Copies, split};
use crate::counted::{self, CommitsCounted, FOLDS_OF_UPKEEP};
use crate::damaged::decode_in_part;
use crate::held::Doubt;
use crate::ids::{Numbers, TakenIds};
use crate::long::{self, PartCounts, whole};
use crate::names::{hanging, is_derived, job_of, of_entry, of_index, of_raw, of_row, of_time};
use crate::notice::Notices;
use crate::table::{self, Change, Condition, Range, Table};
use crate::timer::{Scheduled, Timer};

/// Values that are longer than this are kept in parts, where a table takes longer ones, too: a service
/// may count the bytes that it was sent, and not those that they stand for.
const LONGEST: usize = 512 << 10;
/// The bytes of a batch that are left to other rows beside the longest.
const ROOM: usize = 16 << 10;
/// The bytes that a job which waits leaves to what its attempts add to its row: an output, an error.
/// Where a table takes less, a quarter of a batch.
const GROWTH: usize = 512 << 10;
/// After how many conflicts in a row of batches with the same place a process looks whether it is there.
const LOOK_AFTER: u32 = 3;
/// The most places that are counted.
const MOST_COUNTED: usize = 10_000;
/// Rows that are read at a time of what hangs on a job.
const PAGE: usize = 500;

/// One partition of a table, with the rows of one store.
#[derive(Debug)]
pub struct Partition<T> {
    table: T,
    name: String,
    /// The partition that has the random name of the store.
    home: String,
    state: Arc<Mutex<State>>,
    notices: Option<Arc<Notices>>,
    numbers: Numbers,
    /// Since the last fold of this process.
    pub(crate) commits: CommitsCounted,
}

/// What a process knows of a partition.
#[derive(Debug)]
pub(crate) struct State {
    /// The highest time seen (R38).
    now: Timestamp,
    /// The turns of ids that it has taken and not used.
    pub(crate) ids: ops::Range<u64>,
    /// Places that were to go from indexes in batches that conflicted, and in how many in a row.
    conflicts: BTreeMap<String, u32>,
}

/// An open step.
#[derive(Debug)]
pub struct Tx {
    now: Timestamp,
    /// Whether its time is that of the table's clock.
    has_clock: bool,
    /// The rows that were read, by their names in the table; none where there is none.
    read: BTreeMap<String, Option<table::Row>>,
    /// Jobs whose dependent rows are all read.
    whole: BTreeSet<JobId>,
    /// Which rows are in parts, and in how many.
    parts: PartCounts,
    /// Rows of open windows that were read beside those of their keys.
    copies: Copies,
    ids: TakenIds,
}

impl Tx {
    /// Keeps a row that a page of an index had. One that was read before stays as it was: the step decided
    /// by it, and the version of a newer one would let the step write over what it has not seen.
    fn keep(&mut self, row: table::Row) {
        self.read.entry(row.name.clone()).or_insert(Some(row));
    }
}

pub(crate) fn locked(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<T: Table> Partition<T> {
    /// The partition of this name; rows come into being when they are needed.
    #[must_use]
    pub fn new(table: T, name: impl Into<String>) -> Self {
        let state = State { now: Timestamp::MIN, ids: 1..1, conflicts: BTreeMap::new() };
        let name = name.into();
        Partition {
            table,
            home: name.clone(),
            name,
            state: Arc::new(Mutex::new(state)),
            notices: None,
            numbers: Numbers::ALL,
            commits: CommitsCounted::default(),
        }
    }

    /// The same partition with a timer: before a step commits, it sends a message for the time at which
    /// something is due that no other message comes for. All processes of a store have the same timer.
    #[must_use]
    pub fn with_timer(self, timer: Arc<dyn Timer>) -> Self {
        self.with_notices(Some(Arc::new(Notices::new(timer))))
    }

    /// The same partition, which shares a timer with others of its store.
    pub(crate) fn with_notices(self, notices: Option<Arc<Notices>>) -> Self {
        Partition { notices, ..self }
    }

    /// The same partition as one of up to 1,024 of a store: the ids of its jobs are multiples of 1,024
    /// and this number. All processes give a partition the same number, from its first job on.
    pub(crate) fn numbered(self, number: u64) -> Self {
        Partition { numbers: Numbers::of_partition(number), ..self }
    }

    /// The same partition as one of a store whose random name another one has.
    pub(crate) fn of_store(self, home: &str) -> Self {
        Partition { home: home.to_owned(), ..self }
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn home(&self) -> &str {
        &self.home
    }

    pub(crate) fn state(&self) -> &Arc<Mutex<State>> {
        &self.state
    }

    pub(crate) fn notices(&self) -> Option<&Arc<Notices>> {
        self.notices.as_ref()
    }

    /// The time of the table, which never goes back (R38).
    pub(crate) async fn now(&self) -> Result<Timestamp> {
        Ok(self.know(self.table.now().await?))
    }

    /// The table.
    #[must_use]
    pub fn table(&self) -> &T {
        &self.table
    }

    fn know(&self, now: Timestamp) -> Timestamp {
        let mut state = locked(&self.state);
        state.now = state.now.max(now);
        state.now
    }

    /// Reads rows that were not read yet.
    async fn read(&self, tx: &mut Tx, names: Vec<String>) -> Result<()> {
        let names: Vec<String> =
            names.into_iter().filter(|name| !tx.read.contains_key(name)).collect();
        if names.is_empty() {
            return Ok(());
        }
        let rows = self.table.get(&self.name, &names).await?;
        let (rows, parts) = whole(&self.table, &self.name, rows).await?;
        tx.parts.extend(parts);
        tx.read.extend(names.into_iter().zip(rows));
        Ok(())
    }

    /// Reads what hangs on jobs, and what names them as far as that is on the first page.
    async fn read_hanging(&self, tx: &mut Tx, ids: BTreeSet<JobId>) -> Result<()> {
        let ids: Vec<JobId> = ids.into_iter().filter(|id| !tx.whole.contains(id)).collect();
        let ranges: Vec<Range> = ids.iter().map(|id| Range::of(&hanging(*id))).collect();
        let reads = ranges.into_iter().map(|range| self.whole_page(range, PAGE));
        for (id, (page, parts)) in ids.into_iter().zip(try_join_all(reads).await?) {
            if page.next.is_none() {
                tx.whole.insert(id);
            }
            tx.parts.extend(parts);
            page.rows.into_iter().for_each(|row| tx.keep(row));
            for name in [RowName::Attempts, RowName::Effects, RowName::Past, RowName::Aside] {
                tx.read.entry(of_row(&name(id))).or_insert(None);
            }
        }
        Ok(())
    }

    /// The changes that a batch consists of, long rows in parts.
    pub(crate) fn in_parts(&self, rows: Vec<Change>, parts: &PartCounts) -> Result<Vec<Change>> {
        let bounds = self.table.bounds();
        let mut batch = Vec::with_capacity(rows.len());
        for change in rows {
            let length = change.value.as_ref().map_or(0, |value| value.len());
            if length.saturating_add(ROOM) > bounds.batch_bytes {
                return Err(too_long(length, bounds.batch_bytes.saturating_sub(ROOM)));
            }
            let parts = parts.get(&change.row).copied().unwrap_or(0);
            batch.extend(long::changes(change, parts, bounds.row_bytes.min(LONGEST))?);
        }
        Ok(batch)
    }

    /// Leaves messages of a step that surely wrote nothing to be cancelled.
    fn lose(&self, sent: Vec<Scheduled>) {
        if let Some(notices) = &self.notices {
            notices.lose(sent);
        }
    }

    /// Cancels messages of steps before that wrote nothing.
    async fn cancel_lost(&self) {
        if let Some(notices) = &self.notices {
            notices.cancel_lost().await;
        }
    }

    /// Makes a batch. Places in indexes that are to go and are not there are no reason to fail: where
    /// batches conflict again and again, it looks for those and leaves them out.
    async fn write(&self, batch: Vec<Change>) -> Result<table::Committed> {
        let committed = self.table.commit(&self.name, batch.clone()).await?;
        let goes = |change: &&Change| change.condition == Condition::Present;
        let gone: Vec<String> =
            batch.iter().filter(goes).map(|change| change.row.clone()).collect();
        if !self.count_conflict(&gone, committed == table::Committed::Conflict) {
            return Ok(committed);
        }
        let there = self.table.get(&self.name, &gone).await?;
        let missing: BTreeSet<String> = gone
            .into_iter()
            .zip(there)
            .filter(|(_, row)| row.is_none())
            .map(|(name, _)| name)
            .collect();
        if missing.is_empty() {
            return Ok(committed);
        }
        let rest = batch.into_iter().filter(|change| !missing.contains(&change.row)).collect();
        self.table.commit(&self.name, rest).await
    }

    /// Counts the conflicts of a batch with these places; says whether they are to be looked for. Other
    /// batches do not count: in a busy process some are made all the time.
    fn count_conflict(&self, gone: &[String], is_conflict: bool) -> bool {
        let mut state = locked(&self.state);
        if state.conflicts.len() > MOST_COUNTED {
            state.conflicts.clear();
        }
        let mut is_time = false;
        for name in gone {
            if is_conflict {
                let count = state.conflicts.entry(name.clone()).or_insert(0);
                *count = count.saturating_add(1);
                is_time |= *count >= LOOK_AFTER;
            } else {
                state.conflicts.remove(name);
            }
        }
        if is_time {
            state.conflicts.retain(|name, _| !gone.contains(name));
        }
        is_time
    }

    /// Reads one page of an index.
    async fn read_index(&self, scan: &Scan) -> Result<(table::Page, PartCounts)> {
        let index = &scan.index;
        let mut range = Range::of(&of_index(index));
        let (low, high) = match index.is_descending() {
            true => (scan.to, scan.from),
            false => (scan.from, scan.to),
        };
        if let Some(low) = low.filter(|_| !is_derived(index)) {
            range.from = range.from.max(of_time(index, low));
        }
        if let Some(high) = high.filter(|_| !is_derived(index)) {
            range.to = range.to.min(Range::of(&of_time(index, high)).to);
        }
        if let Some((place, name)) = &scan.after {
            // No character of a name comes before this one.
            range.from = range.from.max(format!("{}!", of_entry(index, *place, name)));
        }
        if scan.limit == 0 || range.from >= range.to {
            return Ok(Default::default());
        }
        self.whole_page(range, scan.limit).await
    }
}

/// What a page of an index says; rows that were read with it need not be read again.
fn seen(tx: &mut Tx, scan: &Scan, page: table::Page) -> Result<Seen> {
    let mut entries = Vec::with_capacity(page.rows.len());
    for row in page.rows {
        let entry = match &scan.index {
            Index::Jobs => {
                let name = job_of(&row.name).map(RowName::Job);
                name.map(|name| Entry { place: Place::NONE, name, note: None })
            }
            Index::Rows(_) => {
                let (name, _): (RowName, serde::de::IgnoredAny) = from_json(&row)?;
                Some(Entry { place: Place::NONE, name, note: None })
            }
            _ => {
                let (place, name, note): (StoredPlace, RowName, Option<Note>) = from_json(&row)?;
                Some(Entry { place: place.into(), name, note })
            }
        };
        if is_derived(&scan.index) {
            tx.keep(row);
        }
        entries.extend(entry);
    }
    Ok(Seen { entries, more: page.next.is_some() })
}

/// A place as it is stored: its rank and its time.
type Ranked = (i16, i64);

#[derive(serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
struct StoredPlace(Ranked);

impl From<StoredPlace> for Place {
    fn from(StoredPlace((rank, at)): StoredPlace) -> Self {
        Place { rank: std::cmp::Reverse(rank), at: Timestamp::from_micros(at) }
    }
}

impl From<Place> for StoredPlace {
    fn from(place: Place) -> Self {
        StoredPlace((place.rank.0, place.at.as_micros()))
    }
}

#[async_trait]
impl<T: Table> Backend for Partition<T> {
    type Tx = Tx;

    fn capabilities(&self) -> Capabilities {
        let large = self.table.bounds().changes == usize::MAX;
        // Each process knows its own changes alone.
        Capabilities::all()
            .with_transactions(false)
            .with_timed(false)
            .with_push(false)
            .with_large_batches(large)
    }

    fn most_changes(&self) -> usize {
        // One row is left to the counts.
        self.table.bounds().changes.saturating_sub(1)
    }

    fn most_payload(&self) -> usize {
        let most = self.table.bounds().batch_bytes;
        most.saturating_sub(GROWTH.min(most / 4).saturating_add(ROOM))
    }

    async fn begin(&self, time: Time, access: Access) -> Result<Beginning<Tx>> {
        let seen = locked(&self.state).now;
        let now = match time.asked() {
            Some(Some(now)) => self.know(now),
            Some(None) => self.know(self.table.now().await?),
            None if seen > Timestamp::MIN => seen,
            None => self.table.now().await?,
        };
        let count = u64::try_from(access.jobs()).unwrap_or(u64::MAX);
        let ids = match count {
            0 => TakenIds::none(&self.state),
            count => self.take_ids(count, 0).await?,
        };
        let first = ids.ids.start.max(1);
        let (read, whole, parts) = (BTreeMap::new(), BTreeSet::new(), PartCounts::new());
        let copies = Copies::new(count > 0);
        let has_clock = time.asked() == Some(None);
        let tx = Tx { now, has_clock, read, whole, parts, copies, ids };
        Ok(Beginning { tx, now, ids: self.numbers.from(first) })
    }

    fn late(&self, tx: &Tx) -> Option<Timestamp> {
        // What it has read was written before its last answer: an end that made room, for instance.
        let latest = if tx.has_clock { self.table.latest() } else { None };
        latest.map(|now| self.know(now))
    }

    async fn ids_above(&self, tx: &mut Tx, above: JobId, jobs: usize) -> Result<Ids> {
        let count = u64::try_from(jobs).unwrap_or(u64::MAX);
        tx.ids = self.take_ids(count, self.numbers.turn(above)).await?;
        Ok(self.numbers.from(tx.ids.ids.start))
    }

    async fn load(&self, tx: &mut Tx, names: &BTreeSet<RowName>) -> Result<Vec<(RowName, Row)>> {
        let hangs = names.iter().filter_map(hanging_on);
        let hangs: BTreeSet<JobId> = hangs.collect();
        let is_apart = |name: &&RowName| !hanging_on(name).is_some_and(|id| hangs.contains(&id));
        let mut found = tx.copies.found(&tx.read, names);
        let is_copied = |name: &&RowName| found.iter().any(|(found, _)| found == *name);
        let apart = names.iter().filter(is_apart).filter(|name| !is_copied(name));
        // What hangs on a job comes after its row: who names it later changes the row.
        self.read(tx, apart.map(of_row).collect()).await?;
        self.read_hanging(tx, hangs).await?;
        for name in names {
            if let Some(Some(row)) = tx.read.get(&of_row(name)) {
                let row = decode(name, row)?;
                tx.copies.note(&tx.read, name, &row);
                found.push((name.clone(), row));
            }
        }
        Ok(found)
    }

    async fn scan(&self, tx: &mut Tx, scans: &[Scan]) -> Result<Vec<Seen>> {
        let of = scans.iter().filter_map(|scan| match scan.index {
            Index::Of(id) if scan.after.is_none() => Some(id),
            _ => None,
        });
        let of: BTreeSet<JobId> = of.collect();
        self.read_hanging(tx, of).await?;
        let pages = scans.iter().map(|scan| {
            let known = match scan.index {
                Index::Of(id) => tx.whole.contains(&id).then(|| known_page(tx, id, scan)),
                _ => None,
            };
            async move {
                match known {
                    Some(page) => Ok((page, PartCounts::new())),
                    None => self.read_index(scan).await,
                }
            }
        });
        let pages = try_join_all(pages).await?;
        let mut all = Vec::with_capacity(scans.len());
        for (scan, (page, parts)) in scans.iter().zip(pages) {
            tx.parts.extend(parts);
            all.push(seen(tx, scan, page)?);
        }
        Ok(all)
    }

    async fn commit(&self, tx: Tx, changes: Changes, news: &Notifications) -> Result<Committed> {
        let bounds = self.table.bounds();
        let Tx { now, read, parts, copies, ids, .. } = tx;
        let used = changes.ids;
        let longest = self.most_payload();
        // R1: what was accepted must be able to start and end.
        for row in changes.rows.values().flatten() {
            if let Row::Job(job) = row
                && job.state == JobState::Scheduled
                && job.payload.as_str().len() > longest
            {
                return Err(too_long(job.payload.as_str().len(), longest));
            }
        }
        let was_there = |name: &RowName| matches!(read.get(&of_row(name)), Some(Some(_)));
        let needed =
            |notices: &Arc<Notices>| notices.needed((&changes, &news.turns), now, was_there);
        let needed = self.notices.as_ref().map(needed).unwrap_or_default();
        let windows = beside::windows(&changes);
        let started = started_in(&changes);
        let counts = counted::change_of(&changes.counts, now)?;
        let has_counts = counts.is_some();
        let mut rows = rows_of(&read, &copies, changes)?;
        rows.extend(counts);
        let most = bounds.row_bytes.min(LONGEST);
        let with = beside::with_copies(&rows, &windows, &read, most);
        let mut batch = self.in_parts(with, &parts)?;
        if bytes_of(&batch) > bounds.batch_bytes {
            // What fits without copies is accepted.
            batch = self.in_parts(rows, &parts)?;
        }
        if batch.len() > bounds.changes || bytes_of(&batch) > bounds.batch_bytes {
            return Ok(Committed::TooLarge { changes: batch.len(), most: bounds.changes });
        }
        // Before the rows: a message without rows is ignored, rows without a message would wait.
        let sent = match self.notices.as_ref().filter(|_| !needed.is_empty()) {
            Some(notices) => {
                self.store_name(notices).await?;
                notices.send_all(needed, now).await?
            }
            None => Vec::new(),
        };
        let doubt = Doubt::of(self.notices.as_ref(), &started);
        // Until the outcome of the batch is known, no other batch gets its ids.
        let mut ids = ids;
        let first = std::mem::replace(&mut ids.ids.start, ids.ids.end);
        let (written, (), ()) =
            join3(self.write(batch), self.cancel_lost(), self.fold_some(has_counts)).await;
        match written {
            Ok(table::Committed::Done(_)) => {
                doubt.end();
                ids.ids.start = first.saturating_add(used);
                Ok(Committed::Done)
            }
            Ok(table::Committed::Conflict) => {
                doubt.end();
                ids.ids.start = first;
                self.lose(sent);
                Ok(Committed::Conflict)
            }
            // Its rows may be there, which nothing but these messages would find.
            Err(error) if error.is_unknown_outcome() => Err(error),
            Err(error) => {
                self.lose(sent);
                self.cancel_lost().await;
                Err(error)
            }
        }
    }

    async fn load_aside(&self, tx: &mut Tx, id: JobId) -> Result<Option<Row>> {
        self.read(tx, vec![of_raw(id), of_row(&RowName::Job(id))]).await?;
        let raw = tx.read.get(&of_raw(id)).cloned().flatten();
        raw.map(|row| decode(&RowName::Job(id), &row)).transpose()
    }

    async fn load_in_part(&self, tx: &mut Tx, id: JobId) -> Result<Option<Job>> {
        self.read(tx, vec![of_raw(id), of_row(&RowName::Job(id))]).await?;
        let row = |name: String| tx.read.get(&name).cloned().flatten();
        let row = row(of_row(&RowName::Job(id))).or_else(|| row(of_raw(id)));
        Ok(row.and_then(|row| decode_in_part(id, &row.value)))
    }

    async fn counts(&self, _: &mut Tx) -> Result<Tally> {
        self.kept_counts().await
    }

    async fn tidy(&self) -> Result<()> {
        self.fold_all(FOLDS_OF_UPKEEP).await
    }

    async fn checkup(&self) -> Result<Checkup> {
        let host = self.table.now().await?;
        let clock = ClockReading { host, mark: self.know(host) };
        Ok(Checkup { id: None, clock, facts: self.table.facts() })
    }
}

/// The queues in which jobs start or their leases move.
fn started_in(changes: &Changes) -> BTreeSet<QueueName> {
    let leases = changes.enter.iter().filter(|(index, _)| *index == Index::Leases);
    leases.filter_map(|(_, entry)| entry.note.as_ref()).map(|note| note.queue.clone()).collect()
}

fn bytes_of(batch: &[Change]) -> usize {
    let length = |change: &Change| change.row.len() + change.value.as_ref().map_or(0, |v| v.len());
    batch.iter().map(length).sum()
}

/// The job that a row hangs on.
fn hanging_on(name: &RowName) -> Option<JobId> {
    match name {
        RowName::Attempts(id) | RowName::Effects(id) | RowName::Past(id) | RowName::Aside(id) => {
            Some(*id)
        }
        _ => None,
    }
}

/// What names a job, as far as the scan goes, from rows that were read.
fn known_page(tx: &Tx, id: JobId, scan: &Scan) -> table::Page {
    let prefix = of_index(&Index::Of(id));
    let after = scan.after.as_ref().map(|(place, name)| of_entry(&scan.index, *place, name));
    let known = tx.read.range(prefix.clone()..);
    let known = known.take_while(|(name, _)| name.starts_with(&prefix));
    let known = known.filter_map(|(_, row)| row.clone());
    let rows = known.filter(|row| after.as_ref().is_none_or(|after| row.name > *after));
    table::Page { rows: rows.collect(), next: None }
}

/// The changes of rows of the table that a step comes to.
fn rows_of(
    read: &BTreeMap<String, Option<table::Row>>,
    copies: &Copies,
    changes: Changes,
) -> Result<Vec<Change>> {
    let mut batch: BTreeMap<String, Change> = BTreeMap::new();
    let mut put = |row: String, condition: Condition, value: Option<Vec<u8>>| {
        let value = value.map(Into::into);
        batch.insert(row.clone(), Change { row, condition, value });
    };
    for (index, place, name) in changes.leave {
        put(of_entry(&index, place, &name), Condition::Present, None);
    }
    for (index, Entry { place, name, note }) in changes.enter {
        let value = to_json(&(StoredPlace::from(place), &name, &note))?;
        put(of_entry(&index, place, &name), Condition::Any, Some(value));
    }
    for (name, row) in changes.rows {
        let is_aside = matches!(name, RowName::Aside(_)) && row.is_none();
        let stored = of_row(&name);
        let known = read.get(&stored).cloned().flatten();
        match (known, row) {
            (Some(known), Some(row)) => {
                let value = to_json(&(&name, row))?;
                put(stored, Condition::Version(known.version), Some(value));
            }
            (None, Some(row)) => {
                let value = to_json(&(&name, row))?;
                let is_any = matches!(name, RowName::Gate(_)) && !read.contains_key(&stored);
                // The version of its key's row says that an open window is as its copy.
                let is_any = is_any || copies.has(&stored);
                let condition = if is_any { Condition::Any } else { Condition::Absent };
                put(stored, condition, Some(value));
            }
            (Some(known), None) => put(stored, Condition::Version(known.version), None),
            (None, None) => {}
        }
        if let (RowName::Aside(id), true) = (&name, is_aside)
            && let Some(Some(raw)) = read.get(&of_raw(*id))
        {
            put(of_raw(*id), Condition::Version(raw.version.clone()), None);
        }
    }
    for id in changes.aside {
        let stored = of_row(&RowName::Job(id));
        if let Some(Some(row)) = read.get(&stored) {
            put(of_raw(id), Condition::Any, Some(row.value.to_vec()));
            put(stored, Condition::Version(row.version.clone()), None);
        }
    }
    Ok(batch.into_values().collect())
}

fn too_long(length: usize, most: usize) -> Error {
    let message = format!(
        "a row takes {length} bytes with its payload, this store takes {most}: keep large payloads \
         elsewhere and trigger with a reference, or lower the task's `max_bytes`"
    );
    Error::invalid("payload", message)
}

/// Reads a row of the engine.
fn decode(name: &RowName, row: &table::Row) -> Result<Row> {
    match name {
        RowName::Key(_) => decode_value(name, split(&row.value).0),
        name => decode_value(name, &row.value),
    }
}

pub(crate) fn decode_value(name: &RowName, value: &[u8]) -> Result<Row> {
    let decoded: Result<(RowName, Row), _> = serde_json::from_slice(value);
    let wrong = match decoded {
        Ok((known, row)) if known == *name => return Ok(row),
        Ok((known, _)) => format!("it is the row of {known:?}"),
        Err(error) => error.to_string(),
    };
    Err(match name {
        RowName::Job(id) => Error::unreadable(*id, wrong),
        name => {
            let message = format!("cannot decode the row {name:?}: {wrong}");
            Error::new(ErrorKind::Corrupt, message)
        }
    })
}

pub(crate) fn from_json<D: serde::de::DeserializeOwned>(row: &table::Row) -> Result<D> {
    serde_json::from_slice(&row.value).map_err(|error| {
        let message = format!("cannot decode the row {:?} of the table", row.name);
        Error::new(ErrorKind::Corrupt, message).with_source(error)
    })
}

pub(crate) fn to_json<S: serde::Serialize>(value: &S) -> Result<Vec<u8>> {
    serde_json::to_vec(value).map_err(|error| {
        Error::new(ErrorKind::Internal, "cannot encode a row as JSON").with_source(error)
    })
}
