//! An open step of the engine: what it has read, so that its commit can compare it.
//!
//! Invariant: whatever decides a step is among its cells or its firsts, and the commit compares them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use quell_core::part::Ids;
use quell_core::schedule::Tick;
use quell_core::{Error, ErrorKind, Job, JobId, QueueName, Result, ScheduleName, Timestamp};
use quell_engine::Access;
use tokio::sync::{OwnedMutexGuard, OwnedRwLockWriteGuard};
use tokio::time::sleep;

use crate::fired::Fired;
use crate::keys::{Keys, member};
use crate::known::Known;
use crate::link::ScriptCall;
use crate::listing::Listing;
use crate::look::{Looked, Read, read_fields};
use crate::pack::{Item, list, pack};
use crate::row::{corrupt, parse_number};
use crate::shard::{Shard, Time};
use crate::turns::Fronts;
use crate::writes::Writes;

/// The longest value that is sent to be compared; of longer ones it is the hash. Without it, steps
/// move 1.4 to 1.5 times the bytes where payloads are 2 kB and more (2026-11-25 in
/// bench/archive/2026-11.md).
const LONGEST_COMPARED: usize = 40;
/// How often a step is tried before it fails with contention (R35).
const TRIES: u32 = 100;
/// The longest pause between two tries.
const LONGEST_PAUSE: Duration = Duration::from_millis(50);
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

/// What cells held when they were read.
type Cells = BTreeMap<Cell, Option<Vec<u8>>>;

/// What is held until a step ends.
#[derive(Debug)]
struct Turns {
    /// Two steps of one process would only get in each other's way.
    _turn: Option<OwnedMutexGuard<()>>,
    /// Each job that a script makes would let a step that makes jobs begin again.
    _alone: Option<OwnedRwLockWriteGuard<()>>,
}

/// An open step.
#[derive(Debug)]
pub(crate) struct Open {
    pub(crate) shard: Arc<Shard>,
    /// The latest time of its looks.
    pub(crate) now: Timestamp,
    pub(crate) known: Arc<Known>,
    /// Jobs as they were read, with those that can be decoded in part only.
    pub(crate) jobs: BTreeMap<JobId, Arc<Job>>,
    /// The lines in which jobs were seen.
    pub(crate) lines: BTreeMap<JobId, String>,
    /// The heads of the lines of queues, as they were read.
    pub(crate) heads: BTreeMap<QueueName, Vec<(String, Timestamp)>>,
    /// The first of them, of queues of strict order.
    pub(crate) fronts: BTreeMap<QueueName, Fronts>,
    /// How far all jobs were listed.
    pub(crate) listing: Option<Listing>,
    /// What was read of the ticks of schedules.
    pub(crate) fired: BTreeMap<ScheduleName, Fired>,
    /// Ticks that have fired, as far as they were read.
    pub(crate) ticks: BTreeMap<(ScheduleName, Timestamp), Tick>,
    /// What must still be so when the step commits.
    cells: Cells,
    /// What was read before it was asked for.
    ahead: Cells,
    /// The first closed windows of keys, a number of them, which must still be those.
    firsts: BTreeMap<String, (usize, Vec<JobId>)>,
    time: Time,
    next_id: u64,
    /// Whether it knows names and settings of a version that was read after it began.
    is_open: bool,
    /// Whether it commits nothing, so that rows of jobs need not be kept.
    only_reads: bool,
    turns: Turns,
    /// The newest id when it began, which must still be that if it makes jobs without a reservation.
    pub(crate) seq: Option<Option<Vec<u8>>>,
    /// How many ids were reserved, so that no other step has them.
    pub(crate) reserved: Option<u64>,
    /// Whether it may make jobs: a server whose memory is full refuses that, and nothing else.
    grows: bool,
}

impl Open {
    /// Begins a step. One that only reads, whatever the time, looks at nothing yet.
    pub(crate) async fn begin(shard: Arc<Shard>, time: Time, access: Access) -> Result<Self> {
        let only_reads = access == Access::Read;
        let jobs = u64::try_from(access.jobs()).unwrap_or(u64::MAX);
        let _turn = if only_reads { None } else { Some(shard.turn().await) };
        let _alone = if jobs == 0 { None } else { Some(shard.accept_alone().await) };
        let mut open = Open {
            now: Timestamp::MIN,
            known: shard.known(),
            jobs: BTreeMap::new(),
            lines: BTreeMap::new(),
            heads: BTreeMap::new(),
            fronts: BTreeMap::new(),
            listing: None,
            fired: BTreeMap::new(),
            ticks: BTreeMap::new(),
            cells: Cells::new(),
            ahead: Cells::new(),
            firsts: BTreeMap::new(),
            time,
            next_id: 1,
            is_open: false,
            only_reads,
            turns: Turns { _turn, _alone },
            seq: None,
            reserved: shard.reserves(jobs),
            grows: jobs > 0,
            shard,
        };
        if !(only_reads && matches!(time, Time::Last)) {
            open.open(jobs).await?;
        }
        Ok(open)
    }

    /// Learns the time, the next id, and whether names and settings have changed.
    async fn open(&mut self, jobs: u64) -> Result<()> {
        self.is_open = true;
        let (keys, step) = (self.shard.keys.clone(), self.shard.ids.step);
        let reserved = self.reserved.map(|ids| ids.saturating_mul(step));
        let id = match reserved {
            Some(reserved) => Read::Reserve(keys.seq(), reserved),
            None => Read::Text(keys.seq()),
        };
        let mut looked =
            self.look(vec![Read::Fields(keys.meta(), vec![VERSION.into()]), id]).await?;
        let version = looked.text()?;
        self.note(Cell::new(keys.meta(), VERSION), version.clone());
        if let Some(reserved) = reserved {
            self.next_id = looked.number()?.saturating_sub(reserved).saturating_add(step);
        } else {
            let seq = looked.text()?;
            let newest = seq.as_deref().map_or(Ok(self.shard.ids.first), parse_number)?;
            self.next_id = newest.saturating_add(step);
            self.seq = (jobs > 0).then_some(seq);
        }
        self.know(&version).await
    }

    /// Learns names and settings, if they are of another version than this.
    async fn know(&mut self, version: &Option<Vec<u8>>) -> Result<()> {
        if self.known.version != *version {
            // Where it changes again before that, the commit fails.
            self.known = self.shard.learn().await?;
        }
        Ok(())
    }

    /// Lets a step that has not looked at anything yet know names and settings.
    pub(crate) async fn know_settings(&mut self) -> Result<()> {
        if self.is_open { Ok(()) } else { self.look(Vec::new()).await.map(drop) }
    }

    /// Reserves ids for a step that makes at most this number of jobs, in place of those that it began
    /// with.
    pub(crate) async fn reserve(&mut self, jobs: usize) -> Result<()> {
        let (key, step) = (self.shard.keys.seq(), self.shard.ids.step);
        let block = self.shard.block(u64::try_from(jobs).unwrap_or(u64::MAX));
        let reserved = block.saturating_mul(step);
        let last = self.look(vec![Read::Reserve(key, reserved)]).await?.number()?;
        self.next_id = last.saturating_sub(reserved).saturating_add(step);
        (self.reserved, self.seq) = (Some(block), None);
        Ok(())
    }

    pub(crate) fn ids(&self) -> Ids {
        Ids { next: self.next_id, step: self.shard.ids.step }
    }

    pub(crate) fn keys(&self) -> &Keys {
        &self.shard.keys
    }

    /// Reads at one moment.
    pub(crate) async fn look(&mut self, mut reads: Vec<Read>) -> Result<Looked> {
        let opens = !std::mem::replace(&mut self.is_open, true);
        if opens {
            reads.insert(0, Read::Fields(self.keys().meta(), vec![VERSION.into()]));
        }
        let mut looked = self.shard.look("read the store", self.time, &reads).await?;
        self.now = self.now.max(looked.now);
        if opens {
            let version = looked.text()?;
            self.know(&version).await?;
        }
        Ok(looked)
    }

    /// Takes note of what a cell holds, which must be so when the step commits.
    pub(crate) fn note(&mut self, cell: Cell, value: Option<Vec<u8>>) {
        self.cells.entry(cell).or_insert(value);
    }

    /// Keeps what a cell holds for a later read of it.
    pub(crate) fn keep(&mut self, cell: Cell, value: Option<Vec<u8>>) {
        self.ahead.insert(cell, value);
    }

    /// Takes note of the first members of a set of closed windows.
    pub(crate) fn note_first(&mut self, set: String, count: usize, first: Vec<JobId>) {
        self.firsts.entry(set).or_insert((count, first));
    }

    /// What a cell held when it was read.
    pub(crate) fn cell(&self, key: String, field: &str) -> Option<&[u8]> {
        self.cells.get(&Cell::new(key, field))?.as_deref()
    }

    /// Lets cells of this hash change until the commit, but for those that `stay`.
    pub(crate) fn let_change(&mut self, key: &str, stay: impl Fn(&str) -> bool) {
        let goes = |cell: &Cell| cell.key == key && !cell.field.as_deref().is_some_and(&stay);
        self.cells.retain(|cell, _| !goes(cell));
    }

    /// Forgets the rows of jobs that were loaded, where nothing is to be committed.
    pub(crate) fn forget_read(&mut self, ids: &[JobId]) {
        if !self.only_reads {
            return;
        }
        let key = self.keys().jobs();
        for id in ids {
            self.cells.remove(&Cell::new(key.clone(), id.to_string()));
            self.jobs.remove(id);
        }
    }

    /// Reads cells that were not read yet.
    pub(crate) async fn fetch(&mut self, cells: Vec<Cell>) -> Result<()> {
        let mut by_key: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for cell in cells {
            if self.cells.contains_key(&cell) {
                continue;
            }
            if let Some(value) = self.ahead.remove(&cell) {
                self.cells.insert(cell, value);
                continue;
            }
            if let Some(field) = cell.field {
                by_key.entry(cell.key).or_default().push(field);
            }
        }
        let mut reads = Vec::new();
        for (key, fields) in &mut by_key {
            fields.sort_unstable();
            fields.dedup();
            reads.extend(read_fields(key, fields));
        }
        if reads.is_empty() {
            return Ok(());
        }
        let mut looked = self.look(reads.clone()).await?;
        for read in reads {
            let Read::Fields(key, fields) = read else { continue };
            for (field, value) in fields.into_iter().zip(looked.fields()?) {
                self.cells.insert(Cell::new(key.clone(), field), value);
            }
        }
        Ok(())
    }

    /// Reads a string.
    pub(crate) async fn fetch_text(&mut self, key: &str) -> Result<Option<Vec<u8>>> {
        let text = self.look(vec![Read::Text(key.to_owned())]).await?.text()?;
        self.note(Cell { key: key.to_owned(), field: None }, text.clone());
        Ok(text)
    }

    /// The same of cells that may be long: as many at a time as the bound of bytes of a script allows.
    pub(crate) async fn fetch_long(&mut self, key: &str, fields: Vec<String>) -> Result<()> {
        let mut left = fields;
        left.retain(|field| {
            let cell = Cell::new(key.to_owned(), field.as_str());
            if let Some(value) = self.ahead.remove(&cell) {
                self.cells.insert(cell.clone(), value);
            }
            !self.cells.contains_key(&cell)
        });
        while !left.is_empty() {
            let reads = vec![Read::Bounded(key.to_owned(), left.clone())];
            let values = self.look(reads).await?.fields()?;
            let rest = left.split_off(values.len().clamp(1, left.len()));
            for (field, value) in left.into_iter().zip(values) {
                self.cells.insert(Cell::new(key.to_owned(), field), value);
            }
            left = rest;
        }
        Ok(())
    }

    /// Names and settings as they are by now: those of a row may be newer than the step. Where others
    /// than those that it has read may decide it, its commit fails.
    pub(crate) async fn learn_again(&mut self) -> Result<()> {
        self.known = self.shard.learn().await?;
        Ok(())
    }

    /// How many checks a commit makes. The last is that of the newest id, where there is one.
    fn checks(&self) -> usize {
        let checks = self.cells.len().saturating_add(self.firsts.len());
        checks.saturating_add(usize::from(self.seq.is_some()))
    }

    /// The keys, time, checks, writes and growth of a commit.
    fn into_call(self, writes: Writes) -> (Vec<String>, [Vec<u8>; 4], Turns) {
        let mut keys = Numbered::new(self.shard.keys.clock());
        let mut checks = Vec::with_capacity(self.checks());
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
        if let Some(seq) = self.seq {
            let value = seq.map_or(Item::NOTHING, compared);
            checks.push(list![keys.number(self.shard.keys.seq()), Item::NOTHING, value]);
        }
        let writes = pack(&writes.into_items(&mut keys));
        let grows = if self.grows { b"grows".to_vec() } else { Vec::new() };
        let now = self.now.as_micros().to_string().into_bytes();
        (keys.into_names(), [now, pack(&checks), writes, grows], self.turns)
    }
}

/// The tries of a step that is none of the engine's.
#[derive(Debug, Default)]
pub(crate) struct Tries(u32);

impl Tries {
    /// Waits before another try.
    ///
    /// # Errors
    /// Of contention, where it was tried as often as it may be (R35).
    pub(crate) async fn again(&mut self, what: &str) -> Result<()> {
        self.0 = self.0.saturating_add(1);
        if self.0 < TRIES {
            sleep(LONGEST_PAUSE.mul_f64(fastrand::f64())).await;
            return Ok(());
        }
        let message = format!("cannot {what}: other processes change the same rows all the time");
        Err(Error::new(ErrorKind::Contention, message))
    }
}

impl Shard {
    /// Begins a step that is none of the engine's, and makes no jobs.
    pub(crate) async fn begin(self: &Arc<Self>, time: Time) -> Result<(Open, Writes)> {
        let access = Access::Write { jobs: 0 };
        Ok((Open::begin(Arc::clone(self), time, access).await?, Writes::default()))
    }
}

impl Open {
    /// The same as [`Open::commit`], where there is anything to write.
    pub(crate) async fn finish(self, writes: Writes) -> Result<bool> {
        if writes.is_empty() { Ok(true) } else { self.commit(writes).await }
    }

    /// Writes what changes, if everything that was read is still so; says whether it is.
    pub(crate) async fn commit(self, writes: Writes) -> Result<bool> {
        let shard = Arc::clone(&self.shard);
        let of_ids = self.seq.as_ref().and_then(|_| i64::try_from(self.checks()).ok());
        // Until the commit is done, no other step of this process begins.
        let (keys, args, _turns) = self.into_call(writes);
        let args: Vec<&[u8]> = args.iter().map(Vec::as_slice).collect();
        let call = ScriptCall { script: &shard.scripts.commit, keys: &keys, args: &args };
        match shard.link.write("commit a step", call).await? {
            redis::Value::Int(failed) => {
                if of_ids == Some(failed) {
                    shard.note_ids(None);
                }
                Ok(failed == 0)
            }
            other => Err(corrupt(format_args!("the answer {other:?} to a commit"))),
        }
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
