//! A job, its states, and the moves between them.
//!
//! No other move exists (see "Words" in docs/semantics.md); each function here is one of them and
//! refuses the rest. Stores that keep rows load a [`Job`], call the move, and write it back; where
//! they restate a move in their own language, tests compare the two.

mod adjust;
mod explain;
mod shape;

use serde::{Deserialize, Serialize};

pub use crate::attempt::{Attempt, AttemptOutcome};
use crate::attempt::{FailureKind, Outcome, SettledAs, clipped};
use crate::codes::codes;
use crate::edge::{Edge, KeyMemory};
use crate::payload::{elements_of, present};
use crate::trace::Traces;
use crate::window::{DueReason, Window};
pub use adjust::{Adjusted, Adjustment};
pub use explain::{Explanation, KeyAdvice, describe_reason};
pub use shape::Shape;

use crate::{
    Claim, Error, ErrorKind, JobId, Key, LeaseToken, Payload, QueueName, Result, TaskName,
    Timestamp, TriggerId, WorkerId,
};

/// Where a job is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JobState {
    /// It waits to be due, gathering triggers where it has a debounce key.
    Scheduled,
    /// A worker holds its lease.
    Running,
    /// An attempt ended well.
    Succeeded,
    /// No further attempt comes: it waits until an operator redrives or discards it.
    Dead,
    /// Ended on request.
    Cancelled,
    /// It failed and joined a newer window of its key (R12).
    Absorbed,
    /// Set aside: its row cannot be decoded by the process that met it (R25).
    Unreadable,
}

codes!(JobState, "state");

impl JobState {
    /// Every state, in the order of their codes.
    pub const ALL: [JobState; 7] = [
        JobState::Scheduled,
        JobState::Running,
        JobState::Succeeded,
        JobState::Dead,
        JobState::Cancelled,
        JobState::Absorbed,
        JobState::Unreadable,
    ];

    /// Whether no attempt will come any more, unless an operator redrives it.
    #[must_use]
    pub fn is_ended(self) -> bool {
        !matches!(self, JobState::Scheduled | JobState::Running)
    }

    /// Whether the contract knows the move from `self` to `to`.
    #[must_use]
    pub fn may_become(self, to: JobState) -> bool {
        use JobState::{Absorbed, Cancelled, Dead, Running, Scheduled, Succeeded, Unreadable};
        match self {
            Scheduled => matches!(to, Running | Cancelled | Absorbed | Unreadable),
            Running => to != Running,
            Dead => matches!(to, Scheduled | Unreadable),
            Succeeded | Cancelled | Absorbed => to == Unreadable,
            // A process that can decode the row puts it back where it was; what ran runs again.
            Unreadable => !matches!(to, Running | Unreadable),
        }
    }

    /// The state's name, as shown and as used in metric labels.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            JobState::Scheduled => "scheduled",
            JobState::Running => "running",
            JobState::Succeeded => "succeeded",
            JobState::Dead => "dead",
            JobState::Cancelled => "cancelled",
            JobState::Absorbed => "absorbed",
            JobState::Unreadable => "unreadable",
        }
    }
}

impl std::fmt::Display for JobState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// The unit that runs: one trigger, or the many that a debounce window gathered.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Job {
    /// Its id.
    pub id: JobId,
    /// The task it runs.
    pub task: TaskName,
    /// The queue it waits in.
    pub queue: QueueName,
    /// The partition of the queue that it belongs to, if any (R31).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partition: Option<Key>,
    /// Its debounce key, if any.
    pub key: Option<Key>,
    /// Higher runs first.
    pub priority: i16,
    /// Where it is in its life.
    pub state: JobState,
    /// The folded payload of its triggers.
    pub payload: Payload,
    /// Its triggers' times and when it is due.
    pub window: Window,
    /// What it keeps of its policy.
    pub shape: Shape,
    /// Whether an attempt of its key runs, so that it may not start (R11).
    pub waits: bool,
    /// Triggers that a leading edge recorded here and did not run (R13).
    pub suppressed: u64,
    /// Attempts spent since it was accepted, joined or redriven.
    pub attempt: u32,
    /// The key's failures in a row; it sets the backoff (R12).
    pub failures: u32,
    /// The fence of the current or last attempt, which counts every start there ever was.
    pub token: LeaseToken,
    /// Its crashes in a row: how often its lease expired because its worker was gone, since an
    /// attempt of it last reported (R25).
    // The name in stores and histories.
    #[serde(rename = "lapses")]
    pub crashes: u32,
    /// The worker of the current or last attempt.
    pub worker: Option<WorkerId>,
    /// When the lease expires, while it runs.
    pub lease_until: Option<Timestamp>,
    /// The start of the current or last attempt.
    pub started_at: Option<Timestamp>,
    /// When it ended.
    pub ended_at: Option<Timestamp>,
    /// The window that took it in, once absorbed.
    pub absorbed_by: Option<JobId>,
    /// What the last failed attempt said.
    pub error: Option<String>,
    /// What its handler returned, once it has succeeded (R19).
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "present")]
    pub output: Option<Payload>,
    /// The trace contexts of its first triggers that have one (R42).
    #[serde(default, skip_serializing_if = "Traces::is_empty")]
    pub traces: Traces,
}

impl Job {
    /// A scheduled job without a debounce key that has not started; set what differs.
    ///
    /// ```
    /// use quell_core::window::Window;
    /// use quell_core::{Job, JobId, JobState, Payload, QueueName, TaskName, Timestamp};
    ///
    /// let (task, queue) = (TaskName::new("mail")?, QueueName::new("default")?);
    /// let window = Window::unkeyed(Timestamp::from_secs(5), Timestamp::MIN);
    /// let mut job = Job::new(JobId::new(1), task, queue, Payload::encode(&7)?, window);
    /// assert_eq!(job.state, JobState::Scheduled);
    /// job.state = JobState::Cancelled;
    /// # Ok::<(), quell_core::Error>(())
    /// ```
    #[must_use]
    pub fn new(
        id: JobId,
        task: TaskName,
        queue: QueueName,
        payload: Payload,
        window: Window,
    ) -> Self {
        Job {
            id,
            task,
            queue,
            partition: None,
            key: None,
            priority: 0,
            state: JobState::Scheduled,
            payload,
            window,
            shape: Shape::default(),
            waits: false,
            suppressed: 0,
            attempt: 0,
            failures: 0,
            token: LeaseToken::NONE,
            crashes: 0,
            worker: None,
            lease_until: None,
            started_at: None,
            ended_at: None,
            absorbed_by: None,
            error: None,
            output: None,
            traces: Traces::default(),
        }
    }

    /// The same job under another id.
    #[must_use]
    pub fn with_id(self, id: JobId) -> Self {
        Job { id, ..self }
    }

    /// The same job in another state; a store's moves are the methods of [`job`](crate::job).
    #[must_use]
    pub fn with_state(self, state: JobState) -> Self {
        Job { state, ..self }
    }
}

impl Job {
    /// How often it started.
    #[must_use]
    pub fn starts(&self) -> u64 {
        self.token.starts()
    }

    /// The id of the newest trigger it counted.
    #[must_use]
    pub fn newest_trigger(&self) -> TriggerId {
        TriggerId { job: self.id, seq: self.window.triggers }
    }

    /// The attempt that is on its own row: the one that runs, or the one that succeeded. All others
    /// are on record on their own.
    #[must_use]
    pub fn attempt_on_row(&self) -> Option<Attempt> {
        let (ended_at, outcome) = match self.state {
            JobState::Running => (None, None),
            JobState::Succeeded => (self.ended_at, Some(AttemptOutcome::Succeeded)),
            JobState::Scheduled
            | JobState::Dead
            | JobState::Cancelled
            | JobState::Absorbed
            | JobState::Unreadable => return None,
        };
        Some(Attempt {
            token: self.token,
            worker: self.worker.clone()?,
            started_at: self.started_at?,
            ended_at,
            outcome,
            error: None,
        })
    }

    /// Whether it is a window that triggers of its key join.
    #[must_use]
    pub fn is_open_window(&self) -> bool {
        self.state == JobState::Scheduled && self.key.is_some() && !self.shape.closed
    }

    /// Whether its last error has this text, without regard to ASCII case.
    #[must_use]
    pub fn error_contains(&self, text: &str) -> bool {
        let error = self.error.as_deref().unwrap_or_default().to_ascii_lowercase();
        error.contains(&text.to_ascii_lowercase())
    }

    /// Whether it is a full window that waits for its run (R10). Newer windows of its key run after
    /// it (R11).
    #[must_use]
    pub fn is_closed_window(&self) -> bool {
        self.state == JobState::Scheduled && self.key.is_some() && self.shape.closed
    }

    /// Closes the open window, which is due now and takes no further trigger (R10).
    pub(crate) fn close(&mut self, now: Timestamp) {
        assert!(self.is_open_window(), "job {} is closed but is no open window", self.id);
        self.window = self.window.close(now);
        self.shape.closed = true;
    }

    /// The elements of its payload, were it collected.
    pub(crate) fn elements(&self) -> u64 {
        if self.shape.fold.collects() {
            let run = self.window.triggers.saturating_sub(self.suppressed);
            run.saturating_add_signed(self.shape.surplus)
        } else {
            elements_of(&self.payload)
        }
    }

    /// Keeps the number of its elements, where nothing else says it.
    pub(crate) fn count_elements(&mut self, elements: u64) {
        let run = self.window.triggers.saturating_sub(self.suppressed);
        let signed = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
        let surplus = signed(elements).saturating_sub(signed(run));
        self.shape.surplus = if self.shape.fold.collects() { surplus } else { 0 };
    }

    /// Whether a worker may start it at `now`.
    #[must_use]
    pub fn may_start(&self, now: Timestamp) -> bool {
        self.state == JobState::Scheduled && !self.waits && self.window.due_at <= now
    }

    /// Whether `token` is the fence of its running attempt and the lease has not expired (R21).
    #[must_use]
    pub fn is_held_by(&self, token: LeaseToken, now: Timestamp) -> bool {
        self.state == JobState::Running
            && self.token == token
            && self.lease_until.is_some_and(|until| now < until)
    }

    /// scheduled → running, under a fresh lease.
    ///
    /// # Panics
    /// When [`Job::may_start`] says no: the store's claim is broken, and the call must not go on.
    pub fn start(&mut self, now: Timestamp, claim: &Claim) {
        assert!(self.may_start(now), "job {} was started before it might", self.id);
        self.state = JobState::Running;
        self.token = self.token.next(claim.draw);
        self.attempt = self.attempt.saturating_add(1);
        self.worker = Some(claim.worker.clone());
        self.started_at = Some(now);
        self.lease_until = Some(now + claim.lease);
    }

    /// Ends the running attempt; `successor` is the key's next window, if there is one: that with
    /// the smallest id (R10, R12). It changes where it absorbs this job or waits for it.
    ///
    /// The caller has checked the fence with [`Job::is_held_by`].
    ///
    /// # Panics
    /// When the job does not run, or `successor` is not a window of its key.
    pub fn settle(
        &mut self,
        now: Timestamp,
        outcome: &Outcome,
        successor: Option<&mut Job>,
    ) -> SettledAs {
        assert!(self.state == JobState::Running, "job {} is settled but does not run", self.id);
        self.lease_until = None;
        match outcome {
            Outcome::Succeeded { output } => {
                self.failures = 0;
                self.output.clone_from(output);
                self.end(now, JobState::Succeeded);
                SettledAs::Succeeded
            }
            Outcome::Cancelled { reason } => {
                self.error = Some(clipped(reason));
                self.end(now, JobState::Cancelled);
                SettledAs::Cancelled
            }
            Outcome::Failed(failure) | Outcome::InTransaction(failure) => {
                self.failures = self.failures.saturating_add(1);
                self.crashes = 0;
                self.error = Some(failure.clipped());
                match failure.kind {
                    FailureKind::Permanent => self.bury(now),
                    FailureKind::Transient { backoff, last, .. } => {
                        let due = now + backoff;
                        let joins =
                            successor.as_deref().is_some_and(|successor| self.fits_into(successor));
                        if last && !joins {
                            self.bury(now)
                        } else {
                            self.go_back(now, due, DueReason::Backoff, successor)
                        }
                    }
                }
            }
            Outcome::Snoozed { delay } => {
                self.crashes = 0;
                self.attempt = self.attempt.saturating_sub(1);
                self.go_back(now, now + *delay, DueReason::Snoozed, successor)
            }
            Outcome::Released => {
                self.attempt = self.attempt.saturating_sub(1);
                // R30: it keeps its place in the queue.
                let due = self.window.due_at.min(now);
                self.go_back(now, due, DueReason::Released, successor)
            }
        }
    }

    /// running → scheduled because the lease expired (R21); no attempt is spent. An expiry that is
    /// a [crash](crate::crash::is_crash) is counted, and from the second in a row on the job waits
    /// before it runs again (R25). Any other expiry leaves the count as it is.
    ///
    /// # Panics
    /// When the job does not run, or `successor` is not a window of its key.
    pub fn expire_lease(
        &mut self,
        now: Timestamp,
        crash: bool,
        successor: Option<&mut Job>,
    ) -> SettledAs {
        assert!(
            self.state == JobState::Running,
            "the lease of job {} expired, but the job does not run",
            self.id
        );
        self.lease_until = None;
        self.attempt = self.attempt.saturating_sub(1);
        let mut pause = std::time::Duration::ZERO;
        if crash {
            self.crashes = self.crashes.saturating_add(1);
            let ran = self.started_at.map(|started_at| now.since(started_at)).unwrap_or_default();
            pause = crate::crash::pause(self.crashes, self.id, ran);
        }
        self.go_back(now, now + pause, DueReason::LeaseExpired, successor)
    }

    /// Ends a job that waits or runs, on request.
    ///
    /// # Errors
    /// [`ErrorKind::IllegalMove`] when it has ended already.
    pub fn cancel(&mut self, now: Timestamp, reason: &str) -> Result<()> {
        if !self.state.may_become(JobState::Cancelled) {
            let (id, state) = (self.id, self.state);
            let message = format!("job {id} is {state}: it cannot be cancelled any more");
            return Err(Error::new(ErrorKind::IllegalMove, message));
        }
        self.lease_until = None;
        self.error = Some(clipped(reason));
        self.end(now, JobState::Cancelled);
        Ok(())
    }

    /// dead → scheduled with fresh attempts, or into the key's open window (R26). A payload takes
    /// the place of its own; returned beside is the one before, where it differs.
    ///
    /// # Errors
    /// [`ErrorKind::IllegalMove`] when it is not dead, [`ErrorKind::Invalid`] for a payload that
    /// later ones could not be gathered into.
    ///
    /// # Panics
    /// When `successor` is not a window of its key.
    pub fn redrive(
        &mut self,
        now: Timestamp,
        payload: Option<&Payload>,
        successor: Option<&mut Job>,
    ) -> Result<(SettledAs, Option<Payload>)> {
        if self.state != JobState::Dead {
            let (id, state) = (self.id, self.state);
            let message = format!("job {id} is {state}: only a dead job can be redriven");
            return Err(Error::new(ErrorKind::IllegalMove, message));
        }
        let before = payload.map(|payload| self.edit(payload)).transpose()?.flatten();
        if self.shape.fold.collects() {
            self.count_elements(elements_of(&self.payload));
        }
        self.attempt = 0;
        self.failures = 0;
        self.crashes = 0;
        self.ended_at = None;
        Ok((self.go_back(now, now, DueReason::Redriven, successor), before))
    }

    /// unreadable → where it was, now that its row can be decoded (R25). An attempt that ran lost
    /// its lease without being spent; a window joins the newer one of its key (R12).
    ///
    /// # Panics
    /// When the job is not unreadable, or `successor` is not a window of its key.
    pub fn restore(&mut self, now: Timestamp, was: JobState, successor: Option<&mut Job>) {
        assert!(self.state == JobState::Unreadable, "job {} is restored but readable", self.id);
        self.lease_until = None;
        match was {
            JobState::Scheduled => {
                let was = self.clone();
                let (not_before, reason) = (self.window.not_before, self.window.reason);
                let comes_first = successor.is_some();
                self.go_back(now, not_before, reason, successor);
                if self.state == JobState::Scheduled {
                    // It waits as it did, before windows that it does not fit into.
                    self.window = if comes_first { was.window.close(now) } else { was.window };
                    self.shape.closed |= was.shape.closed;
                }
            }
            JobState::Running | JobState::Unreadable => {
                self.attempt = self.attempt.saturating_sub(1);
                self.go_back(now, now, DueReason::Released, successor);
            }
            JobState::Succeeded | JobState::Dead | JobState::Cancelled | JobState::Absorbed => {
                self.state = was;
            }
        }
    }

    /// Applies to a job that went back to scheduled what holds its key back: whether an attempt still runs or an
    /// older window waits (R11), and the period since the key's last start, whichever
    /// job that was (R13).
    pub fn apply_key(
        &mut self,
        now: Timestamp,
        key_is_busy: bool,
        memory: Option<&KeyMemory>,
    ) -> SettledAs {
        self.waits = key_is_busy && !self.shape.overlap;
        let memory = memory.filter(|memory| now < memory.expires_at);
        if let (Edge::Throttle, Some(period), Some(memory)) =
            (self.shape.edge, self.shape.period, memory)
        {
            let free_at = memory.started_at + period;
            if self.window.due_at < free_at {
                self.window = self.window.requeue(free_at, DueReason::Throttled);
            }
        }
        SettledAs::Scheduled { due: self.window.due_at }
    }

    /// The payload of the key's next window once it has absorbed this job, and the number of its
    /// elements; none where that window is closed or would exceed its bounds (R10).
    fn folded_into(&self, next: &Job) -> Option<(Payload, u64)> {
        if next.shape.closed {
            return None;
        }
        let fold = &next.shape.fold;
        let payload = fold.absorb(&self.payload, &next.payload);
        let both = || self.elements().saturating_add(next.elements());
        let elements = if fold.collects() { both() } else { 1 };
        next.shape.may_hold(&payload, elements).then_some((payload, elements))
    }

    fn fits_into(&self, next: &Job) -> bool {
        self.folded_into(next).is_some()
    }

    /// Back to scheduled, or into the next window of its key (R12). Where it does not fit into
    /// that, it is a closed window, and of the two the one with the smaller id runs first (R10).
    fn go_back(
        &mut self,
        now: Timestamp,
        not_before: Timestamp,
        reason: DueReason,
        next: Option<&mut Job>,
    ) -> SettledAs {
        self.shape.closed = next.is_some();
        let folded = next.as_deref().and_then(|next| self.folded_into(next));
        let (successor, payload, elements) = match (next, folded) {
            (Some(successor), Some((payload, elements))) => (successor, payload, elements),
            (next, _) => {
                self.state = JobState::Scheduled;
                self.window = self.window.requeue(not_before, reason);
                if let Some(next) = next {
                    next.waits |= self.id < next.id && !next.shape.overlap;
                }
                return SettledAs::Scheduled { due: self.window.due_at };
            }
        };
        assert!(
            successor.is_open_window() && successor.key == self.key && successor.task == self.task,
            "job {} cannot be absorbed by job {}",
            self.id,
            successor.id
        );
        self.shape.closed = false;
        successor.window = successor.window.absorb(&self.window, not_before);
        successor.payload = payload;
        successor.priority = successor.priority.max(self.priority);
        successor.failures = successor.failures.max(self.failures);
        successor.crashes = successor.crashes.max(self.crashes);
        successor.suppressed = successor.suppressed.saturating_add(self.suppressed);
        successor.count_elements(elements);
        let later = std::mem::replace(&mut successor.traces, self.traces.clone());
        successor.traces.append(&later);
        self.absorbed_by = Some(successor.id);
        self.end(now, JobState::Absorbed);
        SettledAs::Absorbed { by: successor.id, due: successor.window.due_at }
    }

    fn bury(&mut self, now: Timestamp) -> SettledAs {
        self.end(now, JobState::Dead);
        SettledAs::Dead
    }

    fn end(&mut self, now: Timestamp, state: JobState) {
        self.state = state;
        self.waits = false;
        self.ended_at = Some(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_moves_of_the_contract_exist() {
        use JobState::{Absorbed, Cancelled, Dead, Running, Scheduled, Succeeded, Unreadable};
        let mut moves = vec![
            (Scheduled, Running),
            (Scheduled, Cancelled),
            (Scheduled, Absorbed),
            (Running, Scheduled),
            (Running, Succeeded),
            (Running, Dead),
            (Running, Cancelled),
            (Running, Absorbed),
            (Dead, Scheduled),
        ];
        let readable = JobState::ALL.into_iter().filter(|state| *state != Unreadable);
        for state in readable {
            moves.push((state, Unreadable));
            moves.extend((state != Running).then_some((Unreadable, state)));
        }
        for from in JobState::ALL {
            for to in JobState::ALL {
                // A redrive may join an open window, which the dead job reaches by way of
                // scheduled.
                assert_eq!(from.may_become(to), moves.contains(&(from, to)), "{from} to {to}");
            }
        }
    }

    #[test]
    fn codes_round_trip() {
        for state in JobState::ALL {
            assert_eq!(JobState::from_code(state.code()), Some(state));
        }
        for outcome in AttemptOutcome::ALL {
            assert_eq!(AttemptOutcome::from_code(outcome.code()), Some(outcome));
        }
    }

    fn job() -> Job {
        let trigger = crate::NewTrigger::new(
            TaskName::new("t").unwrap(),
            QueueName::new("q").unwrap(),
            Payload::from_stored("1"),
        );
        Job::unkeyed(JobId::new(1), &trigger, Timestamp::from_secs(10))
    }

    #[test]
    fn a_job_may_start_when_it_is_scheduled_due_and_alone() {
        let now = Timestamp::from_secs(10);
        assert!(job().may_start(now));
        assert!(!job().may_start(Timestamp::from_secs(9)));
        assert!(!Job { waits: true, ..job() }.may_start(now));
        assert!(!Job { state: JobState::Running, ..job() }.may_start(now));
    }

    #[test]
    fn an_open_window_is_scheduled_and_has_a_key() {
        let keyed = || Job { key: Some(Key::new("k").unwrap()), ..job() };
        assert!(keyed().is_open_window());
        assert!(!job().is_open_window() && !keyed().is_closed_window());
        let full = || Shape { closed: true, ..Shape::default() };
        let closed = || Job { shape: full(), ..keyed() };
        assert!(closed().is_closed_window() && !closed().is_open_window());
        assert!(!Job { state: JobState::Running, ..closed() }.is_closed_window());
        assert!(!Job { state: JobState::Running, ..keyed() }.is_open_window());
    }

    #[test]
    fn r13_a_job_that_goes_back_heeds_the_throttle_until_its_period_ends() {
        let period = std::time::Duration::from_secs(20);
        let shape = Shape { edge: Edge::Throttle, period: Some(period), ..Shape::default() };
        let throttled = Job { shape, ..job() };
        let (start, end) = (Timestamp::from_secs(0), Timestamp::from_secs(20));
        let memory = crate::edge::remember_start(JobId::new(1), start, period);
        let heeds = |due: i64, now: i64, memory| {
            let mut job = throttled.clone();
            job.window = job.window.requeue(Timestamp::from_secs(due), DueReason::Backoff);
            job.apply_key(Timestamp::from_secs(now), false, Some(&memory));
            (job.window.due_at, job.window.reason)
        };
        assert_eq!(heeds(12, 11, memory), (end, DueReason::Throttled));
        assert_eq!(heeds(20, 11, memory), (end, DueReason::Backoff));
        let gone = crate::edge::KeyMemory { expires_at: Timestamp::from_secs(11), ..memory };
        assert_eq!(heeds(12, 11, gone), (Timestamp::from_secs(12), DueReason::Backoff));
    }
}
