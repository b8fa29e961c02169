//! Which ticks of a schedule fire: by plan, after an outage, and when an operator asks for old
//! ones.
//!
//! Pure functions of (schedule, what was handled, now). A store keeps a [`ScheduleInfo`] and the
//! ticks that fired, and changes both in the step that accepts their triggers.

use std::collections::BTreeSet;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{CatchUp, Schedule};
use crate::setters::setters;
use crate::{
    Error, ErrorKind, JobId, NewTrigger, QueueName, Receipt, Result, ScheduleName, TaskName,
    Timestamp,
};

/// A tick that fires no later than this is on time, and no catch-up.
pub const ON_TIME: Duration = Duration::from_secs(60);
/// The most ticks of one schedule that one step makes; the next step goes on.
pub const CATCH_UP_STEP: usize = 100;
/// The most ticks in the range of one backfill.
pub const MAX_BACKFILL: usize = 10_000;
/// How long a schedule waits that this process cannot decode (R25).
pub const UNREADABLE_PAUSE: Duration = Duration::from_secs(60);
/// How long it is known which ticks fired, and so how far back a backfill may reach: 366 days.
pub const RECORD: Duration = Duration::from_secs(366 * 86_400);

/// Whether a schedule fires.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ScheduleState {
    /// Its ticks fire.
    #[default]
    Active,
    /// Its ticks pass by.
    Paused,
}

/// A schedule as a store keeps it and as an operator sees it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ScheduleInfo {
    /// What was set.
    pub schedule: Schedule,
    /// Whether it fires.
    pub state: ScheduleState,
    /// Every tick up to here has fired by plan or never will.
    pub handled: Timestamp,
    /// The newest tick that fired.
    pub last: Option<Timestamp>,
    /// The next tick; none while it is paused and after the last one.
    pub next: Option<Timestamp>,
}

setters!(ScheduleInfo {
    state: ScheduleState,
    handled: Timestamp,
    last? Timestamp,
    next? Timestamp,
});

impl ScheduleInfo {
    /// A schedule that was set at `now`: its first tick is the next one.
    #[must_use]
    pub fn new(schedule: Schedule, now: Timestamp) -> Self {
        let next = schedule.spec.next(now);
        let state = ScheduleState::Active;
        ScheduleInfo { schedule, state, handled: now, last: None, next }
    }

    /// Sets it again; a plan that changed counts from `now`, and what fired stays on record. The
    /// state is the operator's and stays, and so does the declaration on record where this one names
    /// none (R32). Returns whether anything changed.
    pub fn set(&mut self, schedule: &Schedule, now: Timestamp) -> bool {
        let declared = schedule.declared.clone().or_else(|| self.schedule.declared.clone());
        let schedule = Schedule { declared, ..schedule.clone() };
        if self.schedule == schedule {
            return false;
        }
        let replanned = self.schedule.spec != schedule.spec;
        self.schedule = schedule;
        if replanned {
            self.replan(now);
        }
        true
    }

    /// Pauses or resumes it. Ticks that passed meanwhile never fire by plan: an operator
    /// who pauses a schedule does not want these runs, and catching up is for outages. Returns
    /// whether anything changed.
    pub fn switch(&mut self, state: ScheduleState, now: Timestamp) -> bool {
        if self.state == state {
            return false;
        }
        self.state = state;
        self.replan(now);
        true
    }

    /// The ticks that are due at `now` and fire, at most `limit` and [`CATCH_UP_STEP`]; they count
    /// as handled from here on. `fired` are those after [`handled`](Self::handled) that fired
    /// already, by a backfill.
    pub fn due(
        &mut self,
        now: Timestamp,
        limit: usize,
        fired: &BTreeSet<Timestamp>,
    ) -> Vec<Timestamp> {
        let limit = limit.min(CATCH_UP_STEP);
        if limit == 0 || self.next.is_none_or(|next| next > now) {
            return Vec::new();
        }
        let mut ticks = self.ticks_due(now, limit);
        self.handled = ticks.last().copied().unwrap_or(now);
        self.next = self.schedule.spec.next(self.handled);
        ticks.retain(|tick| !fired.contains(tick));
        self.fires(&ticks);
        ticks
    }

    /// The ticks among which [`due`](Self::due) chooses at `now`, at most `limit`: a store that
    /// does not keep a row for each tick looks up which of them a backfill has fired.
    #[must_use]
    pub fn ticks_due(&self, now: Timestamp, limit: usize) -> Vec<Timestamp> {
        let spec = &self.schedule.spec;
        let newest = || spec.latest(now).filter(|tick| *tick > self.handled);
        match self.schedule.catch_up {
            CatchUp::All => {
                spec.ticks(self.handled).take_while(|tick| *tick <= now).take(limit).collect()
            }
            CatchUp::Latest => newest().into_iter().collect(),
            CatchUp::None => {
                newest().filter(|tick| now.since(*tick) <= ON_TIME).into_iter().collect()
            }
        }
    }

    /// The ticks from `from` to `to`, both included, among which [`backfill`](Self::backfill)
    /// chooses: at most one more than [`MAX_BACKFILL`].
    #[must_use]
    pub fn ticks_between(&self, from: Timestamp, to: Timestamp) -> Vec<Timestamp> {
        let ticks = self.schedule.spec.ticks(from.before(Duration::from_micros(1)));
        let in_range = ticks.take_while(|tick| *tick <= to);
        in_range.take(MAX_BACKFILL.saturating_add(1)).collect()
    }

    /// The ticks from `from` to `to`, both included, that have not fired; the caller fires them.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] that names `from` or `to`: the range lies in the future or further
    /// back than [`RECORD`], is empty, or has more than [`MAX_BACKFILL`] ticks.
    pub fn backfill(
        &mut self,
        from: Timestamp,
        to: Timestamp,
        now: Timestamp,
        fired: &BTreeSet<Timestamp>,
    ) -> Result<Vec<Timestamp>> {
        if to > now {
            let message = format!("`to` is {to}, after now ({now}): those ticks fire by plan");
            return Err(Error::invalid("to", message));
        }
        if from > to {
            let message = format!("`from` ({from}) is after `to` ({to}): swap them");
            return Err(Error::invalid("from", message));
        }
        let oldest = now.before(RECORD);
        if from < oldest {
            let message = format!("`from` is {from}: what fired is known from {oldest} on");
            return Err(Error::invalid("from", message));
        }
        let mut ticks = self.ticks_between(from, to);
        if ticks.len() > MAX_BACKFILL {
            let message = format!("the range has more than {MAX_BACKFILL} ticks: split it");
            return Err(Error::invalid("from", message));
        }
        ticks.retain(|tick| !fired.contains(tick));
        self.fires(&ticks);
        Ok(ticks)
    }

    fn replan(&mut self, now: Timestamp) {
        self.handled = now;
        self.next = match self.state {
            ScheduleState::Active => self.schedule.spec.next(now),
            ScheduleState::Paused => None,
        };
    }

    fn fires(&mut self, ticks: &[Timestamp]) {
        self.last = self.last.max(ticks.last().copied());
    }
}

/// Why a tick fired.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TickedBy {
    /// Its time had come.
    Plan,
    /// Someone asked for it.
    Backfill,
}

/// A tick that fired, as it stays on record.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Tick {
    /// The schedule.
    pub schedule: ScheduleName,
    /// The planned time.
    pub tick: Timestamp,
    /// The job that took its trigger.
    pub job: Option<JobId>,
    /// Why it fired.
    pub by: TickedBy,
}

impl Tick {
    /// The most ticks that are shown with a job.
    pub const SHOWN: usize = 10;

    /// The newest of a job's ticks, oldest first, by time and schedule.
    #[must_use]
    pub fn newest(mut ticks: Vec<Tick>) -> Vec<Tick> {
        ticks.sort_unstable_by(|a, b| (a.tick, &a.schedule).cmp(&(b.tick, &b.schedule)));
        ticks.split_off(ticks.len().saturating_sub(Self::SHOWN))
    }
}

/// A tick as the record of its schedule has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct RecordedTick {
    /// The planned time.
    pub tick: Timestamp,
    /// Why it fired; none where the store keeps when ticks fired and no more.
    pub by: Option<TickedBy>,
    /// The job that took its trigger; none where a dedup key refused it, and where the store does not keep it.
    pub job: Option<JobId>,
}

impl RecordedTick {
    /// The most ticks of one read.
    pub const MAX_PAGE: usize = 1_000;
}

impl From<&Tick> for RecordedTick {
    fn from(tick: &Tick) -> Self {
        RecordedTick { tick: tick.tick, by: Some(tick.by), job: tick.job }
    }
}

/// A tick that fired just now, and what became of its trigger.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fired {
    /// The schedule.
    pub schedule: ScheduleName,
    /// The planned time.
    pub tick: Timestamp,
    /// The queue of its trigger.
    pub queue: QueueName,
    /// The task of its trigger.
    pub task: TaskName,
    /// What became of the trigger.
    pub receipt: Receipt,
}

impl Fired {
    /// A tick of this schedule.
    #[must_use]
    pub fn new(schedule: &Schedule, tick: Timestamp, receipt: Receipt) -> Self {
        let NewTrigger { queue, task, .. } = &schedule.trigger;
        let (queue, task) = (queue.clone(), task.clone());
        Fired { schedule: schedule.name.clone(), tick, queue, task, receipt }
    }
}

/// What one step of all schedules did.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ticked {
    /// The store time of the step.
    pub now: Timestamp,
    /// The ticks that fired.
    pub fired: Vec<Fired>,
    /// When the next tick is due: in the past where more is to catch up.
    pub next: Option<Timestamp>,
}

/// The answer for a schedule that is not there.
#[must_use]
pub fn no_such_schedule(name: &ScheduleName) -> Error {
    Error::new(ErrorKind::NotFound, format!("schedule {name} is unknown: set it first"))
}
