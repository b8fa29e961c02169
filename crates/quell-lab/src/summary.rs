//! The result of a trace under one rule: runs, coverage, delays.
//!
//! The simulation and the replay fill the same summary, so that their results compare field by
//! field.

use std::time::Duration;

use quell_core::window::Thresholds;

/// The distribution of measured durations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spread {
    /// Half of them are no longer.
    pub p50: Duration,
    /// 99 of 100 are no longer.
    pub p99: Duration,
    /// The longest.
    pub max: Duration,
}

impl Spread {
    /// The spread of durations in microseconds, by nearest rank; zero without any.
    pub(crate) fn of(mut micros: Vec<u64>) -> Spread {
        micros.sort_unstable();
        let rank = |percent: usize| {
            let rank = (micros.len() * percent).div_ceil(100).max(1);
            Duration::from_micros(micros.get(rank - 1).copied().unwrap_or_default())
        };
        Spread { p50: rank(50), p99: rank(99), max: rank(100) }
    }
}

/// The result of a trace under one rule.
///
/// ```
/// use quell_core::window::Thresholds;
/// use quell_lab::{Spread, Summary};
///
/// let summary = Summary {
///     thresholds: Thresholds::DEFAULT,
///     triggers: 200,
///     runs: 50,
///     covered: 200,
///     delay: Spread::default(),
/// };
/// assert_eq!(summary.saved(), 0.75);
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Summary {
    /// The thresholds of the rule.
    pub thresholds: Thresholds,
    /// The number of triggers.
    pub triggers: u64,
    /// The number of runs.
    pub runs: u64,
    /// The number of triggers that the successful runs covered (R2).
    pub covered: u64,
    /// From the first trigger of each window to its start.
    pub delay: Spread,
}

impl Summary {
    /// The share of the triggers that needed no run of their own, from 0 to 1.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a ratio for people: 53 bits are plenty")]
    pub fn saved(&self) -> f64 {
        if self.triggers == 0 { 0.0 } else { 1.0 - self.runs as f64 / self.triggers as f64 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_by_nearest_rank() {
        let of = |micros: Vec<u64>| {
            let spread = Spread::of(micros);
            [spread.p50, spread.p99, spread.max].map(|d| d.as_micros())
        };
        assert_eq!(of(vec![]), [0, 0, 0]);
        assert_eq!(of(vec![7]), [7, 7, 7]);
        assert_eq!(of(vec![2, 1]), [1, 2, 2]);
        assert_eq!(of((1..=200).rev().collect()), [100, 198, 200]);
    }
}
