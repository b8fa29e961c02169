//! Speed `N`: the machine's clock runs, the trace comes N times faster than it happened, and the
//! thresholds are as much shorter. What is measured is the real store and worker, waits and all.

use anyhow::Result;
use indicatif::ProgressBar;
use quell_core::{Limits, Timestamp};

use super::stage::{Stage, scaled};
use crate::trace::Trace;

/// Plays the whole trace, then waits until every trigger is covered.
pub(super) async fn drive(
    stage: &Stage,
    speed: f64,
    trace: &Trace,
    bar: &ProgressBar,
) -> Result<()> {
    let clock = stage.quell.clock();
    let start = clock.now();
    let origin = trace.events().first().map_or(Timestamp::MIN, |event| event.at);
    let due = |at: Timestamp| start + scaled(at.since(origin), 1.0 / speed);
    let mut rest = trace.events();
    while let Some(first) = rest.first() {
        clock.sleep_until(due(first.at)).await;
        // Where the machine lags behind, what is overdue goes in one batch.
        let now = clock.now();
        let overdue = rest.partition_point(|event| due(event.at) <= now);
        let (events, later) = rest.split_at(overdue.clamp(1, Limits::default().batch));
        stage.trigger(trace, events).await?;
        rest = later;
        bar.inc(events.len() as u64);
        bar.set_message(stage.ledger().runs().to_string());
    }
    stage.ledger().all_covered().await?;
    Ok(())
}
