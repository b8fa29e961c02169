//! What a step changes: the rows that differ, and the indexes that follow from them.

use std::cmp::{Ordering, Reverse};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use quell_core::limit::StartLog;
use quell_core::part::{Rows, TaskKey};
use quell_core::queue::Remarks;
use quell_core::schedule::Tick;
use quell_core::{
    Error, ErrorKind, Job, JobId, JobState, QueueSettings, Result, ScheduleName, TaskSettings,
    Timestamp,
};

use crate::backend::{Backend, Changes, Entry, Index, Note, Place};
use crate::rows::{KeyJobs, Row, RowName, SettingsOf};
use crate::step::Step;

/// The few entries of a row: the index, where the row stands there, and what the index says of it.
pub(crate) type Entries = Vec<(Index, Place, Option<Note>)>;

impl<B: Backend> Step<'_, B> {
    /// Everything that differs between two states of the rows.
    pub(crate) fn note_changes(
        &self,
        changes: &mut Changes,
        before: &Rows,
        after: &Rows,
    ) -> Result<()> {
        self.note_jobs(changes, before, after)?;
        note_beside(changes, before, after);
        note_names(changes, before, after);
        note_settings(changes, before, after, &self.assumed);
        note_plans(changes, before, after);
        Ok(())
    }

    /// Jobs, the indexes over them, and the rows of their keys.
    fn note_jobs(&self, changes: &mut Changes, before: &Rows, after: &Rows) -> Result<()> {
        let (mut rows, mut moved) = (Vec::new(), Vec::new());
        for (id, was, is) in differing(&before.jobs, &after.jobs) {
            let name = RowName::Job(*id);
            let is_aside = |job: &&Arc<Job>| job.state == JobState::Unreadable;
            match is.filter(|job| !is_aside(job)) {
                Some(job) => rows.push((name.clone(), Some(Row::Job(Arc::clone(job))))),
                // What is set aside is kept as it was.
                None if is.is_some() => drop(changes.aside.insert(*id)),
                None if was.is_some_and(|was| is_aside(&was)) => {}
                None => rows.push((name.clone(), None)),
            }
            let (was, is) = (was.map(|job| &**job), is.map(|job| &**job));
            let entries = |job: Option<&Job>| job.map(entries_of).unwrap_or_default();
            changes.move_entries(&name, entries(was), entries(is));
            // Whether a window waits is decided by the others of its key. An open window never changes
            // without the row of its key, so a backend may read both in one.
            let is_open = standing(is).is_some_and(|(_, is_open, _)| is_open);
            if !is_open && standing(was) == standing(is) && waiting(was) == waiting(is) {
                continue;
            }
            let task_key = was.or(is).and_then(key_of);
            moved.extend(task_key.map(|task_key| (task_key, Moved { id: *id, was, is })));
        }
        moved.sort_by(|(one, _), (other, _)| one.cmp(other));
        for of_key in moved.chunk_by(|(one, _), (other, _)| one == other) {
            let Some((task_key, _)) = of_key.first() else { continue };
            // Written also where it says the same: two steps that move jobs of one key must meet, though
            // each moves a closed window that is not the first.
            let mut change = self.change_of(task_key)?;
            of_key.iter().for_each(|(_, moved)| change.note(moved));
            let is = change.end(task_key, self.now)?;
            rows.push((RowName::Key(task_key.clone()), is.map(Row::Key)));
        }
        // Jobs and keys are in the order of their names, so this compares each with the next alone.
        changes.rows.append(&mut rows.into_iter().collect());
        Ok(())
    }

    /// What becomes of a key's row, before any job of it has moved.
    fn change_of(&self, task_key: &TaskKey) -> Result<KeyChange> {
        let jobs = match self.keys.get(task_key) {
            Some(jobs) => jobs.clone(),
            None if self.has_loaded(&RowName::Key(task_key.clone())) => KeyJobs::default(),
            None => return Err(not_loaded(task_key)),
        };
        Ok(KeyChange { jobs, closed: self.closed.get(task_key).cloned(), is_lost: false })
    }
}

/// A job of a key before and after a step.
struct Moved<'m> {
    id: JobId,
    was: Option<&'m Job>,
    is: Option<&'m Job>,
}

/// How a job stands among those of its key: whether it runs, is the open window or a closed one; none
/// where there is no such job.
fn standing(job: Option<&Job>) -> Option<(bool, bool, bool)> {
    let job = job?;
    Some((job.state == JobState::Running, job.is_open_window(), job.is_closed_window()))
}

/// Whether a job waits for others of its key, and whether it ever does.
fn waiting(job: Option<&Job>) -> Option<(bool, bool)> {
    job.filter(|job| !job.state.is_ended()).map(|job| (job.waits, job.shape.overlap))
}

fn not_loaded(task_key: &TaskKey) -> Error {
    let message = format!("a step did not load the windows of the key {task_key:?}");
    Error::new(ErrorKind::Internal, message)
}

/// What becomes of a key's row.
struct KeyChange {
    jobs: KeyJobs,
    /// The first closed windows, where more than the first was read.
    closed: Option<BTreeSet<JobId>>,
    /// Whether the first closed window has gone, and the next was not read.
    is_lost: bool,
}

impl KeyChange {
    fn note(&mut self, moved: &Moved<'_>) {
        let Moved { id, was, is } = *moved;
        let (_, _, was_closed) = standing(was).unwrap_or_default();
        let (runs, is_open, is_closed) = standing(is).unwrap_or_default();
        if runs {
            self.jobs.running.insert(id);
        } else {
            self.jobs.running.remove(&id);
        }
        if is_open {
            self.jobs.open = Some(id);
        } else if self.jobs.open == Some(id) {
            self.jobs.open = None;
        }
        if is_closed != was_closed {
            self.is_lost |= self.closed.is_none() && self.jobs.closed == Some(id);
            let first = || self.jobs.closed.into_iter().collect();
            let closed = self.closed.get_or_insert_with(first);
            if is_closed {
                closed.insert(id)
            } else {
                closed.remove(&id)
            };
        }
        if is.is_some() {
            self.jobs.newest = self.jobs.newest.max(Some(id));
        } else if self.jobs.newest == Some(id) {
            self.jobs.newest = None;
        }
    }

    /// The row after the step; none where nothing is left to say.
    fn end(self, task_key: &TaskKey, now: Timestamp) -> Result<Option<KeyJobs>> {
        let mut jobs = KeyJobs { at: Timestamp::default(), ..self.jobs };
        if let Some(closed) = self.closed {
            jobs.closed = closed.first().copied();
        }
        if self.is_lost || (jobs.open.is_some() && jobs.open == jobs.closed) {
            return Err(not_loaded(task_key));
        }
        Ok((jobs != KeyJobs::default()).then_some(KeyJobs { at: now, ..jobs }))
    }
}

/// What hangs on jobs.
fn note_beside(changes: &mut Changes, before: &Rows, after: &Rows) {
    for (id, _, is) in differing(&before.attempts, &after.attempts) {
        changes.set(RowName::Attempts(*id), is.cloned().map(Row::Attempts));
    }
    for (id, _, is) in differing(&before.effects, &after.effects) {
        let effects = is.map(|effects| Row::Effects(effects.values().cloned().collect()));
        changes.set(RowName::Effects(*id), effects);
        // R23: the lease decides, and it is in the row of the job.
        if let Some(job) = after.jobs.get(id) {
            let name = RowName::Job(*id);
            changes.rows.entry(name).or_insert_with(|| Some(Row::Job(Arc::clone(job))));
        }
    }
    for (id, was, is) in differing(&before.pasts, &after.pasts) {
        changes.set(RowName::Past(*id), is.cloned().map(|past| Row::Past(Box::new(past))));
        let origin = |past: Option<&quell_core::Past>| past.and_then(|past| past.origin);
        if origin(was) != origin(is) {
            if let Some(origin) = origin(was) {
                changes.rows.insert(RowName::Origin(origin), None);
            }
            if let Some(origin) = origin(is) {
                changes.put(RowName::Origin(origin), Row::Origin(*id));
            }
        }
    }
}

/// Dedup and idempotency keys, and what edges remember.
pub(crate) fn note_names(changes: &mut Changes, before: &Rows, after: &Rows) {
    for (key, was, is) in differing(&before.holds, &after.holds) {
        let name = RowName::Hold(key.clone());
        let entries = |hold: &quell_core::dedup::Hold| named(hold.job, hold.expires_at);
        changes.move_entries(
            &name,
            was.map(entries).unwrap_or_default(),
            is.map(entries).unwrap_or_default(),
        );
        changes.set(name, is.copied().map(Row::Hold));
    }
    for (key, was, is) in differing(&before.records, &after.records) {
        let name = RowName::Record(key.clone());
        let entries =
            |record: &quell_core::idempotency::Record| named(record.job, record.expires_at);
        changes.move_entries(
            &name,
            was.map(entries).unwrap_or_default(),
            is.map(entries).unwrap_or_default(),
        );
        changes.set(name, is.cloned().map(|record| Row::Record(Box::new(record))));
    }
    for (key, was, is) in differing(&before.memories, &after.memories) {
        let name = RowName::Memory(key.clone());
        let entries = |memory: &quell_core::edge::KeyMemory| expires(memory.expires_at);
        changes.move_entries(
            &name,
            was.map(entries).unwrap_or_default(),
            is.map(entries).unwrap_or_default(),
        );
        changes.set(name, is.copied().map(Row::Memory));
    }
}

/// What is on record beside settings, where it changes.
fn note_remarks(changes: &mut Changes, name: SettingsOf, was: Remarks, is: Remarks) {
    if was != is {
        changes.set(RowName::Remarks(name), Some(is).filter(|is| !is.is_empty()).map(Row::Remarks));
    }
}

/// Queues and tasks, but for those that were `assumed` to exist, and starts.
fn note_settings(changes: &mut Changes, before: &Rows, after: &Rows, assumed: &BTreeSet<RowName>) {
    for (queue, was, is) in differing(&before.queues, &after.queues) {
        let name = RowName::Queue(queue.clone());
        if !assumed.contains(&name) {
            let split = |settings: Option<&Option<QueueSettings>>| {
                settings.and_then(Option::as_ref).map(QueueSettings::split_remarks).unzip()
            };
            let ((_, was), (settings, remarks)) = (split(was), split(is));
            let of = SettingsOf::Queue(queue.clone());
            note_remarks(changes, of, was.unwrap_or_default(), remarks.unwrap_or_default());
            changes.set(name, is.map(|_| Row::Queue(settings.map(Box::new))));
        }
    }
    for (task, was, is) in differing(&before.tasks, &after.tasks) {
        let name = RowName::Task(task.clone());
        if !assumed.contains(&name) {
            let (settings, remarks) = is.map(TaskSettings::split_remarks).unzip();
            let was = was.map(|was| was.split_remarks().1).unwrap_or_default();
            let of = SettingsOf::Task(task.clone());
            note_remarks(changes, of, was, remarks.unwrap_or_default());
            changes.set(name, settings.map(Row::Task));
        }
    }
    for ((queue, partition), was, is) in differing(&before.starts, &after.starts) {
        let name = RowName::Starts(queue.clone(), partition.clone());
        let entries = |rows: &Rows, _: &StartLog| {
            let place = expiry_of(rows, &name);
            place.map(|place| (Index::Expiry, place, None)).into_iter().collect::<Entries>()
        };
        changes.move_entries(
            &name,
            was.map(|log| entries(before, log)).unwrap_or_default(),
            is.map(|log| entries(after, log)).unwrap_or_default(),
        );
        let log = is.filter(|log| !log.is_empty());
        changes.set(name, log.cloned().map(Row::Starts));
    }
}

/// Where a row stands among those that expire.
pub(crate) fn expiry_of(rows: &Rows, name: &RowName) -> Option<Place> {
    let at = match name {
        RowName::Hold(key) => rows.holds.get(key)?.expires_at,
        RowName::Record(key) => rows.records.get(key)?.expires_at,
        RowName::Memory(key) => rows.memories.get(key)?.expires_at,
        RowName::Starts(queue, partition) => {
            let log = rows.starts.get(&(queue.clone(), partition.clone()))?;
            let settings = rows.queues.get(queue)?.as_ref()?;
            let rate = match partition {
                None => settings.rate,
                Some(_) => settings.partition_rate,
            };
            *log.starts().last()? + rate?.period
        }
        _ => return None,
    };
    Some(Place::at(at))
}

/// Schedules and their ticks.
fn note_plans(changes: &mut Changes, before: &Rows, after: &Rows) {
    for (schedule, was, is) in differing(&before.schedules, &after.schedules) {
        let name = RowName::Schedule(schedule.clone());
        let entries = |info: &quell_core::schedule::ScheduleInfo| {
            info.next
                .map(|next| (Index::Plan, Place::at(next), None))
                .into_iter()
                .collect::<Entries>()
        };
        changes.move_entries(
            &name,
            was.map(entries).unwrap_or_default(),
            is.map(entries).unwrap_or_default(),
        );
        changes.set(name, is.map(|info| Row::Schedule(Box::new(info.clone()))));
    }
    changes.note_ticks(&before.ticks, &after.ticks);
    for ((schedule, _), _, _) in differing(&before.ticks, &after.ticks) {
        // That there is such a schedule decides whether they fire.
        if let Some(info) = after.schedules.get(schedule) {
            let row = || Some(Row::Schedule(Box::new(info.clone())));
            changes.rows.entry(RowName::Schedule(schedule.clone())).or_insert_with(row);
        }
    }
}

/// Ticks, by schedule and time.
type Ticks = BTreeMap<(ScheduleName, Timestamp), Tick>;

impl Changes {
    /// Removes ticks.
    pub(crate) fn drop_ticks(&mut self, ticks: &Ticks) {
        self.note_ticks(ticks, &Ticks::new());
    }

    fn note_ticks(&mut self, before: &Ticks, after: &Ticks) {
        for ((schedule, at), was, is) in differing(before, after) {
            let name = RowName::Tick(schedule.clone(), *at);
            let entries = |tick: &Tick| {
                let mut entries = vec![
                    (Index::Ticks, Place::at(*at), None),
                    (Index::Fired(schedule.clone()), Place::at(*at), None),
                ];
                entries.extend(tick.job.map(|job| (Index::Of(job), Place::NONE, None)));
                entries
            };
            self.move_entries(
                &name,
                was.map(entries).unwrap_or_default(),
                is.map(entries).unwrap_or_default(),
            );
            self.set(name, is.cloned().map(Row::Tick));
        }
    }
}

impl Changes {
    /// Writes a row.
    pub(crate) fn put(&mut self, name: RowName, row: Row) {
        self.rows.insert(name, Some(row));
    }

    /// Writes a row, or removes it.
    pub(crate) fn set(&mut self, name: RowName, row: Option<Row>) {
        self.rows.insert(name, row);
    }

    /// Takes a row out of the indexes that it was in, and into those that it is in.
    pub(crate) fn move_entries(&mut self, name: &RowName, was: Entries, is: Entries) {
        let (before, after) = (note_of(&was), note_of(&is));
        if before != after {
            before.iter().for_each(|note| self.count(note, -1));
            after.iter().for_each(|note| self.count(note, 1));
        }
        for (index, place, _) in &was {
            if !is.iter().any(|(other, at, _)| at == place && other == index) {
                self.leave.push((index.clone(), *place, name.clone()));
            }
        }
        for entry in is {
            if !was.contains(&entry) {
                let (index, place, note) = entry;
                self.enter.push((index, Entry { place, name: name.clone(), note }));
            }
        }
    }
}

/// The note of a job's entries.
fn note_of(entries: &Entries) -> Option<&Note> {
    entries.iter().find_map(|(_, _, note)| note.as_ref())
}

/// The debounce key of a job.
pub(crate) fn key_of(job: &Job) -> Option<TaskKey> {
    Some((job.task.clone(), job.key.clone()?))
}

/// Where a job stands.
pub(crate) fn entries_of(job: &Job) -> Entries {
    let note = Note {
        queue: job.queue.clone(),
        task: job.task.clone(),
        state: job.state,
        partition: job.partition.clone(),
        worker: job.worker.clone().filter(|_| job.state == JobState::Running),
    };
    let ended_at = job.ended_at.unwrap_or(Timestamp::MIN);
    let (index, place) = match job.state {
        JobState::Scheduled if job.waits => (Index::Waiting, Place::at(job.window.due_at)),
        JobState::Scheduled => {
            let line = Index::Line(job.queue.clone(), job.task.clone());
            (line, Place { rank: Reverse(job.priority), at: job.window.due_at })
        }
        JobState::Running => (Index::Leases, Place::at(job.lease_until.unwrap_or(Timestamp::MIN))),
        JobState::Succeeded | JobState::Cancelled | JobState::Absorbed => {
            (Index::Ended, Place::at(ended_at))
        }
        JobState::Dead => (Index::Dead, Place::at(ended_at)),
        JobState::Unreadable => (Index::Unreadable, Place::NONE),
    };
    let mut entries = vec![(index, place, Some(note.clone()))];
    if job.has_begun() && job.turn().is_some() {
        let place = Place { rank: Reverse(job.priority), at: job.window.due_at };
        entries.push((Index::Begun(job.queue.clone()), place, Some(note)));
    }
    if job.is_closed_window() {
        entries.extend(key_of(job).map(|key| (Index::Closed(key), Place::NONE, None)));
    }
    entries.extend(job.absorbed_by.map(|successor| (Index::Of(successor), Place::NONE, None)));
    entries
}

fn expires(at: Timestamp) -> Entries {
    vec![(Index::Expiry, Place::at(at), None)]
}

/// A key that names a job.
fn named(job: JobId, expires_at: Timestamp) -> Entries {
    vec![(Index::Expiry, Place::at(expires_at), None), (Index::Of(job), Place::NONE, None)]
}

/// The entries that differ between two maps, with what was and what is, in the order of their keys.
fn differing<'m, K: Ord, V: PartialEq>(
    before: &'m BTreeMap<K, V>,
    after: &'m BTreeMap<K, V>,
) -> impl Iterator<Item = (&'m K, Option<&'m V>, Option<&'m V>)> {
    let (mut before, mut after) = (before.iter().peekable(), after.iter().peekable());
    let all = std::iter::from_fn(move || {
        let order = match (before.peek(), after.peek()) {
            (Some((was, _)), Some((is, _))) => was.cmp(is),
            (Some(_), None) => Ordering::Less,
            (None, _) => Ordering::Greater,
        };
        let was = if order.is_le() { before.next() } else { None };
        let is = if order.is_ge() { after.next() } else { None };
        let (key, _) = was.or(is)?;
        Some((key, was.map(|(_, was)| was), is.map(|(_, is)| is)))
    });
    all.filter(|(_, was, is)| was != is)
}
