//! The rows that one call's triggers touch, for stores that keep them elsewhere: loaded before the
//! triggers are accepted, written after.
//!
//! A store asks [`Needs`] what to load, fills [`Touched`], calls [`accept`](crate::accept::accept)
//! on it and writes the rows that are new or changed.

use std::collections::{BTreeMap, BTreeSet};

use crate::accept::Rows;
use crate::dedup::Hold;
use crate::edge::KeyMemory;
use crate::idempotency::Record;
use crate::trigger::Priority;
use crate::window::Thresholds;
use crate::{Batch, Job, JobId, JobState, Key, QueueName, TaskName, Timestamp};

/// A task's key: keys of different tasks never meet.
pub type TaskKey = (TaskName, Key);
/// Keys to load, by task.
pub type Wanted<'t> = BTreeMap<&'t TaskName, BTreeSet<&'t str>>;

/// What was loaded of a key, with the row of the job that it names.
#[derive(Debug)]
pub struct Loaded<T> {
    /// The key.
    pub key: TaskKey,
    /// What is kept of it.
    pub value: T,
    /// None where the job's row is gone.
    pub job: Option<Job>,
}

/// What a call's triggers need to know.
#[derive(Debug, Default)]
pub struct Needs<'t> {
    /// Keys whose open windows and running attempts count.
    pub windows: Wanted<'t>,
    /// Whether a fold looks into the payloads of a task's windows.
    pub reads_payload: BTreeMap<&'t TaskName, bool>,
    /// Keys that edges remember.
    pub memories: Wanted<'t>,
    /// Dedup keys.
    pub holds: Wanted<'t>,
    /// Idempotency keys.
    pub records: Wanted<'t>,
    /// Whether a queue's thresholds may replace a default (R14).
    pub thresholds: bool,
}

impl<'t> Needs<'t> {
    /// What these batches need.
    #[must_use]
    pub fn of(batches: &'t [Batch]) -> Self {
        let mut needs = Needs { thresholds: reads_thresholds(batches), ..Needs::default() };
        for trigger in batches.iter().flat_map(|batch| &batch.triggers) {
            if trigger.keyed.is_some() {
                let reads_payload = needs.reads_payload.entry(&trigger.task).or_default();
                *reads_payload |= trigger.fold.reads_payload();
            }
        }
        each_key(batches, |use_of, task, key| {
            let wanted = match use_of {
                UseOfKey::Window => &mut needs.windows,
                UseOfKey::Memory => &mut needs.memories,
                UseOfKey::Hold => &mut needs.holds,
                UseOfKey::Record => &mut needs.records,
            };
            wanted.entry(task).or_default().insert(key.as_str());
        });
        needs
    }
}

/// What a trigger needs of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UseOfKey {
    /// Its open window and its running attempts.
    Window,
    /// What edges remember of it.
    Memory,
    /// Its hold, as a dedup key.
    Hold,
    /// Its record, as an idempotency key.
    Record,
}

/// Calls `needs` with each key that these batches need, as often as their triggers name it.
pub fn each_key<'t>(batches: &'t [Batch], mut needs: impl FnMut(UseOfKey, &'t TaskName, &'t Key)) {
    for batch in batches {
        for trigger in &batch.triggers {
            let task = &trigger.task;
            if let Some(keyed) = &trigger.keyed {
                needs(UseOfKey::Window, task, &keyed.key);
                if keyed.debounce.edge.remembers() {
                    needs(UseOfKey::Memory, task, &keyed.key);
                }
            }
            if let Some(idempotency) = &trigger.idempotency {
                needs(UseOfKey::Record, task, &idempotency.key);
            }
            for dedup in trigger.dedup.iter().chain(&batch.dedup) {
                needs(UseOfKey::Hold, task, &dedup.key);
            }
        }
    }
}

/// Whether a queue's thresholds may replace a default of these batches (R14).
#[must_use]
pub fn reads_thresholds(batches: &[Batch]) -> bool {
    let keyed = batches.iter().flat_map(|batch| &batch.triggers);
    keyed.filter_map(|trigger| trigger.keyed.as_ref()).any(|keyed| keyed.debounce.from_default)
}

/// Rows in memory.
#[derive(Debug, Default)]
pub struct Touched {
    now: Timestamp,
    /// The id of the first new job.
    first_id: u64,
    next_id: u64,
    thresholds: BTreeMap<QueueName, Thresholds>,
    /// Jobs that were loaded, and new ones with a key.
    jobs: BTreeMap<JobId, Job>,
    /// New jobs with a key, by id.
    new_keyed: Vec<JobId>,
    /// Loaded jobs that changed, in the order of their first change.
    changed: Vec<JobId>,
    /// Where they stood in line before.
    before: BTreeMap<JobId, Place>,
    /// New jobs without a key, by id.
    new_unkeyed: Vec<Job>,
    open: BTreeMap<TaskKey, JobId>,
    running: BTreeSet<TaskKey>,
    /// Closed windows of keys (R10), as far as they were loaded or closed here.
    closed: BTreeMap<TaskKey, BTreeSet<JobId>>,
    holds: BTreeMap<TaskKey, Hold>,
    new_holds: BTreeSet<TaskKey>,
    records: BTreeMap<TaskKey, Record>,
    new_records: BTreeSet<TaskKey>,
    memories: BTreeMap<TaskKey, KeyMemory>,
    new_memories: BTreeSet<TaskKey>,
}

/// What workers know of a job's place in line.
#[derive(Debug)]
struct Place {
    in_line: bool,
    queue: QueueName,
    priority: Priority,
    partition: Option<Key>,
    /// R11: whether it may start beside an attempt of its key.
    overlap: bool,
    due_at: Timestamp,
}

impl Place {
    fn of(job: &Job) -> Self {
        let in_line = job.state == JobState::Scheduled && !job.waits;
        let (queue, partition) = (job.queue.clone(), job.partition.clone());
        let (overlap, due_at) = (job.shape.overlap, job.window.due_at);
        Place { in_line, queue, priority: job.priority, partition, overlap, due_at }
    }

    /// What another due time does not change.
    fn line(&self) -> (&QueueName, &Option<Key>, bool) {
        (&self.queue, &self.partition, self.overlap)
    }
}

impl Touched {
    /// Nothing yet, at `now`; new jobs get ids from `next_id` on, and what is loaded has smaller
    /// ones.
    #[must_use]
    pub fn new(now: Timestamp, next_id: u64, thresholds: BTreeMap<QueueName, Thresholds>) -> Self {
        Touched { now, first_id: next_id, next_id, thresholds, ..Touched::default() }
    }

    /// Takes an open window, a running attempt or a closed window of a key.
    pub fn add_job(&mut self, task_key: TaskKey, job: Job) {
        if job.state == JobState::Running {
            self.running.insert(task_key);
        } else if job.is_closed_window() {
            self.closed.entry(task_key).or_default().insert(job.id);
        } else {
            self.open.insert(task_key, job.id);
            self.jobs.insert(job.id, job);
        }
    }

    /// The closed window that comes before this window of its key, of those that are known here.
    #[must_use]
    pub fn closed_before(&self, window: &Job) -> Option<JobId> {
        let task_key = (window.task.clone(), window.key.clone()?);
        self.closed.get(&task_key)?.range(..window.id).next_back().copied()
    }

    /// Takes dedup holds.
    pub fn add_holds(&mut self, loaded: Vec<Loaded<Hold>>) {
        for Loaded { key, value, job } in loaded {
            self.holds.insert(key, value);
            self.add_named(job);
        }
    }

    /// Takes idempotency records.
    pub fn add_records(&mut self, loaded: Vec<Loaded<Record>>) {
        for Loaded { key, value, job } in loaded {
            self.records.insert(key, value);
            self.add_named(job);
        }
    }

    /// Takes what edges remember.
    pub fn add_memories(&mut self, loaded: Vec<Loaded<KeyMemory>>) {
        for Loaded { key, value, job } in loaded {
            self.memories.insert(key, value);
            self.add_named(job);
        }
    }

    fn add_named(&mut self, job: Option<Job>) {
        if let Some(job) = job {
            self.jobs.entry(job.id).or_insert(job);
        }
    }

    /// The id that the next new job would get.
    #[must_use]
    pub fn next_id(&self) -> u64 {
        self.next_id
    }

    /// New jobs without a key, in the order of their ids.
    #[must_use]
    pub fn new_unkeyed(&self) -> &[Job] {
        &self.new_unkeyed
    }

    /// New jobs with a key.
    #[must_use]
    pub fn new_keyed(&self) -> Vec<&Job> {
        self.new_keyed.iter().filter_map(|id| self.jobs.get(id)).collect()
    }

    /// Jobs that were there before and changed.
    #[must_use]
    pub fn changed(&self) -> Vec<&Job> {
        self.changed.iter().filter_map(|id| self.jobs.get(id)).collect()
    }

    /// R34: whether a worker may start a job earlier than it had to think before.
    #[must_use]
    pub fn is_news(&self, job: &Job) -> bool {
        let place = Place::of(job);
        let was_known = self.before.get(&job.id).is_some_and(|before| {
            before.in_line && before.line() == place.line() && before.due_at <= place.due_at
        });
        place.in_line && !was_known
    }

    /// The queue and the priority that a changed job had before, if either is another now (R7).
    #[must_use]
    pub fn moved_from(&self, job: &Job) -> Option<(&QueueName, Priority)> {
        let before = self.before.get(&job.id)?;
        let stayed = before.queue == job.queue && before.priority == job.priority;
        (!stayed).then_some((&before.queue, before.priority))
    }

    /// Dedup keys that were taken.
    #[must_use]
    pub fn taken(&self) -> Vec<(TaskKey, Hold)> {
        let hold = |key: &TaskKey| Some((key.clone(), *self.holds.get(key)?));
        self.new_holds.iter().filter_map(hold).collect()
    }

    /// Idempotency keys that were taken.
    #[must_use]
    pub fn recorded(&self) -> Vec<(TaskKey, Record)> {
        let record = |key: &TaskKey| Some((key.clone(), self.records.get(key)?.clone()));
        self.new_records.iter().filter_map(record).collect()
    }

    /// Keys whose memory this call writes.
    #[must_use]
    pub fn remembered(&self) -> Vec<(TaskKey, KeyMemory)> {
        let memory = |key: &TaskKey| Some((key.clone(), *self.memories.get(key)?));
        self.new_memories.iter().filter_map(memory).collect()
    }
}

impl Rows for Touched {
    fn now(&self) -> Timestamp {
        self.now
    }

    fn next_id(&mut self) -> JobId {
        let id = JobId::new(self.next_id);
        self.next_id = self.next_id.saturating_add(1);
        id
    }

    fn thresholds(&self, queue: &QueueName) -> Option<Thresholds> {
        self.thresholds.get(queue).copied()
    }

    fn open_window(&self, task: &TaskName, key: &Key) -> Option<JobId> {
        self.open.get(&(task.clone(), key.clone())).copied()
    }

    fn key_is_busy(&self, task: &TaskName, key: &Key, window: JobId) -> bool {
        let task_key = (task.clone(), key.clone());
        let closed = self.closed.get(&task_key).and_then(BTreeSet::first);
        self.running.contains(&task_key) || closed.is_some_and(|closed| *closed < window)
    }

    fn job(&self, id: JobId) -> Option<&Job> {
        let new = || self.new_unkeyed.binary_search_by_key(&id, |job| job.id).ok();
        self.jobs.get(&id).or_else(|| self.new_unkeyed.get(new()?))
    }

    fn insert(&mut self, job: Job) {
        match job.key.clone() {
            Some(key) => {
                self.open.insert((job.task.clone(), key), job.id);
                self.new_keyed.push(job.id);
                self.jobs.insert(job.id, job);
            }
            None => self.new_unkeyed.push(job),
        }
    }

    fn update(&mut self, id: JobId, change: &mut dyn FnMut(&mut Job)) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        // Ids grow, so a job of this call has an id from `first_id` on.
        if id.get() < self.first_id && !self.before.contains_key(&id) {
            self.before.insert(id, Place::of(job));
            self.changed.push(id);
        }
        change(job);
        // R10: a full window gives up its place as the key's open one, and newer ones wait for it.
        if let (true, Some(key)) = (job.is_closed_window(), &job.key) {
            let task_key = (job.task.clone(), key.clone());
            if self.open.get(&task_key) == Some(&id) {
                self.open.remove(&task_key);
            }
            self.closed.entry(task_key).or_default().insert(id);
        }
    }

    fn hold(&self, task: &TaskName, key: &Key) -> Option<Hold> {
        self.holds.get(&(task.clone(), key.clone())).copied()
    }

    fn set_hold(&mut self, task: &TaskName, key: &Key, hold: Hold) {
        let task_key = (task.clone(), key.clone());
        self.new_holds.insert(task_key.clone());
        self.holds.insert(task_key, hold);
    }

    fn record(&self, task: &TaskName, key: &Key) -> Option<&Record> {
        self.records.get(&(task.clone(), key.clone()))
    }

    fn set_record(&mut self, task: &TaskName, key: &Key, record: Record) {
        let task_key = (task.clone(), key.clone());
        self.new_records.insert(task_key.clone());
        self.records.insert(task_key, record);
    }

    fn memory(&self, task: &TaskName, key: &Key) -> Option<KeyMemory> {
        self.memories.get(&(task.clone(), key.clone())).copied()
    }

    fn set_memory(&mut self, task: &TaskName, key: &Key, memory: KeyMemory) {
        let task_key = (task.clone(), key.clone());
        self.new_memories.insert(task_key.clone());
        self.memories.insert(task_key, memory);
    }
}
