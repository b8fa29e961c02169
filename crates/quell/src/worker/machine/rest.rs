//! When a worker rests: on a store that wakes it whenever something is due (R34), a worker without
//! work asks the store for nothing and sends no heartbeats.
//!
//! One that rests has taken its row back. So it counts as one that starts when it is woken, and its
//! silence is no evidence about other workers (R25).

use std::time::Duration;

use quell_core::{Result, Timestamp};
use tracing::debug;

use super::super::event::Command;
use super::super::poller::Poller;
use super::{Machine, Phase};

/// Between two looks of a worker that the store wakes: the safety net.
pub(super) const SAFETY: Duration = Duration::from_secs(900);
/// How long a worker without work stays up.
const LINGER: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Its row is there, or will be with the next heartbeat.
    Up,
    /// It takes its row back.
    Leaving,
    Resting,
}

/// What a worker is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// Take its row back.
    Leave,
    /// Send heartbeats again, the first at once.
    Rise,
}

#[derive(Debug)]
pub(super) struct Rest {
    /// Whether the store wakes the worker, so that it may rest.
    wakes: bool,
    state: State,
    /// When there was work last.
    busy_at: Timestamp,
    up_since: Timestamp,
}

impl Rest {
    /// Of a worker that starts.
    pub(super) fn new(wakes: bool, now: Timestamp) -> Self {
        Rest { wakes, state: State::Up, busy_at: now, up_since: now }
    }

    /// Whether the store wakes the worker.
    pub(super) fn wakes(&self) -> bool {
        self.wakes
    }

    pub(super) fn is_up(&self) -> bool {
        self.state == State::Up
    }

    pub(super) fn is_leaving(&self) -> bool {
        self.state == State::Leaving
    }

    /// Since when it has been up.
    pub(super) fn up_since(&self) -> Timestamp {
        self.up_since
    }

    /// When it may rest at the earliest, unless work comes.
    pub(super) fn next_wake(&self) -> Option<Timestamp> {
        (self.wakes && self.is_up()).then_some(self.busy_at + LINGER)
    }

    /// What to do, where there is work or not; `is_sending` while a heartbeat is in flight, which
    /// must not come after the row was taken back.
    pub(super) fn turn(&mut self, is_busy: bool, is_sending: bool, now: Timestamp) -> Option<Turn> {
        if is_busy {
            self.busy_at = now;
        }
        match self.state {
            State::Up if self.wakes && !is_sending && self.busy_at + LINGER <= now => {
                self.state = State::Leaving;
                Some(Turn::Leave)
            }
            State::Resting if is_busy => {
                (self.state, self.up_since) = (State::Up, now);
                Some(Turn::Rise)
            }
            State::Up | State::Leaving | State::Resting => None,
        }
    }

    /// Its row is gone, or could not be removed: then it stays up for a while.
    pub(super) fn left(&mut self, answer: Result<()>, now: Timestamp) {
        self.state = match answer {
            Ok(()) => State::Resting,
            Err(error) => {
                debug!(%error, "the worker's row could not be removed, trying again");
                self.busy_at = now;
                State::Up
            }
        };
    }
}

impl Machine {
    /// Whether its row is there no longer.
    pub(crate) fn is_resting(&self) -> bool {
        !self.rest.is_up() && !self.rest.is_leaving()
    }

    /// Whether a heartbeat is in flight.
    pub(crate) fn is_beating(&self) -> bool {
        self.pulse.is_sending()
    }

    /// Whether no report about itself is in flight, and the last one said that it works (R25).
    pub(super) fn is_seen(&self) -> bool {
        self.rest.is_up() && !self.pulse.is_sending()
    }

    /// Whether there is work, or what may be work was announced.
    fn is_busy(&self, now: Timestamp) -> bool {
        let called = |poller: &Poller| {
            poller.limited || !poller.polls && (poller.look_at <= now || !poller.is_free())
        };
        let upkeep = self.reaping || self.reap_at.is_some();
        // R29: a row that it took back would no longer say that it is drained.
        self.drained
            || upkeep
            || self.settling
            || !self.held.is_empty()
            || self.pollers.iter().any(called)
    }

    /// R25, R34: a worker that works sends heartbeats; one that rests has taken its row back.
    pub(super) fn plan_rest(&mut self, now: Timestamp, commands: &mut Vec<Command>) {
        if self.phase == Phase::Working {
            match self.rest.turn(self.is_busy(now), self.pulse.is_sending(), now) {
                Some(Turn::Leave) => commands.push(Command::Leave),
                Some(Turn::Rise) => self.pulse.resume(now),
                None => {}
            }
        }
        // Workers that rest are no evidence of a crash, so one that takes a lease back is seen
        // first.
        let expired = self.reap_at.filter(|at| *at <= now && self.rest.wakes());
        if expired.is_some_and(|at| !self.pulse.was_sent_since(at)) {
            self.pulse.resume(now);
        }
        if self.rest.is_up() && self.pulse.sends(now) {
            let (busy, since) = (self.running, self.rest.up_since());
            commands.push(Command::Heartbeat { busy, since });
        }
    }
}
