//! Virtual time: the clock jumps from one instant to the next, and everything due on the way runs
//! before it moves on.
//!
//! Invariant: when triggers of an instant are accepted, every window due at or before it has been
//! claimed, at its own time. So the runs are those of the rules, whatever the machine's speed. Runs
//! settle meanwhile: a window whose key still runs is due, so the clock waits until it is claimed.

use std::collections::HashSet;

use anyhow::{Result, ensure};
use quell::clock::Clock;
use quell::testing::TestClock;
use quell_core::{Limits, Timestamp};

use super::Progress;
use super::stage::Stage;
use crate::trace::{Event, Trace};

/// Sends the whole trace. With `counted`, the number of triggers can make a window due.
pub(super) async fn drive(
    stage: &Stage,
    clock: &TestClock,
    trace: &Trace,
    counted: bool,
    progress: &(dyn Fn(Progress) + Send + Sync),
) -> Result<()> {
    let mut triggers = 0;
    for instant in trace.events().chunk_by(|one, next| one.at == next.at) {
        let Some(first) = instant.first() else { continue };
        run_due(stage, clock, first.at).await?;
        clock.set(first.at);
        for events in batches(instant, counted) {
            stage.trigger(trace, events).await?;
            if counted {
                run_due(stage, clock, first.at).await?;
            }
        }
        triggers += instant.len();
        progress(Progress { triggers, runs: stage.ledger().runs() });
    }
    run_due(stage, clock, Timestamp::MAX).await?;
    stage.ledger().all_covered().await?;
    let late = stage.ledger().counted().lateness.into_iter().max().unwrap_or_default();
    ensure!(late == 0, "the store's time was {late} microseconds ahead of the trace's");
    Ok(())
}

/// Runs everything that is due at or before `until`, each at its own time.
async fn run_due(stage: &Stage, clock: &TestClock, until: Timestamp) -> Result<()> {
    while let Some(due) = stage.ledger().next_due().filter(|due| *due <= until) {
        clock.set(due);
        stage.wake();
        stage.ledger().all_started(clock.now()).await?;
    }
    Ok(())
}

/// Splits the events of one instant so that a batch fits the limits and, where the count makes a
/// window due, no key comes twice: a full window is taken before the next trigger joins.
fn batches(instant: &[Event], counted: bool) -> Vec<&[Event]> {
    let limit = Limits::default().batch;
    let mut batches = Vec::new();
    let (mut begin, mut keys) = (0, HashSet::new());
    for (place, event) in instant.iter().enumerate() {
        let twice = counted && event.key.is_some_and(|key| !keys.insert(key));
        if twice || place - begin >= limit {
            batches.extend(instant.get(begin..place));
            begin = place;
            keys.clear();
            keys.extend(event.key);
        }
    }
    batches.extend(instant.get(begin..));
    batches
}
