//! What a step writes: the rows that differ, and the indexes that follow from them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use quell_core::part::Rows;
use quell_core::{
    Job, JobId, JobState, Key, KeyAdvice, Origin, QueueName, Result, TaskName, Timestamp,
};

use crate::busy::Changes;
use crate::keys::{Keys, member, slot_changes, slots_of, task_key};
use crate::known::Lane;
use crate::row::{StoredHold, StoredRecord, encode_job, encode_starts, to_json};
use crate::tx::{Tx, VERSION};
use crate::writes::{Write, Writes};

/// How long a window's hash is kept after its run: for an operator's eyes, nothing depends on it.
const SHOWN_FOR_SECS: i64 = 3_600;
/// Where a job stands in line.
type Standing = (QueueName, String, Timestamp);

impl Writes {
    /// Everything that differs between two states of the rows.
    pub(crate) fn rows(&mut self, tx: &mut Tx<'_>, before: &Rows, after: &Rows) -> Result<()> {
        let changed = self.settings(tx, before, after)?;
        let named = self.jobs(tx, before, after)?;
        if changed || named {
            // Not the next number: where a server loses writes, another process may count to it too.
            let version = format!("{:016x}", fastrand::u64(..));
            self.hash_set(tx.shard.keys.meta(), VERSION, version.into_bytes());
        }
        self.beside_jobs(&tx.shard.keys, before, after)?;
        self.task_keys(&tx.shard.keys, before, after)?;
        self.plans(tx, before, after)
    }

    /// Queues, tasks and starts; says whether settings changed.
    fn settings(&mut self, tx: &Tx<'_>, before: &Rows, after: &Rows) -> Result<bool> {
        let keys = &tx.shard.keys;
        let mut changed = false;
        for (queue, _, settings) in differing(&before.queues, &after.queues) {
            let settings = settings.and_then(Option::as_ref).map(to_json).transpose()?;
            self.hash_set(keys.queues(), queue, settings.unwrap_or_default());
            changed = true;
        }
        for (task, _, settings) in differing(&before.tasks, &after.tasks) {
            let Some(settings) = settings else { continue };
            self.hash_set(keys.tasks(), task, to_json(settings)?);
            changed = true;
        }
        for ((queue, partition), _, log) in differing(&before.starts, &after.starts) {
            let field = starts_field(queue, partition.as_ref());
            let settings = after.queues.get(queue).and_then(Option::as_ref);
            let rate = settings.and_then(|settings| match partition {
                None => settings.rate,
                Some(_) => settings.partition_rate,
            });
            let newest = log.and_then(|log| log.starts().last().copied());
            let expires_at = newest.zip(rate).map(|(newest, rate)| newest + rate.period);
            self.name(keys, &format!("s {field}"), (None, None), expires_at);
            match log.filter(|log| !log.is_empty()) {
                Some(log) => self.hash_set(keys.starts(), field, encode_starts(log)?),
                None => self.hash_delete(keys.starts(), field),
            }
        }
        Ok(changed)
    }

    /// Jobs and the indexes over them; says whether new names were given numbers.
    fn jobs(&mut self, tx: &mut Tx<'_>, before: &Rows, after: &Rows) -> Result<bool> {
        let mut named = false;
        let mut limited = BTreeSet::new();
        let mut busy = Changes::default();
        for (id, was, is) in differing(&before.jobs, &after.jobs) {
            let (was, is) = (was.map(|job| &**job), is.map(|job| &**job));
            let was_at = was.map(|job| standing(tx, job)).transpose()?.flatten();
            // What is set aside is kept elsewhere: see `unreadable`.
            match is.filter(|job| job.state != JobState::Unreadable) {
                Some(job) => named |= self.job(tx, job)?,
                None => self.hash_delete(tx.shard.keys.jobs(), id),
            }
            let is_at = is.map(|job| standing(tx, job)).transpose()?.flatten();
            self.move_in_line(&tx.shard.keys, *id, was_at, is_at);
            self.index(&tx.shard.keys, *id, was, is);
            limited.extend(limited_queue(tx, was, is));
            busy.note(self, tx, (was, is));
            self.window(tx, *id, was, is);
        }
        for queue in limited {
            self.hash_add(tx.shard.keys.slots(), slot_changes(&queue), 1);
        }
        busy.write(self, &tx.shard.keys);
        for (heads, line, lane) in std::mem::take(&mut self.lines) {
            self.push(Write::Head { heads, line, lane });
        }
        Ok(named)
    }

    /// A job's row; says whether its lane or shape was new.
    fn job(&mut self, tx: &mut Tx<'_>, job: &Job) -> Result<bool> {
        let lane = Lane::of(job);
        let mut named = false;
        let lane = match tx.known.lane_number(&lane) {
            Some(number) => number,
            None => {
                named = true;
                let name = lane.name();
                let number = Arc::make_mut(&mut tx.known).new_lane(lane);
                self.hash_set(tx.shard.keys.lanes(), name, number.to_string().into_bytes());
                number
            }
        };
        let shape = match tx.known.shape_number(&job.shape)? {
            Some(number) => number,
            None => {
                named = true;
                let (name, number) = Arc::make_mut(&mut tx.known).new_shape(&job.shape)?;
                self.hash_set(tx.shard.keys.shapes(), name, number.to_string().into_bytes());
                number
            }
        };
        self.hash_set(tx.shard.keys.jobs(), job.id, encode_job(job, lane, shape));
        Ok(named)
    }

    fn move_in_line(
        &mut self,
        keys: &Keys,
        id: JobId,
        was: Option<Standing>,
        is: Option<Standing>,
    ) {
        if was == is {
            return;
        }
        if let Some((queue, lane, _)) = was {
            let moves = is.as_ref().is_some_and(|(_, to, _)| *to == lane);
            if !moves {
                self.unplace(keys.line(&lane), member(id));
            }
            self.lines.insert((keys.heads(&queue), keys.line(&lane), lane));
        }
        if let Some((queue, lane, due)) = is {
            self.place(keys.line(&lane), member(id), due);
            self.lines.insert((keys.heads(&queue), keys.line(&lane), lane));
        }
    }

    /// Who runs, waits for its key, has ended, and how many there are.
    fn index(&mut self, keys: &Keys, id: JobId, was: Option<&Job>, is: Option<&Job>) {
        for (key, at) in [
            (keys.leases(), lease as fn(&Job) -> Option<Timestamp>),
            (keys.waiting(), waits),
            (keys.ended(), ended),
            (keys.dead(), died),
        ] {
            let (was, is) = (was.and_then(at), is.and_then(at));
            match is {
                Some(at) if was != is => self.place(key, member(id), at),
                None if was.is_some() => self.unplace(key, member(id)),
                Some(_) | None => {}
            }
        }
        let counted = |job: &Job| (job.queue.clone(), job.task.clone(), job.state);
        if was.map(counted) != is.map(counted) {
            for (job, by) in [(was, -1), (is, 1)] {
                if let Some(job) = job {
                    self.hash_add(
                        keys.counts(),
                        counts_field(&job.queue, &job.task, job.state),
                        by,
                    );
                }
            }
        }
        let (was, is) = (was.filter(runs), is.filter(runs));
        if takes_turns(was, is) {
            for (job, by) in [(was, -1), (is, 1)] {
                let Some(job) = job else { continue };
                for slot in slots_of(&job.queue, job.worker.as_ref(), job.partition.as_ref()) {
                    self.hash_add(keys.slots(), slot, by);
                }
            }
        }
    }

    /// The hash that shows a key's window, and says which job it is.
    fn window(&mut self, tx: &Tx<'_>, id: JobId, was: Option<&Job>, is: Option<&Job>) {
        let Some((job, key)) = is.and_then(|job| Some((job, job.key.as_ref()?))) else { return };
        let keys = &tx.shard.keys;
        let name = keys.debounce(&job.task, key);
        let shown = tx.cell(name.clone(), MESSAGE_ID).and_then(number);
        let newest = tx.cell(name.clone(), NEWEST).and_then(number);
        let number = id.get().to_string();
        if was.is_none() {
            let most = KeyAdvice::SAMPLE.saturating_sub(1);
            let key = keys.recent(&job.task);
            self.push(Write::Push { key, value: number.clone(), most });
        }
        if job.is_closed_window() && was.is_some() {
            // The hash shows the open window, or this one until there is another.
        } else if job.state == JobState::Scheduled {
            let opens = was.is_none_or(|was| was.state != JobState::Scheduled);
            if opens || shown != Some(id.get()) {
                self.hash_set(name.clone(), MESSAGE_ID, number.into_bytes());
                self.hash_set(name.clone(), EXECUTED, b"0".to_vec());
                self.push(Write::Persist { key: name.clone() });
                // An older job that goes back is the key's window, but not its newest job.
                if let Some(newer) = shown.max(newest).filter(|newer| *newer > id.get()) {
                    self.hash_set(name.clone(), NEWEST, newer.to_string().into_bytes());
                }
            }
            if was.is_none_or(|was| was.window.last_at != job.window.last_at) {
                let at = seconds(job.window.last_at);
                self.hash_set(name, ENQUEUE_TIMESTAMP, at.into_bytes());
            }
        } else if was.is_none() {
            // It came in ended.
            self.hash_set(name, NEWEST, number.into_bytes());
        } else if job.state.is_ended() && shown == Some(id.get()) {
            let executed = if job.state == JobState::Succeeded { b"1" } else { b"0" };
            self.hash_set(name.clone(), EXECUTED, executed.to_vec());
            self.push(Write::Expire { key: name, seconds: SHOWN_FOR_SECS });
        }
    }

    /// What hangs on jobs.
    fn beside_jobs(&mut self, keys: &Keys, before: &Rows, after: &Rows) -> Result<()> {
        for (id, _, attempts) in differing(&before.attempts, &after.attempts) {
            match attempts {
                Some(attempts) => self.hash_set(keys.attempts(), id, to_json(attempts)?),
                None => self.hash_delete(keys.attempts(), id),
            }
        }
        for (id, _, effects) in differing(&before.effects, &after.effects) {
            match effects {
                Some(effects) => {
                    let effects: Vec<_> = effects.values().collect();
                    self.hash_set(keys.effects(), id, to_json(&effects)?);
                }
                None => self.hash_delete(keys.effects(), id),
            }
        }
        for (id, was, past) in differing(&before.pasts, &after.pasts) {
            if let Some(origin) = was.and_then(|past| past.origin) {
                self.hash_delete(keys.origins(), origin_field(&origin));
            }
            match past {
                Some(past) => self.hash_set(keys.pasts(), id, to_json(past)?),
                None => self.hash_delete(keys.pasts(), id),
            }
            if let Some(origin) = past.and_then(|past| past.origin) {
                let job = id.to_string().into_bytes();
                self.hash_set(keys.origins(), origin_field(&origin), job);
            }
        }
        for (id, was, is) in differing(&before.jobs, &after.jobs) {
            let by = |job: Option<&Arc<Job>>| job.and_then(|job| job.absorbed_by);
            if by(was) != by(is) {
                // Sets of their own: many jobs may be absorbed by one.
                if let Some(successor) = by(was) {
                    self.exclude(absorbed_by(keys, successor), id.to_string());
                }
                if let Some(successor) = by(is) {
                    self.include(absorbed_by(keys, successor), id.to_string());
                }
            }
            if is.is_none() {
                self.delete(absorbed_by(keys, *id));
                self.delete(keys.ticks_of(*id));
            }
        }
        Ok(())
    }

    /// Dedup and idempotency keys, and what edges remember.
    fn task_keys(&mut self, keys: &Keys, before: &Rows, after: &Rows) -> Result<()> {
        for ((task, key), was, hold) in differing(&before.holds, &after.holds) {
            let field = task_key(task, key);
            let jobs = (was.map(|hold| hold.job), hold.map(|hold| hold.job));
            self.name(keys, &format!("h {field}"), jobs, hold.map(|hold| hold.expires_at));
            match hold {
                Some(hold) => {
                    self.hash_set(keys.holds(), field, to_json(&StoredHold::from(hold))?);
                }
                None => self.hash_delete(keys.holds(), field),
            }
        }
        for ((task, key), was, record) in differing(&before.records, &after.records) {
            let field = task_key(task, key);
            let jobs = (was.map(|record| record.job), record.map(|record| record.job));
            self.name(keys, &format!("r {field}"), jobs, record.map(|record| record.expires_at));
            match record {
                Some(record) => {
                    self.hash_set(keys.records(), field, to_json(&StoredRecord::from(record))?);
                }
                None => self.hash_delete(keys.records(), field),
            }
        }
        for ((task, key), _, memory) in differing(&before.memories, &after.memories) {
            let field = task_key(task, key);
            let expires_at = memory.map(|memory| memory.expires_at);
            self.name(keys, &format!("m {field}"), (None, None), expires_at);
            match memory {
                Some(memory) => self.hash_set(keys.memories(), field, to_json(memory)?),
                None => self.hash_delete(keys.memories(), field),
            }
        }
        Ok(())
    }

    /// When a key expires, and which job it names.
    fn name(
        &mut self,
        keys: &Keys,
        name: &str,
        (was, is): (Option<JobId>, Option<JobId>),
        expires_at: Option<Timestamp>,
    ) {
        match expires_at {
            Some(at) => self.place(keys.expiry(), name.to_owned(), at),
            None => self.unplace(keys.expiry(), name.to_owned()),
        }
        if was == is {
            return;
        }
        if let Some(job) = was {
            self.exclude(keys.names(job), name.to_owned());
        }
        if let Some(job) = is {
            self.include(keys.names(job), name.to_owned());
        }
    }

    /// Schedules and their ticks.
    fn plans(&mut self, tx: &mut Tx<'_>, before: &Rows, after: &Rows) -> Result<()> {
        let keys = &tx.shard.keys;
        for (name, _, info) in differing(&before.schedules, &after.schedules) {
            match info {
                Some(info) => self.hash_set(keys.schedules(), name, to_json(info)?),
                None => {
                    self.hash_delete(keys.schedules(), name);
                    self.forget_ticks(keys, name);
                }
            }
            match info.and_then(|info| info.next) {
                Some(next) => self.place(keys.plan(), name.to_string(), next),
                None => self.unplace(keys.plan(), name.to_string()),
            }
        }
        self.ticks(tx, before, after)
    }
}

/// The fields of a window's hash, as the published debouncers call them.
pub(crate) const MESSAGE_ID: &str = "message_id";
const ENQUEUE_TIMESTAMP: &str = "enqueue_timestamp";
const EXECUTED: &str = "executed";
/// The newest job of the key, where that is not its window.
pub(crate) const NEWEST: &str = "newest";

/// The entries that differ between two maps, with what was and what is.
fn differing<'m, K: Ord, V: PartialEq>(
    before: &'m BTreeMap<K, V>,
    after: &'m BTreeMap<K, V>,
) -> Vec<(&'m K, Option<&'m V>, Option<&'m V>)> {
    let gone = before.iter().filter(|(key, _)| !after.contains_key(key));
    let gone = gone.map(|(key, was)| (key, Some(was), None));
    let there = after.iter().map(|(key, is)| (key, before.get(key), Some(is)));
    gone.chain(there).filter(|(_, was, is)| was != is).collect()
}

/// The set of jobs that a job absorbed.
pub(crate) fn absorbed_by(keys: &Keys, successor: JobId) -> String {
    format!("{}:{successor}", keys.absorbed())
}

/// The field under which a log of starts is kept.
pub(crate) fn starts_field(queue: &QueueName, partition: Option<&Key>) -> String {
    match partition {
        Some(partition) => format!("{queue} {partition}"),
        None => queue.to_string(),
    }
}

/// The field under which jobs are counted.
fn counts_field(queue: &QueueName, task: &TaskName, state: JobState) -> String {
    format!("{queue} {task} {}", state.code())
}

/// The field under which the job that a letter became is found.
pub(crate) fn origin_field(origin: &Origin) -> String {
    format!("{} {}", origin.job, origin.first_at.as_micros())
}

/// A job's lane, with its partition, and when it is due; none where it is not in line.
fn standing(tx: &Tx<'_>, job: &Job) -> Result<Option<Standing>> {
    if job.state != JobState::Scheduled || job.waits {
        return Ok(None);
    }
    let Some(lane) = tx.known.lane_number(&Lane::of(job)) else { return Ok(None) };
    Ok(Some((job.queue.clone(), lane_member(lane, job.partition.as_ref()), job.window.due_at)))
}

/// What a line is called: its lane's number, and its partition if it has one.
pub(crate) fn lane_member(lane: u32, partition: Option<&Key>) -> String {
    match partition {
        Some(partition) => format!("{lane} {partition}"),
        None => lane.to_string(),
    }
}

/// Whether an attempt has begun or ended.
fn takes_turns(was: Option<&Job>, is: Option<&Job>) -> bool {
    let token = |job: Option<&Job>| job.filter(runs).map(|job| job.token);
    token(was) != token(is)
}

/// The queue with limits in which an attempt has begun or ended.
fn limited_queue(tx: &Tx<'_>, was: Option<&Job>, is: Option<&Job>) -> Option<QueueName> {
    let job = was.or(is).filter(|_| takes_turns(was, is))?;
    tx.known.settings(&job.queue).limits_concurrency().then(|| job.queue.clone())
}

fn runs(job: &&Job) -> bool {
    job.state == JobState::Running
}

fn lease(job: &Job) -> Option<Timestamp> {
    job.lease_until.filter(|_| job.state == JobState::Running)
}

fn waits(job: &Job) -> Option<Timestamp> {
    (job.state == JobState::Scheduled && job.waits).then_some(job.window.due_at)
}

fn ended(job: &Job) -> Option<Timestamp> {
    job.ended_at.filter(|_| job.state.is_ended() && job.state != JobState::Dead)
}

fn died(job: &Job) -> Option<Timestamp> {
    job.ended_at.filter(|_| job.state == JobState::Dead)
}

pub(crate) fn number(bytes: &[u8]) -> Option<u64> {
    std::str::from_utf8(bytes).ok()?.parse().ok()
}

/// A moment in whole seconds, for people: millions of windows are shown so.
fn seconds(at: Timestamp) -> String {
    at.as_micros().div_euclid(1_000_000).to_string()
}
