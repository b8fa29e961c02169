//! What is measured, the same for every peer. A job counts as enqueued when it is committed, and as
//! completed when the peer's own tables say so to another connection.

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use sqlx::{AssertSqlSafe, Connection, PgConnection};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::task::JoinSet;

use crate::database::Database;
use crate::report::Found;
use crate::{Peer, Settings, Starts};

/// How long one job or one drain may take before the round has failed.
const PATIENCE: Duration = Duration::from_secs(600);
const PER_COMMIT: usize = 1_000;

fn per_second(count: usize, since: Instant) -> f64 {
    count as f64 / since.elapsed().as_secs_f64()
}

pub(crate) fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// Batches, one after the other.
pub(crate) async fn batch<P: Peer>(peer: &P, count: usize) -> anyhow::Result<Found> {
    let began = Instant::now();
    for first in (0..count).step_by(PER_COMMIT) {
        peer.enqueue_many(first, PER_COMMIT.min(count - first)).await?;
    }
    Ok(Found::of(per_second(count, began), count))
}

/// What each of the callers does again and again.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Call {
    /// Enqueues a job.
    Single,
    /// Asks for a later run of one of so many keys.
    Debounced { keys: usize },
}

/// Callers at once, each waiting for its own commit.
pub(crate) async fn callers<P: Peer>(
    peer: &P,
    call: Call,
    callers: usize,
    count: usize,
) -> anyhow::Result<Found> {
    let began = Instant::now();
    let each = count / callers;
    let mut tasks = JoinSet::new();
    for caller in 0..callers {
        let peer = peer.clone();
        tasks.spawn(async move {
            for n in 0..each {
                let n = caller * 7_919 + n * 104_729;
                match call {
                    Call::Single => peer.enqueue(n).await?,
                    Call::Debounced { keys } => peer.debounce(n % keys).await?,
                }
            }
            anyhow::Ok(())
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended??;
    }
    Ok(Found::of(per_second(each * callers, began), each * callers))
}

/// From the start of a worker until every job is durably completed.
///
/// The tables are asked only after the last handler has started: no completion can be earlier, and
/// asking before would slow the peer down.
pub(crate) async fn drain<P: Peer>(
    peer: &P,
    database: &Database,
    count: usize,
) -> anyhow::Result<Found> {
    let mut observer = Observer::connect::<P>(database).await?;
    ensure!(observer.unfinished(count).await? == count as i64, "the jobs are not all queued");
    let (sender, mut starts) = Starts::channel(false);
    let began = Instant::now();
    let worker = peer.work(sender).await?;
    let took = tokio::time::timeout(PATIENCE, async {
        for _ in 0..count {
            starts.recv().await.context("the worker ended")?;
        }
        while observer.unfinished(count).await? > 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        anyhow::Ok(began.elapsed())
    });
    let took = took.await.context("the drain does not end")??;
    P::stop(worker).await?;
    ensure!(observer.unfinished(count).await? == 0, "a completion was taken back");
    let asked = observer.close().await?;
    Ok(Found { asked, ..Found::of(count as f64 / took.as_secs_f64(), count) })
}

/// Asks the peer's tables, and counts its questions.
struct Observer {
    inside: PgConnection,
    question: &'static str,
    asked: usize,
}

impl Observer {
    async fn connect<P: Peer>(database: &Database) -> anyhow::Result<Self> {
        Ok(Observer { inside: database.inside().await?, question: P::UNFINISHED, asked: 0 })
    }

    async fn unfinished(&mut self, count: usize) -> anyhow::Result<i64> {
        self.asked += 1;
        let query = sqlx::query_scalar(AssertSqlSafe(self.question)).bind(count as i64);
        Ok(query.fetch_one(&mut self.inside).await?)
    }

    async fn close(self) -> anyhow::Result<usize> {
        self.inside.close().await?;
        Ok(self.asked)
    }
}

/// How a latency is sampled.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sampling {
    pub(crate) samples: usize,
    /// The wait after each job is between this and two and a half times this, so that it does not
    /// fall into step with a peer's polls.
    pub(crate) apart: Duration,
    /// No further sample is begun after this.
    pub(crate) budget: Duration,
}

/// From the call of enqueue to the handler's first line, one job at a time.
pub(crate) async fn latency<P: Peer>(peer: &P, sampling: Sampling) -> anyhow::Result<Found> {
    let (sender, mut starts) = Starts::channel(false);
    let worker = peer.work(sender).await?;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let mut waits = Vec::with_capacity(sampling.samples);
    let began = Instant::now();
    for n in 0..sampling.samples {
        waits.push(one(peer, &mut starts, n).await?);
        if began.elapsed() > sampling.budget {
            break;
        }
        let spread = (n * 7 % 16) as f64 / 10.0;
        tokio::time::sleep(sampling.apart.mul_f64(1.0 + spread)).await;
    }
    P::stop(worker).await?;
    Ok(Found::waits(waits))
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
    Ok(millis(started.duration_since(began)))
}

/// Nothing for a while, then one job.
pub(crate) async fn after_idle<P: Peer>(peer: &P, idle: Duration) -> anyhow::Result<Found> {
    let (sender, mut starts) = Starts::channel(false);
    let worker = peer.work(sender).await?;
    tokio::time::sleep(idle).await;
    let waited = one(peer, &mut starts, 0).await?;
    P::stop(worker).await?;
    Ok(Found::of(waited, 1))
}

/// A worker that has nothing to do for so long.
pub(crate) async fn waiting<P: Peer>(
    url: &str,
    settings: Settings,
    length: Duration,
) -> anyhow::Result<()> {
    let peer = P::open(url, settings).await?;
    let (sender, _starts) = Starts::channel(false);
    let worker = peer.work(sender).await?;
    tokio::time::sleep(length).await;
    P::stop(worker).await?;
    peer.close().await
}
