//! One step under optimistic control: rows are read, the core decides, and one script writes what
//! changed if everything that was read is still so.
//!
//! Where somebody else was faster, the step starts over; nothing was written then.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use quell_core::part::{Ids, Notifications, Part, Rows, StepResult, TaskKey};
use quell_core::{Error, ErrorKind, JobId, Result, ScheduleName, Timestamp};

use crate::fired::Fired;
use crate::keys::member;
use crate::known::Known;
use crate::look::{Looked, Read, read_fields};
use crate::pack::{Item, list, pack};
use crate::row::corrupt;
use crate::shard::{Shard, Time};
use crate::writes::Writes;

/// From this try on, ids are reserved: others accept triggers faster than this step takes.
const RESERVE_FROM: u32 = 3;
/// The longest value that is sent to be compared; of longer ones it is the hash. Without it, steps
/// move 1.4 to 1.5 times the bytes where payloads are 2 kB and more (2026-11-25 in
/// bench/archive/2026-11.md).
const LONGEST_COMPARED: usize = 40;
/// The field of `meta` that differs after each change of names and settings.
pub(crate) const VERSION: &str = "version";

/// A field of a hash, or a string where there is no field.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Cell {
    pub(crate) key: String,
    pub(crate) field: Option<String>,
}

impl Cell {
    pub(crate) fn new(key: String, field: impl Into<String>) -> Self {
        Cell { key, field: Some(field.into()) }
    }
}

/// An open step.
#[derive(Debug)]
pub(crate) struct Tx<'s> {
    pub(crate) shard: &'s Shard,
    pub(crate) now: Timestamp,
    pub(crate) known: Arc<Known>,
    /// What was read, and must still be so.
    pub(crate) cells: BTreeMap<Cell, Option<Vec<u8>>>,
    /// The rows that the step sees.
    pub(crate) rows: Rows,
    /// Sets that were read: members of their keys.
    pub(crate) sets: BTreeMap<String, Vec<String>>,
    /// The first closed windows of keys, at most so many, which must still be those.
    pub(crate) firsts: BTreeMap<String, (usize, Vec<JobId>)>,
    /// What was read of the ticks of schedules.
    pub(crate) fired: BTreeMap<ScheduleName, Fired>,
    /// Keys of which the step is told what is busy.
    pub(crate) busy_keys: BTreeSet<TaskKey>,
    pub(crate) has_history: bool,
    time: Time,
    /// The id of the next new job.
    next_id: u64,
    /// Whether ids were reserved, so that nobody else has them.
    reserved: bool,
    looks: u32,
    /// Whether it may make jobs: a server whose memory is full refuses that, and nothing else.
    grows: bool,
    taken: Option<Taken>,
    /// Writes beside those that follow from the rows.
    pub(crate) beside: Writes,
}

/// What the step made of the rows.
#[derive(Debug)]
struct Taken {
    before: Rows,
    ended: StepResult,
}

/// What a commit came to.
#[derive(Debug)]
pub(crate) enum Committed {
    Done(Notifications),
    /// Somebody else was faster.
    Again,
}

impl<'s> Tx<'s> {
    /// Begins a step that makes at most `jobs` new jobs, after so many `tries` that failed.
    pub(crate) async fn begin(
        shard: &'s Shard,
        (time, has_history): (Time, bool),
        tries: u32,
        jobs: usize,
    ) -> Result<Self> {
        let mut tx = Tx {
            shard,
            now: Timestamp::MIN,
            known: shard.known(),
            cells: BTreeMap::new(),
            rows: Rows::default(),
            sets: BTreeMap::new(),
            firsts: BTreeMap::new(),
            fired: BTreeMap::new(),
            busy_keys: BTreeSet::new(),
            has_history,
            time,
            next_id: 1,
            reserved: tries >= RESERVE_FROM && jobs > 0,
            looks: 0,
            grows: jobs > 0,
            taken: None,
            beside: Writes::default(),
        };
        tx.open(jobs).await?;
        Ok(tx)
    }

    /// Learns the time, the next id, and whether names and settings have changed.
    async fn open(&mut self, jobs: usize) -> Result<()> {
        let keys = &self.shard.keys;
        let step = self.shard.ids.step;
        let reserved = as_number(jobs).saturating_mul(step);
        let id = if self.reserved {
            Read::Reserve(keys.seq(), reserved)
        } else {
            Read::Text(keys.seq())
        };
        let mut looked =
            self.look(vec![Read::Fields(keys.meta(), vec![VERSION.into()]), id]).await?;
        let version = looked.text()?;
        self.note(keys.meta(), VERSION, version.clone());
        if self.reserved {
            let last = looked.number()?;
            self.next_id = last.saturating_sub(reserved).saturating_add(step);
        } else {
            let seq = looked.text()?;
            let newest = seq.as_deref().map_or(Ok(self.shard.ids.first), parse)?;
            self.next_id = newest.saturating_add(step);
            if jobs > 0 {
                self.cells.insert(Cell { key: keys.seq(), field: None }, seq);
            }
        }
        if self.known.version != version {
            // Where it changes again before that, the commit fails.
            self.known = self.shard.learn().await?;
        }
        Ok(())
    }

    /// Reads at one moment.
    pub(crate) async fn look(&mut self, reads: Vec<Read>) -> Result<Looked> {
        self.looks += 1;
        let looked = self.shard.look("read the store", self.time, &reads).await?;
        self.now = self.now.max(looked.now);
        Ok(looked)
    }

    /// Takes note of what a field holds, which must be so when the step commits.
    pub(crate) fn note(&mut self, key: String, field: &str, value: Option<Vec<u8>>) {
        self.cells.entry(Cell::new(key, field)).or_insert(value);
    }

    /// What a cell held when it was read.
    pub(crate) fn cell(&self, key: String, field: &str) -> Option<&[u8]> {
        self.cells.get(&Cell::new(key, field))?.as_deref()
    }

    /// Reads cells and sets that were not read yet.
    pub(crate) async fn fetch(&mut self, cells: Vec<Cell>, sets: Vec<String>) -> Result<()> {
        let mut by_key: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for cell in cells {
            if let Some(field) = cell.field.clone().filter(|_| !self.cells.contains_key(&cell)) {
                let fields = by_key.entry(cell.key).or_default();
                fields.push(field);
            }
        }
        let mut reads = Vec::new();
        for (key, fields) in &mut by_key {
            fields.sort_unstable();
            fields.dedup();
            reads.extend(read_fields(key, fields));
        }
        let sets: Vec<String> =
            sets.into_iter().filter(|key| !self.sets.contains_key(key)).collect();
        let asked = reads.clone();
        reads.extend(sets.iter().cloned().map(Read::Members));
        if reads.is_empty() {
            return Ok(());
        }
        let mut looked = self.look(reads).await?;
        for read in asked {
            let Read::Fields(key, fields) = read else { continue };
            for (field, value) in fields.into_iter().zip(looked.fields()?) {
                self.cells.insert(Cell::new(key.clone(), field), value);
            }
        }
        for key in sets {
            let members = looked.members()?;
            self.sets.insert(key, members);
        }
        Ok(())
    }

    /// The id that the next new job gets.
    pub(crate) fn next_id(&self) -> u64 {
        self.next_id
    }

    fn ids(&self) -> Ids {
        Ids { next: self.next_id, step: self.shard.ids.step }
    }

    /// Takes the step on the rows that were loaded. None where they were read at different moments
    /// and do not fit each other: then the step must start over.
    pub(crate) fn step<R>(&mut self, step: impl FnOnce(&mut Part) -> R) -> Option<R> {
        if is_torn(&self.rows) {
            return None;
        }
        let before = self.rows.clone();
        let rows = std::mem::take(&mut self.rows);
        let mut part = Part::new(self.now, self.ids(), rows, self.has_history);
        self.tell_busy(&mut part);
        let answer = step(&mut part);
        self.taken = Some(Taken { before, ended: part.end() });
        Some(answer)
    }

    /// The rows that were loaded, to be asked and not to be changed. None where they do not fit each
    /// other.
    pub(crate) fn view(&mut self) -> Option<Part> {
        if is_torn(&self.rows) {
            return None;
        }
        let rows = std::mem::take(&mut self.rows);
        Some(Part::new(self.now, self.ids(), rows, false))
    }

    /// Writes what changed.
    pub(crate) async fn commit(mut self, what: &'static str) -> Result<Committed> {
        let mut writes = std::mem::take(&mut self.beside);
        let news = match self.taken.take() {
            Some(Taken { before, ended }) => {
                writes.rows(&mut self, &before, &ended.rows)?;
                if ended.next_id != self.next_id && !self.reserved {
                    let newest = ended.next_id.saturating_sub(self.shard.ids.step).to_string();
                    writes.set(self.shard.keys.seq(), newest);
                }
                writes.publish(self.shard, &ended.news);
                ended.news
            }
            None => Notifications::default(),
        };
        // One look was of one moment; several must still agree.
        if writes.is_empty() && self.looks <= 1 {
            return Ok(Committed::Done(news));
        }
        let now = self.now.as_micros().to_string();
        let (link, script) = (&self.shard.link, &self.shard.scripts.commit);
        let grows: &[u8] = if self.grows { b"grows" } else { b"" };
        let (keys, checks, writes) = self.request(writes);
        let args = [now.as_bytes(), checks.as_slice(), writes.as_slice(), grows];
        let failed = link.write(what, script, &keys, &args).await?;
        Ok(match failed {
            redis::Value::Int(0) => Committed::Done(news),
            redis::Value::Int(_) => Committed::Again,
            other => return Err(corrupt(format_args!("the answer {other:?} to a commit"))),
        })
    }

    /// The keys, checks and writes of a commit.
    fn request(self, writes: Writes) -> (Vec<String>, Vec<u8>, Vec<u8>) {
        let mut keys = Numbered::new(self.shard.keys.clock());
        let mut checks = Vec::with_capacity(self.cells.len().saturating_add(self.firsts.len()));
        for (cell, value) in self.cells {
            let field = cell.field.map_or(Item::NOTHING, Item::from);
            let value = value.map_or(Item::NOTHING, compared);
            checks.push(list![keys.number(cell.key), field, value]);
        }
        for (set, (count, first)) in self.firsts {
            let members: Vec<String> = first.into_iter().map(member).collect();
            let members = compared(members.join(" ").into_bytes());
            checks.push(list![keys.number(set), Item::NOTHING, members, count]);
        }
        let writes = writes.into_items(&mut keys);
        (keys.names, pack(&checks), pack(&writes))
    }
}

/// A value as it is sent to be compared.
fn compared(value: Vec<u8>) -> Item {
    if value.len() > LONGEST_COMPARED {
        return Item::from(sha1_smol::Sha1::from(&value).digest().to_string());
    }
    Item::from(value)
}

/// Keys by their number in a call.
#[derive(Debug)]
pub(crate) struct Numbered {
    names: Vec<String>,
    numbers: BTreeMap<String, usize>,
}

impl Numbered {
    pub(crate) fn new(clock: String) -> Self {
        Numbered { names: vec![clock], numbers: BTreeMap::new() }
    }

    /// The keys, in the order of their numbers.
    pub(crate) fn into_names(self) -> Vec<String> {
        self.names
    }

    /// The number of a key, from 1; the clock has the first.
    pub(crate) fn number(&mut self, key: String) -> usize {
        if let Some(number) = self.numbers.get(&key) {
            return *number;
        }
        self.names.push(key.clone());
        self.numbers.insert(key, self.names.len());
        self.names.len()
    }
}

/// Whether rows do not fit each other: a key has never more than one open window.
fn is_torn(rows: &Rows) -> bool {
    let mut open = BTreeSet::new();
    let windows = rows.jobs.values().filter(|job| job.is_open_window());
    windows.into_iter().any(|job| !open.insert((&job.task, &job.key)))
}

/// The answer where a step was tried as often as it may.
pub(crate) fn contended(what: &str) -> Error {
    let message = format!("cannot {what}: other processes change the same rows all the time");
    Error::new(ErrorKind::Contention, message)
}

fn parse(bytes: &[u8]) -> Result<u64> {
    let number = std::str::from_utf8(bytes).ok().and_then(|text| text.parse().ok());
    number.ok_or_else(|| corrupt(format_args!("the number {:?}", String::from_utf8_lossy(bytes))))
}

fn as_number(count: usize) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX)
}
