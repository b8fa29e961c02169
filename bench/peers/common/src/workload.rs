//! The workloads of every peer that read nothing from its store. A job counts as enqueued when the
//! store has answered the call.

use std::time::{Duration, Instant};

use anyhow::Context;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::task::JoinSet;

use crate::{Peer, Starts, join};

/// How long one job or one drain may take before the round has failed.
const PATIENCE: Duration = Duration::from_secs(600);
const PER_CALL: usize = 1_000;

/// A time in milliseconds.
#[must_use]
pub fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// Enqueues batches, one after the other; returns how long that took.
///
/// # Errors
///
/// Fails when a call does.
pub async fn batch<P: Peer>(peer: &P, count: usize) -> anyhow::Result<Duration> {
    let began = Instant::now();
    for first in (0..count).step_by(PER_CALL) {
        peer.enqueue_many(first, PER_CALL.min(count - first)).await?;
    }
    Ok(began.elapsed())
}

/// What each of the callers does again and again.
#[derive(Clone, Copy, Debug)]
pub enum Call {
    /// Enqueues a job with the next number.
    Single,
    /// Enqueues a job with a number of up to nine digits.
    SingleScattered,
    /// Asks for a later run of one of this number of keys.
    Debounced {
        /// The number of keys.
        keys: usize,
    },
    /// Asks for a later run of a key of its own.
    Windows,
}

/// Callers at once: each makes `each` calls and waits for every answer. Returns how long that took.
///
/// # Errors
///
/// Fails when a call does.
pub async fn callers<P: Peer>(
    peer: &P,
    call: Call,
    callers: usize,
    each: usize,
) -> anyhow::Result<Duration> {
    let began = Instant::now();
    let mut tasks = JoinSet::new();
    for caller in 0..callers {
        let peer = peer.clone();
        tasks.spawn(async move {
            for n in 0..each {
                let next = n * callers + caller;
                let scattered = caller * 7_919 + n * 104_729;
                match call {
                    Call::Single => peer.enqueue(next).await?,
                    Call::SingleScattered => peer.enqueue(scattered).await?,
                    Call::Debounced { keys } => peer.debounce(scattered % keys).await?,
                    Call::Windows => peer.debounce(next).await?,
                }
            }
            anyhow::Ok(())
        });
    }
    join(tasks).await?;
    Ok(began.elapsed())
}

/// Runs a worker until `count` jobs have started and then until `then` is done; returns how long
/// that took.
///
/// # Errors
///
/// Fails when the worker or `then` does, and when the jobs do not start in time.
pub async fn work_until<P: Peer>(
    peer: &P,
    count: usize,
    then: impl Future<Output = anyhow::Result<()>>,
) -> anyhow::Result<Duration> {
    let (sender, mut starts) = Starts::channel(false);
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

/// How a latency is sampled.
#[derive(Clone, Copy, Debug)]
pub struct Sampling {
    /// The number of jobs.
    pub samples: usize,
    /// The wait after each job is between this and two and a half times this, so that it does not
    /// fall into step with a peer's polls.
    pub apart: Duration,
    /// No further sample is begun after this.
    pub budget: Duration,
}

/// From the call of enqueue to the handler's first line, one job at a time, in milliseconds.
///
/// # Errors
///
/// Fails when the worker does, and when a job does not start in time.
pub async fn latencies<P: Peer>(peer: &P, sampling: Sampling) -> anyhow::Result<Vec<f64>> {
    let (sender, mut starts) = Starts::channel(false);
    let worker = peer.work(sender).await?;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let mut waits = Vec::with_capacity(sampling.samples);
    let began = Instant::now();
    for n in 0..sampling.samples {
        waits.push(enqueue_to_start(peer, &mut starts, n).await?);
        if began.elapsed() > sampling.budget {
            break;
        }
        let spread = (n * 7 % 16) as f64 / 10.0;
        tokio::time::sleep(sampling.apart.mul_f64(1.0 + spread)).await;
    }
    P::stop(worker).await?;
    Ok(waits)
}

/// One job from its enqueueing to its start, in milliseconds.
///
/// # Errors
///
/// Fails when the call does, and when the job does not start in time.
pub async fn enqueue_to_start<P: Peer>(
    peer: &P,
    starts: &mut UnboundedReceiver<Instant>,
    n: usize,
) -> anyhow::Result<f64> {
    let began = Instant::now();
    peer.enqueue(n).await?;
    let started = tokio::time::timeout(PATIENCE, starts.recv()).await;
    let started = started.context("the job does not start")?.context("the worker ended")?;
    Ok(millis(started.duration_since(began)))
}
