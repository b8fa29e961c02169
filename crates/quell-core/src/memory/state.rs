//! The rows of the memory store and the indexes over them.
//!
//! Every change of a job goes through [`State::update`], which keeps the indexes true and notes
//! what to publish: wake-ups and events.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::Hash;
use std::sync::Arc;

use super::indexes::{Indexes, Lane, lane};
use super::limits::Limits;
use super::part::{Rows, TaskKey};
use super::{Event, no_such_job};
use crate::dedup::Hold;
use crate::edge::KeyMemory;
use crate::heartbeat::WorkerRow;
use crate::idempotency::Record;
use crate::record::no_longer_kept;
use crate::schedule::{ScheduleInfo, Tick};
use crate::turn::Turn;
use crate::window::Window;
use crate::{
    AlertName, AlertState, Attempt, AttemptOutcome, Counts, Effect, EffectName, Job, JobFilter,
    JobId, JobState, Key, Now, Past, QueueName, QueueSettings, Result, ScheduleName, TaskName,
    Timestamp,
};

/// What others see of a job's place in line: its state, window, wait and lane, and whether it is a
/// closed window.
type Place = (JobState, Window, bool, Lane, bool);
/// The rows come first; the rest follows from them, or is empty between two steps.
#[derive(Clone, Debug)]
pub(super) struct State {
    pub(super) now: Timestamp,
    pub(super) next_id: u64,
    /// From one id to the next.
    pub(super) id_step: u64,
    /// A part shares its rows with the store that lent them, and copies those that it changes.
    pub(super) jobs: BTreeMap<JobId, Arc<Job>>,
    pub(super) indexes: Indexes,
    pub(super) attempts: BTreeMap<JobId, Vec<Attempt>>,
    pub(super) effects: BTreeMap<JobId, BTreeMap<EffectName, Effect>>,
    /// The payloads and origins of jobs before an operator edited or imported them.
    pub(super) pasts: BTreeMap<JobId, Past>,
    pub(super) limits: Limits,
    pub(super) holds: BTreeMap<TaskKey, Hold>,
    pub(super) records: BTreeMap<TaskKey, Record>,
    pub(super) memories: BTreeMap<TaskKey, KeyMemory>,
    pub(super) schedules: BTreeMap<ScheduleName, ScheduleInfo>,
    /// The ticks that fired.
    pub(super) ticks: BTreeMap<(ScheduleName, Timestamp), Tick>,
    /// What is kept of alerts, and how often each was written.
    pub(super) alerts: BTreeMap<AlertName, (u64, AlertState)>,
    /// Workers, by name and incarnation.
    pub(super) workers: Vec<WorkerRow>,
    wakes: BTreeMap<QueueName, Timestamp>,
    /// Jobs that triggers of this step met.
    pub(super) met: BTreeSet<JobId>,
    /// Queues of strict order in which another job may be next (R41).
    pub(super) turns: BTreeSet<QueueName>,
    /// When workers, who know of later ticks only, are to ask for ticks.
    pub(super) next_tick: Option<Timestamp>,
    /// Jobs that have ended since ends were last published.
    pub(super) ended: Vec<JobId>,
    /// Running jobs that were cancelled since then.
    pub(super) cancelled: Vec<JobId>,
    /// Whether events are recorded.
    pub(super) has_history: bool,
    events: Vec<Event>,
}

impl State {
    pub(super) fn new(now: Timestamp) -> Self {
        State::of(now, Rows::default(), Indexes::with_lines())
    }

    /// These rows, as they are stored: that they are here is no news.
    pub(super) fn of(now: Timestamp, rows: Rows, indexes: Indexes) -> Self {
        let Rows { jobs, attempts, effects, pasts, queues, tasks, starts, .. } = rows;
        let Rows { holds, records, memories, schedules, ticks, .. } = rows;
        let mut indexes = indexes;
        jobs.values().for_each(|job| indexes.enter(job));
        State {
            now,
            next_id: 1,
            id_step: 1,
            jobs,
            indexes,
            attempts,
            effects,
            pasts,
            limits: Limits { queues, tasks, starts },
            holds,
            records,
            memories,
            schedules,
            ticks,
            alerts: BTreeMap::new(),
            workers: Vec::new(),
            wakes: BTreeMap::new(),
            met: BTreeSet::new(),
            turns: BTreeSet::new(),
            next_tick: None,
            ended: Vec::new(),
            cancelled: Vec::new(),
            has_history: false,
            events: Vec::new(),
        }
    }

    /// The same rows, without a history.
    pub(super) fn without_history(&self) -> State {
        State { has_history: false, ..self.clone() }
    }

    /// What decides every answer; the indexes follow from it.
    pub(super) fn rows(&self) -> impl Eq + Hash {
        let State { now, next_id, jobs, attempts, limits, holds, records, memories, .. } = self;
        let beside = (&self.schedules, &self.ticks, &self.alerts, &self.effects, &self.pasts);
        let beside = (beside, &self.workers);
        (now, next_id, jobs, attempts, limits, holds, records, memories, beside)
    }

    /// R38: store time never goes back.
    pub(super) fn set_now(&mut self, now: Now) {
        self.now = self.now.max(now.unwrap_or(self.now));
    }

    pub(super) fn now(&self) -> Timestamp {
        self.now
    }

    pub(super) fn next_id(&mut self) -> JobId {
        let id = JobId::new(self.next_id);
        self.next_id = self.next_id.saturating_add(self.id_step);
        id
    }

    pub(super) fn take_notifications(&mut self) -> (BTreeMap<QueueName, Timestamp>, Vec<Event>) {
        (std::mem::take(&mut self.wakes), std::mem::take(&mut self.events))
    }

    pub(super) fn push_event(&mut self, event: impl FnOnce() -> Event) {
        if self.has_history {
            self.events.push(event());
        }
    }

    /// Records an event before its consequences, which are recorded from `place` on.
    pub(super) fn push_event_at(&mut self, place: usize, event: impl FnOnce() -> Event) {
        if self.has_history {
            self.events.insert(place.min(self.events.len()), event());
        }
    }

    /// Where the next event comes.
    pub(super) fn next_event(&self) -> usize {
        self.events.len()
    }

    pub(super) fn job(&self, id: JobId) -> Option<&Job> {
        self.jobs.get(&id).map(|job| &**job)
    }

    pub(super) fn known(&self, id: JobId) -> Result<&Job> {
        self.job(id).ok_or_else(|| no_such_job(id))
    }

    pub(super) fn open_window(&self, task: &TaskName, key: &Key) -> Option<JobId> {
        self.indexes.open.get(&(task.clone(), key.clone())).copied()
    }

    /// Whether an attempt of the key runs (R11).
    pub(super) fn key_runs(&self, task_key: &TaskKey) -> bool {
        self.indexes.running_keys.contains_key(task_key)
    }

    /// The oldest closed window of a key (R10).
    pub(super) fn closed_window(&self, task_key: &TaskKey) -> Option<JobId> {
        self.indexes.closed.get(task_key).and_then(BTreeSet::first).copied()
    }

    /// The window of a key that runs next: that with the smallest id (R10, R11).
    pub(super) fn next_window(&self, task_key: &TaskKey) -> Option<JobId> {
        let open = self.indexes.open.get(task_key).copied();
        self.closed_window(task_key).into_iter().chain(open).min()
    }

    pub(super) fn running(&self) -> impl Iterator<Item = &Job> {
        self.indexes.running.iter().filter_map(|id| self.job(*id))
    }

    pub(super) fn insert(&mut self, job: Job) {
        let id = job.id;
        self.indexes.enter(&job);
        self.jobs.insert(id, Arc::new(job));
        self.note_change(id, None);
    }

    /// Changes a job; none where there is no such job.
    pub(super) fn update<R>(&mut self, id: JobId, change: impl FnOnce(&mut Job) -> R) -> Option<R> {
        self.update_row(id, |row| change(Arc::make_mut(row)))
    }

    fn update_row<R>(&mut self, id: JobId, change: impl FnOnce(&mut Arc<Job>) -> R) -> Option<R> {
        let job = self.jobs.get_mut(&id)?;
        let (before, turn) = (place(job), job.turn());
        self.indexes.leave(job);
        let answer = change(job);
        self.indexes.enter(job);
        let has_left = turn.is_some_and(|turn| leaves(turn, &before.3, job));
        let lane = before.3.clone();
        self.note_change(id, Some(before));
        if has_left {
            self.free_turn(lane.0);
        }
        Some(answer)
    }

    /// R41: another job of a partition may be next.
    fn free_turn(&mut self, queue: QueueName) {
        let settings = self.limits.queues.get(&queue).and_then(Option::as_ref);
        if settings.is_some_and(QueueSettings::is_strict) {
            self.turns.insert(queue.clone());
            self.wake_all(queue);
        }
    }

    fn replace(&mut self, job: Job) {
        self.update_row(job.id, |row| match Arc::get_mut(row) {
            Some(row) => *row = job,
            None => *row = Arc::new(job),
        });
    }

    /// Changes a job that may be absorbed by the next window of its key.
    pub(super) fn update_with_successor<R>(
        &mut self,
        id: JobId,
        change: impl FnOnce(&mut Job, Option<&mut Job>) -> R,
    ) -> Option<R> {
        let mut job = self.job(id)?.clone();
        let task_key = job.key.clone().map(|key| (job.task.clone(), key));
        let successor = task_key.and_then(|task_key| self.next_window(&task_key));
        let mut successor =
            successor.filter(|successor| *successor != id).and_then(|id| self.job(id).cloned());
        let answer = change(&mut job, successor.as_mut());
        if let Some(successor) =
            successor.filter(|successor| self.job(successor.id) != Some(successor))
        {
            self.replace(successor);
        }
        self.replace(job);
        Some(answer)
    }

    pub(super) fn remove(&mut self, id: JobId) {
        let Some(job) = self.jobs.get(&id) else { return };
        self.indexes.leave(job);
        self.keep_result(id);
        self.jobs.remove(&id);
        self.attempts.remove(&id);
        self.effects.remove(&id);
        self.pasts.remove(&id);
    }

    /// Takes in a job that ended elsewhere: no index has it, and no caller waits for it.
    pub(super) fn insert_ended(&mut self, job: Job, attempts: Vec<Attempt>) {
        assert!(job.state.is_ended(), "job {} was inserted as ended but has not ended", job.id);
        self.met.insert(job.id);
        self.attempts.insert(job.id, attempts);
        self.jobs.insert(job.id, Arc::new(job));
    }

    /// Notes the wake-up, end and event that follow from the change of a job.
    fn note_change(&mut self, id: JobId, before: Option<Place>) {
        let Some(job) = self.jobs.get(&id) else { return };
        if job.state.is_ended() && before.as_ref().is_some_and(|(state, ..)| !state.is_ended()) {
            self.ended.push(id);
        }
        let is_in_line = job.state == JobState::Scheduled && !job.waits;
        if is_in_line && before.as_ref().is_none_or(|before| must_wake(before, job)) {
            let due = job.window.due_at;
            let wake = self.wakes.entry(job.queue.clone()).or_insert(due);
            *wake = due.min(*wake);
        }
        let window_changed = before.is_none_or(|(state, window, _, _, was_closed)| {
            let closes = state == JobState::Scheduled && job.is_closed_window() && !was_closed;
            window != job.window || closes
        });
        if self.has_history && window_changed {
            // Only a leading edge counts triggers in a job that does not wait.
            let scheduled = job.state == JobState::Scheduled;
            let event = if scheduled { Event::window } else { Event::suppressed };
            self.events.push(event(self.now, job));
        }
    }

    pub(super) fn settings(&self, queue: &QueueName) -> QueueSettings {
        self.limits.settings(queue)
    }

    /// Wakes workers to look at a queue now.
    pub(super) fn wake_all(&mut self, queue: QueueName) {
        self.wakes.insert(queue, Timestamp::MIN);
    }

    pub(super) fn jobs(&self, filter: &JobFilter) -> Vec<Job> {
        let wanted = self.all_jobs().rev().filter(|job| filter.matches(job));
        wanted.take(filter.page()).cloned().collect()
    }

    pub(super) fn all_jobs(&self) -> impl DoubleEndedIterator<Item = &Job> {
        self.jobs.values().map(|job| &**job)
    }

    pub(super) fn ended_before(
        &self,
        wanted: impl Fn(JobState) -> Option<Timestamp>,
    ) -> Vec<JobId> {
        let old = |job: &&Job| match (wanted(job.state), job.ended_at) {
            (Some(before), Some(ended_at)) => job.state.is_ended() && ended_at <= before,
            (None, _) | (_, None) => false,
        };
        self.all_jobs().filter(old).map(|job| job.id).collect()
    }

    pub(super) fn counts(&self) -> Vec<Counts> {
        let mut counts = BTreeMap::new();
        for job in self.jobs.values() {
            let count: &mut u64 =
                counts.entry((job.queue.clone(), job.task.clone(), job.state)).or_default();
            *count = count.saturating_add(1);
        }
        let rows = counts.into_iter();
        rows.map(|((queue, task, state), jobs)| Counts { queue, task, state, jobs }).collect()
    }

    /// Puts an attempt that did not succeed on record; the last of a job is on its row.
    pub(super) fn record_attempt(
        &mut self,
        id: JobId,
        outcome: AttemptOutcome,
        error: Option<String>,
    ) {
        let Some(job) = self.jobs.get(&id) else { return };
        let (Some(worker), Some(started_at)) = (job.worker.clone(), job.started_at) else { return };
        let attempt = Attempt {
            token: job.token,
            worker,
            started_at,
            ended_at: Some(self.now),
            outcome: Some(outcome),
            error,
        };
        let no_longer_kept = no_longer_kept(attempt.token);
        let attempts = self.attempts.entry(id).or_default();
        attempts.push(attempt);
        if let Some(no_longer_kept) = no_longer_kept {
            attempts.retain(|attempt| !no_longer_kept.contains(&attempt.token));
        }
    }

    pub(super) fn attempts(&self, id: JobId) -> Vec<Attempt> {
        let mut attempts = self.attempts.get(&id).cloned().unwrap_or_default();
        if let Some(job) = self.jobs.get(&id) {
            attempts.extend(job.attempt_on_row());
        }
        attempts
    }
}

/// Whether a job that was in this place of its partition lets another one come before it (R41).
fn leaves(turn: Turn, was: &Lane, job: &Job) -> bool {
    // What starts takes the partition's slot.
    let starts = job.state == JobState::Running;
    let is_elsewhere = job.queue != was.0 || job.partition != was.2;
    !starts && (is_elsewhere || job.turn().is_none_or(|now| now > turn))
}

fn place(job: &Job) -> Place {
    (job.state, job.window, job.waits, lane(job), job.is_closed_window())
}

/// R34: whether a worker may now start the job earlier than it had to think before.
fn must_wake((state, window, waits, was, _): &Place, job: &Job) -> bool {
    let was_in_line = *state == JobState::Scheduled && !waits && *was == lane(job);
    !was_in_line || job.window.due_at < window.due_at
}
