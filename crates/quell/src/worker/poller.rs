//! One queue as a worker polls it: when to look next, and why then (R34, R35).
//!
//! `machine` owns the pollers and decides what a look is: a claim where something is known to be
//! due, else one call for all queues together.

use std::time::Duration;

use quell_core::poll::PollInterval;
pub(crate) use quell_core::poll::Polled;
use quell_core::{Error, ErrorKind, QueueName, Timestamp};
use tracing::{debug, info, warn};

use crate::metrics;

/// How far the store's time is ahead of the worker's, in microseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StoreClock {
    pub(crate) ahead: i64,
}

impl StoreClock {
    /// A moment of store time as the worker's clock would say it.
    pub(crate) fn local(self, store_time: Timestamp) -> Timestamp {
        Timestamp::from_micros(store_time.as_micros().saturating_sub(self.ahead))
    }
}

/// One queue's poller.
#[derive(Debug)]
pub(crate) struct Poller {
    pub(crate) queue: QueueName,
    /// Whether jobs are claimed from it; else only its expired leases are looked for.
    pub(crate) claims: bool,
    interval: PollInterval,
    /// When to look next, in the worker's time.
    pub(crate) look_at: Timestamp,
    /// Whether nothing is known to be due by then: it is the safety net's turn.
    pub(crate) polls: bool,
    /// A wake-up that came while a call was in flight, in store time.
    hint: Option<Timestamp>,
    /// The limit of the claim in flight.
    pub(crate) claiming: Option<usize>,
    /// A look is in flight.
    pub(crate) looking: bool,
    /// Something was due but a limit kept it back; a settlement may free it.
    pub(crate) limited: bool,
    /// Whether a rate counts what starts, so that nothing is to be taken ahead (R31); taken for
    /// granted until a claim was answered.
    pub(crate) rated: bool,
    /// A settlement came while a claim was in flight, which may have missed what it freed.
    pub(crate) freed: bool,
}

impl Poller {
    pub(crate) fn new(
        queue: QueueName,
        interval: PollInterval,
        now: Timestamp,
        claims: bool,
    ) -> Self {
        Poller {
            queue,
            claims,
            interval,
            look_at: now,
            polls: true,
            hint: None,
            claiming: None,
            looking: false,
            limited: false,
            rated: true,
            freed: false,
        }
    }

    /// Whether no call about the queue is in flight.
    pub(crate) fn is_free(&self) -> bool {
        self.claiming.is_none() && !self.looking
    }

    /// Notes that a claim with this limit is in flight.
    pub(crate) fn claim(&mut self, limit: usize) {
        self.claiming = Some(limit);
        self.freed = false;
    }

    /// Whether it is polled no less often than any other.
    pub(crate) fn is_calm(&self, now: Timestamp) -> bool {
        self.interval.is_at_base(now)
    }

    /// Something may be due at `due`, which is `at` in the worker's time.
    pub(crate) fn wake(&mut self, due: Timestamp, at: Timestamp) {
        if self.is_free() {
            self.look_by(at);
        } else {
            let hint = self.hint.get_or_insert(due);
            *hint = due.min(*hint);
        }
    }

    /// Acts on a wake-up that came while a call was in flight.
    pub(crate) fn take_hint(&mut self, clock: &StoreClock, now: Timestamp) {
        if let Some(hint) = self.hint.take() {
            self.look_by(clock.local(hint).max(now));
        }
    }

    /// Looks no later than `at`, when something may be due.
    pub(crate) fn look_by(&mut self, at: Timestamp) {
        if at <= self.look_at {
            self.look_at = at;
            self.polls = !self.claims;
        }
    }

    /// Logs a poll that failed. Limits that hold across processes cause contention.
    pub(crate) fn failed(&self, error: &Error) {
        let queue = &self.queue;
        match error.kind() {
            ErrorKind::Contention => {
                debug!(%queue, %error, "write conflict on a poll, backing off")
            }
            _ => warn!(%queue, %error, "poll failed, trying again"),
        }
    }

    /// Takes note of a poll; the next is due after the interval, which is returned (R35).
    pub(crate) fn polled(&mut self, polled: &Polled, now: Timestamp, random: f64) -> Timestamp {
        if self.interval.on(*polled, now) {
            let interval = self.interval.current(now);
            metrics::interval(&self.queue, interval);
            info!(queue = %self.queue, interval_ms = interval.as_millis(), "poll interval changed");
        }
        if *polled == Polled::Contended {
            metrics::contention(&self.queue);
        }
        self.look_at = now + self.interval.sleep(now, random);
        self.polls = true;
        self.look_at
    }

    /// Trusts the store to wake the worker: the next poll is due about `safety` later, which is
    /// returned.
    pub(crate) fn trust(&mut self, safety: Duration, now: Timestamp, random: f64) -> Timestamp {
        self.look_at = now + safety.mul_f64(0.95 + 0.1 * random.clamp(0.0, 1.0));
        self.look_at
    }
}
