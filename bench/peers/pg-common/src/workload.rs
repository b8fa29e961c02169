//! What is measured, the same for every peer. A job counts as enqueued when it is committed, and as
//! completed when the peer's own tables say so to another connection.

use std::time::Duration;

use anyhow::ensure;
use peer_common::{Call, Sampling, Starts, enqueue_to_start, work_until};
use sqlx::{AssertSqlSafe, Connection, PgConnection};

use crate::database::Database;
use crate::report::Found;
use crate::{PostgresPeer, Settings};

fn rate(count: usize, took: Duration) -> Found {
    Found::of(count as f64 / took.as_secs_f64(), count)
}

/// Batches, one after the other.
pub(crate) async fn batch<P: PostgresPeer>(peer: &P, count: usize) -> anyhow::Result<Found> {
    Ok(rate(count, peer_common::batch(peer, count).await?))
}

/// Callers at once, each waiting for its own commit.
pub(crate) async fn callers<P: PostgresPeer>(
    peer: &P,
    call: Call,
    callers: usize,
    count: usize,
) -> anyhow::Result<Found> {
    let each = count / callers;
    Ok(rate(each * callers, peer_common::callers(peer, call, callers, each).await?))
}

/// From the start of a worker until every job is durably completed.
///
/// The tables are asked only after the last handler has started: no completion can be earlier, and
/// asking before would slow the peer down.
pub(crate) async fn drain<P: PostgresPeer>(
    peer: &P,
    database: &Database,
    count: usize,
) -> anyhow::Result<Found> {
    let mut observer = Observer::connect::<P>(database).await?;
    ensure!(observer.unfinished(count).await? == count as i64, "the jobs are not all queued");
    let completed = async {
        while observer.unfinished(count).await? > 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        anyhow::Ok(())
    };
    let took = work_until(peer, count, completed).await?;
    ensure!(observer.unfinished(count).await? == 0, "a completion was taken back");
    let asked = observer.close().await?;
    Ok(Found { asked, ..rate(count, took) })
}

/// Asks the peer's tables, and counts its questions.
struct Observer {
    inside: PgConnection,
    question: &'static str,
    asked: usize,
}

impl Observer {
    async fn connect<P: PostgresPeer>(database: &Database) -> anyhow::Result<Self> {
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

/// From the call of enqueue to the handler's first line, one job at a time.
pub(crate) async fn latency<P: PostgresPeer>(
    peer: &P,
    sampling: Sampling,
) -> anyhow::Result<Found> {
    Ok(Found::waits(peer_common::latencies(peer, sampling).await?))
}

/// Nothing for a while, then one job.
pub(crate) async fn after_idle<P: PostgresPeer>(peer: &P, idle: Duration) -> anyhow::Result<Found> {
    let (sender, mut starts) = Starts::channel(false);
    let worker = peer.work(sender).await?;
    tokio::time::sleep(idle).await;
    let waited = enqueue_to_start(peer, &mut starts, 0).await?;
    P::stop(worker).await?;
    Ok(Found::of(waited, 1))
}

/// A worker that has nothing to do for this long.
pub(crate) async fn waiting<P: PostgresPeer>(
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
