//! What a trace came to under one pair of thresholds: runs, coverage, delays.
//!
//! The simulator and the replay fill the same summary, so that their answers can be compared field
//! by field.

use std::time::Duration;

use quell_core::window::Thresholds;
use serde_json::{Map, Value, json};

/// The distribution of some measured durations.
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
    /// The spread of durations in microseconds, by nearest rank; zero where there is none.
    #[must_use]
    pub fn of(mut micros: Vec<u64>) -> Spread {
        micros.sort_unstable();
        let rank = |percent: usize| {
            let rank = (micros.len() * percent).div_ceil(100).max(1);
            Duration::from_micros(micros.get(rank - 1).copied().unwrap_or_default())
        };
        Spread { p50: rank(50), p99: rank(99), max: rank(100) }
    }

    /// Adds the fields `{name}_p50_s`, `{name}_p99_s` and `{name}_max_s`.
    pub fn write(&self, name: &str, fields: &mut Map<String, Value>) {
        for (percentile, value) in [("p50", self.p50), ("p99", self.p99), ("max", self.max)] {
            fields.insert(format!("{name}_{percentile}_s"), json!(value.as_secs_f64()));
        }
    }
}

/// What a trace came to.
#[derive(Clone, Debug, PartialEq)]
pub struct Summary {
    /// The thresholds it was tried with.
    pub thresholds: Thresholds,
    /// How many events there were.
    pub triggers: u64,
    /// How many times the task ran.
    pub runs: u64,
    /// How many triggers the successful runs covered (R2).
    pub covered: u64,
    /// From the first trigger of each window to its start.
    pub delay: Spread,
}

impl Summary {
    /// The part of the triggers that needed no run of its own, from 0 to 1.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a ratio for people: 53 bits are plenty")]
    pub fn saved(&self) -> f64 {
        if self.triggers == 0 { 0.0 } else { 1.0 - self.runs as f64 / self.triggers as f64 }
    }

    /// The fields that `simulate` and `replay` share.
    #[must_use]
    pub fn fields(&self) -> Map<String, Value> {
        let mut fields = Map::new();
        fields.insert("min_s".into(), json!(self.thresholds.min().as_secs_f64()));
        fields.insert("max_s".into(), json!(self.thresholds.max().as_secs_f64()));
        fields.insert("triggers".into(), json!(self.triggers));
        fields.insert("runs".into(), json!(self.runs));
        fields.insert("covered".into(), json!(self.covered));
        fields.insert("saved".into(), json!((self.saved() * 1e4).round() / 1e4));
        self.delay.write("delay", &mut fields);
        fields
    }
}

/// A count as people read it: `135,528`.
#[must_use]
pub fn grouped(count: u64) -> String {
    let digits = count.to_string();
    let mut text = String::with_capacity(digits.len() * 4 / 3);
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A part of 1 as people read it: `74.8%`.
#[must_use]
pub fn percent(part: f64) -> String {
    format!("{:.1}%", part * 100.0)
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

    #[test]
    fn counts_are_grouped_by_thousands() {
        assert_eq!([0, 999, 1_000, 1_234_567].map(grouped), ["0", "999", "1,000", "1,234,567"]);
    }
}
