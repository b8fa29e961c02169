//! Loading what a step may touch: jobs, what hangs on them, and what their keys are about.

use std::collections::BTreeSet;
use std::sync::Arc;

use quell_core::touched::Needs;
use quell_core::{Attempt, Batch, Effect, JobId, Key, QueueName, Result, TaskName};

use crate::keys::{Keys, split_task_key, task_key};
use crate::look::Read;
use crate::row::{StoredHold, StoredRecord, corrupt, decode_job, decode_starts, from_json};
use crate::tx::{Cell, Tx};
use crate::write::{MESSAGE_ID, NEWEST, starts_field};

/// Keys of tasks.
pub(crate) type TaskKeys = BTreeSet<(TaskName, Key)>;

/// Where the row is that has this name among those that expire.
pub(crate) fn cell_of_name(keys: &Keys, name: &str) -> Option<Cell> {
    let (kind, field) = name.split_once(' ')?;
    let key = match kind {
        "h" => keys.holds(),
        "r" => keys.records(),
        "m" => keys.memories(),
        _ => keys.starts(),
    };
    Some(Cell::new(key, field))
}

/// The cells that hang on a job.
pub(crate) fn cells_beside(keys: &Keys, id: JobId) -> [Cell; 3] {
    [keys.attempts(), keys.effects(), keys.pasts()].map(|key| Cell::new(key, id.to_string()))
}

impl Tx<'_> {
    /// Loads jobs' rows.
    pub(crate) async fn load_jobs(&mut self, ids: impl IntoIterator<Item = JobId>) -> Result<()> {
        let ids: BTreeSet<JobId> = ids.into_iter().collect();
        let key = self.shard.keys.jobs();
        let cells = ids.iter().map(|id| Cell::new(key.clone(), id.to_string())).collect();
        self.fetch(cells, Vec::new()).await?;
        for id in ids {
            let Some(row) = self.cell(key.clone(), &id.to_string()) else { continue };
            let job = decode_job(id, row, &self.known)?;
            self.rows.jobs.insert(id, Arc::new(job));
        }
        Ok(())
    }

    /// Loads all that a move of these jobs may touch: what hangs on them, the other jobs of their
    /// keys that wait or run, and the keys that name them.
    pub(crate) async fn load_around(&mut self, ids: &[JobId]) -> Result<()> {
        self.load(ids, true).await
    }

    /// Loads jobs with what hangs on them and the keys that name them, before they are removed.
    pub(crate) async fn load_whole(&mut self, ids: &[JobId]) -> Result<()> {
        self.load(ids, false).await
    }

    async fn load(&mut self, ids: &[JobId], with_keys: bool) -> Result<()> {
        self.load_jobs(ids.iter().copied()).await?;
        let keys = self.shard.keys.clone();
        let mut cells = Vec::new();
        let mut sets = Vec::new();
        let mut task_keys = TaskKeys::new();
        for id in ids {
            let Some(job) = self.rows.jobs.get(id) else { continue };
            cells.extend(cells_beside(&keys, *id));
            sets.push(keys.names(*id));
            if let Some(key) = job.key.as_ref().filter(|_| with_keys) {
                task_keys.insert((job.task.clone(), key.clone()));
                cells.push(Cell::new(keys.memories(), task_key(&job.task, key)));
            }
        }
        cells.extend(self.cells_of_keys(&task_keys));
        self.fetch(cells, sets).await?;
        self.load_next_windows(&task_keys, ids).await?;
        for (task, key) in &task_keys {
            self.take_memory(task, key)?;
        }
        for id in ids {
            self.take_beside(*id)?;
        }
        self.load_names(ids).await?;
        self.take_settings_of_jobs();
        Ok(())
    }

    /// What hangs on a job, once it was fetched.
    fn take_beside(&mut self, id: JobId) -> Result<()> {
        let (keys, field) = (self.shard.keys.clone(), id.to_string());
        if let Some(bytes) = self.cell(keys.attempts(), &field) {
            let attempts: Vec<Attempt> = from_json("attempts", bytes)?;
            self.rows.attempts.insert(id, attempts);
        }
        if let Some(bytes) = self.cell(keys.effects(), &field) {
            let effects: Vec<Effect> = from_json("effects", bytes)?;
            let by_name = effects.into_iter().map(|effect| (effect.name.clone(), effect));
            self.rows.effects.insert(id, by_name.collect());
        }
        if let Some(bytes) = self.cell(keys.pasts(), &field) {
            let past = from_json("what a job was", bytes)?;
            self.rows.pasts.insert(id, past);
        }
        Ok(())
    }

    /// The cells that say which jobs of a key wait and run.
    fn cells_of_keys(&self, task_keys: &TaskKeys) -> Vec<Cell> {
        let keys = &self.shard.keys;
        let cells = task_keys.iter().flat_map(|(task, key)| {
            let name = keys.debounce(task, key);
            [
                Cell::new(name.clone(), MESSAGE_ID),
                Cell::new(name, NEWEST),
                Cell::new(keys.runs(), task_key(task, key)),
            ]
        });
        cells.collect()
    }

    /// Loads the windows of keys that may come next once the `moving` jobs have moved.
    pub(crate) async fn load_keys(&mut self, task_keys: &TaskKeys, moving: &[JobId]) -> Result<()> {
        self.fetch_keys(task_keys).await?;
        self.load_next_windows(task_keys, moving).await
    }

    /// Reads which jobs of keys wait and run.
    pub(crate) async fn fetch_keys(&mut self, task_keys: &TaskKeys) -> Result<()> {
        let cells = self.cells_of_keys(task_keys);
        self.fetch(cells, Vec::new()).await
    }

    /// Loads the dedup and idempotency keys that name jobs whose sets were fetched.
    pub(crate) async fn load_names(&mut self, ids: &[JobId]) -> Result<()> {
        let keys = self.shard.keys.clone();
        let names: BTreeSet<String> = ids
            .iter()
            .filter_map(|id| self.sets.get(&keys.names(*id)))
            .flatten()
            .cloned()
            .collect();
        self.load_named(&names).await
    }

    /// Loads dedup and idempotency keys and memories by their names among those that expire.
    pub(crate) async fn load_named(&mut self, names: &BTreeSet<String>) -> Result<()> {
        let keys = self.shard.keys.clone();
        let cells = names.iter().filter_map(|name| cell_of_name(&keys, name));
        self.fetch(cells.collect(), Vec::new()).await?;
        for name in names {
            let (kind, field) = name.split_once(' ').unwrap_or_default();
            if kind == "s" {
                self.take_starts(field)?;
                continue;
            }
            let (task, key) =
                split_task_key(field).ok_or_else(|| corrupt(format_args!("the key {name:?}")))?;
            match kind {
                "h" => self.take_hold(&task, &key)?,
                "r" => self.take_record(&task, &key)?,
                _ => self.take_memory(&task, &key)?,
            }
        }
        Ok(())
    }

    fn take_hold(&mut self, task: &TaskName, key: &Key) -> Result<()> {
        if let Some(bytes) = self.cell(self.shard.keys.holds(), &task_key(task, key)) {
            let hold = from_json::<StoredHold>("a dedup key", bytes)?.into();
            self.rows.holds.insert((task.clone(), key.clone()), hold);
        }
        Ok(())
    }

    fn take_record(&mut self, task: &TaskName, key: &Key) -> Result<()> {
        if let Some(bytes) = self.cell(self.shard.keys.records(), &task_key(task, key)) {
            let record = from_json::<StoredRecord>("an idempotency key", bytes)?.try_into()?;
            self.rows.records.insert((task.clone(), key.clone()), record);
        }
        Ok(())
    }

    pub(crate) fn take_memory(&mut self, task: &TaskName, key: &Key) -> Result<()> {
        if let Some(bytes) = self.cell(self.shard.keys.memories(), &task_key(task, key)) {
            let memory = from_json("what is remembered of a key", bytes)?;
            self.rows.memories.insert((task.clone(), key.clone()), memory);
        }
        Ok(())
    }

    fn take_starts(&mut self, field: &str) -> Result<()> {
        let (queue, partition) = match field.split_once(' ') {
            Some((queue, partition)) => (queue, Some(Key::new(partition)?)),
            None => (field, None),
        };
        let queue = QueueName::new(queue)?;
        if let Some(settings) = self.known.queues.get(&queue) {
            self.rows.queues.insert(queue.clone(), settings.clone());
        }
        if let Some(bytes) = self.cell(self.shard.keys.starts(), field) {
            let log = decode_starts(bytes)?;
            self.rows.starts.insert((queue, partition), log);
        }
        Ok(())
    }

    /// Loads what accepting these batches needs.
    pub(crate) async fn load_for(&mut self, batches: &[Batch]) -> Result<()> {
        let needs = Needs::of(batches);
        let keys = self.shard.keys.clone();
        let all = |wanted: &quell_core::touched::Wanted<'_>| -> Result<TaskKeys> {
            let mut pairs = TaskKeys::new();
            for (task, names) in wanted {
                for name in names {
                    pairs.insert(((*task).clone(), Key::new(*name)?));
                }
            }
            Ok(pairs)
        };
        let (windows, memories) = (all(&needs.windows)?, all(&needs.memories)?);
        let (holds, records) = (all(&needs.holds)?, all(&needs.records)?);
        let mut cells = self.cells_of_keys(&windows);
        for (key, pairs) in
            [(keys.memories(), &memories), (keys.holds(), &holds), (keys.records(), &records)]
        {
            let of = |(task, name): &(TaskName, Key)| Cell::new(key.clone(), task_key(task, name));
            cells.extend(pairs.iter().map(of));
        }
        self.fetch(cells, Vec::new()).await?;
        for (task, key) in &memories {
            self.take_memory(task, key)?;
        }
        for (task, key) in &holds {
            self.take_hold(task, key)?;
        }
        for (task, key) in &records {
            self.take_record(task, key)?;
        }
        self.load_open_windows(&windows).await?;
        let rows = &self.rows;
        let held = rows.holds.values().map(|hold| hold.job);
        let recorded = rows.records.values().map(|record| record.job);
        let leaders = rows.memories.values().map(|memory| memory.leader);
        let named: Vec<JobId> = held.chain(recorded).chain(leaders).collect();
        self.load_jobs(named).await?;
        let triggers = batches.iter().flat_map(|batch| &batch.triggers);
        self.take_settings(triggers.map(|trigger| (trigger.queue.clone(), trigger.task.clone())));
        // R10: a window that closes stays in its queue.
        self.take_settings_of_jobs();
        Ok(())
    }

    /// Shows the step the settings of these queues and tasks.
    pub(crate) fn take_settings(&mut self, names: impl IntoIterator<Item = (QueueName, TaskName)>) {
        for (queue, task) in names {
            if let Some(settings) = self.known.queues.get(&queue) {
                self.rows.queues.insert(queue, settings.clone());
            }
            if let Some(settings) = self.known.tasks.get(&task) {
                self.rows.tasks.insert(task, *settings);
            }
        }
    }

    /// Shows the step the settings of the queues and tasks of all jobs that are loaded.
    pub(crate) fn take_settings_of_jobs(&mut self) {
        let names = self.rows.jobs.values().map(|job| (job.queue.clone(), job.task.clone()));
        let names: Vec<_> = names.collect();
        self.take_settings(names);
    }

    /// Loads logs of starts.
    pub(crate) async fn load_starts(
        &mut self,
        queue: &QueueName,
        partitions: &[Option<Key>],
    ) -> Result<()> {
        let key = self.shard.keys.starts();
        let field = |partition: &Option<Key>| starts_field(queue, partition.as_ref());
        let cells = partitions.iter().map(|partition| Cell::new(key.clone(), field(partition)));
        self.fetch(cells.collect(), Vec::new()).await?;
        for partition in partitions {
            self.take_starts(&field(partition))?;
        }
        Ok(())
    }

    /// Loads every log of starts of a queue.
    pub(crate) async fn load_all_starts(&mut self, queue: &QueueName) -> Result<()> {
        let key = self.shard.keys.starts();
        let all = self.look(vec![Read::All(key.clone())]).await?.pairs()?;
        let is_of = |field: &str| field.split(' ').next() == Some(queue.as_str());
        for (field, log) in all.into_iter().filter(|(field, _)| is_of(field)) {
            self.note(key.clone(), &field, Some(log));
            self.take_starts(&field)?;
        }
        Ok(())
    }
}
