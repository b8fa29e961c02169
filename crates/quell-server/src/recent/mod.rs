//! What this process has seen lately: triggers that were accepted, attempts, and counts by minute and hour.
//!
//! `noting` takes it from the calls of the store, `lane` and `series` keep it, `timeline` shows a span of it.
//! It is in memory and begins with the process; what other processes accept and run is not in it.
//!
//! Invariant: its memory is bounded ([`Limits`]), whatever the numbers of triggers, keys and tasks. Where it
//! must forget, it forgets the oldest of the task that has the most, so that a loud task hides no quiet one,
//! and says from when on it is complete.

mod habits;
mod lane;
mod names;
mod noting;
mod series;
mod timeline;

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use quell::store::{Now, Observer, Operation, Seen};
use quell::{JobId, Key, QueueName, TaskName, Timestamp};

use crate::history::host_time;
pub use habits::{Habits, KeyHabit, Took};
pub use lane::Run;
use lane::{HOURS, Lane, MINUTES};
use names::Names;
use noting::{Asked, Called};
pub use series::Tally;
pub use timeline::{Bar, KeyTicks, Span, Timeline};

/// How much is kept.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Triggers of all tasks, 24 bytes each.
    pub triggers: usize,
    /// Attempts of all tasks, about 100 bytes each.
    pub runs: usize,
    /// Tasks, each with its queue; further ones are not recorded.
    pub lanes: usize,
    /// Queues of one task, so that triggers that name ever new queues take no other task's place.
    pub queues: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Limits { triggers: 1_500_000, runs: 200_000, lanes: 1_000, queues: 64 }
    }
}

/// The record. Clones share it.
#[derive(Clone, Debug)]
pub struct Recent {
    state: Arc<Mutex<State>>,
    /// Keyed at random, so that no caller can make keys that collide.
    hasher: RandomState,
}

#[derive(Debug)]
struct State {
    limits: Limits,
    since: Timestamp,
    lanes: Vec<Lane>,
    numbers: HashMap<QueueName, HashMap<TaskName, usize>>,
    /// How many lanes each task has.
    queues: HashMap<TaskName, usize>,
    names: Names,
    /// The lane and the number of the attempt of each job that runs.
    running: HashMap<JobId, (usize, u64)>,
    accepted: usize,
    runs: usize,
    /// When something was last left out, as there were too many lanes.
    left_out: Option<Timestamp>,
    /// How far the store's clock is ahead of this host's, in microseconds.
    ahead: i64,
}

/// What one task did lately.
#[derive(Clone, Debug)]
pub struct Activity {
    /// Its queue.
    pub queue: QueueName,
    /// The task.
    pub task: TaskName,
    /// The last hour.
    pub hour: Tally,
    /// The last week.
    pub week: Tally,
    /// Triggers, runs and failures of each of the last 60 minutes, the oldest first.
    pub minutes: Vec<[u64; 3]>,
}

impl Default for Recent {
    fn default() -> Self {
        Recent::new(Limits::default())
    }
}

impl Recent {
    /// An empty record.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        let state = State {
            limits,
            since: host_time(),
            lanes: Vec::new(),
            numbers: HashMap::new(),
            queues: HashMap::new(),
            names: Names::default(),
            running: HashMap::new(),
            accepted: 0,
            runs: 0,
            left_out: None,
            ahead: 0,
        };
        Recent { state: Arc::new(Mutex::new(state)), hasher: RandomState::new() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number of a key in the record; 0 stands for none.
    fn hash_of(&self, key: &Key) -> u64 {
        self.hasher.hash_one(key.as_str()).max(1)
    }

    /// The store's time, as far as its answers say it.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        self.state().now()
    }

    /// When the record began.
    #[must_use]
    pub fn since(&self) -> Timestamp {
        self.state().since
    }

    /// When something was last left out, as there were too many tasks or too many queues of one; none where all
    /// is recorded.
    #[must_use]
    pub fn left_out(&self) -> Option<Timestamp> {
        self.state().left_out
    }

    /// What each task did, in the order in which they were first seen. Callers of the store wait for a few of
    /// them at most.
    #[must_use]
    pub fn activities(&self) -> Vec<Activity> {
        const PORTION: usize = 32;
        let mut found: Vec<Activity> = Vec::new();
        loop {
            let state = self.state();
            let now = state.now();
            let before = found.len();
            let next = state.lanes.iter().skip(before).take(PORTION);
            found.extend(next.map(|lane| Activity::of(lane, now)));
            if found.len() == before {
                return found;
            }
        }
    }

    /// What one of them did.
    fn activity(&self, lane: usize) -> Option<Activity> {
        let state = self.state();
        state.lanes.get(lane).map(|lane| Activity::of(lane, state.now()))
    }
}

impl Activity {
    fn of(lane: &Lane, now: Timestamp) -> Self {
        let hour = lane.minutes.number(now).saturating_sub(i64::from(MINUTES));
        let week = lane.hours.number(now).saturating_sub(i64::from(HOURS));
        let three = |tally: &Tally| [tally.triggers, tally.runs, tally.failed];
        Activity {
            queue: lane.queue.clone(),
            task: lane.task.clone(),
            hour: lane.minutes.since(hour),
            week: lane.hours.since(week),
            minutes: lane.minutes.last(now, MINUTES, three),
        }
    }
}

impl Observer for Recent {
    fn call<'o>(&'o self, now: Now, operation: &Operation) -> Option<Seen<'o>> {
        let asked = Asked::of(self, operation)?;
        let called = host_time();
        Some(Box::new(move |answer| self.note(Called { at: called, now }, asked, answer)))
    }
}

impl State {
    /// The store's time, as far as its answers say it.
    fn now(&self) -> Timestamp {
        Timestamp::from_micros(host_time().as_micros().saturating_add(self.ahead))
    }

    /// The store said what time it was, at some moment since it was called. What is known of its clock changes
    /// only where it disagrees: an answer that took long says little.
    fn is_now(&mut self, now: Timestamp, called: Timestamp) {
        let ahead_at = |moment: Timestamp| now.as_micros().saturating_sub(moment.as_micros());
        let least = ahead_at(host_time());
        self.ahead = self.ahead.clamp(least, ahead_at(called).max(least));
    }

    fn add_lane(&mut self, queue: &QueueName, task: &TaskName) -> Option<usize> {
        let number = self.lanes.len();
        let queues = self.queues.get(task).copied().unwrap_or_default();
        if number >= self.limits.lanes || queues >= self.limits.queues {
            self.left_out = Some(self.now());
            return None;
        }
        self.queues.insert(task.clone(), queues.saturating_add(1));
        self.lanes.push(Lane::new(queue.clone(), task.clone(), self.since));
        self.numbers.entry(queue.clone()).or_default().insert(task.clone(), number);
        Some(number)
    }

    /// Forgets what is too much: a sixteenth at once, so that looking for the largest lane is rare.
    fn bound(&mut self) {
        while self.accepted > self.limits.triggers {
            let count = self.limits.triggers.div_ceil(16);
            let Some(lane) = self.lanes.iter_mut().max_by_key(|lane| lane.accepted.len()) else {
                return;
            };
            let count = count.min(lane.accepted.len());
            lane.drop_accepted(count);
            self.accepted = self.accepted.saturating_sub(count.max(1));
        }
        while self.runs > self.limits.runs {
            let count = self.limits.runs.div_ceil(16);
            let Some(lane) = self.lanes.iter_mut().max_by_key(|lane| lane.runs.len()) else {
                return;
            };
            let count = count.min(lane.runs.len());
            lane.drop_runs(count);
            self.runs = self.runs.saturating_sub(count.max(1));
            // Attempts that are forgotten end elsewhere.
            let lanes = &self.lanes;
            let is_kept = |(lane, number): &(usize, u64)| {
                lanes.get(*lane).is_some_and(|lane| lane.dropped <= *number)
            };
            self.running.retain(|_, place| is_kept(place));
        }
    }
}
