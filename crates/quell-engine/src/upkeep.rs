//! What has to be done now and then: taking back leases, and removing what has ended (R21, R25, R37).

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use quell_core::heartbeat::{Beaten, Drained, Heartbeat, WorkerDrain, WorkerRow, outdated};
use quell_core::idempotency::look_again;
use quell_core::part::TaskKey;
use quell_core::queue::Remarks;
use quell_core::schedule::{RECORD, UNREADABLE_PAUSE};
use quell_core::{
    AlertName, AlertState, ErrorKind, Job, JobId, JobState, Result, Retention, ScheduleName,
    TaskName, TaskSettings, Timestamp, UnreadableJob, WorkerId,
};
use tracing::error;

use crate::backend::{Backend, Entry, Index, Kind, Place, Scan};
use crate::changes::{expiry_of, key_of, note_names};
use crate::load::PAGE;
use crate::rows::{Row, RowName, SettingsOf};
use crate::step::Step;

/// Whether a job that cannot be decoded was set aside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Met {
    /// It was.
    Aside,
    /// It can be decoded, or it is not there.
    Fine,
}

/// What becomes of the other windows of a key when one is set aside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Frees {
    /// The next one may start where no attempt runs (R11).
    NextWindow,
    /// They stay as they are, because another job of the key is about to be set aside.
    Nothing,
}

impl<B: Backend> Step<'_, B> {
    /// The jobs whose leases have expired, in the order in which they did, except those that are `stuck`.
    pub(crate) async fn expired_leases(
        &mut self,
        limit: usize,
        stuck: &BTreeSet<JobId>,
    ) -> Result<Vec<Entry>> {
        let all = Scan::first(Index::Leases, limit.saturating_add(stuck.len()));
        let mut entries = self.scan_one(all.up_to(self.now)).await?.entries;
        entries.retain(|entry| job_of(entry).is_none_or(|id| !stuck.contains(&id)));
        entries.truncate(limit);
        Ok(entries)
    }

    /// Takes those of these places out of their indexes whose jobs are set aside, or were discarded since:
    /// where a row could not be decoded, its place was not known. Says whether there are such.
    pub(crate) async fn sweep(&mut self, places: Vec<(Index, Place, JobId)>) -> Result<bool> {
        let mut places = places;
        places.retain(|(_, _, id)| !self.rows.jobs.contains_key(id));
        self.load(places.iter().map(|(_, _, id)| RowName::Aside(*id))).await?;
        let mut swept = false;
        for (index, place, id) in places {
            let name = RowName::Aside(id);
            match self.others.get(&name).cloned() {
                // A step that puts the job back removes this row: one of both meets a conflict.
                Some(row) => self.beside.put(name, row),
                // It was discarded before its places were known: there is no row that could come back.
                None if self.has_loaded(&RowName::Job(id)) => {}
                None => continue,
            }
            self.beside.leave.push((index, place, RowName::Job(id)));
            swept = true;
        }
        Ok(swept)
    }

    /// The same, of entries of one index.
    pub(crate) async fn sweep_entries(&mut self, index: &Index, entries: &[Entry]) -> Result<bool> {
        let place = |entry: &Entry| Some((index.clone(), entry.place, job_of(entry)?));
        self.sweep(entries.iter().filter_map(place).collect()).await
    }

    /// Changes the settings of a task. None where the step must be taken again.
    pub(crate) async fn set_task(
        &mut self,
        task: &TaskName,
        settings: &TaskSettings,
    ) -> Result<Option<()>> {
        self.load_for_task(task).await?;
        Ok(self.take(|part| part.set_task(task, settings)))
    }

    /// Loads what a change of a task's settings needs: the task, and all queues that it wakes.
    pub(crate) async fn load_for_task(&mut self, task: &TaskName) -> Result<()> {
        self.load_all_settings().await?;
        self.load([RowName::Task(task.clone())]).await?;
        self.load_remarks([SettingsOf::Task(task.clone())]).await?;
        self.close_gates();
        Ok(())
    }

    /// All workers, by name and incarnation.
    pub(crate) async fn workers(&mut self) -> Result<Vec<WorkerRow>> {
        let all = self.scan_all(Scan::first(Index::Rows(Kind::Workers), PAGE)).await?;
        let names: Vec<RowName> = all.into_iter().map(|entry| entry.name).collect();
        self.load(names.iter().cloned()).await?;
        let rows = names.iter().filter_map(|name| match self.others.get(name) {
            Some(Row::Worker(row)) => Some((**row).clone()),
            _ => None,
        });
        let mut rows: Vec<WorkerRow> = rows.collect();
        rows.sort_by(|a, b| (&a.worker, a.incarnation).cmp(&(&b.worker, b.incarnation)));
        Ok(rows)
    }

    /// Makes the row of a worker, or changes it.
    pub(crate) async fn heartbeat(&mut self, beat: &Heartbeat) -> Result<Beaten> {
        let name = RowName::Worker(beat.worker.clone(), beat.incarnation);
        let mark = drain_of(&beat.worker, beat.incarnation);
        self.load([name.clone(), mark.clone()]).await?;
        let row = match self.others.get(&name) {
            Some(Row::Worker(row)) => row.again(self.now, beat),
            _ => {
                let rows = self.workers().await?;
                for (worker, incarnation) in outdated(self.now, &rows) {
                    self.resume(&worker, incarnation).await?;
                    self.beside.set(RowName::Worker(worker, incarnation), None);
                }
                WorkerRow::first(self.now, beat)
            }
        };
        self.beside.put(name, Row::Worker(Box::new(row)));
        Ok(Beaten { drained: self.others.contains_key(&mark) })
    }

    /// All workers, with what is on record of their drains.
    pub(crate) async fn workers_with_drains(&mut self) -> Result<Vec<WorkerRow>> {
        let mut rows = self.workers().await?;
        self.load(rows.iter().map(|row| drain_of(&row.worker, row.incarnation))).await?;
        for row in &mut rows {
            if let Some(Row::Remarks(mark)) =
                self.others.get(&drain_of(&row.worker, row.incarnation))
            {
                let since = mark.paused_since.unwrap_or(self.now);
                row.drained = Some(Drained { since, by: mark.paused_by.clone() });
            }
        }
        Ok(rows)
    }

    /// Drains the processes of a worker that are listed, or resumes them; how many there are.
    pub(crate) async fn drain_worker(&mut self, drain: &WorkerDrain) -> Result<u64> {
        let now = self.now;
        let mut rows = self.workers_with_drains().await?;
        rows.retain(|row| row.worker == drain.worker && row.is_kept(now));
        for row in &rows {
            match (drain.drains, &row.drained) {
                (true, None) => {
                    let drained = Drained { since: now, by: drain.by.clone() };
                    self.drain(&row.worker, row.incarnation, drained);
                }
                (false, Some(_)) => self.resume(&row.worker, row.incarnation).await?,
                (true, Some(_)) | (false, None) => {}
            }
        }
        Ok(u64::try_from(rows.len()).unwrap_or(u64::MAX))
    }

    /// Notes that a process of a worker is drained.
    pub(crate) fn drain(&mut self, worker: &WorkerId, incarnation: u32, drained: Drained) {
        let Drained { since, by } = drained;
        let mark = Remarks { paused_since: Some(since), paused_by: by, ..Remarks::default() };
        self.beside.put(drain_of(worker, incarnation), Row::Remarks(mark));
    }

    /// Takes that back, where it is noted.
    async fn resume(&mut self, worker: &WorkerId, incarnation: u32) -> Result<()> {
        let mark = drain_of(worker, incarnation);
        self.load([mark.clone()]).await?;
        if self.others.contains_key(&mark) {
            self.beside.set(mark, None);
        }
        Ok(())
    }

    /// Removes the row of a worker, if there is one.
    pub(crate) async fn remove_worker(
        &mut self,
        worker: &WorkerId,
        incarnation: u32,
    ) -> Result<()> {
        let name = RowName::Worker(worker.clone(), incarnation);
        self.load([name.clone()]).await?;
        if self.others.contains_key(&name) {
            self.beside.set(name, None);
        }
        self.resume(worker, incarnation).await
    }

    /// Writes what is kept of an alert, if it was written so often before; says whether it did.
    pub(crate) async fn set_alert(
        &mut self,
        name: &AlertName,
        version: u64,
        state: Option<&AlertState>,
    ) -> Result<bool> {
        let row = RowName::Alert(name.clone());
        self.load([row.clone()]).await?;
        let known = match self.others.get(&row) {
            Some(Row::Alert(known, _)) => Some(*known),
            _ => None,
        };
        if known.unwrap_or(0) != version {
            return Ok(false);
        }
        match state {
            Some(state) => {
                let state = Row::Alert(version.saturating_add(1), Box::new(state.clone()));
                self.beside.put(row, state);
            }
            None if known.is_some() => self.beside.set(row, None),
            None => {}
        }
        Ok(true)
    }

    /// Loads what is past its retention, and keys and ticks without effect, at most `limit` of each;
    /// says whether there may be more.
    pub(crate) async fn load_old(
        &mut self,
        retention: &Retention,
        limit: usize,
    ) -> Result<(bool, Vec<Entry>)> {
        let now = self.now;
        let until = |index, keep: Option<Duration>| {
            // Nothing ended before the beginning of time.
            let to = keep.map_or(Timestamp::MIN, |keep| now.before(keep));
            Scan::first(index, limit).up_to(to)
        };
        let scans = [
            until(Index::Ended, retention.succeeded),
            until(Index::Dead, retention.dead),
            until(Index::Expiry, Some(Duration::ZERO)),
            until(Index::Ticks, Some(RECORD)),
        ];
        let mut seen = self.scan(&scans).await?.into_iter();
        let (ended, dead) = (seen.next().unwrap_or_default(), seen.next().unwrap_or_default());
        let mut expired = seen.next().unwrap_or_default();
        let ticks = seen.next().unwrap_or_default();
        let mut ids: Vec<JobId> =
            ended.entries.iter().chain(&dead.entries).filter_map(job_of).collect();
        let more = [ids.len(), expired.entries.len(), ticks.entries.len()];
        let more = more.into_iter().any(|found| found >= limit);
        ids.truncate(limit);
        let whole = |id: &JobId| {
            vec![
                RowName::Job(*id),
                RowName::Attempts(*id),
                RowName::Effects(*id),
                RowName::Past(*id),
            ]
        };
        let more_jobs = self.keep_fitting(&mut ids, whole).await?;
        let of_name = |entry: &Entry| vec![entry.name.clone()];
        let more_names = self.keep_fitting(&mut expired.entries, of_name).await?;
        let more = more || more_jobs || more_names;
        self.load_whole(&ids).await?;
        if !more_jobs {
            self.sweep_entries(&Index::Ended, &ended.entries).await?;
            self.sweep_entries(&Index::Dead, &dead.entries).await?;
        }
        let names = expired.entries.iter().chain(&ticks.entries);
        self.load(names.map(|entry| entry.name.clone())).await?;
        // A log of starts is judged by the settings of its queue.
        let queues = self.rows.starts.keys().map(|(queue, _)| RowName::Queue(queue.clone()));
        let queues: Vec<RowName> = queues.collect();
        self.load(queues).await?;
        let named = self.rows.holds.values().map(|hold| hold.job);
        let named: Vec<JobId> = named.collect();
        self.load_jobs(named).await?;
        self.look_again_later(&expired.entries).await?;
        // The others were loaded for what they say of keys, and not with all that hangs on them.
        let old: BTreeSet<JobId> = ids.into_iter().collect();
        let others = self.rows.jobs.iter_mut().filter(|(id, _)| !old.contains(id));
        others.for_each(|(_, job)| Arc::make_mut(job).ended_at = None);
        Ok((more, expired.entries))
    }

    /// Leaves as many of these as the backend loads at once, and says whether others were left out.
    async fn keep_fitting<T>(
        &mut self,
        all: &mut Vec<T>,
        rows: impl Fn(&T) -> Vec<RowName>,
    ) -> Result<bool> {
        if all.is_empty() {
            return Ok(false);
        }
        let groups: Vec<Vec<RowName>> = all.iter().map(rows).collect();
        let fits = self.fitting(&groups).await?.max(1);
        let left = fits < all.len();
        all.truncate(fits);
        Ok(left)
    }

    /// Writes the results of jobs that have ended into at most `most` keys that name them, and removes
    /// those that they freed; says whether there were such.
    pub(crate) fn keep_results(&mut self, most: usize) -> bool {
        let (mut after, mut left) = (self.rows.clone(), most);
        let ended = |id: &JobId| self.rows.jobs.get(id).filter(|job| job.ended_at.is_some());
        for record in after.records.values_mut() {
            let mut kept = record.clone();
            if let Some(job) = ended(&record.job) {
                kept.keep(job);
            }
            if kept != *record && left > 0 {
                *record = kept;
                left -= 1;
            }
        }
        after.holds.retain(|_, hold| {
            let state = ended(&hold.job).map(|job| (job.state, job.starts() > 0));
            let goes = state.is_some() && !hold.holds(self.now, state) && left > 0;
            left -= usize::from(goes);
            !goes
        });
        note_names(&mut self.beside, &self.rows, &after);
        left < most
    }

    /// Lets what stood among the expired stand where it belongs: a key that was looked at again later,
    /// a log of starts whose rate was changed, a row that has gone.
    pub(crate) fn mend_expiry(&mut self, expired: Vec<Entry>) {
        let moved: BTreeSet<RowName> =
            self.beside.enter.iter().map(|(_, entry)| entry.name.clone()).collect();
        for Entry { place, name, .. } in expired {
            let place_after = self.after().and_then(|rows| expiry_of(rows, &name));
            if moved.contains(&name) || place_after == Some(place) {
                continue;
            }
            if let Some(place) = place_after {
                let entry = Entry { place, name: name.clone(), note: None };
                self.beside.enter.push((Index::Expiry, entry));
            }
            self.beside.leave.push((Index::Expiry, place, name));
        }
    }

    /// Idempotency keys that have expired while their jobs have not ended are looked at again later, so
    /// that the keys of a long backlog are not read each time.
    async fn look_again_later(&mut self, expired: &[Entry]) -> Result<()> {
        let jobs: BTreeSet<JobId> = self.rows.records.values().map(|record| record.job).collect();
        let is_waiting = |job: &Arc<Job>| !job.state.is_ended();
        let waiting = match self.waiting(&jobs).await? {
            Some(waiting) => waiting,
            None => {
                self.load_jobs(jobs.iter().copied()).await?;
                let waits = |id: &JobId| self.rows.jobs.get(id).is_some_and(is_waiting);
                jobs.into_iter().filter(waits).collect()
            }
        };
        for entry in expired {
            let RowName::Record(key) = &entry.name else { continue };
            let Some(record) = self.rows.records.get(key) else { continue };
            if !waiting.contains(&record.job) {
                continue;
            }
            let later = Place::at(look_again(self.now, record.expires_at));
            let name = RowName::Record(key.clone());
            self.beside.leave.push((Index::Expiry, entry.place, name.clone()));
            self.beside.enter.push((Index::Expiry, Entry { place: later, name, note: None }));
            self.rows.records.remove(key);
        }
        Ok(())
    }

    /// The schedules that are due, those that have waited longest first.
    pub(crate) async fn due_schedules(&mut self, limit: usize) -> Result<Vec<Entry>> {
        let seen = self.scan_one(Scan::first(Index::Plan, limit).up_to(self.now)).await?;
        Ok(seen.entries)
    }

    /// Loads a schedule that is due with what its ticks need.
    pub(crate) async fn load_due_schedule(&mut self, name: &ScheduleName) -> Result<()> {
        self.load_schedules([name.clone()]).await?;
        self.load_for_ticks().await
    }

    /// Loads these schedules with what their ticks need.
    pub(crate) async fn load_due_schedules(&mut self, due: Vec<Entry>) -> Result<()> {
        for Entry { place, name, .. } in due {
            match self.load([name.clone()]).await {
                Ok(()) => {}
                // R25: it stops no other.
                Err(error) if error.kind() == ErrorKind::Corrupt => {
                    self.postpone(name, Some(place), &error);
                }
                Err(error) => return Err(error),
            }
        }
        self.load_for_ticks().await
    }

    async fn load_for_ticks(&mut self) -> Result<()> {
        let handled: Vec<_> =
            self.rows.schedules.iter().map(|(name, info)| (name.clone(), info.handled)).collect();
        for (name, handled) in handled {
            // The tick up to which all are handled says nothing of those that are due.
            let from = handled + Duration::from_micros(1);
            match self.load_ticks(&name, from, self.now).await {
                // R25: as above, where it is unknown which of its ticks have fired.
                Err(error) if error.kind() == ErrorKind::Corrupt => {
                    let info = self.rows.schedules.remove(&name);
                    let place = info.and_then(|info| info.next).map(Place::at);
                    self.postpone(RowName::Schedule(name), place, &error);
                }
                other => other?,
            }
        }
        self.load_for_schedules().await
    }

    /// Lets a schedule be tried again later, by a process that may know how. Its missed ticks follow its
    /// `catch_up` then.
    fn postpone(&mut self, name: RowName, place: Option<Place>, error: &quell_core::Error) {
        error!(%error, ?name, "schedule cannot be decoded, trying again");
        let later = Place::at(self.now + UNREADABLE_PAUSE);
        self.beside.leave.extend(place.map(|place| (Index::Plan, place, name.clone())));
        self.beside.enter.push((Index::Plan, Entry { place: later, name, note: None }));
    }

    /// Sets a job aside whose row cannot be decoded (R25).
    pub(crate) async fn set_aside(
        &mut self,
        id: JobId,
        reason: &str,
        frees: Frees,
    ) -> Result<Option<Met>> {
        match self.load_jobs([id]).await {
            Ok(()) => return Ok(Some(Met::Fine)),
            Err(error) if error.unreadable_job() == Some(id) => {}
            Err(error) => return Err(error),
        }
        let job = self.load_in_part(id).await?;
        let aside = UnreadableJob {
            id,
            queue: job.as_ref().map(|job| job.queue.clone()),
            task: job.as_ref().map(|job| job.task.clone()),
            was: job.as_ref().map(|job| job.state),
            set_aside_at: self.now,
            reason: reason.to_owned(),
        };
        self.beside.put(RowName::Aside(id), Row::Aside(Box::new(aside)));
        self.beside.aside.insert(id);
        let Some(job) = job else {
            let entry = Entry { place: Place::NONE, name: RowName::Job(id), note: None };
            self.beside.enter.push((Index::Unreadable, entry));
            let held = self.leave_key(id, frees).await?.filter(|_| frees == Frees::NextWindow);
            return Ok(self.take(|part| {
                held.iter().for_each(|key| part.free_key(key));
                Met::Aside
            }));
        };
        self.load_beside(job, frees).await?;
        Ok(self.take(|part| {
            part.set_aside(id, reason);
            Met::Aside
        }))
    }

    /// Takes a job without a decodable row out of the row of the key that it keeps busy; returns the key.
    async fn leave_key(&mut self, id: JobId, frees: Frees) -> Result<Option<TaskKey>> {
        let held = self.held_key(id).await?;
        let Some((key, is_closed)) = held else { return Ok(None) };
        self.load_windows_beside(&[key.clone()].into(), id, frees).await?;
        self.load_settings_of_jobs().await?;
        if is_closed {
            let name = RowName::Job(id);
            self.beside.leave.push((Index::Closed(key.clone()), Place::NONE, name));
            if let Some(closed) = self.closed.get_mut(&key) {
                closed.remove(&id);
                let first = closed.first().copied();
                self.keys.entry(key.clone()).or_default().closed = first;
            }
        }
        self.let_go(id, &key);
        Ok(Some(key))
    }

    /// Loads the rows of the keys that a job is about to leave, and the windows that come next if they are
    /// freed.
    async fn load_windows_beside(
        &mut self,
        keys: &BTreeSet<TaskKey>,
        id: JobId,
        frees: Frees,
    ) -> Result<()> {
        match frees {
            Frees::NextWindow => self.load_next_windows(keys, &[id].into()).await,
            Frees::Nothing => {
                self.load(keys.iter().cloned().map(RowName::Key)).await?;
                self.load_firsts(keys, &[id].into()).await
            }
        }
    }

    /// Puts a job back that is set aside, if its row can be decoded; says whether it did.
    pub(crate) async fn restore(&mut self, id: JobId) -> Result<Option<bool>> {
        self.load([RowName::Aside(id)]).await?;
        let was = match self.others.get(&RowName::Aside(id)) {
            Some(Row::Aside(aside)) => Some(aside.was),
            _ => None,
        };
        let job = match self.load_aside(id).await {
            Ok(Some(Row::Job(job))) => Some(job),
            Ok(_) => None,
            Err(error) if error.unreadable_job() == Some(id) => None,
            Err(error) => return Err(error),
        };
        let (Some(was), Some(job)) = (was, job) else { return Ok(self.take(|_| false)) };
        self.beside.set(RowName::Aside(id), None);
        let (now_known, key) = (job.state, key_of(&job));
        let job = Job { state: JobState::Unreadable, ..Arc::unwrap_or_clone(job) };
        self.load_beside(job, Frees::NextWindow).await?;
        // Where not even its key was known then, that still has it.
        let held = key.filter(|_| was.is_none());
        if let Some(key) = &held {
            self.let_go(id, key);
        }
        Ok(self.take(|part| {
            part.restore(id, was.unwrap_or(now_known));
            held.iter().for_each(|key| part.free_key(key));
            true
        }))
    }

    /// Takes a job out of the row of its key, as far as that is no closed window.
    fn let_go(&mut self, id: JobId, key: &TaskKey) {
        let Some(jobs) = self.keys.get_mut(key) else { return };
        jobs.open = jobs.open.filter(|open| *open != id);
        jobs.running.remove(&id);
        self.beside.put(RowName::Key(key.clone()), Row::Key(jobs.clone()));
    }

    /// Loads what hangs on a job that is set aside or about to be, and what its key is about.
    async fn load_beside(&mut self, job: Job, frees: Frees) -> Result<()> {
        let id = job.id;
        self.put_job(job);
        self.load_names(&[id]).await?;
        let keys = self.rows.jobs.get(&id).and_then(|job| key_of(job)).into_iter().collect();
        self.load_windows_beside(&keys, id, frees).await?;
        self.load(keys.into_iter().map(RowName::Memory)).await?;
        self.load_settings_of_jobs().await
    }

    /// Removes what hangs on a job that is set aside and not known even in part.
    async fn drop_aside(&mut self, id: JobId) -> Result<()> {
        self.beside.leave.push((Index::Unreadable, Place::NONE, RowName::Job(id)));
        if self.rows.attempts.remove(&id).is_some() {
            self.beside.set(RowName::Attempts(id), None);
        }
        if self.rows.effects.remove(&id).is_some() {
            self.beside.set(RowName::Effects(id), None);
        }
        if let Some(past) = self.rows.pasts.remove(&id) {
            self.beside.set(RowName::Past(id), None);
            if let Some(origin) = past.origin.map(RowName::Origin) {
                self.load([origin.clone()]).await?;
                self.beside.set(origin, None);
            }
        }
        Ok(())
    }

    /// Loads jobs that are set aside, so that they can be discarded; says which they are.
    pub(crate) async fn load_asides(&mut self, ids: &[JobId]) -> Result<Vec<JobId>> {
        self.load(ids.iter().map(|id| RowName::Aside(*id))).await?;
        let is_aside = |id: &&JobId| self.others.contains_key(&RowName::Aside(**id));
        let aside: Vec<JobId> = ids.iter().filter(is_aside).copied().collect();
        for id in &aside {
            let job = self.load_in_part(*id).await?;
            self.beside.set(RowName::Aside(*id), None);
            match job {
                Some(job) => self.put_job(Job { state: JobState::Unreadable, ..job }),
                None => self.drop_aside(*id).await?,
            }
        }
        self.load_names(&aside).await?;
        let keys = self.keys_of(&aside);
        self.load(keys.into_iter().map(RowName::Key)).await?;
        Ok(aside)
    }
}

pub(crate) fn job_of(entry: &Entry) -> Option<JobId> {
    match entry.name {
        RowName::Job(id) => Some(id),
        _ => None,
    }
}

/// Where it is noted that a process of a worker is drained.
fn drain_of(worker: &WorkerId, incarnation: u32) -> RowName {
    RowName::Remarks(SettingsOf::Worker(worker.clone(), incarnation))
}
