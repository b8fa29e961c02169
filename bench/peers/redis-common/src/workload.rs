//! What is measured, the same for every program. A job counts as enqueued when the server has said
//! so, and as completed when it says so to whoever asks.

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::task::JoinSet;

use crate::Peer;
use crate::command::Found;

/// How long one job or one drain may take before the round has failed.
const PATIENCE: Duration = Duration::from_secs(600);
const PER_CALL: usize = 1_000;
/// Milliseconds between jobs, at least.
const APART: f64 = 10.0;

fn rate(count: usize, took: Duration) -> Found {
    Found { value: count as f64 / took.as_secs_f64(), p99: None, jobs: count }
}

/// Batches, one after the other.
pub(crate) async fn batch<P: Peer>(peer: &P, count: usize) -> anyhow::Result<Found> {
    let began = Instant::now();
    for first in (0..count).step_by(PER_CALL) {
        peer.enqueue_many(first, PER_CALL.min(count - first)).await?;
    }
    Ok(rate(count, began.elapsed()))
}

/// What each of the callers does again and again.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Call {
    /// Enqueues a job.
    Single,
    /// Asks for a later run of one of so many keys.
    Debounced { keys: usize },
    /// Asks for a later run of a key of its own.
    Windows,
}

/// Callers at once, each waiting for its own answer.
pub(crate) async fn callers<P: Peer>(
    peer: &P,
    call: Call,
    callers: usize,
    count: usize,
) -> anyhow::Result<Found> {
    let began = Instant::now();
    let each = count.div_ceil(callers);
    let mut tasks = JoinSet::new();
    for caller in 0..callers {
        let peer = peer.clone();
        tasks.spawn(async move {
            for n in 0..each {
                match call {
                    Call::Single => peer.enqueue(n * callers + caller).await?,
                    Call::Debounced { keys } => {
                        peer.debounce((caller * 7_919 + n * 104_729) % keys).await?;
                    }
                    Call::Windows => peer.debounce(n * callers + caller).await?,
                }
            }
            anyhow::Ok(())
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended??;
    }
    Ok(rate(each * callers, began.elapsed()))
}

/// From the start of a worker until every job is completed.
///
/// The server is asked only after the last handler has started: no completion can be earlier, and
/// asking before would slow the peer down.
pub(crate) async fn drain<P: Peer>(peer: &P, count: usize) -> anyhow::Result<Found> {
    ensure!(peer.unfinished(count).await? == count, "the jobs are not all queued");
    let took = work(peer, count, async {
        while peer.unfinished(count).await? > 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        Ok(())
    });
    let took = took.await?;
    ensure!(peer.unfinished(count).await? == 0, "a completion was taken back");
    Ok(rate(count, took))
}

/// From the start of a worker until so many have started.
pub(crate) async fn head<P: Peer>(peer: &P, count: usize) -> anyhow::Result<Found> {
    Ok(rate(count, work(peer, count, async { Ok(()) }).await?))
}

/// Runs a worker until so many jobs have started and then until this is done; says how long it took.
async fn work<P: Peer>(
    peer: &P,
    count: usize,
    then: impl Future<Output = anyhow::Result<()>>,
) -> anyhow::Result<Duration> {
    let (sender, mut starts) = unbounded_channel();
    let began = Instant::now();
    let worker = peer.work(sender).await?;
    let took = tokio::time::timeout(PATIENCE, async {
        for _ in 0..count {
            starts.recv().await.context("the worker ended")?;
        }
        then.await?;
        anyhow::Ok(began.elapsed())
    });
    let took = took.await.context("the jobs do not end")?;
    let stopped = P::stop(worker).await;
    // Why a worker ended says more than that it did.
    stopped?;
    took
}

/// From the call of enqueue to the handler's first line, one job at a time.
pub(crate) async fn latency<P: Peer>(
    peer: &P,
    samples: usize,
    budget: u64,
) -> anyhow::Result<Found> {
    let (sender, mut starts) = unbounded_channel();
    let worker = peer.work(sender).await?;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let mut waits = Vec::with_capacity(samples);
    let began = Instant::now();
    for n in 0..samples {
        waits.push(one(peer, &mut starts, n).await?);
        if began.elapsed() > Duration::from_secs(budget) {
            break;
        }
        // Not in step with a peer's polls.
        let spread = (n * 7 % 16) as f64 / 10.0;
        tokio::time::sleep(Duration::from_secs_f64(APART * (1.0 + spread) / 1e3)).await;
    }
    P::stop(worker).await?;
    waits.sort_by(f64::total_cmp);
    let at = |share: usize| waits.get(waits.len().saturating_sub(1) * share / 100).copied();
    let value = at(50).context("--samples: at least 1")?;
    Ok(Found { value, p99: at(99), jobs: waits.len() })
}

/// One job from its enqueueing to its start, in milliseconds.
async fn one<P: Peer>(
    peer: &P,
    starts: &mut UnboundedReceiver<Instant>,
    n: usize,
) -> anyhow::Result<f64> {
    let began = Instant::now();
    peer.enqueue(n).await?;
    let started = tokio::time::timeout(PATIENCE, starts.recv()).await;
    let started = started.context("the job does not start")?.context("the worker ended")?;
    Ok(started.duration_since(began).as_secs_f64() * 1e3)
}
