//! One JSON line for each measurement: the medians of its rounds, and every round's value.

use serde::Serialize;

use crate::counters::Counters;

/// What one round found: its figure, the tail beside it where there is one, and the jobs it took.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Found {
    pub(crate) value: f64,
    pub(crate) p99: Option<f64>,
    pub(crate) jobs: usize,
    /// Of the figure, what stopping took, in milliseconds.
    pub(crate) stopping: Option<f64>,
    /// Questions that the measuring itself put to the round's database.
    pub(crate) asked: usize,
}

impl Found {
    pub(crate) fn of(value: f64, jobs: usize) -> Self {
        Found { value, p99: None, jobs, stopping: None, asked: 0 }
    }

    /// The median of what each of the jobs waited, in milliseconds, and the tail.
    pub(crate) fn waits(waits: Vec<f64>) -> Self {
        let p99 = Some(quantile(waits.clone(), 0.99));
        let jobs = waits.len();
        Found { p99, ..Found::of(median(waits), jobs) }
    }
}

/// A measurement, as it is printed.
#[derive(Debug, Serialize)]
pub(crate) struct Measurement {
    pub(crate) peer: String,
    pub(crate) settings: String,
    pub(crate) tuned: &'static str,
    pub(crate) server: String,
    pub(crate) workload: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) note: Option<&'static str>,
    pub(crate) unit: &'static str,
    pub(crate) jobs: usize,
    pub(crate) median: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) p99: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) stopping_ms: Option<f64>,
    pub(crate) rounds: Vec<f64>,
    #[serde(flatten)]
    pub(crate) per_job: Option<PerJob>,
}

/// The counters of a measurement, each a median, for one job.
#[derive(Debug, Serialize)]
pub(crate) struct PerJob {
    wal_bytes_per_job: f64,
    transactions_per_job: f64,
    rows_changed_per_job: f64,
    dead_rows_per_job: f64,
}

impl PerJob {
    pub(crate) fn median(rounds: &[Counters]) -> Self {
        let of = |field: fn(&Counters) -> f64| median(rounds.iter().map(field).collect());
        PerJob {
            wal_bytes_per_job: of(|round| round.wal_bytes),
            transactions_per_job: of(|round| round.transactions),
            rows_changed_per_job: of(|round| round.changed),
            dead_rows_per_job: of(|round| round.dead),
        }
    }
}

/// The middle value; not a number where there is none.
#[must_use]
pub fn median(values: Vec<f64>) -> f64 {
    quantile(values, 0.5)
}

/// The value at this share of them, by size.
#[must_use]
pub fn quantile(mut values: Vec<f64>, share: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a share of a small length"
    )]
    let place = (values.len().saturating_sub(1) as f64 * share).round() as usize;
    values.get(place).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quantile_is_a_value_that_was_measured() {
        let values: Vec<f64> = (1..=100).rev().map(f64::from).collect();
        assert_eq!(quantile(values.clone(), 0.0), 1.0);
        assert_eq!(quantile(values.clone(), 0.99), 99.0);
        assert_eq!(quantile(values, 1.0), 100.0);
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
    }
}
