//! One step: rows are loaded, the rules take it on them, and what differs is committed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use quell_core::part::{Ids, Notifications, Part, Rows, StepResult, TaskKey};
use quell_core::{
    Error, ErrorKind, Job, JobId, JobState, QueueName, Result, TaskName, Timestamp, WorkerId,
};

use crate::backend::{
    Access, Backend, Beginning, Changes, Committed, Entry, Index, Running, Scan, Seen, Tally, Time,
};
use crate::known::Known;
use crate::loaded::Loaded;
use crate::rows::{KeyJobs, Row, RowName};

/// One step: its body loads rows, takes the step and returns the outcome; none retries it.
macro_rules! step {
    ($self:ident, $what:literal, ($now:expr, $jobs:expr), |$step:ident| $body:expr) => {
        step!(
            $self,
            $what,
            $crate::backoff::Backoff::new($self.backend.longest_pause()),
            ($now, $jobs),
            |$step| $body
        )
    };
    ($self:ident, $what:literal, $backoff:expr, ($now:expr, $jobs:expr), |$step:ident| $body:expr) => {
        step!(
            $self,
            $what,
            $backoff,
            $crate::backend::Access::Write { jobs: $jobs },
            $now,
            |$step| { $body }
        )
    };
    ($self:ident, $what:literal, $access:expr, $now:expr, |$step:ident| $body:expr) => {
        step!(
            $self,
            $what,
            $crate::backoff::Backoff::new($self.backend.longest_pause()),
            $access,
            $now,
            |$step| $body
        )
    };
    (
        $self:ident, $what:literal, $backoff:expr, $access:expr, $now:expr, |$step:ident| $body:expr
    ) => {{
        let mut rows_set_aside = 0;
        loop {
            let done: quell_core::Result<_> = async {
                let mut backoff = $backoff;
                backoff.begin().await;
                loop {
                    let recorded = $self.history.is_some();
                    let tried: quell_core::Result<_> = async {
                        let mut begun = $crate::step::Step::begin(
                            &$self.backend,
                            $crate::backend::Time::from($now),
                            $access,
                            recorded,
                        )
                        .await?;
                        let answer: quell_core::Result<Option<_>> = async {
                            let $step = &mut begun;
                            Ok($body)
                        }
                        .await;
                        match answer {
                            Ok(Some(answer)) => {
                                let news = begun.commit().await?;
                                Ok(news.map(|news| (answer, news)))
                            }
                            // What it has locked is free before its caller knows.
                            Ok(None) => {
                                begun.give_up().await;
                                Ok(None)
                            }
                            Err(error) => {
                                begun.give_up().await;
                                Err(error)
                            }
                        }
                    }
                    .await;
                    match tried {
                        Ok(Some((answer, news))) => {
                            backoff.done();
                            $self.spread(news);
                            break Ok(answer);
                        }
                        Ok(None) => {}
                        Err(error) if $self.backend.is_conflict(&error) => {}
                        Err(error) => break Err(error),
                    }
                    if !backoff.again().await {
                        break Err($crate::backend::contended($what));
                    }
                }
            }
            .await;
            let error = match done {
                Ok(answer) => break answer,
                Err(error) => error,
            };
            // R25: a row that cannot be decoded harms itself only.
            rows_set_aside += 1;
            let may_try = rows_set_aside <= quell_core::unreadable::MAX_PER_CALL;
            // Seldom, and a future too large to be a part of each step's.
            if !(may_try && Box::pin($self.set_aside(&error)).await?) {
                return Err(error);
            }
        }
    }};
}
pub(crate) use step;

/// How much earlier a step may begin than one that it follows: longer than any step takes. Times beyond
/// it are of another clock, as those of an imported job may be.
const LONGEST_STEP: Duration = Duration::from_secs(60);

/// Whether a window that goes back may join the open one of its key (R12).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Windows {
    /// It may, where both fit into one.
    Together,
    /// It may not: both do not fit into one commit.
    Apart,
}

/// An open step.
#[derive(Debug)]
pub(crate) struct Step<'b, B: Backend> {
    pub(crate) backend: &'b B,
    tx: B::Tx,
    pub(crate) now: Timestamp,
    ids: Ids,
    /// The rows that the rules see.
    pub(crate) rows: Rows,
    /// The jobs of keys, as they were loaded.
    pub(crate) keys: BTreeMap<TaskKey, KeyJobs>,
    /// The first closed windows of keys, as far as they were read.
    pub(crate) closed: BTreeMap<TaskKey, BTreeSet<JobId>>,
    /// What names jobs, as it was read.
    pub(crate) of: BTreeMap<JobId, Vec<Entry>>,
    /// Rows that the rules do not see.
    pub(crate) others: BTreeMap<RowName, Row>,
    loaded: Loaded,
    /// Queues and tasks that are known to exist and were not read: the step writes none of them.
    pub(crate) assumed: BTreeSet<RowName>,
    has_history: bool,
    taken: Option<(Rows, StepResult)>,
    /// What changes beside what follows from the rows.
    pub(crate) beside: Changes,
}

impl<'b, B: Backend> Step<'b, B> {
    /// Begins a step.
    pub(crate) async fn begin(
        backend: &'b B,
        time: Time,
        access: Access,
        has_history: bool,
    ) -> Result<Self> {
        let Beginning { tx, now, ids } = backend.begin(time, access).await?;
        Ok(Step {
            backend,
            tx,
            now,
            ids,
            rows: Rows::default(),
            keys: BTreeMap::new(),
            closed: BTreeMap::new(),
            of: BTreeMap::new(),
            others: BTreeMap::new(),
            loaded: Loaded::default(),
            assumed: BTreeSet::new(),
            has_history,
            taken: None,
            beside: Changes::default(),
        })
    }

    /// Loads rows that were not loaded yet.
    pub(crate) async fn load(&mut self, names: impl IntoIterator<Item = RowName>) -> Result<()> {
        let names: BTreeSet<RowName> =
            names.into_iter().filter(|name| !self.has_loaded(name)).collect();
        if names.is_empty() {
            return Ok(());
        }
        let found = self.backend.load(&mut self.tx, &names).await?;
        self.loaded.add_all(names);
        for (name, row) in found {
            self.put(name, row)?;
        }
        Ok(())
    }

    fn put(&mut self, name: RowName, row: Row) -> Result<()> {
        match (name, row) {
            (RowName::Job(id), Row::Job(job)) => drop(self.rows.jobs.insert(id, job)),
            (RowName::Attempts(id), Row::Attempts(all)) => {
                self.rows.attempts.insert(id, all);
            }
            (RowName::Effects(id), Row::Effects(all)) => {
                let by_name = all.into_iter().map(|effect| (effect.name.clone(), effect));
                self.rows.effects.insert(id, by_name.collect());
            }
            (RowName::Past(id), Row::Past(past)) => drop(self.rows.pasts.insert(id, *past)),
            (RowName::Key(key), Row::Key(jobs)) => drop(self.keys.insert(key, jobs)),
            (RowName::Hold(key), Row::Hold(hold)) => drop(self.rows.holds.insert(key, hold)),
            (RowName::Record(key), Row::Record(record)) => {
                self.rows.records.insert(key, *record);
            }
            (RowName::Memory(key), Row::Memory(memory)) => {
                self.rows.memories.insert(key, memory);
            }
            (RowName::Queue(queue), Row::Queue(settings)) => {
                self.rows.queues.insert(queue, settings.map(|settings| *settings));
            }
            (RowName::Task(task), Row::Task(settings)) => {
                self.rows.tasks.insert(task, settings);
            }
            (RowName::Starts(queue, partition), Row::Starts(log)) => {
                self.rows.starts.insert((queue, partition), log);
            }
            (RowName::Schedule(name), Row::Schedule(info)) => {
                self.rows.schedules.insert(name, *info);
            }
            (RowName::Tick(name, at), Row::Tick(tick)) => {
                self.rows.ticks.insert((name, at), tick);
            }
            (
                name @ (RowName::Turn(_)
                | RowName::Gate(_)
                | RowName::Origin(_)
                | RowName::Worker(..)
                | RowName::Alert(_)
                | RowName::Remarks(_)
                | RowName::Aside(_)),
                row,
            ) => drop(self.others.insert(name, row)),
            (name, row) => {
                let message = format!("the row {name:?} holds something else: {row:?}");
                return Err(Error::new(ErrorKind::Corrupt, message));
            }
        }
        Ok(())
    }

    /// Has other ids in place of those that it began with, if a key has a job with a later one: the
    /// windows of a key run in the order of their ids (R10).
    pub(crate) async fn check_ids(&mut self, jobs: usize) -> Result<()> {
        let newest = self.keys.values().filter_map(|jobs| {
            let waiting = jobs.open.max(jobs.closed);
            jobs.newest.max(waiting).max(jobs.running.last().copied())
        });
        let Some(newest) = newest.max().filter(|newest| newest.get() >= self.ids.next) else {
            return Ok(());
        };
        self.ids = self.backend.ids_above(&mut self.tx, newest, jobs).await?;
        Ok(())
    }

    /// Whether a row was asked for, or need not be.
    pub(crate) fn has_loaded(&self, name: &RowName) -> bool {
        self.loaded.has(name) || self.assumed.contains(name)
    }

    /// Lets the step take a queue for one that exists, with settings that decide nothing.
    pub(crate) fn assume_queue(&mut self, queue: &QueueName) {
        self.assumed.insert(RowName::Queue(queue.clone()));
    }

    /// Lets the step take a task for one that exists, likewise.
    pub(crate) fn assume_task(&mut self, task: &TaskName) {
        self.assumed.insert(RowName::Task(task.clone()));
    }

    /// The queues and tasks that exist once the step has committed, but for those that were known to.
    pub(crate) fn existing(&self) -> Vec<RowName> {
        let Some(rows) = self.after() else { return Vec::new() };
        let queues = rows.queues.keys().cloned().map(RowName::Queue);
        let names = queues.chain(rows.tasks.keys().cloned().map(RowName::Task));
        names.filter(|name| !self.assumed.contains(name)).collect()
    }

    /// Shows the step a job that was decoded by other means.
    pub(crate) fn put_job(&mut self, job: Job) {
        self.loaded.add(RowName::Job(job.id));
        self.rows.jobs.insert(job.id, Arc::new(job));
    }

    /// Hides a job that was loaded from the step, until it is loaded again.
    pub(crate) fn hide_job(&mut self, id: JobId) {
        self.loaded.forget(&RowName::Job(id));
        self.rows.jobs.remove(&id);
    }

    /// Whether the backend finds jobs by a filter.
    pub(crate) fn finds_jobs(&self) -> bool {
        self.backend.finds_jobs()
    }

    /// How many entries of a line are read at a time.
    pub(crate) fn page(&self) -> usize {
        self.backend.page().max(1)
    }

    /// Reads indexes.
    pub(crate) async fn scan(&mut self, scans: &[Scan]) -> Result<Vec<Seen>> {
        if scans.is_empty() {
            return Ok(Vec::new());
        }
        self.backend.scan(&mut self.tx, scans).await
    }

    /// Reads one index.
    pub(crate) async fn scan_one(&mut self, scan: Scan) -> Result<Seen> {
        Ok(self.scan(&[scan]).await?.pop().unwrap_or_default())
    }

    /// Reads an index to its end.
    pub(crate) async fn scan_all(&mut self, scan: Scan) -> Result<Vec<Entry>> {
        let (mut all, mut scan) = (Vec::new(), scan);
        loop {
            let seen = self.scan_one(scan.clone()).await?;
            let last = seen.entries.last().map(|entry| (entry.place, entry.name.clone()));
            all.extend(seen.entries);
            match last.filter(|_| seen.more) {
                Some(last) => scan.after = Some(last),
                None => return Ok(all),
            }
        }
    }

    /// The counts that the backend keeps.
    pub(crate) async fn kept_counts(&mut self) -> Result<Tally> {
        self.backend.counts(&mut self.tx).await
    }

    /// Whether a queue or a task is known to be there, and still is.
    pub(crate) fn knows(&self, known: &Known, name: &RowName) -> bool {
        known.has(name) && self.backend.knows(name)
    }

    /// Whether rows of keys may forget their newest jobs.
    pub(crate) fn forgets_newest(&self) -> bool {
        self.backend.forgets_newest()
    }

    /// How many attempts run in a queue, where the backend counts them.
    pub(crate) async fn running(
        &mut self,
        queue: &QueueName,
        worker: Option<&WorkerId>,
    ) -> Result<Option<Running>> {
        self.backend.running(&mut self.tx, queue, worker).await
    }

    /// Which of these jobs have not ended, where the backend knows.
    pub(crate) async fn waiting(
        &mut self,
        ids: &BTreeSet<JobId>,
    ) -> Result<Option<BTreeSet<JobId>>> {
        self.backend.waiting(&mut self.tx, ids).await
    }

    /// How many of these groups of rows the backend loads at once.
    pub(crate) async fn fitting(&mut self, groups: &[Vec<RowName>]) -> Result<usize> {
        self.backend.fitting(&mut self.tx, groups).await
    }

    /// The key that a job without a decodable row keeps busy, where the backend knows.
    pub(crate) async fn held_key(&mut self, id: JobId) -> Result<Option<(TaskKey, bool)>> {
        self.backend.held_key(&mut self.tx, id).await
    }

    /// The newest jobs of a task that have a key, where the backend lists them.
    pub(crate) async fn newest_keyed(
        &mut self,
        task: &TaskName,
        most: usize,
    ) -> Result<Option<Vec<JobId>>> {
        self.backend.newest_keyed(&mut self.tx, task, most).await
    }

    /// Notes that it decides by the leases of these jobs, before it loads them.
    pub(crate) fn decide_by_leases(&mut self, ids: &[JobId]) {
        self.backend.decides_by_leases(&mut self.tx, ids);
    }

    /// A job that is set aside, decoded again.
    pub(crate) async fn load_aside(&mut self, id: JobId) -> Result<Option<Row>> {
        self.backend.load_aside(&mut self.tx, id).await
    }

    /// Whether the backend reads lanes without a look at the others.
    pub(crate) fn finds_lanes(&self) -> bool {
        self.backend.finds_lanes()
    }

    /// What can be decoded of a job's row.
    pub(crate) async fn load_in_part(&mut self, id: JobId) -> Result<Option<Job>> {
        self.backend.load_in_part(&mut self.tx, id).await
    }

    /// Takes the step on the rows that were loaded. None where they are of different moments and do
    /// not fit each other: then the step must be taken again.
    pub(crate) fn take<R>(&mut self, step: impl FnOnce(&mut Part) -> R) -> Option<R> {
        self.take_as(Windows::Together, step)
    }

    /// The same; says whether windows that go back may join the open ones of their keys.
    pub(crate) fn take_as<R>(
        &mut self,
        windows: Windows,
        step: impl FnOnce(&mut Part) -> R,
    ) -> Option<R> {
        if self.is_torn() {
            return None;
        }
        self.now = self.now.max(self.backend.late(&self.tx).unwrap_or(self.now));
        self.catch_up();
        let before = self.rows.clone();
        let mut apart = Vec::new();
        if windows == Windows::Apart {
            // As a closed one, an open window takes nothing in (R10).
            let open = self.rows.jobs.values_mut().filter(|job| job.is_open_window());
            apart.extend(open.map(|job| {
                Arc::make_mut(job).shape.closed = true;
                job.id
            }));
        }
        let mut part = self.part(self.has_history);
        let answer = step(&mut part);
        let mut ended = part.end();
        for id in apart {
            if let Some(job) = ended.rows.jobs.get_mut(&id) {
                Arc::make_mut(job).shape.closed = false;
            }
        }
        self.taken = Some((before, ended));
        Some(answer)
    }

    /// Moves the step's time to that of the steps that it follows. It may have begun before them and read
    /// what they wrote: a run would start before a trigger that it covers was accepted (R2), or before
    /// the attempt of its key ended that was there first (R11).
    fn catch_up(&mut self) {
        let keys = self.keys.values().map(|jobs| jobs.at);
        let jobs = self.rows.jobs.values().flat_map(|job| {
            [Some(job.window.last_at), job.started_at, job.ended_at].into_iter().flatten()
        });
        let starts = self.rows.starts.values().filter_map(|log| log.starts().last().copied());
        let latest = keys.chain(jobs).chain(starts).max().unwrap_or(self.now);
        if latest.since(self.now) <= LONGEST_STEP {
            self.now = self.now.max(latest);
        }
    }

    /// Ends the step without a change.
    pub(crate) async fn give_up(self) {
        self.backend.give_up(self.tx).await;
    }

    /// The rows as the step leaves them.
    pub(crate) fn after(&self) -> Option<&Rows> {
        self.taken.as_ref().map(|(_, ended)| &ended.rows)
    }

    /// The rows that were loaded, to be asked and not to be changed. None where they do not fit each
    /// other.
    pub(crate) fn view(&mut self) -> Option<Part> {
        if self.is_torn() { None } else { Some(self.part(false)) }
    }

    fn part(&mut self, has_history: bool) -> Part {
        let rows = std::mem::take(&mut self.rows);
        let is_read =
            |id: &JobId| rows.jobs.contains_key(id) || self.loaded.has(&RowName::Job(*id));
        let mut unread = Vec::new();
        for (task_key, jobs) in &self.keys {
            let runs = jobs.running.iter().any(|id| !is_read(id));
            let closed = jobs.closed.filter(|id| !is_read(id));
            if runs || closed.is_some() {
                unread.push((task_key, runs, closed));
            }
        }
        let mut part = Part::new(self.now, self.ids, rows, has_history);
        for (task_key, runs, closed) in unread {
            part.note_key(task_key, runs, closed);
        }
        part
    }

    /// Whether rows do not fit each other: what a key's row says of a job must be so.
    fn is_torn(&self) -> bool {
        let none = KeyJobs::default();
        let fits = |(key, closed): (&TaskKey, &BTreeSet<JobId>)| {
            let jobs = self.keys.get(key).unwrap_or(&none);
            closed.first().copied() == jobs.closed
                && !jobs.open.is_some_and(|open| closed.contains(&open))
                && closed.is_disjoint(&jobs.running)
        };
        if !self.closed.iter().all(fits) {
            return true;
        }
        let mut open = BTreeSet::new();
        self.rows.jobs.values().any(|job| {
            let Some(key) = &job.key else { return false };
            let task_key = (job.task.clone(), key.clone());
            let (is_open, is_closed) = (job.is_open_window(), job.is_closed_window());
            let Some(jobs) = self.keys.get(&task_key) else {
                let name = RowName::Key(task_key);
                let is_absent = !job.state.is_ended() && self.loaded.has(&name);
                // Without the row of its key, a window must be the only one.
                return is_absent || (is_open && !open.insert(name));
            };
            let is_first = jobs.closed == Some(job.id);
            let is_behind = jobs.closed.is_some_and(|first| first < job.id);
            (is_closed && !is_first && !is_behind)
                || (is_first && !is_closed)
                || (jobs.open == Some(job.id)) != is_open
                || jobs.running.contains(&job.id) != (job.state == JobState::Running)
        })
    }

    /// Writes what changed; none after a conflict.
    ///
    /// # Errors
    /// Among others [`too_large`].
    pub(crate) async fn commit(mut self) -> Result<Option<Notifications>> {
        let mut changes = std::mem::take(&mut self.beside);
        let mut news = Notifications::default();
        if let Some((before, ended)) = self.taken.take() {
            changes.ids = ended.next_id.saturating_sub(self.ids.next);
            changes.ids = changes.ids.checked_div(self.ids.step).unwrap_or(0);
            self.note_changes(&mut changes, &before, &ended.rows)?;
            news = ended.news;
        }
        self.count_asides(&mut changes).await?;
        let Step { backend, tx, .. } = self;
        if changes.is_empty() {
            // A refusal is an answer that changes nothing.
            backend.give_up(tx).await;
            backend.unchanged(&news);
            return Ok(Some(news));
        }
        match backend.commit(tx, changes, &news).await? {
            Committed::Done => Ok(Some(news)),
            Committed::Conflict => Ok(None),
            Committed::TooLarge { changes, most } => Err(too_large(changes, most)),
        }
    }

    /// Reads the first closed windows of keys whose first one may leave, so that the next is known.
    pub(crate) async fn load_firsts(
        &mut self,
        keys: &BTreeSet<TaskKey>,
        moving: &BTreeSet<JobId>,
    ) -> Result<()> {
        let may_leave = |jobs: &KeyJobs| jobs.closed.is_some_and(|first| moving.contains(&first));
        let leaves = self.keys.iter().filter(|(_, jobs)| may_leave(jobs)).map(|(key, _)| key);
        let leaves = leaves.filter(|key| keys.contains(*key) && !self.closed.contains_key(*key));
        let leaves: Vec<TaskKey> = leaves.cloned().collect();
        let limit = moving.len().saturating_add(2);
        let scans: Vec<Scan> =
            leaves.iter().map(|key| Scan::first(Index::Closed(key.clone()), limit)).collect();
        let seen = self.scan(&scans).await?;
        for (key, seen) in leaves.into_iter().zip(seen) {
            let ids = seen.entries.iter().filter_map(|entry| match entry.name {
                RowName::Job(id) => Some(id),
                _ => None,
            });
            self.closed.insert(key, ids.collect());
        }
        Ok(())
    }
}

/// The field of [`too_large`].
const CHANGES: &str = "changes";

/// The error of a step that changes more than the backend writes at once.
fn too_large(changes: usize, most: usize) -> Error {
    let message = format!(
        "this changes {changes} rows at once, the store takes {most}, and fewer where they are long: \
         split it"
    );
    Error::invalid(CHANGES, message)
}

/// Whether a step failed because it changes too much at once.
pub(crate) fn is_too_large(error: &Error) -> bool {
    error.field() == Some(CHANGES)
}

/// Whether a step failed because it changes too much at once, or makes a row longer than one may be.
pub(crate) fn is_too_much(error: &Error) -> bool {
    is_too_large(error) || (error.kind() == ErrorKind::Invalid && error.field() == Some("payload"))
}
