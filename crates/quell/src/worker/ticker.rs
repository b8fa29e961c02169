//! When a worker asks the store for ticks of schedules (R36).
//!
//! Every worker does, and the store fires each tick once: so no worker leads, and any that is left
//! keeps all schedules going. It sleeps until the next tick that it knows of; a wake-up announces
//! an earlier one, and a poll now and then makes up for lost wake-ups.

use std::time::Duration;

use quell_core::schedule::Ticked;
use quell_core::{ErrorKind, Result, Timestamp};
use tracing::{debug, warn};

use crate::metrics::Tally;

/// The most ticks that one call fires.
pub(crate) const TICK_BATCH: usize = 1_000;
/// Between two looks at schedules, at most, unless queues are polled less often.
const LOOK: Duration = Duration::from_secs(60);
/// The least time between two polls that wake-ups ask for: commits of other processes wake, too.
const PAUSE: Duration = Duration::from_millis(100);
/// The wait before a call that failed is tried again.
const RETRY: Duration = Duration::from_secs(1);

/// The part of a worker that asks for ticks; times are the worker's own.
#[derive(Debug)]
pub(super) struct Ticker {
    /// When to ask next; none on a store that keeps no schedules.
    ask_at: Option<Timestamp>,
    asked_at: Timestamp,
    asking: bool,
    look: Duration,
    /// A wake-up that came during a poll.
    hint: Option<Timestamp>,
}

impl Ticker {
    /// For a worker that polls so often.
    pub(super) fn new(poll: Duration, now: Timestamp) -> Self {
        let (asked_at, look) = (now.before(PAUSE), poll.max(LOOK));
        Ticker { ask_at: Some(now), asked_at, asking: false, look, hint: None }
    }

    pub(super) fn is_asking(&self) -> bool {
        self.asking
    }

    /// When there is something to do.
    pub(super) fn next_wake(&self) -> Option<Timestamp> {
        self.ask_at.filter(|_| !self.asking)
    }

    /// Whether to ask now; it counts as asked.
    pub(super) fn asks(&mut self, now: Timestamp) -> bool {
        let asks = self.next_wake().is_some_and(|at| at <= now);
        if asks {
            (self.asking, self.asked_at) = (true, now);
        }
        asks
    }

    /// Takes a wake-up: a tick may be due at `at`.
    pub(super) fn wake(&mut self, at: Timestamp) {
        let at = at.max(self.asked_at + PAUSE);
        if self.asking {
            self.hint = Some(self.hint.map_or(at, |known| known.min(at)));
        } else {
            self.ask_at = self.ask_at.map(|known| known.min(at));
        }
    }

    /// Takes an answer; `next` is its next tick in the worker's time.
    pub(super) fn answered(
        &mut self,
        answer: &Result<Ticked>,
        next: Option<Timestamp>,
        now: Timestamp,
    ) {
        self.asking = false;
        self.ask_at = match answer {
            Ok(ticked) => {
                let mut tally = Tally::default();
                for fired in &ticked.fired {
                    debug!(schedule = %fired.schedule, tick = %fired.tick, "tick fired");
                    tally.add(&fired.queue, &fired.task, &fired.receipt);
                }
                tally.emit();
                let look_at = now + self.look;
                Some(next.map_or(look_at, |next| next.max(now).min(look_at)))
            }
            Err(error) if error.kind() == ErrorKind::Unsupported => None,
            Err(error) => {
                warn!(%error, "schedules could not be ticked, trying again");
                Some(now + RETRY)
            }
        };
        if let Some(hint) = self.hint.take() {
            self.ask_at = self.ask_at.map(|at| at.min(hint));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quell_core::Error;

    fn secs(secs: i64) -> Timestamp {
        Timestamp::from_secs(secs)
    }

    /// A ticker that polled at 1,000 s and received this next tick.
    fn polled(next: Option<i64>) -> Ticker {
        let mut ticker = Ticker::new(RETRY, secs(1_000));
        assert!(ticker.asks(secs(1_000)) && !ticker.asks(secs(1_000)));
        ticker.answered(&quiet(), next.map(secs), secs(1_000));
        ticker
    }

    /// An answer without ticks.
    fn quiet() -> Result<Ticked> {
        Ok(Ticked { now: secs(600), fired: vec![], next: None })
    }

    #[test]
    fn r36_a_worker_sleeps_until_the_next_tick_and_looks_now_and_then() {
        let table = [(Some(1_007), 1_007), (Some(1_300), 1_060), (None, 1_060), (Some(900), 1_000)];
        for (next, expected) in table {
            assert_eq!(polled(next).next_wake(), Some(secs(expected)), "{next:?}");
        }
    }

    #[test]
    fn r34_r36_a_hint_of_an_earlier_tick_is_heard_but_not_all_the_time() {
        let mut ticker = polled(None);
        ticker.wake(secs(1_030));
        ticker.wake(secs(1_045));
        assert_eq!(ticker.next_wake(), Some(secs(1_030)));
        ticker.wake(Timestamp::MIN);
        assert_eq!(ticker.next_wake(), Some(secs(1_000) + PAUSE));
        assert!(!ticker.asks(secs(1_000)));
        assert!(ticker.asks(secs(1_001)));
        // While it asks: what the answer cannot know yet.
        ticker.wake(secs(1_002));
        assert_eq!(ticker.next_wake(), None);
        ticker.answered(&quiet(), None, secs(1_001));
        assert_eq!(ticker.next_wake(), Some(secs(1_002)));
    }

    #[test]
    fn r39_a_failure_is_tried_again_and_a_refusal_is_not() {
        let mut ticker = polled(None);
        for (kind, expected) in
            [(ErrorKind::Unavailable, Some(secs(1_101))), (ErrorKind::Unsupported, None)]
        {
            assert!(ticker.asks(secs(1_101)) || ticker.asks(secs(1_100)));
            ticker.answered(&Err(Error::new(kind, "m")), None, secs(1_100));
            assert_eq!(ticker.next_wake(), expected);
        }
        ticker.wake(Timestamp::MIN);
        assert_eq!(ticker.next_wake(), None);
    }
}
