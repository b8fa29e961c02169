//! What a commit writes: the rows that the engine changed, the indexes that it moved them in, and what
//! Redis keeps beside: the hashes that show windows, what runs by queue, and ticks in spans.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use quell_core::part::{Notifications, TaskKey};
use quell_core::schedule::{ScheduleInfo, Tick};
use quell_core::{
    Job, JobId, JobState, Key, KeyAdvice, Origin, QueueName, Result, TaskName, Timestamp, WorkerId,
};
use quell_engine::{Changes, Entry, Index, KeyJobs, Place, Row, RowName, Tally};

use crate::busy::Busy;
use crate::keys::{Keys, slot_changes, slot_turns, slots_of, task_key};
use crate::known::Lane;
use crate::open::{Open, VERSION};
use crate::row::{StoredAside, StoredHold, StoredRecord, encode_job, encode_starts, to_json};
use crate::writes::{Write, Writes};

/// Jobs as they are from now on; none for those that are removed.
pub(crate) type Jobs = BTreeMap<JobId, Option<Arc<Job>>>;

/// How long a window's hash is kept after its run: for an operator's eyes, nothing depends on it.
const SHOWN_FOR_SECS: i64 = 3_600;

/// The fields of a window's hash, as the published debouncers call them.
pub(crate) const MESSAGE_ID: &str = "message_id";
pub(crate) const ENQUEUE_TIMESTAMP: &str = "enqueue_timestamp";
const EXECUTED: &str = "executed";
/// The newest job of the key, where that is not its window.
pub(crate) const NEWEST: &str = "newest";

impl Open {
    /// The writes of a commit.
    pub(crate) fn writes(&mut self, changes: Changes, news: &Notifications) -> Result<Writes> {
        let mut writes = Writes::default();
        let Changes { rows, enter, leave, ids, aside, counts } = changes;
        let closes = closed_keys(&enter, &leave);
        for id in &aside {
            writes.set_aside(self, *id);
        }
        let jobs = jobs_of(&rows, &aside);
        let mut named = false;
        let restored = |id: JobId| rows.get(&RowName::Aside(id)).is_some_and(Option::is_none);
        // The hash of a key shows its open window: what ends is written before what opens.
        let opens =
            |is: &Option<Arc<Job>>| is.as_ref().is_some_and(|job| job.state == JobState::Scheduled);
        let (opening, others): (Vec<_>, Vec<_>) = jobs.iter().partition(|(_, is)| opens(is));
        for (id, is) in others.into_iter().chain(opening) {
            let gone = is.is_none() && !aside.contains(id);
            named |= writes.job(self, *id, is.as_deref(), (gone, restored(*id)))?;
        }
        writes.limited(self, &jobs);
        writes.entries(self, &enter, &leave);
        let (mut renamed, mut ticks, mut plans) = (false, Vec::new(), Vec::new());
        for (name, row) in rows {
            if let (RowName::Aside(id), None) = (&name, &row)
                && !jobs.contains_key(id)
            {
                writes.forget_beside(self.keys(), *id);
            }
            match (name, row) {
                (RowName::Job(_), _) => {}
                (RowName::Tick(..), Some(Row::Tick(tick))) => ticks.push(tick),
                (name, row) => {
                    if let Some(Row::Schedule(info)) = &row {
                        plans.push((**info).clone());
                    }
                    renamed |= writes.row(self, &name, row, &closes)?;
                }
            }
        }
        writes.fired(self, plans, &ticks, &jobs)?;
        writes.counts(self.keys(), counts);
        if named || renamed {
            // Not the next number: where a server loses writes, another process may count to it too.
            let version = format!("{:016x}", fastrand::u64(..));
            writes.hash_set(self.keys().meta(), VERSION, version.into_bytes());
        }
        if ids == 0 {
            self.seq = None;
        } else if self.reserved.is_none() {
            let step = self.shard.ids.step;
            let newest = self.ids().next.saturating_add(ids.saturating_sub(1).saturating_mul(step));
            writes.set(self.keys().seq(), newest.to_string());
        }
        writes.publish(&self.shard, news);
        Ok(writes)
    }
}

/// The keys whose closed windows come or go.
fn closed_keys(enter: &[(Index, Entry)], leave: &[(Index, Place, RowName)]) -> BTreeSet<TaskKey> {
    let (comes, goes) =
        (enter.iter().map(|(index, _)| index), leave.iter().map(|(index, ..)| index));
    let key = |index: &Index| match index {
        Index::Closed(key) => Some(key.clone()),
        _ => None,
    };
    comes.chain(goes).filter_map(key).collect()
}

/// The jobs among these rows, with those that are set aside.
fn jobs_of(rows: &BTreeMap<RowName, Option<Row>>, aside: &BTreeSet<JobId>) -> Jobs {
    let job = |(name, row): (&RowName, &Option<Row>)| match (name, row) {
        (RowName::Job(id), Some(Row::Job(job))) => Some((*id, Some(Arc::clone(job)))),
        (RowName::Job(id), None) => Some((*id, None)),
        _ => None,
    };
    rows.iter().filter_map(job).chain(aside.iter().map(|id| (*id, None))).collect()
}

impl Writes {
    /// Takes the row of a job out of the others, byte by byte.
    fn set_aside(&mut self, open: &Open, id: JobId) {
        if let Some(row) = open.row_of(id) {
            self.hash_set(open.keys().unreadable_rows(), id, row.to_vec());
        }
    }

    /// A job's row, with what follows from it beside the indexes; says whether its lane or shape was new.
    fn job(
        &mut self,
        open: &mut Open,
        id: JobId,
        is: Option<&Job>,
        (gone, restored): (bool, bool),
    ) -> Result<bool> {
        let was = open.jobs.get(&id).cloned();
        let was = was.as_deref();
        let named = match is {
            Some(job) => self.job_row(open, job)?,
            None => {
                self.hash_delete(open.keys().jobs(), id);
                false
            }
        };
        self.slots(open.keys(), was, is);
        if let Some(job) = is {
            if was.is_none() && !restored {
                self.recent(open.keys(), job);
            }
            self.window(open, job, was, restored);
        } else if gone {
            self.forget_beside(open.keys(), id);
        } else {
            self.leave_window(open, id, was);
        }
        Ok(named)
    }

    /// Removes what is kept of a job in keys of its own.
    fn forget_beside(&mut self, keys: &Keys, id: JobId) {
        self.delete(absorbed_by(keys, id));
        self.delete(keys.ticks_of(id));
    }

    /// Puts ticks on record.
    fn fired(
        &mut self,
        open: &mut Open,
        plans: Vec<ScheduleInfo>,
        new: &[Tick],
        jobs: &Jobs,
    ) -> Result<()> {
        for info in plans {
            let name = &info.schedule.name;
            let new: BTreeMap<Timestamp, &Tick> = new
                .iter()
                .filter(|tick| tick.schedule == *name)
                .map(|tick| (tick.tick, tick))
                .collect();
            if new.is_empty() {
                continue;
            }
            let all = (name.clone(), Timestamp::MIN)..=(name.clone(), Timestamp::MAX);
            let mut ticks: BTreeMap<Timestamp, &Tick> =
                open.ticks.range(all).map(|((_, at), tick)| (*at, tick)).collect();
            ticks.extend(&new);
            let ticks: Vec<&Tick> = ticks.into_values().collect();
            let is_new = |tick: &Tick| new.contains_key(&tick.tick);
            let is_there = |id| jobs.get(&id).map_or(open.jobs.contains_key(&id), Option::is_some);
            let fired = open.fired.get_mut(name);
            self.spans(&open.shard.keys, &info, fired, (&ticks, &is_new, &is_there))?;
        }
        Ok(())
    }

    fn job_row(&mut self, open: &mut Open, job: &Job) -> Result<bool> {
        let lane = Lane::of(job);
        let mut named = false;
        let lane = match open.known.lane_number(&lane) {
            Some(number) => number,
            None => {
                named = true;
                let name = lane.name();
                let number = Arc::make_mut(&mut open.known).new_lane(lane);
                self.hash_set(open.keys().lanes(), name, number.to_string().into_bytes());
                number
            }
        };
        let shape = match open.known.shape_number(&job.shape)? {
            Some(number) => number,
            None => {
                named = true;
                let (name, number) = Arc::make_mut(&mut open.known).new_shape(&job.shape)?;
                self.hash_set(open.keys().shapes(), name, number.to_string().into_bytes());
                number
            }
        };
        self.hash_set(open.keys().jobs(), job.id, encode_job(job, lane, shape));
        Ok(named)
    }

    /// The newest jobs of a task that have a key.
    fn recent(&mut self, keys: &Keys, job: &Job) {
        if job.key.is_some() {
            let most = KeyAdvice::SAMPLE.saturating_sub(1);
            let (key, value) = (keys.recent(&job.task), job.id.get().to_string());
            self.push(Write::Push { key, value, most });
        }
    }

    /// How many attempts run.
    fn slots(&mut self, keys: &Keys, was: Option<&Job>, is: Option<&Job>) {
        let (was, is) = (was.filter(runs), is.filter(runs));
        if !takes_turns(was, is) {
            return;
        }
        for (job, by) in [(was, -1), (is, 1)] {
            let Some(job) = job else { continue };
            for slot in slots_of(&job.queue, job.worker.as_ref(), job.partition.as_ref()) {
                self.hash_add(keys.slots(), slot, by);
            }
        }
    }

    /// Counts the queues with limits in which an attempt has begun or ended.
    fn limited(&mut self, open: &Open, jobs: &Jobs) {
        let mut queues = BTreeSet::new();
        for (id, is) in jobs {
            let (was, is) = (open.jobs.get(id).map(|job| &**job), is.as_deref());
            let job = was.or(is).filter(|_| takes_turns(was, is));
            let has_limits = |job: &&Job| open.known.settings(&job.queue).limits_concurrency();
            queues.extend(job.filter(has_limits).map(|job| job.queue.clone()));
        }
        for queue in queues {
            self.hash_add(open.keys().slots(), slot_changes(&queue), 1);
        }
        self.turns(open, jobs);
    }

    /// Counts what starts, or comes to be next, in queues of strict order.
    fn turns(&mut self, open: &Open, jobs: &Jobs) {
        let mut queues = BTreeSet::new();
        for (id, is) in jobs {
            let (was, is) = (open.jobs.get(id).map(|job| &**job), is.as_deref());
            let Some(job) = is.filter(|job| open.known.settings(&job.queue).is_strict()) else {
                continue;
            };
            let comes_back = job.has_begun() && was.is_some_and(|was| was.state.is_ended());
            if comes_back || (runs(&job) && takes_turns(was, is)) {
                queues.insert(job.queue.clone());
            }
        }
        for queue in queues {
            self.hash_add(open.keys().slots(), slot_turns(&queue), 1);
        }
    }

    /// The hash that shows a key's window, and says which job it is.
    fn window(&mut self, open: &Open, job: &Job, was: Option<&Job>, restored: bool) {
        let (Some(key), id) = (&job.key, job.id) else { return };
        let (shown, newest) = open.shown(&(job.task.clone(), key.clone()));
        let (name, number) = (open.keys().debounce(&job.task, key), id.to_string());
        if job.is_closed_window() && (was.is_some() || restored) {
            // The hash shows the open window, or this one until there is another.
        } else if job.state == JobState::Scheduled {
            let opens = was.is_none_or(|was| was.state != JobState::Scheduled);
            if opens || shown != Some(id) {
                self.hash_set(name.clone(), MESSAGE_ID, number.into_bytes());
                self.hash_set(name.clone(), EXECUTED, b"0".to_vec());
                self.push(Write::Persist { key: name.clone() });
                // An older job that goes back is the key's window, but not its newest job.
                if let Some(newer) = shown.max(newest).filter(|newer| *newer > id) {
                    self.hash_set(name.clone(), NEWEST, newer.to_string().into_bytes());
                }
            }
            if was.is_none_or(|was| was.window.last_at != job.window.last_at) {
                let at = seconds(job.window.last_at);
                self.hash_set(name, ENQUEUE_TIMESTAMP, at.into_bytes());
            }
        } else if was.is_none() && !restored {
            // It came in ended.
            self.hash_set(name, NEWEST, number.into_bytes());
        } else if job.state.is_ended() && shown == Some(id) {
            let executed = if job.state == JobState::Succeeded { b"1" } else { b"0" };
            self.hash_set(name.clone(), EXECUTED, executed.to_vec());
            self.push(Write::Expire { key: name, seconds: SHOWN_FOR_SECS });
        }
    }

    /// The same of a job that is set aside.
    fn leave_window(&mut self, open: &Open, id: JobId, was: Option<&Job>) {
        let Some((job, key)) = was.and_then(|job| Some((job, job.key.as_ref()?))) else { return };
        if open.shown(&(job.task.clone(), key.clone())).0 == Some(id) {
            let name = open.keys().debounce(&job.task, key);
            self.hash_set(name.clone(), EXECUTED, b"0".to_vec());
            self.push(Write::Expire { key: name, seconds: SHOWN_FOR_SECS });
        }
    }

    /// A row that is no job and no tick; says whether settings changed.
    fn row(
        &mut self,
        open: &mut Open,
        name: &RowName,
        row: Option<Row>,
        closes: &BTreeSet<TaskKey>,
    ) -> Result<bool> {
        let keys = open.keys().clone();
        match (name, row) {
            (RowName::Queue(queue), row) => {
                let settings = match row {
                    Some(Row::Queue(Some(settings))) => to_json(&settings)?,
                    _ => Vec::new(),
                };
                self.hash_set(keys.queues(), queue, settings);
                return Ok(true);
            }
            (RowName::Task(task), Some(Row::Task(settings))) => {
                self.hash_set(keys.tasks(), task, to_json(&settings)?);
                return Ok(true);
            }
            (RowName::Key(key), row) => {
                let jobs = match row {
                    Some(Row::Key(jobs)) => jobs,
                    _ => KeyJobs::default(),
                };
                let was = open.busy(key);
                let is = Busy { running: jobs.running, closed: jobs.closed };
                if was != is || closes.contains(key) {
                    self.set_busy(&keys, key, &is, closes.contains(key));
                }
            }
            (RowName::Aside(id), Some(Row::Aside(aside))) => {
                let row = to_json(&StoredAside::from(&*aside))?;
                self.hash_set(keys.unreadable_jobs(), id, row);
            }
            (RowName::Aside(id), None) => {
                self.hash_delete(keys.unreadable_jobs(), id);
                self.hash_delete(keys.unreadable_rows(), id);
            }
            (RowName::Schedule(name), None) => {
                self.hash_delete(keys.schedules(), name);
                self.forget_ticks(&keys, name);
            }
            (name, row) => self.in_one_cell(&keys, name, row)?,
        }
        Ok(false)
    }

    /// A row that is one field of a hash.
    fn in_one_cell(&mut self, keys: &Keys, name: &RowName, row: Option<Row>) -> Result<()> {
        let (key, field) = match name {
            RowName::Attempts(id) => (keys.attempts(), id.to_string()),
            RowName::Effects(id) => (keys.effects(), id.to_string()),
            RowName::Past(id) => (keys.pasts(), id.to_string()),
            RowName::Hold((task, key)) => (keys.holds(), task_key(task, key)),
            RowName::Record((task, key)) => (keys.records(), task_key(task, key)),
            RowName::Memory((task, key)) => (keys.memories(), task_key(task, key)),
            RowName::Starts(queue, partition) => {
                (keys.starts(), starts_field(queue, partition.as_ref()))
            }
            RowName::Schedule(name) => (keys.schedules(), name.to_string()),
            RowName::Origin(origin) => (keys.origins(), origin_field(origin)),
            RowName::Worker(worker, incarnation) => {
                (keys.workers(), worker_field(worker, *incarnation))
            }
            RowName::Alert(name) => (keys.alerts(), name.to_string()),
            RowName::Remarks(of) => (keys.remarks(), of.to_string()),
            // What runs is counted, and the version of names and settings is compared.
            _ => return Ok(()),
        };
        let value = match row {
            None => {
                self.hash_delete(key, field);
                return Ok(());
            }
            Some(Row::Attempts(attempts)) => to_json(&attempts)?,
            Some(Row::Effects(effects)) => to_json(&effects)?,
            Some(Row::Past(past)) => to_json(&past)?,
            Some(Row::Hold(hold)) => to_json(&StoredHold::from(&hold))?,
            Some(Row::Record(record)) => to_json(&StoredRecord::from(&*record))?,
            Some(Row::Memory(memory)) => to_json(&memory)?,
            Some(Row::Starts(log)) => encode_starts(&log)?,
            Some(Row::Schedule(info)) => to_json(&info)?,
            Some(Row::Origin(id)) => id.to_string().into_bytes(),
            Some(Row::Worker(row)) => to_json(&row)?,
            Some(Row::Alert(version, state)) => to_json(&(version, state))?,
            Some(Row::Remarks(remarks)) => to_json(&remarks)?,
            Some(_) => return Ok(()),
        };
        self.hash_set(key, field, value);
        Ok(())
    }

    fn counts(&mut self, keys: &Keys, counts: Tally) {
        for ((queue, task, state), by) in counts {
            self.hash_add(keys.counts(), counts_field(&queue, &task, state), by);
        }
    }
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

/// The field under which the job that an imported dead job became is found.
pub(crate) fn origin_field(origin: &Origin) -> String {
    format!("{} {}", origin.job, origin.first_at.as_micros())
}

/// The field of a worker's row.
pub(crate) fn worker_field(worker: &WorkerId, incarnation: u32) -> String {
    format!("{worker} {incarnation}")
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

fn runs(job: &&Job) -> bool {
    job.state == JobState::Running
}

/// A moment in whole seconds, for people: millions of windows are shown so.
pub(crate) fn seconds(at: Timestamp) -> String {
    at.as_micros().div_euclid(1_000_000).to_string()
}
