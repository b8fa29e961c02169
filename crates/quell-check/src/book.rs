//! What a history says so far: each job, call, queue and worker, as the events made them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use quell_core::history::{Event, WorkerTask};
use quell_core::{
    AttemptOutcome, JobId, JobState, Key, LeaseToken, QueueName, QueueSettings, SettledAs,
    TaskName, Timestamp, TriggerId, WorkerId,
};

use super::calls::Calls;
use super::limits::Starts;
use super::processes::{Act, Processes};
use super::read::job_of;
use super::views::{ClaimView, JobView, OpId, OpState, OpView, TaskKey};
use super::{Line, Report};

/// Why nothing is known about how a job came to be.
pub(super) const UNKNOWN_MAKER: &str = "a call of unknown outcome may have made the job";
const UNKNOWN_JOIN: &str = "a call of unknown outcome may have joined the job";
/// Why a job that runs may have ended.
const IN_TX: &str =
    "its handler's own transaction ended an attempt, when or whether is not recorded";
/// How far apart two processes may read the clock for what they commit together.
const SLACK: Duration = Duration::from_secs(1);

/// Everything that the events said so far.
#[derive(Debug, Default)]
pub struct Book {
    /// Jobs by id.
    pub jobs: BTreeMap<JobId, JobView>,
    /// Calls.
    pub ops: BTreeMap<OpId, OpView>,
    /// Which call a trigger came from.
    pub triggers: BTreeMap<TriggerId, OpId>,
    /// Whether callers asked for attempts of a key to overlap, where they said so.
    pub overlaps: BTreeMap<TaskKey, bool>,
    /// The keys for which a caller asked for a flush.
    pub flushes: BTreeSet<TaskKey>,
    /// The open windows of a key: one, if all is well.
    pub open: BTreeMap<TaskKey, BTreeSet<JobId>>,
    /// The closed windows of a key that wait (R10).
    pub closed: BTreeMap<TaskKey, BTreeSet<JobId>>,
    /// The running jobs.
    pub running: BTreeSet<JobId>,
    /// The scheduled jobs.
    pub scheduled: BTreeSet<JobId>,
    /// Settings of queues; one that was deleted counts as paused.
    pub queues: BTreeMap<QueueName, QueueSettings>,
    /// The starts that rates count.
    pub starts: Starts,
    /// Tasks that are paused.
    pub paused: BTreeSet<TaskName>,
    /// What workers run.
    pub workers: BTreeMap<WorkerId, Vec<WorkerTask>>,
    /// The highest store time so far.
    pub now: Timestamp,
    /// The line of the newest fault.
    pub fault: Option<usize>,
    /// Processes that were killed.
    pub killed: BTreeSet<String>,
    /// The processes, and what may be missing of them.
    pub processes: Processes,
    /// Attempts that their handlers' own transactions ended before that was on record, or may have
    /// ended because no answer says otherwise.
    pub in_tx: BTreeSet<(JobId, LeaseToken)>,
    /// When the last change of a queue's settings was visible to every process.
    pub queue_set: BTreeMap<QueueName, Timestamp>,
    /// When the last pause or resume of a task was visible to every process.
    pub task_set: BTreeMap<TaskName, Timestamp>,
    /// How far apart two processes' times of one moment may be: nothing where one recorder wrote
    /// for all.
    pub slack: Duration,
    /// Whether each process estimates the store's time by itself.
    pub estimated: bool,
    /// How long before its store time a call was made, at most.
    longest_call: Duration,
    /// When the current line's change was visible to every process.
    seen_from: Timestamp,
    /// The attempts that ended within the slack, each with the time when its end was visible: a
    /// claim in another process may not have seen it.
    ended_lately: VecDeque<(Timestamp, JobId)>,
    /// Whether there is any fault in the whole record.
    pub any_fault: bool,
    /// Since when no harm is done.
    pub healed: Option<Timestamp>,
    /// Whether stores wrote events.
    pub has_store: bool,
    /// Whether all faults are recorded.
    pub faults: bool,
    /// How late a start may be that nothing holds back.
    pub punctual: Option<Duration>,
    /// Triggers of jobs that were imported, by the key that they were debounced by.
    pub imported: BTreeMap<TaskKey, u64>,
    /// Jobs that were imported.
    pub imported_jobs: BTreeSet<JobId>,
    /// Whether rows at the end are recorded.
    pub has_rows: bool,
}

impl Book {
    /// An empty book; what `lines` say about the record as a whole is known from the start.
    #[must_use]
    pub fn new(lines: &[Line]) -> Self {
        let Calls { ops, triggers, overlaps, flushes, .. } = Calls::of(lines);
        let processes = Processes::of(lines);
        let numbered = lines.iter().all(|line| line.n.is_some());
        let slack = if numbered { Duration::ZERO } else { SLACK };
        let now = Timestamp::MIN;
        let mut book =
            Book { now, ops, triggers, overlaps, flushes, processes, slack, ..Book::default() };
        let mut refuted = BTreeSet::new();
        for line in lines {
            let long = line.event.at().map_or(Duration::ZERO, |t| t.since(line.looked_from(t)));
            book.longest_call = book.longest_call.max(long);
            match &line.event {
                Event::Record { faults, punctual } => {
                    (book.faults, book.punctual) = (*faults, *punctual);
                }
                Event::Fault { .. } => book.any_fault = true,
                Event::Row { .. } => book.has_rows = true,
                Event::Window { .. } | Event::Claimed { .. } => book.has_store = true,
                Event::SettleIn { job, token } | Event::Settle { job, token, in_tx: true, .. } => {
                    book.in_tx.insert((*job, *token));
                }
                // The store has seen that the transaction did not commit. A refusal says nothing.
                Event::Settle { job, token, became, .. } if *became != SettledAs::Refused => {
                    refuted.insert((*job, *token));
                }
                Event::Expire { job, token, .. } => {
                    refuted.insert((*job, *token));
                }
                _ => {}
            }
        }
        book.in_tx.retain(|attempt| !refuted.contains(attempt));
        book
    }

    /// Why an event between these times may be missing, if it may.
    #[must_use]
    pub fn excuse(&self, act: Act, from: Timestamp, to: Timestamp) -> Option<String> {
        self.processes.lost(act, from, to).map(ToOwned::to_owned)
    }

    /// Why a claim between these times may have passed a job over that no event shows as held, if it may.
    #[must_use]
    pub fn was_held(&self, from: Timestamp, to: Timestamp) -> Option<String> {
        let may = !self.slack.is_zero() && self.processes.held_for_failed(from, to);
        may.then(|| "a call that failed may have held the job".to_owned())
    }

    /// Why something may have happened that no event of this record began, if it may: before its first
    /// event, or in a process whose record is not given.
    #[must_use]
    pub fn elsewhere(&self) -> Option<String> {
        self.excuse(Act::Any, Timestamp::MIN, Timestamp::from_micros(i64::MIN + 1))
    }

    /// Why something that happened to a job before `to` may be missing, if it may.
    #[must_use]
    pub fn missing(&self, job: &JobView, to: Timestamp) -> Option<String> {
        self.excuse(Act::Any, job.newest_at, to)
    }

    /// Why the attempt that a job runs may have ended before `to`, if it may.
    #[must_use]
    pub fn may_have_ended(&self, id: JobId, job: &JobView, to: Timestamp) -> Option<String> {
        self.may_have_succeeded(id, job).or_else(|| self.missing(job, to))
    }

    /// Why a job that runs may have succeeded without an event, if it may: the transaction of its
    /// handler's own commits on its own, and its answer may be lost (R22).
    #[must_use]
    pub fn may_have_succeeded(&self, id: JobId, job: &JobView) -> Option<String> {
        let may = job.state == JobState::Running && self.in_tx.contains(&(id, job.token));
        may.then(|| IN_TX.to_owned())
    }

    /// Why a job without a recorded origin may exist, if it may: a killed caller may have made it, or
    /// a call whose answer was lost. A single recorder sees such calls, a caller does not.
    #[must_use]
    pub fn unrecorded(&self, task: &TaskName, key: Option<&Key>, to: Timestamp) -> Option<String> {
        let called = self.perhaps_called(task, key).then(|| UNKNOWN_MAKER.to_owned());
        called.or_else(|| self.excuse(Act::Any, Timestamp::MIN, to))
    }

    /// Why a trigger may have joined a job without a record of it, if one may: a server that was silent
    /// takes a call when it goes on, however long ago the caller gave up.
    #[must_use]
    pub fn perhaps_joined(&self, job: &JobView) -> Option<String> {
        self.perhaps_called(&job.task, job.key.as_ref()).then(|| UNKNOWN_JOIN.to_owned())
    }

    /// Whether a change of a job's window between these times may be missing, as an answer was lost: with it
    /// the job has `count` triggers, and without it `known`.
    pub(super) fn lacks_change(
        &self,
        job: JobId,
        (known, count): (u64, u64),
        (from, to): (Timestamp, Timestamp),
    ) -> bool {
        let view = self.jobs.get(&job).filter(|view| count > known && view.key.is_some());
        let joined = || self.perhaps_joined(view?);
        count != known && self.excuse(Act::Any, from, to).or_else(joined).is_some()
    }

    /// Whether a call of unknown outcome may have triggered this task with this key.
    fn perhaps_called(&self, task: &TaskName, key: Option<&Key>) -> bool {
        let lossy: BTreeSet<&str> = self.processes.incomplete().collect();
        self.ops.iter().any(|((p, _), op)| {
            op.state == OpState::Unknown
                && (lossy.contains(p.as_str()) || !self.slack.is_zero())
                && (&op.task, op.key.as_ref()) == (task, key)
        })
    }

    /// Whether lines of calls are in the order in which they were written. Several processes are
    /// merged by store time, which calls do not have.
    #[must_use]
    pub fn knows_order(&self) -> bool {
        self.slack.is_zero() || self.processes.count() <= 1
    }

    /// Whether a commit (its store time and its line) came before the answer to a call, at line
    /// `answer`. True where the order is unknown.
    #[must_use]
    pub fn came_before(&self, from: (Timestamp, usize), op: &OpView, answer: usize) -> bool {
        if self.knows_order() {
            return from.1 < answer;
        }
        op.answered.is_none_or(|written| from.0 <= written + self.slack)
    }

    /// Whether everything that was accepted was to have run by the end.
    #[must_use]
    pub fn is_drained(&self) -> bool {
        self.healed.is_some() || self.has_rows
    }

    /// The job that a job's triggers are in at the end, however often it was absorbed.
    #[must_use]
    pub fn last_successor(&self, job: JobId) -> JobId {
        let mut last = job;
        // Chains end: a successor is younger than what it took in. A broken history may say otherwise.
        for _ in 0..self.jobs.len() {
            match self.jobs.get(&last).and_then(|view| view.successor) {
                Some((successor, _)) if successor != last => last = successor,
                _ => break,
            }
        }
        last
    }

    /// Takes an event; `at` is its index.
    pub fn take(&mut self, at: usize, line: &Line) {
        // A process that does harm may have a clock of its own.
        let by_store = !matches!(line.event, Event::Fault { .. } | Event::Heal { .. });
        let time = line.event.at().filter(|_| by_store);
        self.now = time.map_or(self.now, |t| t.max(self.now));
        let old = self.now.before(self.slack.saturating_mul(4).saturating_add(self.longest_call));
        while self.ended_lately.front().is_some_and(|(t, _)| *t < old) {
            self.ended_lately.pop_front();
        }
        self.seen_from = line.seen_from().unwrap_or(self.now);
        self.doubt(&line.event);
        self.take_event(at, line);
        if let Some(view) = job_of(&line.event).and_then(|job| self.jobs.get_mut(&job)) {
            view.seen_from = view.seen_from.max(self.seen_from);
        }
    }

    fn take_event(&mut self, at: usize, line: &Line) {
        match &line.event {
            Event::Window { .. } => self.window(at, &line.event),
            Event::Suppressed { t, job, count, .. } => {
                if let Some(view) = self.jobs.get_mut(job) {
                    view.suppressed.extend(view.count + 1..=*count);
                    view.joined(at, *t, *count);
                    view.lines.push(at);
                }
            }
            Event::Claimed { .. } => self.claimed(at, line),
            Event::Renew { job, token, until, .. } => {
                if let Some(view) = self.jobs.get_mut(job).filter(|view| view.token == *token) {
                    // A renewal that arrived twice is one.
                    if view.until != *until {
                        (view.until, view.renewed) = (*until, [at, view.renewed[0]]);
                    }
                    view.lines.push(at);
                }
            }
            Event::Expire { t, job, token, became, .. } => {
                self.ended(at, *t, *job, *token, *became, Spent::Nothing);
            }
            Event::Settle { t, job, token, outcome, became, .. } => {
                let spent = match outcome {
                    AttemptOutcome::Snoozed | AttemptOutcome::Released => Spent::Nothing,
                    AttemptOutcome::Failed
                    | AttemptOutcome::Panicked
                    | AttemptOutcome::TimedOut => Spent::Failure,
                    _ => Spent::Attempt,
                };
                self.ended(at, *t, *job, *token, *became, spent);
            }
            Event::Cancel { t, job } => {
                let token = self.jobs.get(job).map_or(LeaseToken::NONE, |view| view.token);
                self.ended(at, *t, *job, token, SettledAs::Cancelled, Spent::Attempt);
            }
            Event::Adjust { job, run_now, priority, .. } => {
                if let Some(view) = self.jobs.get_mut(job) {
                    view.run_now.extend(run_now.then_some(at));
                    view.reprioritised |= priority.is_some();
                    view.priority = priority.unwrap_or(view.priority);
                    view.lines.push(at);
                }
            }
            Event::Redrive { t, job, became, .. } => {
                if let Some(view) = self.jobs.get_mut(job) {
                    (view.attempt, view.failures, view.ended) = (0, 0, None);
                }
                let token = self.jobs.get(job).map_or(LeaseToken::NONE, |view| view.token);
                self.ended(at, *t, *job, token, *became, Spent::Attempt);
            }
            Event::Prune { job, .. } | Event::Discard { job, .. } => {
                if let Some(view) = self.jobs.get_mut(job) {
                    view.pruned = true;
                    view.lines.push(at);
                }
            }
            _ => self.take_rest(at, line),
        }
    }

    /// Marks a job whose events do not follow from each other, and its newest time.
    fn doubt(&mut self, event: &Event) {
        let Some((job, t)) = job_of(event).zip(event.at()) else { return };
        let Some(view) = self.jobs.get_mut(&job) else { return };
        view.doubted |=
            view.has_gap(event) && self.processes.lost(Act::Any, view.newest_at, t).is_some();
        // A refusal changes nothing: what ended the attempt may have come before it.
        if !matches!(event, Event::Settle { became: SettledAs::Refused, .. }) {
            view.newest_at = view.newest_at.max(t);
        }
    }

    fn take_rest(&mut self, at: usize, line: &Line) {
        match &line.event {
            Event::Queue { t, queue, settings } => self.set_queue(queue, settings.completed(), *t),
            Event::QueueDeleted { t, queue } => {
                let closed = QueueSettings { paused: true, ..QueueSettings::default() };
                self.set_queue(queue, closed, *t);
            }
            Event::TaskChanged { task, settings, .. } => {
                self.task_set.insert(task.clone(), self.seen_from);
                put(&mut self.paused, task.clone(), settings.paused);
            }
            Event::SetAside { job, .. } => self.becomes(at, *job, JobState::Unreadable),
            Event::Restored { job, state, .. } => self.becomes(at, *job, *state),
            Event::Import { .. } => self.imported(at, &line.event),
            Event::Worker { worker, tasks } => {
                self.workers.insert(worker.clone(), tasks.clone());
            }
            Event::Fault { what, whom, .. } if what != "stop" => {
                self.fault = Some(at);
                if what == "kill" {
                    self.killed.insert(whom.clone());
                }
            }
            Event::Heal { t } => self.healed = Some(*t),
            Event::Row { job, state, .. } => {
                if let Some(view) = self.jobs.get_mut(job) {
                    view.row = Some(*state);
                    view.lines.push(at);
                }
            }
            _ => {}
        }
    }

    fn set_queue(&mut self, queue: &QueueName, settings: QueueSettings, t: Timestamp) {
        let was = self.queues.insert(queue.clone(), settings.clone()).unwrap_or_default();
        self.queue_set.insert(queue.clone(), self.seen_from);
        self.starts.set(queue, &was, &settings, t);
    }

    /// The running jobs of a queue.
    pub(super) fn running_jobs_in<'b>(
        &'b self,
        queue: &'b QueueName,
    ) -> impl Iterator<Item = (JobId, &'b JobView)> {
        let views = self.running.iter().filter_map(|id| Some((*id, self.jobs.get(id)?)));
        views.filter(move |(_, view)| view.queue == *queue)
    }

    fn window(&mut self, at: usize, event: &Event) {
        let Event::Window {
            t,
            job,
            task,
            queue,
            partition,
            key,
            priority,
            first,
            count,
            due,
            bound,
            nb,
            reason,
            shape,
            ..
        } = event
        else {
            return;
        };
        let fresh = || JobView::new(task, queue, key.as_ref(), *t);
        let lossy = *first != *t
            && !self.jobs.contains_key(job)
            && self.processes.lost(Act::Any, Timestamp::MIN, *t).is_some();
        let view = self.jobs.entry(*job).or_insert_with(fresh);
        view.doubted |= lossy;
        // A window that is not complete may have missed how it came to wait again.
        view.state = JobState::Scheduled;
        let absorbs = view.absorbs(*count);
        if shape.closed && !view.shape.closed {
            view.closes.push((at, *t));
        }
        view.queue.clone_from(queue);
        view.partition.clone_from(partition);
        view.shape.clone_from(shape);
        (view.priority, view.first) = (*priority, *first);
        (view.due, view.nb, view.reason) = (*due, *nb, *reason);
        view.flushed |= view.count == *count && *bound < view.bound && !shape.closed;
        view.bound = *bound;
        if *count > view.count && absorbs.is_empty() {
            // R12: a join gives fresh attempts.
            view.attempt = 0;
            view.joined(at, *t, *count);
        }
        view.count = *count;
        view.awaits.clear();
        view.dues.push((at, *count, *due, *nb));
        view.lines.push(at);
        for taken in absorbs {
            if let Some(JobView { successor: Some((_, shown)), .. }) = self.jobs.get_mut(&taken) {
                *shown = Some(at);
            }
        }
        self.place(*job);
    }

    /// A dead job that came in: its triggers are another record's.
    fn imported(&mut self, at: usize, event: &Event) {
        let Event::Import { t, job, task, queue, key, first, count, .. } = event else { return };
        let mut view = JobView::new(task, queue, key.as_ref(), *t);
        (view.state, view.ended) = (JobState::Dead, Some((at, *t)));
        (view.first, view.count) = (*first, *count);
        view.lines.push(at);
        if let Some(key) = view.task_key() {
            *self.imported.entry(key).or_default() += count;
        }
        self.jobs.insert(*job, view);
        self.imported_jobs.insert(*job);
    }

    fn claimed(&mut self, at: usize, line: &Line) {
        let Event::Claimed {
            t,
            job,
            token,
            task,
            queue,
            key,
            worker,
            count,
            due,
            until,
            attempt,
            ..
        } = &line.event
        else {
            return;
        };
        let fresh = || JobView::new(task, queue, key.as_ref(), *t);
        let lossy = !self.jobs.contains_key(job)
            && self.processes.lost(Act::Any, Timestamp::MIN, *t).is_some();
        let view = self.jobs.entry(*job).or_insert_with(fresh);
        view.doubted |= lossy;
        view.state = JobState::Running;
        // Where events may be missing, the store's word is the only one.
        view.attempt = if view.doubted { *attempt } else { view.attempt.saturating_add(1) };
        view.newest_at = *t;
        (view.token, view.until, view.renewed) = (*token, *until, [at, at]);
        (view.worker, view.by) = (Some(worker.clone()), line.p.clone());
        view.claims.push(ClaimView {
            at,
            t: *t,
            token: *token,
            count: *count,
            first: view.first,
            due: view.due,
            store_due: *due,
            reason: view.reason,
            end: None,
        });
        view.lines.push(at);
        if self.queues.get(queue).is_some_and(QueueSettings::limits_rate) {
            self.starts.record(queue, view.partition.as_ref(), *t);
        }
        self.place(*job);
    }

    /// The jobs whose attempts ended so shortly before `t` that a claim may have met them running.
    pub(super) fn ended_lately(&self, t: Timestamp) -> impl Iterator<Item = &JobView> {
        let since = t.before(self.slack);
        let lately = self.ended_lately.iter().filter(move |(seen_from, _)| *seen_from >= since);
        lately.filter_map(|(_, job)| self.jobs.get(job))
    }

    /// The end of an attempt, or of a job that waited, or the return of a dead one.
    fn ended(
        &mut self,
        at: usize,
        t: Timestamp,
        job: JobId,
        token: LeaseToken,
        became: SettledAs,
        spent: Spent,
    ) {
        let Some(view) = self.jobs.get_mut(&job) else { return };
        view.lines.push(at);
        if became == SettledAs::Refused {
            return;
        }
        let running = view.state == JobState::Running;
        if let Some(claim) = view.claims.iter_mut().rfind(|claim| claim.token == token)
            && running
        {
            claim.end = Some((at, t, became));
            view.end_seen = Some((token, self.seen_from));
            if !self.slack.is_zero() {
                self.ended_lately.push_back((self.seen_from, job));
            }
        }
        match spent {
            Spent::Nothing => view.attempt = view.attempt.saturating_sub(1),
            Spent::Failure => view.failures = view.failures.saturating_add(1),
            Spent::Attempt => {}
        }
        view.state = match became {
            SettledAs::Succeeded => JobState::Succeeded,
            SettledAs::Dead => JobState::Dead,
            SettledAs::Cancelled => JobState::Cancelled,
            SettledAs::Absorbed { .. } => JobState::Absorbed,
            _ => JobState::Scheduled,
        };
        if view.state.is_ended() {
            view.ended.get_or_insert((at, t));
        }
        let (count, failures, doubted) = (view.count, view.failures, view.doubted);
        match became {
            SettledAs::Scheduled { due } => view.due = due,
            SettledAs::Absorbed { by, .. } => {
                view.successor = Some((by, None));
                if let Some(successor) = self.jobs.get_mut(&by) {
                    successor.awaits.push((job, count));
                    successor.failures = successor.failures.max(failures);
                    successor.doubted |= doubted;
                    successor.newest_at = successor.newest_at.max(t);
                    successor.seen_from = successor.seen_from.max(self.seen_from);
                }
            }
            _ => {}
        }
        self.place(job);
    }

    /// A row that cannot be decoded, or can be again.
    fn becomes(&mut self, at: usize, job: JobId, state: JobState) {
        if let Some(view) = self.jobs.get_mut(&job) {
            view.state = state;
            view.lines.push(at);
        }
        self.place(job);
    }

    /// Keeps the sets of waiting and running jobs true.
    fn place(&mut self, id: JobId) {
        let Some(view) = self.jobs.get(&id) else { return };
        let (waits, runs) = (view.state == JobState::Scheduled, view.state == JobState::Running);
        put(&mut self.running, id, runs);
        put(&mut self.scheduled, id, waits);
        if let Some(key) = &view.key {
            let (key, is_closed) = ((view.task.clone(), key.clone()), view.shape.closed);
            put(self.open.entry(key.clone()).or_default(), id, waits && !is_closed);
            put(self.closed.entry(key).or_default(), id, waits && is_closed);
        }
    }

    pub(super) fn summary(&self) -> Report {
        let attempts = self.jobs.values().map(|view| view.claims.len()).sum();
        let waits = |job: &JobId| {
            let last = self.jobs.get(&self.last_successor(*job));
            last.is_some_and(|view| !view.state.is_ended())
        };
        let pending = self.triggers.keys().filter(|trigger| waits(&trigger.job)).count();
        let incomplete = self.processes.incomplete().map(ToOwned::to_owned).collect();
        let (accepted, processes) = (self.triggers.len(), self.processes.count());
        Report { attempts, accepted, pending, processes, incomplete, ..Report::default() }
    }
}

fn put<T: Ord>(set: &mut BTreeSet<T>, id: T, is_in: bool) {
    if is_in {
        set.insert(id);
    } else {
        set.remove(&id);
    }
}

/// What the end of an attempt costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Spent {
    Nothing,
    Attempt,
    Failure,
}
