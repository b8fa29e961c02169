//! The rows that one call's triggers touch, as the core's algorithm sees them.

use std::collections::{HashMap, HashSet};

use quell_core::accept::Rows;
use quell_core::dedup::Hold;
use quell_core::edge::KeyMemory;
use quell_core::window::Thresholds;
use quell_core::{Job, JobId, JobState, Key, QueueName, TaskName, Timestamp};

use crate::keys::{Loaded, TaskKey};

/// Rows in memory: loaded before the triggers are accepted, written after.
#[derive(Debug, Default)]
pub(crate) struct Touched {
    now: Timestamp,
    /// The id of the first new job.
    first_id: u64,
    pub(crate) next_id: u64,
    thresholds: HashMap<QueueName, Thresholds>,
    /// Jobs that were loaded, and new ones with a key.
    jobs: HashMap<JobId, Job>,
    /// New jobs with a key, by id.
    new_keyed: Vec<JobId>,
    /// Loaded jobs that changed, in the order of their first change.
    changed: Vec<JobId>,
    /// Where they stood in line before.
    before: HashMap<JobId, Place>,
    /// New jobs without a key, by id.
    pub(crate) new_unkeyed: Vec<Job>,
    open: HashMap<TaskKey, JobId>,
    running: HashSet<TaskKey>,
    holds: HashMap<TaskKey, Hold>,
    new_holds: HashSet<TaskKey>,
    memories: HashMap<TaskKey, KeyMemory>,
    new_memories: HashSet<TaskKey>,
}

/// What workers know of a job's place in line.
#[derive(Debug)]
struct Place {
    in_line: bool,
    queue: QueueName,
    partition: Option<Key>,
    due_at: Timestamp,
}

impl Place {
    fn of(job: &Job) -> Self {
        let in_line = job.state == JobState::Scheduled && !job.waits;
        let (queue, partition) = (job.queue.clone(), job.partition.clone());
        Place { in_line, queue, partition, due_at: job.window.due_at }
    }
}

impl Touched {
    pub(crate) fn new(
        now: Timestamp,
        next_id: u64,
        thresholds: HashMap<QueueName, Thresholds>,
    ) -> Self {
        Touched { now, first_id: next_id, next_id, thresholds, ..Touched::default() }
    }

    /// Takes an open window or a running attempt of a key.
    pub(crate) fn add_job(&mut self, task_key: TaskKey, job: Job) {
        if job.state == JobState::Running {
            self.running.insert(task_key);
        } else {
            self.open.insert(task_key, job.id);
            self.jobs.insert(job.id, job);
        }
    }

    pub(crate) fn add_holds(&mut self, loaded: Vec<Loaded<Hold>>) {
        for Loaded { key, value, job } in loaded {
            self.holds.insert(key, value);
            self.add_named(job);
        }
    }

    pub(crate) fn add_memories(&mut self, loaded: Vec<Loaded<KeyMemory>>) {
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

    /// New jobs with a key.
    pub(crate) fn new_keyed(&self) -> Vec<&Job> {
        self.new_keyed.iter().filter_map(|id| self.jobs.get(id)).collect()
    }

    /// Jobs that were there before and changed.
    pub(crate) fn changed(&self) -> Vec<&Job> {
        self.changed.iter().filter_map(|id| self.jobs.get(id)).collect()
    }

    /// R34: whether a worker may start a job earlier than it had to think before.
    pub(crate) fn is_news(&self, job: &Job) -> bool {
        let place = Place::of(job);
        let was_known = self.before.get(&job.id).is_some_and(|before| {
            let same_line = (&before.queue, &before.partition) == (&place.queue, &place.partition);
            before.in_line && same_line && before.due_at <= place.due_at
        });
        place.in_line && !was_known
    }

    /// Dedup keys that were taken.
    pub(crate) fn taken(&self) -> Vec<(TaskKey, Hold)> {
        let hold = |key: &TaskKey| Some((key.clone(), *self.holds.get(key)?));
        self.new_holds.iter().filter_map(hold).collect()
    }

    /// Keys that are remembered anew.
    pub(crate) fn remembered(&self) -> Vec<(TaskKey, KeyMemory)> {
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
        self.next_id += 1;
        id
    }

    fn thresholds(&self, queue: &QueueName) -> Option<Thresholds> {
        self.thresholds.get(queue).copied()
    }

    fn open_window(&self, task: &TaskName, key: &Key) -> Option<JobId> {
        self.open.get(&(task.clone(), key.clone())).copied()
    }

    fn key_runs(&self, task: &TaskName, key: &Key) -> bool {
        self.running.contains(&(task.clone(), key.clone()))
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
        // Ids grow, so that a job of this call is told by its own.
        if id.get() < self.first_id && !self.before.contains_key(&id) {
            self.before.insert(id, Place::of(job));
            self.changed.push(id);
        }
        change(job);
    }

    fn hold(&self, task: &TaskName, key: &Key) -> Option<Hold> {
        self.holds.get(&(task.clone(), key.clone())).copied()
    }

    fn set_hold(&mut self, task: &TaskName, key: &Key, hold: Hold) {
        let task_key = (task.clone(), key.clone());
        self.new_holds.insert(task_key.clone());
        self.holds.insert(task_key, hold);
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
