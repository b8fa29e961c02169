//! Reading indexes for the engine.
//!
//! Most indexes are sorted sets, which are read in one look, a page of each. Lines are read by `line`,
//! ticks by `ticks`, and jobs by their ids by `listing`.
//!
//! Invariant: no answer of a server grows with what the store holds, but with what was asked for.

use std::collections::BTreeMap;

use quell_core::{
    AlertName, Job, JobId, Key, QueueName, Result, ScheduleName, Timestamp, WorkerId,
};
use quell_engine::{Entry, Index, Kind, Note, Place, RowName, Scan, Seen};

use crate::commit::absorbed_by;
use crate::entries::expiry_name;
use crate::keys::{Keys, member, split_task_key};
use crate::look::{Read, Score, job_of, read_fields};
use crate::open::{Cell, Open};
use crate::portions::Order;
use crate::row::{StoredAside, corrupt};

/// Members of a sorted set that are read in one trip at most: a page of the engine, and the one after it.
const PORTION: usize = 1_001;

/// An index that is a sorted set.
pub(crate) struct Sorted {
    pub(crate) key: String,
    order: Order,
    of: fn(&str) -> Result<RowName>,
}

/// A name of a job in a sorted set.
fn job_name(member: &str) -> Result<RowName> {
    Ok(RowName::Job(job_of(member)?))
}

fn schedule_name(member: &str) -> Result<RowName> {
    Ok(RowName::Schedule(ScheduleName::new(member)?))
}

/// What a member of the sorted set of what expires, or of the set of what names a job, stands for.
pub(crate) fn name_of(member: &str) -> Result<RowName> {
    let wrong = || corrupt(format_args!("the key {member:?}"));
    let (kind, field) = member.split_once(' ').ok_or_else(wrong)?;
    if kind == "s" {
        let (queue, partition) = match field.split_once(' ') {
            Some((queue, partition)) => (queue, Some(Key::new(partition)?)),
            None => (field, None),
        };
        return Ok(RowName::Starts(QueueName::new(queue)?, partition));
    }
    let key = split_task_key(field).ok_or_else(wrong)?;
    match kind {
        "h" => Ok(RowName::Hold(key)),
        "r" => Ok(RowName::Record(key)),
        "m" => Ok(RowName::Memory(key)),
        _ => Err(wrong()),
    }
}

impl Sorted {
    /// The sorted set of an index; none for one that is none.
    pub(crate) fn of(keys: &Keys, index: &Index) -> Option<Self> {
        let jobs = |key, order| Some(Sorted { key, order, of: job_name });
        match index {
            Index::Leases => jobs(keys.leases(), Order::Lowest),
            Index::Waiting => jobs(keys.waiting(), Order::Lowest),
            Index::Ended => jobs(keys.ended(), Order::Lowest),
            Index::Closed((task, key)) => jobs(keys.closed(task, key), Order::Lowest),
            Index::Dead => jobs(keys.dead(), Order::Highest),
            Index::Unreadable => jobs(keys.unreadable(), Order::Highest),
            Index::Expiry => Some(Sorted { key: keys.expiry(), order: Order::Lowest, of: name_of }),
            Index::Plan => {
                Some(Sorted { key: keys.plan(), order: Order::Lowest, of: schedule_name })
            }
            Index::Line(..)
            | Index::Begun(_)
            | Index::Of(_)
            | Index::Ticks
            | Index::Fired(_)
            | Index::Jobs
            | Index::Rows(_) => None,
        }
    }
}

/// Where a member stands: of those that are ordered by ids, the score says so and no time.
fn place(index: &Index, at: Timestamp) -> Place {
    match index {
        Index::Unreadable | Index::Closed(_) => Place::NONE,
        _ => Place::at(at),
    }
}

/// The score from which on a job that is set aside is found.
pub(crate) fn score_of(id: JobId) -> Timestamp {
    Timestamp::from_micros(i64::try_from(id.get()).unwrap_or(i64::MAX))
}

/// A member of a sorted set, as the engine calls it.
pub(crate) fn member_of(name: &RowName) -> Option<String> {
    match name {
        RowName::Job(id) => Some(member(*id)),
        RowName::Schedule(name) => Some(name.to_string()),
        name => expiry_name(name),
    }
}

/// A scan of a sorted set in progress.
struct Walk<'s> {
    scan: &'s Scan,
    sorted: Sorted,
    /// Where the next page begins.
    from: Score,
    after: Option<String>,
    found: Vec<Entry>,
    more: bool,
    is_over: bool,
}

impl<'s> Walk<'s> {
    fn new(open: &Open, scan: &'s Scan) -> Option<Self> {
        let sorted = Sorted::of(open.keys(), &scan.index)?;
        let (first, last) = (Score::Min, Score::Max);
        let bound = |at: Option<Timestamp>, end| at.map_or(end, Score::At);
        let from = match (&scan.after, sorted.order) {
            (Some((_, RowName::Job(id))), Order::Highest) if scan.index == Index::Unreadable => {
                Score::At(score_of(*id))
            }
            (Some(_), _) if matches!(scan.index, Index::Closed(_)) => first,
            (Some((place, _)), _) => Score::At(place.at),
            (None, Order::Lowest) => bound(scan.from, first),
            (None, Order::Highest) => bound(scan.to, last),
        };
        let after = scan.after.as_ref().and_then(|(_, name)| member_of(name));
        let is_over = scan.limit == 0;
        Some(Walk { scan, sorted, from, after, found: Vec::new(), more: false, is_over })
    }

    /// One more than is wanted says whether there are more.
    fn wanted(&self) -> usize {
        let left = self.scan.limit.saturating_sub(self.found.len());
        left.saturating_add(1).min(PORTION)
    }

    fn read(&self) -> Read {
        let (key, order) = (self.sorted.key.clone(), self.sorted.order);
        let limit = self.wanted();
        match (&self.after, order, self.scan.to) {
            // What the bound keeps out is not sent.
            (None, Order::Lowest, to) => {
                let to = to.map_or(Score::Max, Score::At);
                Read::Lowest { key, from: self.from, to, limit }
            }
            _ => Read::Portion { key, order, from: self.from, after: self.after.clone(), limit },
        }
    }

    /// Whether an entry is in the bounds of the scan; none where no later one is either.
    fn takes(&self, place: Place, name: &RowName) -> Option<bool> {
        let is_up = self.sorted.order == Order::Lowest;
        let (from, to) = (self.scan.from, self.scan.to);
        let (low, high) =
            (from.is_some_and(|at| place.at < at), to.is_some_and(|at| place.at > at));
        if (is_up && high) || (!is_up && low) {
            return None;
        }
        let follows = |(at, after): &(Place, RowName)| {
            let order = (place, member_of(name)).cmp(&(*at, member_of(after)));
            if is_up { order.is_gt() } else { order.is_lt() }
        };
        Some(!low && !high && self.scan.after.as_ref().is_none_or(follows))
    }

    fn take(&mut self, members: Vec<(String, Timestamp)>) -> Result<()> {
        let is_last = members.len() < self.wanted();
        for (member, at) in members {
            let (place, name) = (place(&self.scan.index, at), (self.sorted.of)(&member)?);
            self.from = Score::At(at);
            self.after = Some(member);
            match self.takes(place, &name) {
                None => {
                    self.is_over = true;
                    return Ok(());
                }
                Some(true) if self.found.len() >= self.scan.limit => {
                    (self.more, self.is_over) = (true, true);
                    return Ok(());
                }
                Some(true) => self.found.push(Entry { place, name, note: None }),
                Some(false) => {}
            }
        }
        self.is_over = is_last;
        Ok(())
    }
}

impl Open {
    /// Reads indexes, one answer for each in their order.
    pub(crate) async fn scan(&mut self, scans: &[Scan]) -> Result<Vec<Seen>> {
        self.know_settings().await?;
        let mut seen: BTreeMap<usize, Seen> = BTreeMap::new();
        let mut walks: Vec<(usize, Walk<'_>)> = Vec::new();
        let mut named = Vec::new();
        for (place, scan) in scans.iter().enumerate() {
            match (&scan.index, Walk::new(self, scan)) {
                (_, Some(walk)) => walks.push((place, walk)),
                (Index::Of(id), None) => named.push((place, *id)),
                (_, None) => drop(seen.insert(place, self.scan_other(scan).await?)),
            }
        }
        while walks.iter().any(|(_, walk)| !walk.is_over) {
            let left = walks.iter_mut().filter(|(_, walk)| !walk.is_over);
            let mut left: Vec<&mut Walk<'_>> = left.map(|(_, walk)| walk).collect();
            let reads = left.iter().map(|walk| walk.read()).collect();
            let mut looked = self.look(reads).await?;
            for walk in &mut left {
                walk.take(looked.scored()?)?;
            }
        }
        for (place, Walk { scan, found, more, .. }) in walks {
            let entries = self.with_notes(scan, found).await?;
            if let (Index::Closed((task, key)), None) = (&scan.index, &scan.after) {
                let ids = entries.iter().filter_map(|entry| id_of(&entry.name)).collect();
                self.note_first(self.keys().closed(task, key), scan.limit, ids);
            }
            seen.insert(place, Seen { entries, more });
        }
        self.scan_names(named, &mut seen).await?;
        Ok(seen.into_values().collect())
    }

    async fn scan_other(&mut self, scan: &Scan) -> Result<Seen> {
        match &scan.index {
            Index::Line(queue, task) => self.scan_line(queue, task, scan).await,
            Index::Begun(queue) => self.scan_begun(queue, scan).await,
            Index::Fired(schedule) => self.scan_fired(schedule, scan).await,
            Index::Jobs => self.scan_jobs(scan).await,
            Index::Rows(kind) => self.scan_rows(*kind).await,
            // `hot::prune` forgets old ticks, as they are kept in spans.
            _ => Ok(Seen::default()),
        }
    }

    /// What names jobs: keys, jobs that they absorbed, and ticks among their triggers.
    async fn scan_names(
        &mut self,
        named: Vec<(usize, JobId)>,
        seen: &mut BTreeMap<usize, Seen>,
    ) -> Result<()> {
        if named.is_empty() {
            return Ok(());
        }
        let keys = self.keys().clone();
        let reads = named.iter().flat_map(|(_, id)| {
            let absorbed = Read::Members(absorbed_by(&keys, *id));
            [Read::Members(keys.names(*id)), absorbed, Read::All(keys.ticks_of(*id))]
        });
        let mut looked = self.look(reads.collect()).await?;
        for (place, id) in named {
            let (names, absorbed) = (looked.members()?, looked.members()?);
            let ticks = looked.pairs()?;
            let mut all = Vec::with_capacity(names.len().saturating_add(absorbed.len()));
            for name in names {
                all.push(name_of(&name)?);
            }
            for job in absorbed {
                all.push(RowName::Job(job_of(&job)?));
            }
            if !ticks.is_empty() {
                all.extend(self.ticks_of(id, ticks).await?);
            }
            let entry = |name| Entry { place: Place::NONE, name, note: None };
            let entries = all.into_iter().map(entry).collect();
            seen.insert(place, Seen { entries, more: false });
        }
        Ok(())
    }

    /// All rows of a kind: few of them are kept, or the caller asks for all whatever their number.
    async fn scan_rows(&mut self, kind: Kind) -> Result<Seen> {
        let keys = self.keys().clone();
        let mut names: Vec<RowName> = Vec::new();
        let key = match kind {
            Kind::Queues => {
                names.extend(self.known.queues.keys().cloned().map(RowName::Queue));
                None
            }
            Kind::Tasks => {
                names.extend(self.known.tasks.keys().cloned().map(RowName::Task));
                None
            }
            Kind::Starts => Some(keys.starts()),
            Kind::Workers => Some(keys.workers()),
            Kind::Alerts => Some(keys.alerts()),
            Kind::Schedules => Some(keys.schedules()),
        };
        if let Some(key) = key {
            let pairs = self.look(vec![Read::All(key.clone())]).await?.pairs()?;
            for (field, value) in pairs {
                names.push(row_name(kind, &field)?);
                self.keep(Cell::new(key.clone(), field), Some(value));
            }
        }
        let entry = |name| Entry { place: Place::NONE, name, note: None };
        Ok(Seen { entries: names.into_iter().map(entry).collect(), more: false })
    }

    /// The same entries, with what is known of the jobs: of those that are set aside what is kept of them,
    /// of others what the step has read.
    async fn with_notes(&mut self, scan: &Scan, mut entries: Vec<Entry>) -> Result<Vec<Entry>> {
        let ids: Vec<JobId> = entries.iter().filter_map(|entry| id_of(&entry.name)).collect();
        let mut notes = BTreeMap::new();
        if scan.index == Index::Unreadable && !ids.is_empty() {
            let fields: Vec<String> = ids.iter().map(ToString::to_string).collect();
            let reads = read_fields(&self.keys().unreadable_jobs(), &fields);
            let rows = self.look(reads).await?.fields()?;
            for (id, row) in ids.iter().zip(rows) {
                let aside = row.and_then(|row| StoredAside::read(&row));
                notes.extend(aside.and_then(StoredAside::note).map(|note| (*id, note)));
            }
        } else {
            let read = |id: &JobId| Some((*id, note_of(self.jobs.get(id)?)));
            notes.extend(ids.iter().filter_map(read));
        }
        for entry in &mut entries {
            entry.note = id_of(&entry.name).and_then(|id| notes.get(&id).cloned());
        }
        Ok(entries)
    }
}

/// What an index says of a job.
fn note_of(job: &Job) -> Note {
    Note {
        queue: job.queue.clone(),
        task: job.task.clone(),
        state: job.state,
        partition: job.partition.clone(),
        worker: job.worker.clone(),
    }
}

/// The name of a row of a kind by the field in which it is.
fn row_name(kind: Kind, field: &str) -> Result<RowName> {
    let wrong = || corrupt(format_args!("the row {field:?}"));
    Ok(match kind {
        Kind::Queues => RowName::Queue(QueueName::new(field)?),
        Kind::Tasks => RowName::Task(quell_core::TaskName::new(field)?),
        Kind::Starts => name_of(&format!("s {field}"))?,
        Kind::Workers => {
            let (worker, incarnation) = field.rsplit_once(' ').ok_or_else(wrong)?;
            RowName::Worker(WorkerId::new(worker)?, incarnation.parse().map_err(|_| wrong())?)
        }
        Kind::Alerts => RowName::Alert(AlertName::new(field)?),
        Kind::Schedules => RowName::Schedule(ScheduleName::new(field)?),
    })
}

pub(crate) fn id_of(name: &RowName) -> Option<JobId> {
    match name {
        RowName::Job(id) => Some(*id),
        _ => None,
    }
}
