//! What is measured, the same for every program. A job counts as enqueued when the server has
//! answered the call, and as completed when the server says so to another connection.

use std::time::Duration;

use anyhow::{Context, ensure};
use peer_common::{Call, Sampling, latencies, work_until};

use crate::RedisPeer;
use crate::command::Found;

/// The time between jobs, at least.
const APART: Duration = Duration::from_millis(10);

fn rate(count: usize, took: Duration) -> Found {
    Found { value: count as f64 / took.as_secs_f64(), p99: None, jobs: count }
}

/// Batches, one after the other.
pub(crate) async fn batch<P: RedisPeer>(peer: &P, count: usize) -> anyhow::Result<Found> {
    Ok(rate(count, peer_common::batch(peer, count).await?))
}

/// Callers at once, each waiting for its own answer.
pub(crate) async fn callers<P: RedisPeer>(
    peer: &P,
    call: Call,
    callers: usize,
    count: usize,
) -> anyhow::Result<Found> {
    let each = count.div_ceil(callers);
    Ok(rate(each * callers, peer_common::callers(peer, call, callers, each).await?))
}

/// From the start of a worker until every job is completed.
///
/// The server is asked only after the last handler has started: no completion can be earlier, and
/// asking before would slow the peer down.
pub(crate) async fn drain<P: RedisPeer>(peer: &P, count: usize) -> anyhow::Result<Found> {
    ensure!(peer.unfinished(count).await? == count, "the jobs are not all queued");
    let completed = async {
        while peer.unfinished(count).await? > 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        anyhow::Ok(())
    };
    let took = work_until(peer, count, completed).await?;
    ensure!(peer.unfinished(count).await? == 0, "a completion was taken back");
    Ok(rate(count, took))
}

/// From the start of a worker until `count` jobs have started.
pub(crate) async fn head<P: RedisPeer>(peer: &P, count: usize) -> anyhow::Result<Found> {
    Ok(rate(count, work_until(peer, count, async { Ok(()) }).await?))
}

/// From the call of enqueue to the handler's first line, one job at a time.
pub(crate) async fn latency<P: RedisPeer>(
    peer: &P,
    samples: usize,
    budget: u64,
) -> anyhow::Result<Found> {
    let sampling = Sampling { samples, apart: APART, budget: Duration::from_secs(budget) };
    let mut waits = latencies(peer, sampling).await?;
    waits.sort_by(f64::total_cmp);
    let at = |share: usize| waits.get(waits.len().saturating_sub(1) * share / 100).copied();
    let value = at(50).context("--samples: at least 1")?;
    Ok(Found { value, p99: at(99), jobs: waits.len() })
}
