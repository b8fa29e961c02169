//! The Prometheus page: counters as the library counted them, jobs as the store has them.

use std::sync::{Mutex, PoisonError};

use anyhow::Context as _;
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use quell::{Counts, JobState};

/// Upper bounds of the histograms, in seconds.
const BUCKETS: [f64; 16] = [
    0.000_5, 0.001, 0.002, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 600.0,
    3_600.0,
];

/// The process's recorder: installed once, shared by every server in the process.
///
/// # Errors
/// When another recorder was installed before.
pub fn recorder() -> anyhow::Result<PrometheusHandle> {
    static RECORDER: Mutex<Option<PrometheusHandle>> = Mutex::new(None);
    let mut recorder = RECORDER.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(handle) = &*recorder {
        return Ok(handle.clone());
    }
    let handle = PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), &BUCKETS)?
        .install_recorder()
        .context("cannot install the metrics recorder")?;
    *recorder = Some(handle.clone());
    Ok(handle)
}

/// The gauges that come from the store, in the text format. Names hold no character that would
/// need escaping.
#[must_use]
pub fn render_jobs(counts: &[Counts]) -> String {
    let mut text = String::from("# TYPE quell_jobs gauge\n");
    let mut dead = String::from("# TYPE quell_dead_jobs gauge\n");
    for Counts { queue, task, state, jobs } in counts {
        text.push_str(&format!(
            "quell_jobs{{queue=\"{queue}\",task=\"{task}\",state=\"{state}\"}} {jobs}\n"
        ));
        if *state == JobState::Dead {
            dead.push_str(&format!(
                "quell_dead_jobs{{queue=\"{queue}\",task=\"{task}\"}} {jobs}\n"
            ));
        }
    }
    text + &dead
}
