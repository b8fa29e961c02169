//! When a worker sends its next heartbeat (R25).
//!
//! The interval depends on the length of leases alone. A worker that works, and one that drains
//! after a shutdown began, sends them; one whose process or runtime hangs does not.

use std::time::Duration;

use quell_core::{Result, Timestamp};
use tracing::debug;

/// The wait before a heartbeat that failed is sent again.
const RETRY_PAUSE: Duration = Duration::from_millis(250);

#[derive(Debug)]
pub(super) struct Pulse {
    interval: Duration,
    sending: bool,
    next_at: Timestamp,
    /// When the last one was sent.
    sent_at: Option<Timestamp>,
}

impl Pulse {
    /// The first heartbeat is due at once.
    pub(super) fn new(interval: Duration, now: Timestamp) -> Self {
        Pulse { interval, sending: false, next_at: now, sent_at: None }
    }

    /// Whether to send one now; then it is in flight.
    pub(super) fn sends(&mut self, now: Timestamp) -> bool {
        let sends = !self.sending && self.next_at <= now;
        if sends {
            (self.sending, self.sent_at) = (true, Some(now));
        }
        sends
    }

    /// The next heartbeat is due at once.
    pub(super) fn resume(&mut self, now: Timestamp) {
        self.next_at = now;
    }

    /// Whether one was sent since then.
    pub(super) fn was_sent_since(&self, at: Timestamp) -> bool {
        self.sent_at.is_some_and(|sent| sent >= at)
    }

    pub(super) fn is_sending(&self) -> bool {
        self.sending
    }

    pub(super) fn next_wake(&self) -> Option<Timestamp> {
        (!self.sending).then_some(self.next_at)
    }

    pub(super) fn answered(&mut self, answer: Result<()>, now: Timestamp) {
        self.sending = false;
        self.next_at = now + self.interval;
        if let Err(error) = answer {
            debug!(%error, "heartbeat failed");
            if error.is_retryable() || error.is_unknown_outcome() {
                self.next_at = now + self.interval.min(RETRY_PAUSE);
            }
        }
    }
}
