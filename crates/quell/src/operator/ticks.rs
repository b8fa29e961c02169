//! The newest ticks of a schedule, from a record that is read by time.

use std::time::Duration;

use quell_core::schedule::{RECORD, RecordedTick, Spec, no_such_schedule};
use quell_core::store::Store;
use quell_core::{Result, ScheduleName, Timestamp};

/// By how much a span grows that had too few ticks, or shrinks that had too many.
const STEP: u32 = 8;
/// How many spans are read at most.
const READS: usize = 12;

/// The newest ticks that fired, the newest first.
///
/// It reads the span that the plan needs for as many ticks, and a longer one where some did not fire: a pause, or a
/// plan that is new. Where a span has more ticks than a read returns, its newest are not among them, so a shorter
/// one is read.
pub(super) async fn newest(
    store: &dyn Store,
    now: Timestamp,
    name: &ScheduleName,
    limit: usize,
) -> Result<Vec<RecordedTick>> {
    let known = store.schedules().await?;
    let info = known.iter().find(|info| info.schedule.name == *name);
    let info = info.ok_or_else(|| no_such_schedule(name))?;
    // The store's clock may be ahead of this one, and none of its ticks is later than the last.
    let now = info.last.map_or(now, |last| last.max(now));
    let to = now + Duration::from_secs(60);
    let mut span = span_of(&info.schedule.spec, now, limit);
    let (mut found, mut is_too_long) = (Vec::new(), false);
    for _ in 0..READS {
        let ticks = store.ticks(name, now.before(span), to, RecordedTick::MAX_PAGE).await?;
        let is_cut = ticks.len() >= RecordedTick::MAX_PAGE;
        if !is_cut && (is_too_long || ticks.len() > found.len()) {
            found = ticks;
        }
        if is_cut {
            is_too_long = true;
            span = span.checked_div(STEP).unwrap_or(span);
        } else if found.len() >= limit || is_too_long || span >= RECORD {
            break;
        } else {
            span = span.saturating_mul(STEP).min(RECORD);
        }
    }
    found.reverse();
    found.truncate(limit);
    Ok(found)
}

/// How far back the plan has this many ticks.
fn span_of(spec: &Spec, now: Timestamp, limit: usize) -> Duration {
    let before = |at: &Timestamp| spec.latest(at.before(Duration::from_micros(1)));
    let planned = std::iter::successors(spec.latest(now), before).take(limit);
    // A minute more, as the first of them may have fired a little apart from another clock.
    let span = planned.last().map_or(RECORD, |first| now.since(first));
    span.saturating_add(Duration::from_secs(60)).min(RECORD)
}
