//! The Prometheus page: counters as the library counted them, jobs as the store has them.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context as _;
use metrics::{describe_counter, describe_gauge};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use quell::checkup::Checkup;
use quell::job::Counts;
use quell::{JobState, QueueName, TaskName};
use tokio_util::sync::CancellationToken;

/// Upper bounds of the histograms, in seconds.
const BUCKETS: [f64; 16] = [
    0.000_5, 0.001, 0.002, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 600.0,
    3_600.0,
];

/// How often measurements are folded.
const UPKEEP: Duration = Duration::from_secs(5);

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
    describe_counter!(
        "quell_source_deliveries_total",
        "Deliveries of webhooks by what became of each."
    );
    describe_gauge!("quell_alert", "Whether an alert is raised.");
    describe_counter!("quell_audit_failures_total", "Audit entries that the file could not take.");
    describe_counter!("quell_audit_suppressed_total", "Refused requests that were counted only.");
    *recorder = Some(handle.clone());
    Ok(handle)
}

/// Folds the measurements since the last time, so that a server does not grow while no one scrapes it.
pub async fn upkeep(recorder: PrometheusHandle, stop: CancellationToken) {
    let mut ticks = tokio::time::interval(UPKEEP);
    loop {
        tokio::select! {
            _ = ticks.tick() => recorder.run_upkeep(),
            () = stop.cancelled() => return,
        }
    }
}

/// The gauges that come from the store, in the text format. `known` tasks without dead jobs show as
/// zero, so that an alert on them has something to compare. Names hold no character that would need
/// escaping.
#[must_use]
pub fn render_jobs<'t>(
    counts: &[Counts],
    known: impl Iterator<Item = (&'t QueueName, &'t TaskName)>,
) -> String {
    let mut text =
        String::from("# HELP quell_jobs Jobs by queue, task and state.\n# TYPE quell_jobs gauge\n");
    let mut dead = String::from(
        "# HELP quell_dead_jobs Dead jobs by queue and task.\n# TYPE quell_dead_jobs gauge\n",
    );
    let mut with_dead = BTreeSet::new();
    for Counts { queue, task, state, jobs } in counts {
        text.push_str(&format!(
            "quell_jobs{{queue=\"{queue}\",task=\"{task}\",state=\"{state}\"}} {jobs}\n"
        ));
        if *state == JobState::Dead {
            dead.push_str(&dead_line(queue, task, *jobs));
            with_dead.insert((queue, task));
        }
    }
    for (queue, task) in known.filter(|pair| !with_dead.contains(pair)) {
        dead.push_str(&dead_line(queue, task, 0));
    }
    text + &dead
}

/// The gauges of the store's health.
#[must_use]
pub fn render_store(checkup: &Checkup) -> String {
    checkup.gauges().map(|gauge| gauge.to_string()).collect()
}

fn dead_line(queue: &QueueName, task: &TaskName, jobs: u64) -> String {
    format!("quell_dead_jobs{{queue=\"{queue}\",task=\"{task}\"}} {jobs}\n")
}
