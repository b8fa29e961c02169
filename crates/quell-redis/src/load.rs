//! Loading rows of the engine: what a step may touch.
//!
//! Settings come from what the process knows, and the commit compares their version. The row of a key
//! is put together from the hash that shows its window, from its field of `runs`, and from the job that
//! the hash shows: only the row of that job says whether it is the open window.

use std::collections::BTreeSet;
use std::sync::Arc;

use quell_core::part::TaskKey;
use quell_core::{Job, JobId, QueueSettings, Result};
use quell_engine::{KeyJobs, Row, RowName};

use crate::busy::Busy;
use crate::commit::{MESSAGE_ID, NEWEST, origin_field, starts_field, worker_field};
use crate::keys::{slot_changes, slot_turns, task_key};
use crate::open::{Cell, Open};
use crate::row::{
    StoredAside, StoredHold, StoredRecord, decode_in_part, decode_job, decode_starts, from_json,
    number,
};

/// The cell in which a row is that is in one; none for others. Of a job, its row.
pub(crate) fn cell_of(open: &Open, name: &RowName) -> Option<Cell> {
    let keys = open.keys();
    let of_key = |key: String, (task, name): &TaskKey| Cell::new(key, task_key(task, name));
    Some(match name {
        RowName::Attempts(id) => Cell::new(keys.attempts(), id.to_string()),
        RowName::Effects(id) => Cell::new(keys.effects(), id.to_string()),
        RowName::Past(id) => Cell::new(keys.pasts(), id.to_string()),
        RowName::Aside(id) => Cell::new(keys.unreadable_jobs(), id.to_string()),
        RowName::Hold(key) => of_key(keys.holds(), key),
        RowName::Record(key) => of_key(keys.records(), key),
        RowName::Memory(key) => of_key(keys.memories(), key),
        RowName::Starts(queue, partition) => {
            Cell::new(keys.starts(), starts_field(queue, partition.as_ref()))
        }
        RowName::Schedule(name) => Cell::new(keys.schedules(), name.as_str()),
        RowName::Origin(origin) => Cell::new(keys.origins(), origin_field(origin)),
        RowName::Worker(worker, incarnation) => {
            Cell::new(keys.workers(), worker_field(worker, *incarnation))
        }
        RowName::Alert(name) => Cell::new(keys.alerts(), name.as_str()),
        RowName::Remarks(of) => Cell::new(keys.remarks(), of.to_string()),
        RowName::Job(id) => Cell::new(keys.jobs(), id.to_string()),
        RowName::Key(_)
        | RowName::Queue(_)
        | RowName::Task(_)
        | RowName::Turn(_)
        | RowName::Gate(_)
        | RowName::Tick(..) => return None,
    })
}

/// Reads a row that is in one cell.
fn decode(name: &RowName, bytes: &[u8]) -> Result<Option<Row>> {
    Ok(Some(match name {
        RowName::Attempts(_) => Row::Attempts(from_json("attempts", bytes)?),
        RowName::Effects(_) => Row::Effects(from_json("effects", bytes)?),
        RowName::Past(_) => Row::Past(Box::new(from_json("what a job was", bytes)?)),
        RowName::Aside(id) => {
            let aside: StoredAside = from_json("an unreadable job", bytes)?;
            Row::Aside(Box::new(aside.of(*id)))
        }
        RowName::Hold(_) => Row::Hold(from_json::<StoredHold>("a dedup key", bytes)?.into()),
        RowName::Record(_) => {
            let record: StoredRecord = from_json("an idempotency key", bytes)?;
            Row::Record(Box::new(record.try_into()?))
        }
        RowName::Memory(_) => Row::Memory(from_json("what is remembered of a key", bytes)?),
        RowName::Starts(..) => Row::Starts(decode_starts(bytes)?),
        RowName::Schedule(_) => Row::Schedule(Box::new(from_json("a schedule", bytes)?)),
        RowName::Origin(_) => match number(bytes) {
            Some(id) => Row::Origin(JobId::new(id)),
            None => return Ok(None),
        },
        RowName::Worker(..) => Row::Worker(Box::new(from_json("a worker", bytes)?)),
        RowName::Alert(_) => {
            let (version, state) = from_json("an alert", bytes)?;
            Row::Alert(version, Box::new(state))
        }
        RowName::Remarks(_) => Row::Remarks(from_json("remarks", bytes)?),
        _ => return Ok(None),
    }))
}

/// Whether the order of its partitions is all that limits attempts of a queue at once.
fn counts_turns(settings: &QueueSettings) -> bool {
    let has_slots = settings.concurrency.is_some() || settings.worker_concurrency.is_some();
    settings.is_strict() && !has_slots
}

impl Open {
    /// Loads rows; those that are not there are left out.
    pub(crate) async fn load(&mut self, names: &BTreeSet<RowName>) -> Result<Vec<(RowName, Row)>> {
        let (mut jobs, mut keys, mut cells) = (Vec::new(), Vec::new(), Vec::new());
        for name in names {
            match name {
                RowName::Job(id) => jobs.push(*id),
                RowName::Key(key) => {
                    keys.push(key);
                    cells.extend(self.cells_of_key(key));
                }
                // An end only makes room, and the time of the last look is after it.
                RowName::Turn(queue) if counts_turns(&self.known.settings(queue)) => {
                    cells.push(Cell::new(self.keys().slots(), slot_turns(queue)));
                }
                RowName::Turn(queue) if self.known.settings(queue).limits_concurrency() => {
                    let fields = [queue.to_string(), slot_changes(queue)];
                    cells.extend(fields.map(|field| Cell::new(self.keys().slots(), field)));
                }
                name => cells.extend(cell_of(self, name)),
            }
        }
        self.know_settings().await?;
        self.fetch(cells).await?;
        self.fetch_jobs(&jobs).await?;
        self.fetch_shown(&keys).await?;
        let mut rows = Vec::new();
        for name in names {
            if let Some(row) = self.row(name).await? {
                rows.push((name.clone(), row));
            }
        }
        self.forget_read(&jobs);
        Ok(rows)
    }

    /// A row that was fetched.
    async fn row(&mut self, name: &RowName) -> Result<Option<Row>> {
        match name {
            RowName::Job(id) => Ok(self.job(*id).await?.map(Row::Job)),
            RowName::Key(key) => Ok(self.key_jobs(key).map(Row::Key)),
            RowName::Queue(queue) => {
                let settings = self.known.queues.get(queue);
                Ok(settings.map(|settings| Row::Queue(settings.clone().map(Box::new))))
            }
            RowName::Task(task) => Ok(self.known.tasks.get(task).cloned().map(Row::Task)),
            RowName::Tick(schedule, at) => {
                Ok(self.ticks.get(&(schedule.clone(), *at)).cloned().map(Row::Tick))
            }
            name => {
                let Some(Cell { key, field: Some(field) }) = cell_of(self, name) else {
                    return Ok(None);
                };
                self.cell(key, &field).map_or(Ok(None), |bytes| decode(name, bytes))
            }
        }
    }

    /// Reads the rows of jobs, which may be long.
    pub(crate) async fn fetch_jobs(&mut self, ids: &[JobId]) -> Result<()> {
        /// Of more rows, the lengths are heeded.
        const FEW: usize = 16;
        let key = self.keys().jobs();
        if ids.len() > FEW {
            return self.fetch_long(&key, ids.iter().map(ToString::to_string).collect()).await;
        }
        self.fetch(ids.iter().map(|id| Cell::new(key.clone(), id.to_string())).collect()).await
    }

    /// The row of a job that was fetched.
    async fn job(&mut self, id: JobId) -> Result<Option<Arc<Job>>> {
        if let Some(job) = self.jobs.get(&id) {
            return Ok(Some(Arc::clone(job)));
        }
        let Some(row) = self.row_of(id) else { return Ok(None) };
        let job = match decode_job(id, row, &self.known) {
            Ok(job) => job,
            Err(_) => {
                // It may have a name that was new since this process last looked.
                let row = row.to_vec();
                self.learn_again().await?;
                decode_job(id, &row, &self.known)?
            }
        };
        let job = Arc::new(job);
        self.jobs.insert(id, Arc::clone(&job));
        Ok(Some(job))
    }

    /// The bytes of a job's row that was fetched.
    pub(crate) fn row_of(&self, id: JobId) -> Option<&[u8]> {
        self.cell(self.keys().jobs(), &id.to_string())
    }

    /// The cells that say which jobs of a key wait and run.
    fn cells_of_key(&self, (task, key): &TaskKey) -> [Cell; 3] {
        let (keys, name) = (self.keys(), self.keys().debounce(task, key));
        [
            Cell::new(name.clone(), MESSAGE_ID),
            Cell::new(name, NEWEST),
            Cell::new(keys.runs(), task_key(task, key)),
        ]
    }

    /// What is busy of a key whose cells were fetched.
    pub(crate) fn busy(&self, (task, key): &TaskKey) -> Busy {
        let field = self.cell(self.keys().runs(), &task_key(task, key));
        field.map(Busy::parse).unwrap_or_default()
    }

    /// The window that a key's hash shows, which may have ended, and the newest job of the key where that
    /// is another one.
    pub(crate) fn shown(&self, (task, key): &TaskKey) -> (Option<JobId>, Option<JobId>) {
        let hash = self.keys().debounce(task, key);
        let id = |field| self.cell(hash.clone(), field).and_then(number).map(JobId::new);
        (id(MESSAGE_ID), id(NEWEST))
    }

    /// Reads the jobs that hashes show: only their rows say whether they are there and wait.
    async fn fetch_shown(&mut self, keys: &[&TaskKey]) -> Result<()> {
        let shown = keys.iter().flat_map(|key| {
            let (shown, newest) = self.shown(key);
            shown.into_iter().chain(newest)
        });
        let shown: Vec<JobId> = shown.collect();
        self.fetch_jobs(&shown).await
    }

    /// The row of a key; none where the key has no job.
    fn key_jobs(&self, task_key: &TaskKey) -> Option<KeyJobs> {
        let Busy { running, closed } = self.busy(task_key);
        let (shown, newest) = self.shown(task_key);
        let there = |id: &JobId| self.row_of(*id).is_some();
        let shown = shown.filter(there);
        let open = shown.filter(|id| self.may_be_open(*id));
        let newest = newest.filter(there).max(shown);
        if running.is_empty() && open.is_none() && closed.is_none() && newest.is_none() {
            return None;
        }
        // No step that moved a job of the key before this look was later.
        Some(KeyJobs { open, closed, running, newest, at: self.now })
    }

    /// Whether a job is an open window, or cannot be decoded and thus may be one.
    fn may_be_open(&self, id: JobId) -> bool {
        let Some(row) = self.row_of(id) else { return false };
        let job = decode_job(id, row, &self.known).ok();
        let job = job.or_else(|| decode_in_part(id, row, &self.known));
        job.is_none_or(|job| job.is_open_window())
    }

    /// The row of a job that is set aside, decoded again.
    pub(crate) async fn load_aside(&mut self, id: JobId) -> Result<Option<Job>> {
        let (key, field) = (self.keys().unreadable_rows(), id.to_string());
        self.fetch(vec![Cell::new(key.clone(), field.as_str())]).await?;
        let row = self.cell(key, &field);
        row.map(|row| decode_job(id, row, &self.known)).transpose()
    }

    /// What can be decoded of the row of a job, in its place or set aside.
    pub(crate) async fn load_in_part(&mut self, id: JobId) -> Result<Option<Job>> {
        let field = id.to_string();
        let cells = [self.keys().jobs(), self.keys().unreadable_rows()];
        self.fetch(cells.iter().map(|key| Cell::new(key.clone(), field.as_str())).collect())
            .await?;
        let row = cells.iter().find_map(|key| self.cell(key.clone(), &field));
        let job = row.and_then(|row| decode_in_part(id, row, &self.known));
        if let Some(job) = job.as_ref().filter(|_| self.row_of(id).is_some()) {
            self.jobs.insert(id, Arc::new(job.clone()));
        }
        Ok(job)
    }
}
