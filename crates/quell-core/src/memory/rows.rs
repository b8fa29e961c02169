//! The memory store's rows as accepting triggers sees them.

use super::state::State;
use crate::accept::Rows;
use crate::dedup::Hold;
use crate::edge::KeyMemory;
use crate::idempotency::Record;
use crate::window::Thresholds;
use crate::{Job, JobId, Key, QueueName, TaskName, Timestamp};

impl Rows for State {
    fn now(&self) -> Timestamp {
        self.now()
    }

    fn next_id(&mut self) -> JobId {
        self.next_id()
    }

    fn thresholds(&self, queue: &QueueName) -> Option<Thresholds> {
        self.settings(queue).debounce
    }

    fn open_window(&self, task: &TaskName, key: &Key) -> Option<JobId> {
        self.open_window(task, key)
    }

    fn key_is_busy(&self, task: &TaskName, key: &Key, window: JobId) -> bool {
        let task_key = (task.clone(), key.clone());
        let closed = self.closed_window(&task_key);
        self.key_runs(&task_key) || closed.is_some_and(|closed| closed < window)
    }

    fn job(&self, id: JobId) -> Option<&Job> {
        self.job(id)
    }

    fn insert(&mut self, job: Job) {
        self.met.insert(job.id);
        self.insert(job);
    }

    fn update(&mut self, id: JobId, change: &mut dyn FnMut(&mut Job)) {
        self.update(id, change);
        // A join moves the window to the trigger's queue, which may be new.
        self.met.insert(id);
    }

    fn hold(&self, task: &TaskName, key: &Key) -> Option<Hold> {
        self.holds.get(&(task.clone(), key.clone())).copied()
    }

    fn set_hold(&mut self, task: &TaskName, key: &Key, hold: Hold) {
        self.holds.insert((task.clone(), key.clone()), hold);
    }

    fn record(&self, task: &TaskName, key: &Key) -> Option<&Record> {
        self.records.get(&(task.clone(), key.clone()))
    }

    fn set_record(&mut self, task: &TaskName, key: &Key, record: Record) {
        self.records.insert((task.clone(), key.clone()), record);
    }

    fn memory(&self, task: &TaskName, key: &Key) -> Option<KeyMemory> {
        self.memories.get(&(task.clone(), key.clone())).copied()
    }

    fn set_memory(&mut self, task: &TaskName, key: &Key, memory: KeyMemory) {
        self.memories.insert((task.clone(), key.clone()), memory);
    }
}
