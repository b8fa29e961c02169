//! How a task debounces its keyed triggers: thresholds, bounds and edges (R6–R10, R13, R14).

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::edge::Edge;
use crate::payload::MAX_WINDOW_BYTES;
use crate::setters::setters;
use crate::trigger::When;
use crate::window::Thresholds;
use crate::{Error, Result, Timestamp};

/// How one task debounces its keyed triggers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Debounce {
    /// Quiet period and longest delay.
    pub thresholds: Thresholds,
    /// Whether the thresholds are the process's defaults, which a queue's settings replace (R14).
    pub from_default: bool,
    /// The number of triggers at which the window is due at once.
    pub max_triggers: Option<u32>,
    /// The bytes that a window's folded payload may have; none for the
    /// default, [`WINDOW_BYTES`](crate::payload::WINDOW_BYTES) (R10).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_bytes: Option<u32>,
    /// Which end of a burst runs (R13).
    pub edge: Edge,
    /// Whether attempts of one key may run at the same time (R11 off).
    pub overlap: bool,
}

setters!(Debounce {
    thresholds: Thresholds,
    from_default: bool,
    max_triggers? u32,
    max_bytes? u32,
    edge: Edge,
    overlap: bool,
});

impl Debounce {
    /// Trailing debounce with these thresholds.
    #[must_use]
    pub fn new(thresholds: Thresholds) -> Self {
        let edge = Edge::Trailing;
        let (max_triggers, max_bytes) = (None, None);
        let (from_default, overlap) = (false, false);
        Debounce { thresholds, from_default, max_triggers, max_bytes, edge, overlap }
    }

    /// Refuses bounds of a window that cannot be meant (R40).
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) that names the field.
    pub fn check_bounds(&self) -> Result<()> {
        if self.max_triggers == Some(0) {
            return Err(Error::invalid("max_triggers", "max_triggers is 0: give 1 or more"));
        }
        match self.max_bytes {
            Some(bytes) if bytes == 0 || bytes > MAX_WINDOW_BYTES => {
                let message =
                    format!("max_bytes is {bytes}: give 1 to {MAX_WINDOW_BYTES} (16 MiB)");
                Err(Error::invalid("max_bytes", message))
            }
            Some(_) | None => Ok(()),
        }
    }

    /// Trailing debounce with the process's thresholds, which a queue's settings may replace.
    #[must_use]
    pub fn with_default(thresholds: Thresholds) -> Self {
        Debounce { from_default: true, ..Debounce::new(thresholds) }
    }

    /// The same with the thresholds that an operator set for the task, if any (R14). A throttle has a
    /// period in their place, which stays.
    ///
    /// ```
    /// use std::time::Duration;
    /// use quell_core::window::{Debounce, Thresholds};
    ///
    /// let of_task = Debounce::with_default(Thresholds::DEFAULT);
    /// let set = Thresholds::new(Duration::from_secs(30), Duration::from_secs(300))?;
    /// let in_force = of_task.with_operators(Some(set));
    /// assert_eq!((in_force.thresholds, in_force.from_default), (set, false));
    /// assert_eq!(of_task.with_operators(None), of_task);
    /// # Ok::<(), quell_core::Error>(())
    /// ```
    #[must_use]
    pub fn with_operators(self, set: Option<Thresholds>) -> Self {
        match set {
            Some(thresholds) if self.edge != Edge::Throttle => {
                Debounce { thresholds, from_default: false, ..self }
            }
            Some(_) | None => self,
        }
    }

    /// At most one start per `period` and key (R13).
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) when `period` is zero.
    pub fn throttle(period: Duration) -> Result<Self> {
        if period.as_micros() == 0 {
            return Err(Error::invalid("throttle", "throttle period is zero: give a duration"));
        }
        let thresholds = Thresholds::new(period, period)?;
        Ok(Debounce { edge: Edge::Throttle, ..Debounce::new(thresholds) })
    }

    /// Refuses a delay that is longer than the longest delay of a window, as far as that is known
    /// without the store: a queue may replace default thresholds, and a moment is on its clock (R40).
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) that names `delay`.
    pub fn check_delay(&self, when: When) -> Result<()> {
        match when {
            When::After(_) if !self.from_default => self.check_due(when, Timestamp::from_micros(0)),
            When::Now | When::After(_) | When::At(_) => Ok(()),
        }
    }

    /// Refuses a trigger that is accepted at `now` and asks to run later than its own max allows
    /// (R7, R40). The thresholds are those that count in the store (R14).
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) that names `delay` or `run_at`.
    pub fn check_due(&self, when: When, now: Timestamp) -> Result<()> {
        let max = self.thresholds.max();
        let (limit, name) = match self.edge {
            Edge::Throttle => (max, "the throttle's period"),
            Edge::Trailing | Edge::Leading | Edge::Both => (max, "max"),
        };
        let remedy = format!("{name} ({limit:?}): raise it, or trigger without debounce");
        match when {
            When::After(delay) if delay > max => {
                Err(Error::invalid("delay", format!("delay ({delay:?}) is longer than {remedy}")))
            }
            When::At(at) if at > now + max => {
                let delay = at.since(now);
                let message = format!("run_at is {delay:?} away, which is longer than {remedy}");
                Err(Error::invalid("run_at", message))
            }
            When::Now | When::After(_) | When::At(_) => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r40_bounds_of_a_window_that_cannot_be_meant_are_refused_by_field() {
        let base = Debounce::new(Thresholds::DEFAULT);
        let field = |debounce: Debounce| match debounce.check_bounds() {
            Ok(()) => None,
            Err(error) => error.field().map(ToOwned::to_owned),
        };
        let bytes = |max_bytes| field(Debounce { max_bytes, ..base });
        assert_eq!(bytes(Some(0)).as_deref(), Some("max_bytes"));
        assert_eq!(bytes(Some(MAX_WINDOW_BYTES + 1)).as_deref(), Some("max_bytes"));
        assert_eq!(
            [bytes(None), bytes(Some(1)), bytes(Some(MAX_WINDOW_BYTES))],
            [None, None, None]
        );
        let none = Debounce { max_triggers: Some(0), ..base };
        assert_eq!(field(none).as_deref(), Some("max_triggers"));
    }
}
