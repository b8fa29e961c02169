//! One job and one call, as a history shows them.

use std::collections::BTreeSet;

use quell_core::dedup::HoldUntil;
use quell_core::history::Event;
use quell_core::idempotency::Idempotency;
use quell_core::job::Shape;
use quell_core::trace::TraceContext;
use quell_core::trigger::When;
use quell_core::window::{Debounce, DueReason};
use quell_core::{
    Fold, JobId, JobState, Key, LeaseToken, Payload, QueueName, Receipt, SettledAs, TaskName,
    Timestamp, WorkerId,
};

/// A call, by its process and number.
pub type OpId = (String, u64);
/// A debounce or dedup key is its task's own.
pub type TaskKey = (TaskName, Key);

/// What became of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OpState {
    /// No answer is on record, or its outcome is unknown: it may have been accepted.
    Unknown,
    /// It was answered, in this line.
    Answered(Receipt, usize),
    /// It was surely not accepted.
    Failed,
}

/// One call to trigger.
#[derive(Clone, Debug)]
pub struct OpView {
    /// The line of the call.
    pub at: usize,
    /// The store's time when it was made, as far as events show.
    pub since: Timestamp,
    /// The task.
    pub task: TaskName,
    /// Its queue, where that is on record.
    pub queue: Option<QueueName>,
    /// Its priority, where that is on record.
    pub priority: Option<i16>,
    /// Its debounce key.
    pub key: Option<Key>,
    /// Its dedup key.
    pub dedup: Option<Key>,
    /// How long that was asked for.
    pub hold: Option<HoldUntil>,
    /// Its idempotency key, and the fingerprint of its payload.
    pub idempotency: Option<(Idempotency, String)>,
    /// The debounce policy it brought.
    pub debounce: Option<Debounce>,
    /// The delay it asked for.
    pub when: When,
    /// How its payload is folded.
    pub fold: Option<Fold>,
    /// Its payload.
    pub payload: Option<Payload>,
    /// Its trace context.
    pub trace: Option<TraceContext>,
    /// What became of it.
    pub state: OpState,
    /// When its answer was written, on its host's clock.
    pub answered: Option<Timestamp>,
}

/// One claim of a job.
#[derive(Clone, Debug)]
pub struct ClaimView {
    /// The line.
    pub at: usize,
    /// Store time.
    pub t: Timestamp,
    /// The fence.
    pub token: LeaseToken,
    /// How many triggers the attempt covers.
    pub count: u64,
    /// The window's first trigger at that time.
    pub first: Timestamp,
    /// When it was due, as the book had it.
    pub due: Timestamp,
    /// When it was due, as the store had it: at another time where a change of the window is missing.
    pub store_due: Timestamp,
    /// Why.
    pub reason: DueReason,
    /// How the attempt ended: where, when, and as what.
    pub end: Option<(usize, Timestamp, SettledAs)>,
}

/// Triggers that a change of a window took in.
#[derive(Clone, Copy, Debug)]
pub struct Joined {
    /// The line.
    pub at: usize,
    /// Store time.
    pub t: Timestamp,
    /// The count before.
    pub after: u64,
    /// The count with them.
    pub upto: u64,
}

/// One job.
#[derive(Clone, Debug)]
pub struct JobView {
    /// The task.
    pub task: TaskName,
    /// Its queue.
    pub queue: QueueName,
    /// The partition of the queue that it belongs to.
    pub partition: Option<Key>,
    /// Its debounce key.
    pub key: Option<Key>,
    /// Higher runs first.
    pub priority: i16,
    /// Its state.
    pub state: JobState,
    /// What it keeps of its policy.
    pub shape: Shape,
    /// The window's first trigger.
    pub first: Timestamp,
    /// How many triggers it counts.
    pub count: u64,
    /// Triggers of a leading edge that it counts and does not run, by their place.
    pub suppressed: BTreeSet<u64>,
    /// When it is due.
    pub due: Timestamp,
    /// No later than this, but for a backoff.
    pub bound: Option<Timestamp>,
    /// Whether someone flushed the window: its bound moved without a trigger.
    pub flushed: bool,
    /// The lines in which an operator made it due: no quiet period and no backoff held it then.
    pub run_now: Vec<usize>,
    /// Whether an operator set its priority: what the calls asked for counts no more.
    pub reprioritised: bool,
    /// No earlier than this.
    pub nb: Timestamp,
    /// Why it is due then.
    pub reason: DueReason,
    /// The newest fence.
    pub token: LeaseToken,
    /// When the newest lease expires.
    pub until: Timestamp,
    /// The lines of the claim or renewal that set that, and of the one before.
    pub renewed: [usize; 2],
    /// Who runs it.
    pub worker: Option<WorkerId>,
    /// The process of the newest claim.
    pub by: String,
    /// The attempts that were spent.
    pub attempt: u32,
    /// The failures in a row.
    pub failures: u32,
    /// Where triggers came in, oldest first.
    pub joins: Vec<Joined>,
    /// Every claim, oldest first.
    pub claims: Vec<ClaimView>,
    /// Where it was closed, and when (R10).
    pub closes: Vec<(usize, Timestamp)>,
    /// Each change of due: the line, the count, due and not before.
    pub dues: Vec<(usize, u64, Timestamp, Timestamp)>,
    /// Jobs that it took in and that its count does not show yet, with their counts.
    pub awaits: Vec<(JobId, u64)>,
    /// The job that took it in, and the line in which that job's count shows it.
    pub successor: Option<(JobId, Option<usize>)>,
    /// When it ended.
    pub ended: Option<(usize, Timestamp)>,
    /// Whether its row was removed after its retention.
    pub pruned: bool,
    /// Its row at the end.
    pub row: Option<JobState>,
    /// The time of the newest event about it.
    pub newest_at: Timestamp,
    /// When its newest event was visible to every process.
    pub seen_from: Timestamp,
    /// The attempt that ended last, and when that was visible to every process.
    pub end_seen: Option<(LeaseToken, Timestamp)>,
    /// Whether its events do not follow from each other: some are missing, or a rule is broken.
    pub doubted: bool,
    /// No start before this: the end of the backoff of the newest failure, by the policy.
    pub backs_off: Timestamp,
    /// The lines about it.
    pub lines: Vec<usize>,
}

impl JobView {
    pub(super) fn new(
        task: &TaskName,
        queue: &QueueName,
        key: Option<&Key>,
        first: Timestamp,
    ) -> Self {
        JobView {
            task: task.clone(),
            queue: queue.clone(),
            partition: None,
            key: key.cloned(),
            priority: 0,
            state: JobState::Scheduled,
            shape: Shape::default(),
            first,
            count: 0,
            suppressed: BTreeSet::new(),
            due: first,
            bound: None,
            flushed: false,
            run_now: Vec::new(),
            reprioritised: false,
            nb: Timestamp::MIN,
            reason: DueReason::Immediate,
            token: LeaseToken::NONE,
            until: Timestamp::MIN,
            renewed: [0; 2],
            worker: None,
            by: String::new(),
            attempt: 0,
            failures: 0,
            joins: Vec::new(),
            claims: Vec::new(),
            closes: Vec::new(),
            dues: Vec::new(),
            awaits: Vec::new(),
            successor: None,
            ended: None,
            pruned: false,
            row: None,
            newest_at: first,
            seen_from: first,
            end_seen: None,
            doubted: false,
            backs_off: Timestamp::MIN,
            lines: Vec::new(),
        }
    }

    /// Its key among all, where it has one.
    #[must_use]
    pub fn task_key(&self) -> Option<TaskKey> {
        Some((self.task.clone(), self.key.clone()?))
    }

    /// Whether the line is the first about it.
    #[must_use]
    pub fn opened(&self, at: usize) -> bool {
        self.lines.first() == Some(&at)
    }

    /// Whether it was a closed window at `t` that had not started.
    #[must_use]
    pub fn waits_closed(&self, t: Timestamp) -> bool {
        let started =
            |closed: Timestamp| self.claims.iter().any(|claim| closed <= claim.t && claim.t <= t);
        self.closes.iter().any(|(_, closed)| *closed <= t && !started(*closed))
    }

    /// When the trigger of this place came in.
    #[must_use]
    pub fn joined_at(&self, seq: u64) -> Option<Joined> {
        self.joins.iter().find(|joined| joined.after < seq && seq <= joined.upto).copied()
    }

    /// Whether `event` cannot be the next one about it: one in between is not on record.
    pub(super) fn has_gap(&self, event: &Event) -> bool {
        match event {
            Event::Window { .. } => self.state != JobState::Scheduled,
            Event::Claimed { token, .. } => {
                self.state != JobState::Scheduled
                    || token.starts() != self.token.starts().saturating_add(1)
            }
            Event::Renew { token, .. } | Event::Expire { token, .. } => {
                self.state != JobState::Running || self.token != *token
            }
            Event::Settle { token, became, in_tx, .. } => {
                let held = self.state == JobState::Running && self.token == *token;
                !held && !in_tx && *became != SettledAs::Refused
            }
            Event::Redrive { .. } | Event::Discard { .. } => self.state != JobState::Dead,
            Event::Cancel { .. } => self.state.is_ended(),
            Event::Adjust { .. } => self.state != JobState::Scheduled,
            Event::Prune { .. } => !self.state.is_ended(),
            _ => false,
        }
    }

    /// The newest lines about it, for a reader.
    pub(super) fn newest(&self, count: usize) -> impl Iterator<Item = usize> + '_ {
        self.lines.iter().rev().take(count).copied()
    }

    pub(super) fn joined(&mut self, at: usize, t: Timestamp, count: u64) {
        self.joins.push(Joined { at, t, after: self.count, upto: count });
        self.count = count;
    }

    /// The jobs whose absorption a change of the count to `count` shows.
    pub(super) fn absorbs(&self, count: u64) -> Vec<JobId> {
        let came: u64 = self.awaits.iter().map(|(_, count)| count).sum();
        let shows = came > 0 && self.count.checked_add(came) == Some(count);
        let taken = self.awaits.iter().filter(|_| shows);
        taken.map(|(job, _)| *job).collect()
    }
}
