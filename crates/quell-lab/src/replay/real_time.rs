//! A speed of N: the machine's clock runs, the trace is N times faster than it happened, and the
//! thresholds are as much shorter. It measures the real store and worker, waits included.

use anyhow::Result;
use quell_core::{Limits, Timestamp};

use super::Progress;
use super::stage::{Stage, scaled};
use crate::trace::Trace;

/// Sends the whole trace, then waits until every trigger is covered.
pub(super) async fn drive(
    stage: &Stage,
    speed: f64,
    trace: &Trace,
    progress: &(dyn Fn(Progress) + Send + Sync),
) -> Result<()> {
    let clock = stage.quell.clock();
    let start = clock.now();
    let origin = trace.events().first().map_or(Timestamp::MIN, |event| event.at);
    let due = |at: Timestamp| start + scaled(at.since(origin), 1.0 / speed);
    let mut rest = trace.events();
    while let Some(first) = rest.first() {
        clock.sleep_until(due(first.at)).await;
        // Where the machine is late, all overdue events go in one batch.
        let now = clock.now();
        let overdue = rest.partition_point(|event| due(event.at) <= now);
        let (events, later) = rest.split_at(overdue.clamp(1, Limits::default().batch));
        stage.trigger(trace, events).await?;
        rest = later;
        let triggers = trace.events().len() - rest.len();
        progress(Progress { triggers, runs: stage.ledger().runs() });
    }
    stage.ledger().all_covered().await?;
    Ok(())
}
