//! Loading what a step may touch: jobs, what hangs on them, and what their keys are about.

use std::collections::BTreeSet;
use std::mem;

use quell_core::Timestamp;
use quell_core::part::TaskKey;
use quell_core::touched::{UseOfKey, each_key, reads_thresholds};
use quell_core::{
    Batch, DeadExport, JobId, Key, QueueName, Result, ScheduleName, Settlement, TaskName,
};

use crate::backend::{Backend, Index, Scan};
use crate::changes::key_of;
use crate::known::Known;
use crate::rows::{Row, RowName, SettingsOf};
use crate::step::Step;

/// Entries that are read at a time.
pub(crate) const PAGE: usize = 500;

impl<B: Backend> Step<'_, B> {
    /// Loads jobs' rows.
    pub(crate) async fn load_jobs(&mut self, ids: impl IntoIterator<Item = JobId>) -> Result<()> {
        self.load(ids.into_iter().map(RowName::Job)).await
    }

    /// Loads all that a move of these jobs may touch: what hangs on them, the other jobs of their
    /// keys that wait or run, and the keys that name them.
    pub(crate) async fn load_around(&mut self, ids: &[JobId]) -> Result<()> {
        self.load_moving(ids, ids).await
    }

    /// Loads all that these settlements may touch. A job that succeeds ends where it is: it only lets
    /// the next window of its key start.
    pub(crate) async fn load_for_settlements(&mut self, settlements: &[Settlement]) -> Result<()> {
        let ids: Vec<JobId> = settlements.iter().map(|one| one.lease.job).collect();
        let others = settlements.iter().filter(|one| !one.outcome.is_success());
        let others: Vec<JobId> = others.map(|one| one.lease.job).collect();
        self.load_moving(&ids, &others).await
    }

    /// Loads jobs with the windows that come after them, and all else that a move may touch of those
    /// that may go `back` or join another.
    async fn load_moving(&mut self, ids: &[JobId], back: &[JobId]) -> Result<()> {
        self.decide_by_leases(ids);
        let jobs = ids.iter().copied().map(RowName::Job);
        self.load(jobs.chain(hanging_on(back))).await?;
        self.load_names(back).await?;
        let keys = self.keys_of(ids);
        let memories = self.keys_of(back).into_iter().map(RowName::Memory);
        self.load(keys.iter().cloned().map(RowName::Key).chain(memories)).await?;
        self.load_next_of(&keys, &ids.iter().copied().collect()).await?;
        self.load_settings_of_jobs().await
    }

    /// Loads a job and its effects.
    pub(crate) async fn load_effects(&mut self, id: JobId) -> Result<()> {
        self.decide_by_leases(&[id]);
        self.load([RowName::Job(id), RowName::Effects(id)]).await
    }

    /// Loads jobs with what hangs on them and what names them, before they are removed.
    pub(crate) async fn load_whole(&mut self, ids: &[JobId]) -> Result<()> {
        self.load(ids.iter().copied().map(RowName::Job).chain(hanging_on(ids))).await?;
        self.load_names(ids).await?;
        let keys = self.keys_of(ids);
        self.load(keys.into_iter().map(RowName::Key)).await
    }

    /// The keys of those of these jobs that are loaded.
    pub(crate) fn keys_of(&self, ids: &[JobId]) -> BTreeSet<TaskKey> {
        ids.iter().filter_map(|id| key_of(self.rows.jobs.get(id)?)).collect()
    }

    /// Loads the dedup and idempotency keys that name jobs.
    pub(crate) async fn load_names(&mut self, ids: &[JobId]) -> Result<()> {
        let there = |id: &&JobId| !self.of.contains_key(id);
        let ids: Vec<JobId> = ids.iter().filter(there).copied().collect();
        let scans: Vec<Scan> = ids.iter().map(|id| Scan::first(Index::Of(*id), PAGE)).collect();
        let all = self.scan(&scans).await?;
        let mut names = Vec::new();
        for ((id, seen), scan) in ids.into_iter().zip(all).zip(scans) {
            let mut entries = seen.entries;
            let last = entries.last().map(|entry| (entry.place, entry.name.clone()));
            if let Some(last) = last.filter(|_| seen.more) {
                entries.extend(self.scan_all(Scan { after: Some(last), ..scan }).await?);
            }
            let named = entries.iter().map(|entry| entry.name.clone());
            let is_key = |name: &RowName| matches!(name, RowName::Hold(_) | RowName::Record(_));
            names.extend(named.filter(is_key));
            self.of.insert(id, entries);
        }
        self.load(names).await
    }

    /// Loads the windows of keys that come next once the `moving` jobs have moved: the first closed
    /// one, and the open one if it is older.
    pub(crate) async fn load_next_windows(
        &mut self,
        keys: &BTreeSet<TaskKey>,
        moving: &BTreeSet<JobId>,
    ) -> Result<()> {
        self.load(keys.iter().cloned().map(RowName::Key)).await?;
        self.load_next_of(keys, moving).await
    }

    /// The same, of keys whose rows are loaded.
    async fn load_next_of(
        &mut self,
        keys: &BTreeSet<TaskKey>,
        moving: &BTreeSet<JobId>,
    ) -> Result<()> {
        self.load_firsts(keys, moving).await?;
        let mut next = BTreeSet::new();
        // Most keys have no window beside the job that moves.
        let waiting = self.keys.iter().filter(|(_, jobs)| jobs.closed.or(jobs.open).is_some());
        for (key, jobs) in waiting.filter(|(key, _)| keys.contains(*key)) {
            let closed = match self.closed.get(key) {
                Some(closed) => closed.iter().find(|id| !moving.contains(id)).copied(),
                None => jobs.closed,
            };
            next.extend(closed);
            let is_next =
                |id: &JobId| !moving.contains(id) && closed.is_none_or(|closed| *id < closed);
            next.extend(jobs.open.filter(is_next));
        }
        self.load_jobs(next).await
    }

    /// Loads the open window of a key with all that its end may touch.
    pub(crate) async fn load_window(&mut self, task: &TaskName, key: &Key) -> Result<()> {
        let task_key = (task.clone(), key.clone());
        self.load([RowName::Key(task_key.clone())]).await?;
        match self.keys.get(&task_key).and_then(|jobs| jobs.open) {
            Some(id) => self.load_around(&[id]).await,
            None => Ok(()),
        }
    }

    /// Loads what accepting these batches needs. Settings are read where they decide something: where a
    /// queue's thresholds may replace a default (R14). Of others, that they exist is enough.
    pub(crate) async fn load_for(&mut self, batches: &[Batch], known: &Known) -> Result<()> {
        let reads_settings = reads_thresholds(batches);
        let triggers = batches.iter().flat_map(|batch| &batch.triggers);
        let settings = triggers.map(|trigger| (&trigger.queue, &trigger.task));
        let mut names = self.unread_settings(settings);
        names.retain(|name| !self.assume(name, known, reads_settings));
        each_key(batches, |use_of, task, key| {
            let key = (task.clone(), key.clone());
            names.push(match use_of {
                UseOfKey::Window => RowName::Key(key),
                UseOfKey::Memory => RowName::Memory(key),
                UseOfKey::Hold => RowName::Hold(key),
                UseOfKey::Record => RowName::Record(key),
            });
        });
        self.load(names).await?;
        let open = self.keys.values().filter_map(|jobs| jobs.open);
        let held = self.rows.holds.values().map(|hold| hold.job);
        let recorded = self.rows.records.values().map(|record| record.job);
        let leaders = self.rows.memories.values().map(|memory| memory.leader);
        let jobs: Vec<JobId> = open.chain(held).chain(recorded).chain(leaders).collect();
        self.load_jobs(jobs).await?;
        // R10: a window that closes stays in its queue.
        let mut names = self.unread_settings_of_jobs();
        names.retain(|name| !self.assume(name, known, reads_settings));
        self.load(names).await?;
        self.load_keys_of_jobs().await
    }

    /// Takes a queue or a task for one with any settings, if it is known to exist and its settings decide
    /// nothing; says whether it did.
    fn assume(&mut self, name: &RowName, known: &Known, reads_settings: bool) -> bool {
        match name {
            RowName::Queue(queue) if !reads_settings && self.knows(known, name) => {
                self.assume_queue(queue);
            }
            RowName::Task(task) if self.knows(known, name) => self.assume_task(task),
            _ => return false,
        }
        true
    }

    /// Loads the rows of the keys of all jobs that are loaded and have not ended: a step may change
    /// them.
    async fn load_keys_of_jobs(&mut self) -> Result<()> {
        let keys = self.rows.jobs.values().filter_map(|job| key_of(job));
        let unread: Vec<TaskKey> = keys.filter(|key| !self.keys.contains_key(key)).collect();
        self.load(unread.into_iter().map(RowName::Key)).await
    }

    /// Loads the settings of the queues and tasks of all jobs that are loaded.
    pub(crate) async fn load_settings_of_jobs(&mut self) -> Result<()> {
        let names = self.unread_settings_of_jobs();
        self.load(names).await
    }

    fn unread_settings_of_jobs(&self) -> Vec<RowName> {
        self.unread_settings(self.rows.jobs.values().map(|job| (&job.queue, &job.task)))
    }

    /// The names of these queues and tasks, where neighbours are often the same, but for those that
    /// were loaded.
    fn unread_settings<'n>(
        &self,
        names: impl Iterator<Item = (&'n QueueName, &'n TaskName)>,
    ) -> Vec<RowName> {
        let (mut unread, mut last) = (Vec::new(), None);
        for (queue, task) in names {
            if last.replace((queue, task)) == Some((queue, task)) {
                continue;
            }
            let names = [RowName::Queue(queue.clone()), RowName::Task(task.clone())];
            unread.extend(names.into_iter().filter(|name| !self.has_loaded(name)));
        }
        unread
    }

    /// Loads schedules.
    pub(crate) async fn load_schedules(
        &mut self,
        names: impl IntoIterator<Item = ScheduleName>,
    ) -> Result<()> {
        self.load(names.into_iter().map(RowName::Schedule)).await
    }

    /// Loads what accepting the triggers of the loaded schedules needs.
    pub(crate) async fn load_for_schedules(&mut self) -> Result<()> {
        let triggers = self.rows.schedules.values().map(|info| info.schedule.trigger.clone());
        let batches: Vec<Batch> = triggers.map(Batch::one).collect();
        self.load_for(&batches, &Known::default()).await
    }

    /// Loads the ticks of a schedule that fired in this time.
    pub(crate) async fn load_ticks(
        &mut self,
        name: &ScheduleName,
        from: Timestamp,
        to: Timestamp,
    ) -> Result<()> {
        if from > to {
            return Ok(());
        }
        let index = Index::Fired(name.clone());
        let scan = Scan { from: Some(from), ..Scan::first(index, PAGE).up_to(to) };
        let fired = self.scan_all(scan).await?;
        self.load(fired.into_iter().map(|entry| entry.name)).await
    }

    /// Loads the first ticks of a schedule that fired in this time.
    pub(crate) async fn load_first_ticks(
        &mut self,
        name: &ScheduleName,
        from: Timestamp,
        to: Timestamp,
        most: usize,
    ) -> Result<()> {
        if from > to {
            return Ok(());
        }
        let index = Index::Fired(name.clone());
        let scan = Scan { from: Some(from), ..Scan::first(index, most).up_to(to) };
        let fired = self.scan_one(scan).await?;
        self.load(fired.entries.into_iter().map(|entry| entry.name)).await
    }

    /// Removes the first ticks of a schedule, if there are more than `most`; says whether it did.
    pub(crate) async fn drop_ticks(&mut self, name: &ScheduleName, most: usize) -> Result<bool> {
        let seen = self.scan_one(Scan::first(Index::Fired(name.clone()), most)).await?;
        if !seen.more {
            return Ok(false);
        }
        self.load(seen.entries.into_iter().map(|entry| entry.name)).await?;
        let ticks = self.rows.ticks.clone();
        self.rows.ticks.clear();
        self.beside.drop_ticks(&ticks);
        Ok(true)
    }

    /// Loads the jobs that exported dead jobs were, or became, here.
    pub(crate) async fn load_for_exports(&mut self, exports: &[DeadExport]) -> Result<()> {
        let origins: Vec<RowName> =
            exports.iter().map(|export| RowName::Origin(export.origin())).collect();
        self.load(origins.iter().cloned()).await?;
        let became = origins.iter().filter_map(|name| match self.others.get(name) {
            Some(Row::Origin(id)) => Some(*id),
            _ => None,
        });
        let became: Vec<JobId> = became.collect();
        self.load_whole(&became).await?;
        let were: Vec<JobId> = exports.iter().map(|export| export.origin().job).collect();
        self.load_jobs(were).await?;
        let mut names = Vec::new();
        for export in exports {
            names.push(RowName::Queue(export.job.queue.clone()));
            names.push(RowName::Task(export.job.task.clone()));
            names.extend(key_of(&export.job).map(RowName::Key));
        }
        self.load(names).await?;
        self.load_keys_of_jobs().await
    }

    /// Loads a queue with all its logs of starts.
    pub(crate) async fn load_queue(&mut self, queue: &QueueName) -> Result<()> {
        self.load_starts(queue).await?;
        self.load([RowName::Queue(queue.clone()), RowName::Turn(queue.clone())]).await?;
        self.load_remarks([SettingsOf::Queue(queue.clone())]).await
    }

    /// Loads what is on record beside settings that are loaded, into those.
    pub(crate) async fn load_remarks(
        &mut self,
        names: impl IntoIterator<Item = SettingsOf>,
    ) -> Result<()> {
        let names: Vec<RowName> = names.into_iter().map(RowName::Remarks).collect();
        self.load(names.iter().cloned()).await?;
        for name in names {
            let (RowName::Remarks(of), Some(Row::Remarks(remarks))) =
                (&name, self.others.get(&name))
            else {
                continue;
            };
            let remarks = remarks.clone();
            match of {
                SettingsOf::Queue(queue) => {
                    if let Some(Some(settings)) = self.rows.queues.get_mut(queue) {
                        *settings = mem::take(settings).with_remarks(remarks);
                    }
                }
                SettingsOf::Worker(..) => {}
                SettingsOf::Task(task) => {
                    if let Some(settings) = self.rows.tasks.get_mut(task) {
                        *settings = mem::take(settings).with_remarks(remarks);
                    }
                }
            }
        }
        Ok(())
    }
}

/// The names of what hangs on jobs, in the order of names.
fn hanging_on(ids: &[JobId]) -> impl Iterator<Item = RowName> {
    let kinds = [RowName::Attempts, RowName::Effects, RowName::Past];
    kinds.into_iter().flat_map(|kind| ids.iter().copied().map(kind))
}
