//! What other thresholds would have done.

use std::time::Duration;

use quell::TaskName;
use quell_lab::simulate::Simulated;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::SettingOrigin;
use crate::config::duration::exact;

/// What thresholds would have done with the triggers that a server has seen lately.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct WhatIf {
    /// The task.
    #[schema(value_type = String)]
    pub task: TaskName,
    /// Where the triggers begin.
    pub from: String,
    /// Where they end.
    pub to: String,
    /// From when on this server has all triggers that it accepted.
    pub complete_from: String,
    /// How many triggers there are.
    pub triggers: u64,
    /// Whether older ones were left out, as there are more than 250,000.
    pub cut: bool,
    /// How many keys they have.
    pub keys: u64,
    /// How many of those had one trigger only.
    pub single_keys: u64,
    /// The task's queue.
    pub queue: String,
    /// Where the thresholds in force come from.
    pub from_setting: SettingOrigin,
    /// The pairs: the one in force, the one that was asked for, and others.
    pub pairs: Vec<WhatIfPair>,
    /// What could be better, in words.
    pub remedies: Vec<String>,
}

/// What a pair of thresholds would have done.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct WhatIfPair {
    /// The quiet period.
    pub min: String,
    /// The longest delay.
    pub max: String,
    /// Whether it is in force.
    pub current: bool,
    /// Whether it was asked for.
    pub asked: bool,
    /// Whether no other pair saves as much and delays less.
    pub frontier: bool,
    /// How many runs there would have been.
    pub runs: u64,
    /// The share of the triggers that would have needed no run of their own, from 0 to 1.
    pub saved: f64,
    /// From a window's first trigger to its run: half of them, in milliseconds.
    pub delay_p50_ms: f64,
    /// The same of 99 in 100.
    pub delay_p99_ms: f64,
    /// From any trigger to the run that covers it: half of them.
    pub trigger_delay_p50_ms: f64,
    /// The same of 99 in 100.
    pub trigger_delay_p99_ms: f64,
}

impl WhatIfPair {
    /// A result.
    #[must_use]
    pub fn new(simulated: &Simulated, current: bool, asked: bool) -> Self {
        let millis = |length: Duration| (length.as_secs_f64() * 1e6).round() / 1e3;
        let summary = &simulated.summary;
        WhatIfPair {
            min: exact(summary.thresholds.min()),
            max: exact(summary.thresholds.max()),
            current,
            asked,
            frontier: false,
            runs: summary.runs,
            saved: (summary.saved() * 1e4).round() / 1e4,
            delay_p50_ms: millis(summary.delay.p50),
            delay_p99_ms: millis(summary.delay.p99),
            trigger_delay_p50_ms: millis(simulated.trigger_delay.p50),
            trigger_delay_p99_ms: millis(simulated.trigger_delay.p99),
        }
    }
}
