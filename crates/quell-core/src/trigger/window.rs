//! The debounce window: when a job that gathers triggers becomes due (R6–R8, R12–R14).
//!
//! One function opens, one joins, and a few move the window for other reasons; all of them end in
//! the same sum: due = min(quiet end or asked delay, bound), but never before a backoff. A window
//! of a trigger without a key takes no joins and has no bound.

use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use super::debounce::Debounce;
use crate::codes::codes;
use crate::{Error, Result, Timestamp};

/// The quiet period (`min`) and the longest delay (`max`) of a debounce.
///
/// ```
/// use std::time::Duration;
/// use quell_core::window::Thresholds;
///
/// let ok = Thresholds::new(Duration::from_secs(10), Duration::from_secs(60))?;
/// assert_eq!(ok.max(), Duration::from_secs(60));
/// assert!(Thresholds::new(Duration::from_secs(60), Duration::from_secs(10)).is_err());
/// # Ok::<(), quell_core::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "WrittenThresholds")]
pub struct Thresholds {
    min: Duration,
    max: Duration,
}

/// [`Thresholds`] as they are stored: checked again when they are read (R40).
#[derive(Deserialize)]
struct WrittenThresholds {
    min: Duration,
    max: Duration,
}

impl TryFrom<WrittenThresholds> for Thresholds {
    type Error = Error;

    fn try_from(written: WrittenThresholds) -> Result<Self> {
        Thresholds::new(written.min, written.max)
    }
}

impl Thresholds {
    /// What a process uses where neither task nor queue names any (R14): 10 s and 60 s.
    pub const DEFAULT: Thresholds =
        Thresholds { min: Duration::from_secs(10), max: Duration::from_secs(60) };

    /// Checks and keeps the two durations.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) when `min` is shorter than a microsecond,
    /// the resolution of store time, or longer than `max` (R40).
    pub fn new(min: Duration, max: Duration) -> Result<Self> {
        if min.as_micros() == 0 {
            return Err(Error::invalid("min", "min is zero: give at least one microsecond"));
        }
        if min > max {
            return Err(Error::invalid(
                "min",
                format!("min ({min:?}) is longer than max ({max:?}): swap them or raise max"),
            ));
        }
        Ok(Thresholds { min, max })
    }

    /// The quiet period: how long no trigger may come before the job is due.
    #[must_use]
    pub fn min(&self) -> Duration {
        self.min
    }

    /// The longest time from the first trigger until the job is due.
    #[must_use]
    pub fn max(&self) -> Duration {
        self.max
    }
}

/// Why a job is due when it is (R15).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum DueReason {
    /// No debounce: due when it was accepted.
    Immediate,
    /// A delay that was asked for.
    Delayed,
    /// The quiet period after the last trigger.
    Quiet,
    /// The longest delay since the first trigger.
    Max,
    /// The number of triggers reached `max_triggers`.
    MaxTriggers,
    /// `collect` reached its cap.
    CollectFull,
    /// Someone flushed the window, or ran the job now.
    Flushed,
    /// The leading edge: the first trigger of a quiet key.
    Leading,
    /// Throttled: one period after the start before it.
    Throttled,
    /// The backoff after a failed attempt.
    Backoff,
    /// The handler asked to be run again later.
    Snoozed,
    /// A shutdown gave the job back.
    Released,
    /// A lease expired and the job was taken back.
    // The name in stores and histories.
    #[serde(rename = "lapsed")]
    LeaseExpired,
    /// Someone put a dead job back.
    Redriven,
    /// The window closed: the next trigger did not fit (R10).
    Full,
}

codes!(DueReason, "reason");

impl DueReason {
    /// Every reason, in the order of their codes.
    pub const ALL: [DueReason; 15] = [
        DueReason::Immediate,
        DueReason::Delayed,
        DueReason::Quiet,
        DueReason::Max,
        DueReason::MaxTriggers,
        DueReason::CollectFull,
        DueReason::Flushed,
        DueReason::Leading,
        DueReason::Throttled,
        DueReason::Backoff,
        DueReason::Snoozed,
        DueReason::Released,
        DueReason::LeaseExpired,
        DueReason::Redriven,
        DueReason::Full,
    ];
}

/// One trigger as a window sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// When the store accepted it.
    pub at: Timestamp,
    /// No earlier than this: a delay that the caller asked for; [`Timestamp::MIN`] for none.
    pub asked: Timestamp,
    /// Its own thresholds: `min` counts for this step, `max` from the window's first.
    pub thresholds: Thresholds,
    /// The number of triggers at which the window is due at once.
    pub max_triggers: Option<u32>,
    /// The number of payloads at which `collect` is full.
    pub collect_cap: Option<u32>,
}

/// When a job is due, and what moved it there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Window {
    /// The first trigger.
    pub first_at: Timestamp,
    /// The last trigger.
    pub last_at: Timestamp,
    /// No join moves due past this; none for a job that takes no joins.
    pub bound_at: Option<Timestamp>,
    /// The latest delay that a trigger asked for; [`Timestamp::MIN`] for none.
    pub asked_at: Timestamp,
    /// Not before this, whatever the bound says: a backoff, a snooze, a throttle's period.
    pub not_before: Timestamp,
    /// When it may start.
    pub due_at: Timestamp,
    /// Why then.
    pub reason: DueReason,
    /// How many triggers it gathered, those of absorbed jobs among them.
    pub triggers: u64,
}

impl Window {
    /// The job of a trigger without a debounce key (R9): its own, ready at once or when asked.
    #[must_use]
    pub fn unkeyed(at: Timestamp, asked: Timestamp) -> Self {
        let delayed = asked > at;
        Window {
            first_at: at,
            last_at: at,
            bound_at: None,
            asked_at: asked,
            not_before: Timestamp::MIN,
            due_at: if delayed { asked } else { at },
            reason: if delayed { DueReason::Delayed } else { DueReason::Immediate },
            triggers: 1,
        }
    }

    /// Opens a trailing window: first = last = t, count = 1, due = t + min (R6).
    #[must_use]
    pub fn open(step: &Step) -> Self {
        Window { triggers: 0, ..Window::unkeyed(step.at, step.asked) }.join(step)
    }

    /// Opens a window that is due at a set time and that joins never move: the leading edge of a
    /// burst, or the next start that a throttle allows (R13).
    #[must_use]
    pub fn open_fixed(step: &Step, due_at: Timestamp, reason: DueReason) -> Self {
        let asked = if step.asked > step.at { step.asked } else { Timestamp::MIN };
        let due_at = due_at.max(asked);
        let reason = if due_at == asked { DueReason::Delayed } else { reason };
        Window { bound_at: Some(due_at), due_at, reason, ..Window::unkeyed(step.at, step.asked) }
    }

    /// Joins a trigger: last = t, count += 1, due = min(t + min, first + max) (R7).
    #[must_use]
    pub fn join(&self, step: &Step) -> Self {
        let triggers = self.triggers.saturating_add(1);
        let mut next = Window {
            last_at: self.last_at.max(step.at),
            asked_at: self.asked_at.max(step.asked),
            triggers,
            ..*self
        };
        let own_bound = self.first_at + step.thresholds.max();
        // A delay beyond max is refused before this (R40), or was accepted in a transaction or by a
        // schedule, and is kept.
        let own_bound = if self.bound_at.is_none() { own_bound.max(step.asked) } else { own_bound };
        let bound = self.bound_at.unwrap_or(own_bound).min(own_bound);
        let reached = |limit: Option<u32>| limit.is_some_and(|n| triggers >= u64::from(n));
        let (bound, at_bound) = if reached(step.max_triggers) && step.at < bound {
            (step.at, DueReason::MaxTriggers)
        } else if reached(step.collect_cap) && step.at < bound {
            (step.at, DueReason::CollectFull)
        } else if self.bound_at.is_some_and(|old| old < own_bound) {
            (bound, self.reason_at_bound())
        } else {
            (bound, DueReason::Max)
        };
        next.bound_at = Some(bound);
        let quiet_at = step.at + step.thresholds.min();
        let (wanted, reason) = if next.asked_at > quiet_at {
            (next.asked_at, DueReason::Delayed)
        } else {
            (quiet_at, DueReason::Quiet)
        };
        if bound < wanted {
            next.set_due(bound, at_bound);
        } else {
            next.set_due(wanted, reason);
        }
        next
    }

    /// Due now, on request; a backoff still holds (R7).
    #[must_use]
    pub fn flush(&self, now: Timestamp) -> Self {
        let mut next = *self;
        next.bound_at = self.bound_at.map(|bound| bound.min(now));
        if now < self.due_at {
            next.set_due(now, DueReason::Flushed);
        }
        next
    }

    /// Due now, on request of an operator, whatever it waited for: a backoff, too. A window that is
    /// due already keeps its place in line.
    #[must_use]
    pub fn run_now(&self, now: Timestamp) -> Self {
        if self.due_at <= now {
            return *self;
        }
        // A bound that has passed while a backoff held it is no reason to be due earlier.
        let is_past = self.bound_at.is_some_and(|bound| bound < now);
        let not_before = if is_past { now } else { Timestamp::MIN };
        Window { not_before, ..*self }.flush(now)
    }

    /// Due now, because it takes no further trigger (R10); a backoff still holds.
    #[must_use]
    pub fn close(&self, now: Timestamp) -> Self {
        let mut next = self.flush(now);
        if next.reason == DueReason::Flushed && self.reason != DueReason::Flushed {
            next.reason = DueReason::Full;
        }
        next
    }

    /// Back to scheduled after an attempt that did not end the job (R12, R24, R29).
    ///
    /// `not_before` is the end of the backoff or snooze, or now.
    #[must_use]
    pub fn requeue(&self, not_before: Timestamp, reason: DueReason) -> Self {
        Window { not_before, due_at: not_before, reason, ..*self }
    }

    /// Takes in a job of its key that failed (R12): its triggers are added, its backoff holds,
    /// the window keeps its own first.
    #[must_use]
    pub fn absorb(&self, failed: &Window, not_before: Timestamp) -> Self {
        let mut next = Window {
            triggers: self.triggers.saturating_add(failed.triggers),
            not_before: self.not_before.max(not_before),
            ..*self
        };
        next.set_due(self.due_at, self.reason);
        next
    }

    /// Sets the due time, but never before a backoff.
    fn set_due(&mut self, due_at: Timestamp, reason: DueReason) {
        let held = self.not_before > due_at;
        let held_reason = if self.reason.is_hold() { self.reason } else { DueReason::Backoff };
        self.due_at = if held { self.not_before } else { due_at };
        self.reason = if held { held_reason } else { reason };
        self.check();
    }

    /// What made a window that is due at its bound, and stays there, due.
    fn reason_at_bound(&self) -> DueReason {
        match self.reason {
            DueReason::Immediate
            | DueReason::MaxTriggers
            | DueReason::CollectFull
            | DueReason::Full
            | DueReason::Flushed
            | DueReason::Leading
            | DueReason::Throttled
            | DueReason::Delayed => self.reason,
            DueReason::Quiet
            | DueReason::Max
            | DueReason::Backoff
            | DueReason::Snoozed
            | DueReason::Released
            | DueReason::LeaseExpired
            | DueReason::Redriven => DueReason::Max,
        }
    }

    /// R8: a window is never due past its bound, but for a backoff.
    fn check(&self) {
        if let Some(bound) = self.bound_at {
            assert!(
                self.due_at <= bound.max(self.not_before),
                "a window is due past its bound: {self:?}"
            );
        }
    }
}

impl DueReason {
    /// Whether it stands for a time that even the bound does not undercut.
    fn is_hold(self) -> bool {
        matches!(
            self,
            DueReason::Backoff
                | DueReason::Snoozed
                | DueReason::Throttled
                | DueReason::Released
                | DueReason::LeaseExpired
                | DueReason::Redriven
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trigger::When;
    use crate::trigger::steps::{at, step};
    use proptest::prelude::*;

    /// Opens at the first time, joins at the others; due second and reason.
    fn due_after(times: &[i64]) -> (Timestamp, DueReason) {
        let opened = Window::open(&step(times[0]));
        let window = times[1..].iter().fold(opened, |window, t| window.join(&step(*t)));
        (window.due_at, window.reason)
    }

    #[test]
    fn r06_r07_due_is_the_quiet_end_capped_by_the_bound() {
        let table: [(&[i64], i64, DueReason); 5] = [
            (&[0], 10, DueReason::Quiet),
            (&[0, 3, 7], 17, DueReason::Quiet),
            (&[0, 20, 40, 55], 60, DueReason::Max),
            (&[0, 50], 60, DueReason::Quiet),
            (&[0, 300], 60, DueReason::Max),
        ];
        for (times, due, reason) in table {
            assert_eq!(due_after(times), (at(due), reason), "{times:?}");
        }
    }

    #[test]
    fn r07_max_triggers_makes_it_due_and_later_joins_never_undo_that() {
        let third = |secs| Step { max_triggers: Some(3), ..step(secs) };
        let window = Window::open(&third(0)).join(&third(1)).join(&third(2));
        assert_eq!((window.due_at, window.reason), (at(2), DueReason::MaxTriggers));
        let later = window.join(&third(8));
        assert_eq!(
            (later.due_at, later.reason, later.triggers),
            (at(2), DueReason::MaxTriggers, 4)
        );
    }

    #[test]
    fn r07_a_trigger_brings_its_own_step_and_never_loosens_the_bound() {
        let wide = Thresholds::new(Duration::from_secs(5), Duration::from_secs(600)).unwrap();
        let window = Window::open(&step(0)).join(&Step { thresholds: wide, ..step(3) });
        assert_eq!((window.due_at, window.bound_at), (at(8), Some(at(60))));
        let narrow = Thresholds::new(Duration::from_secs(5), Duration::from_secs(6)).unwrap();
        let window = window.join(&Step { thresholds: narrow, ..step(4) });
        assert_eq!((window.due_at, window.reason), (at(6), DueReason::Max));
    }

    #[test]
    fn r07_the_later_delay_counts_but_never_past_the_bound() {
        let asking = |secs, until| Step { asked: at(until), ..step(secs) };
        let window = Window::open(&asking(0, 30));
        assert_eq!((window.due_at, window.reason), (at(30), DueReason::Delayed));
        assert_eq!(window.join(&step(1)).due_at, at(30));
        assert_eq!(window.join(&asking(1, 500)).due_at, at(60));
    }

    #[test]
    fn r07_a_flush_is_due_now_and_stays_so() {
        let window = Window::open(&step(0)).flush(at(4));
        assert_eq!((window.due_at, window.reason), (at(4), DueReason::Flushed));
        assert_eq!(window.join(&step(5)).due_at, at(4));
    }

    #[test]
    fn r12_backoff_holds_through_joins_flush_and_absorption() {
        let failed = Window::open(&step(0)).requeue(at(200), DueReason::Backoff);
        assert_eq!(failed.join(&step(100)).due_at, at(200));
        assert_eq!(failed.flush(at(100)).due_at, at(200));
        let successor = Window::open(&step(150)).absorb(&failed, at(200));
        assert_eq!(
            (successor.first_at, successor.due_at, successor.triggers),
            (at(150), at(200), 2)
        );
        let successor = successor.join(&step(195));
        assert_eq!((successor.due_at, successor.reason), (at(205), DueReason::Quiet));
    }

    #[test]
    fn r14_default_thresholds_say_that_they_are() {
        assert!(Debounce::with_default(Thresholds::DEFAULT).from_default);
        assert!(!Debounce::new(Thresholds::DEFAULT).from_default);
    }

    #[test]
    fn r09_a_delay_until_now_is_none() {
        let reason = |asked| Window::unkeyed(at(5), at(asked)).reason;
        assert_eq!(reason(5), DueReason::Immediate);
        assert_eq!(reason(6), DueReason::Delayed);
    }

    #[test]
    fn r07_r13_a_fixed_window_keeps_a_delay() {
        let fixed = |asked| {
            let window = Window::open_fixed(
                &Step { asked: at(asked), ..step(5) },
                at(5),
                DueReason::Leading,
            );
            (window.due_at, window.reason)
        };
        assert_eq!(fixed(4), (at(5), DueReason::Leading));
        assert_eq!(fixed(5), (at(5), DueReason::Leading));
        assert_eq!(fixed(30), (at(30), DueReason::Delayed));
        assert_eq!(fixed(500), (at(500), DueReason::Delayed));
    }

    #[test]
    fn r07_a_window_that_a_long_delay_opens_waits_for_it_until_a_join_tightens_its_bound() {
        let opened = Window::open(&Step { asked: at(500), ..step(5) });
        assert_eq!((opened.due_at, opened.bound_at), (at(500), Some(at(500))));
        let joined = opened.join(&step(20));
        assert_eq!((joined.due_at, joined.bound_at), (at(65), Some(at(65))));
    }

    #[test]
    fn r07_r40_a_delay_is_refused_beyond_max_and_as_far_as_it_is_known() {
        let own = Debounce::new(Thresholds::DEFAULT);
        let default = Debounce::with_default(Thresholds::DEFAULT);
        let after = |secs| When::After(Duration::from_secs(secs));
        assert!(own.check_delay(after(60)).is_ok() && default.check_delay(after(61)).is_ok());
        let refused = own.check_delay(after(72_000)).unwrap_err();
        assert_eq!(refused.field(), Some("delay"));
        let said = "delay (72000s) is longer than max (60s): raise it, or trigger without debounce";
        assert_eq!(refused.to_string(), said);
        assert_eq!(default.check_due(after(61), at(5)).unwrap_err().field(), Some("delay"));
        assert!(own.check_due(When::At(at(65)), at(5)).is_ok());
        assert_eq!(own.check_due(When::At(at(66)), at(5)).unwrap_err().field(), Some("run_at"));
    }

    #[test]
    fn r15_of_two_reasons_for_one_moment_the_first_counts() {
        let full = |secs| Step { max_triggers: Some(2), collect_cap: None, ..step(secs) };
        let capped = |secs| Step { collect_cap: Some(2), ..step(secs) };
        let last = |step: &Step| {
            let window = Window::open(&self::step(0)).join(step);
            (window.due_at, window.reason)
        };
        assert_eq!(last(&full(59)), (at(59), DueReason::MaxTriggers));
        assert_eq!(last(&full(60)), (at(60), DueReason::Max));
        assert_eq!(last(&capped(59)), (at(59), DueReason::CollectFull));
        assert_eq!(last(&capped(60)), (at(60), DueReason::Max));
        let asked = Window::open(&Step { asked: at(10), ..step(0) });
        assert_eq!((asked.due_at, asked.reason), (at(10), DueReason::Quiet));
        let to_the_bound = Window::open(&Step { asked: at(60), ..step(0) });
        assert_eq!(to_the_bound.reason, DueReason::Delayed);
        assert_eq!(to_the_bound.join(&step(55)).reason, DueReason::Max);
        assert_eq!(Window::open(&step(0)).flush(at(10)).reason, DueReason::Quiet);
        let flushed = Window::open(&step(0)).flush(at(9)).join(&step(9));
        assert_eq!((flushed.due_at, flushed.reason), (at(9), DueReason::Flushed));
    }

    #[test]
    fn r12_what_holds_a_window_back_stays_its_reason() {
        let snoozed = Window::open(&step(0)).requeue(at(200), DueReason::Snoozed);
        assert_eq!((snoozed.due_at, snoozed.reason), (at(200), DueReason::Snoozed));
        assert_eq!(snoozed.join(&step(100)).reason, DueReason::Snoozed);
        let successor = Window::open(&step(150)).absorb(&snoozed, at(200));
        assert_eq!(successor.reason, DueReason::Backoff);
        let at_once = Window::open(&step(150)).absorb(&snoozed, at(160));
        assert_eq!((at_once.due_at, at_once.reason), (at(160), DueReason::Quiet));
    }

    #[test]
    fn r40_thresholds_refuse_zero_and_min_above_max() {
        assert_eq!(Thresholds::new(Duration::ZERO, at_most()).unwrap_err().field(), Some("min"));
        assert!(Thresholds::new(Duration::from_nanos(999), at_most()).is_err());
        assert!(Thresholds::new(at_most() + Duration::from_micros(1), at_most()).is_err());
        assert!(Debounce::throttle(Duration::ZERO).is_err());
    }

    fn at_most() -> Duration {
        Duration::from_secs(60)
    }

    #[test]
    fn r10_a_window_that_closes_is_due_at_once_but_not_before_a_backoff() {
        let thresholds = Thresholds::DEFAULT;
        let (max_triggers, collect_cap) = (None, None);
        let asked = Timestamp::from_secs(40);
        let step =
            Step { at: Timestamp::from_secs(0), asked, thresholds, max_triggers, collect_cap };
        let at = Timestamp::from_secs;
        let closed = Window::open(&step).close(at(5));
        assert_eq!((closed.due_at, closed.reason), (at(5), DueReason::Full));
        let flushed = Window::open(&step).flush(at(3)).close(at(5));
        assert_eq!((flushed.due_at, flushed.reason), (at(3), DueReason::Flushed));
        let held = Window::open(&step).requeue(at(30), DueReason::Backoff).close(at(5));
        assert_eq!((held.due_at, held.reason), (at(30), DueReason::Backoff));
    }

    #[test]
    fn reason_codes_round_trip() {
        for reason in DueReason::ALL {
            assert_eq!(DueReason::from_code(reason.code()), Some(reason));
        }
        assert_eq!(DueReason::from_code(15), None);
    }

    proptest! {
        /// R8 for any times, also near the ends of time: never past the bound, never before the
        /// quiet end unless the bound says so.
        #[test]
        fn r08_no_join_moves_due_past_the_bound(
            first in any::<i64>(),
            gaps in prop::collection::vec((0u64..200_000_000, 0i64..100_000_000), 0..40),
            min in 1u64..100_000_000,
            extra in 0u64..1_000_000_000,
        ) {
            let thresholds = Thresholds::new(
                Duration::from_micros(min), Duration::from_micros(min + extra)).unwrap();
            let start = Timestamp::from_micros(first);
            let open = Step { at: start, asked: Timestamp::MIN, thresholds,
                max_triggers: None, collect_cap: None };
            let mut window = Window::open(&open);
            let bound = start + thresholds.max();
            let mut now = start;
            for (gap, delay) in gaps {
                now = now + Duration::from_micros(gap);
                let asked = now + Duration::from_micros(delay.unsigned_abs());
                window = window.join(&Step { at: now, asked, ..open });
                prop_assert!(window.due_at <= bound);
                prop_assert!(window.due_at >= (now + thresholds.min()).min(bound));
                prop_assert_eq!(window.first_at, start);
            }
        }
    }
}
