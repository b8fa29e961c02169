//! The door: each method of the trait is one transaction here.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use quell_core::history::Sink;
use quell_core::{
    Attempt, Batch, Capabilities, Claim, Claimed, Counts, ExplainTarget, Explanation, Job,
    JobFilter, JobId, Key, Lapsed, Lease, NextDue, QueueInfo, QueueName, QueueSettings, Receipt,
    Result, Retention, Settled, SettledAs, Settlement, Store, TaskName, Timestamp, WakeHub,
    Wakeups,
};
use sqlx::pool::PoolConnection;
use sqlx::sqlite::{SqliteConnectOptions, SqlitePoolOptions};
use sqlx::{Connection, Sqlite, SqliteConnection, SqlitePool};
use tokio::sync::Mutex;
use tokio::task::JoinSet;

use crate::SqliteOptions;
use crate::claim::{look, look_head};
use crate::error::explain;
use crate::operate::may_prune;
use crate::read::Reader;
use crate::tx::{News, Writer, wall_clock};
use crate::watch::watch;

/// Connections for looking and reading; writes have their own.
const READERS: u32 = 2;

/// A store in one SQLite file.
///
/// ```no_run
/// # async fn open() -> quell_core::Result<()> {
/// let store = quell_sqlite::SqliteStore::open("sqlite://app.db").await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct SqliteStore {
    writer: Mutex<Writer>,
    readers: SqlitePool,
    hub: Arc<WakeHub>,
    history: Option<Sink>,
    /// The highest time that this process has seen, in microseconds (R38).
    seen: AtomicI64,
    // Owned so that it ends with the store.
    _watcher: JoinSet<()>,
}

/// One atomic write, from begin to commit.
macro_rules! write {
    ($self:ident, $now:expr, |$tx:ident| $body:expr) => {{
        let mut writer = $self.writer.lock().await;
        let mut $tx = writer.begin($now, $self.history.is_some()).await?;
        let answer = $body;
        let news = $tx.commit().await?;
        drop(writer);
        $self.spread(news);
        Ok(answer)
    }};
}

impl SqliteStore {
    /// Opens the store behind `sqlite://FILE`, with the defaults of [`SqliteOptions`].
    ///
    /// # Errors
    /// As for [`SqliteOptions::open`].
    pub async fn open(url: &str) -> Result<Self> {
        SqliteOptions::from_url(url)?.open().await
    }

    pub(crate) async fn start(
        writer: SqliteConnection,
        connect: &SqliteConnectOptions,
        history: Option<Sink>,
    ) -> Result<Self> {
        let watched = SqliteConnection::connect_with(connect).await;
        let watched = watched.map_err(|e| explain("open the store", e))?;
        let readers = SqlitePoolOptions::new()
            .max_connections(READERS)
            .connect_lazy_with(connect.clone().pragma("query_only", "on"));
        let hub = Arc::new(WakeHub::new());
        let mut watcher = JoinSet::new();
        watcher.spawn(watch(watched, Arc::clone(&hub)));
        let writer = Mutex::new(Writer::new(writer));
        let seen = AtomicI64::new(i64::MIN);
        Ok(SqliteStore { writer, readers, hub, history, seen, _watcher: watcher })
    }

    /// The store's time: the machine's clock or what a test says, but never earlier than before.
    fn time(&self, now: Option<Timestamp>) -> Timestamp {
        let now = now.unwrap_or_else(wall_clock).as_micros();
        Timestamp::from_micros(self.seen.fetch_max(now, Ordering::Relaxed).max(now))
    }

    async fn reader(&self) -> Result<PoolConnection<Sqlite>> {
        self.readers.acquire().await.map_err(|e| explain("open a reading connection", e))
    }

    /// Tells workers and the history what a commit changed.
    fn spread(&self, news: News) {
        if let Some(history) = &self.history {
            news.events.iter().for_each(|event| history.record(event));
        }
        for (queue, due) in news.wakes {
            self.hub.wake(Some(&queue), due);
        }
    }
}

#[async_trait]
impl Store for SqliteStore {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            dedup: true,
            transactions: true,
            push: true,
            priorities: true,
            exact_limits: true,
            listing: true,
        }
    }

    async fn enqueue(
        &self,
        now: Option<Timestamp>,
        batches: Vec<Batch>,
    ) -> Result<Vec<Vec<Receipt>>> {
        write!(self, self.time(now), |tx| {
            tx.fold_inbox().await?;
            tx.accept(&batches).await?
        })
    }

    async fn claim(&self, now: Option<Timestamp>, claim: &Claim) -> Result<Claimed> {
        let mut reader = self.reader().await?;
        let before = look(&mut reader, self.time(now), &claim.queue, &claim.tasks).await?;
        if !before.is_due() || claim.limit == 0 {
            return Ok(Claimed { now: before.next.now, jobs: Vec::new(), next: before.next });
        }
        drop(reader);
        write!(self, self.time(now), |tx| {
            tx.fold_inbox().await?;
            let jobs = tx.claim(claim).await?;
            let after = look(&mut tx.db, tx.now, &claim.queue, &claim.tasks).await?;
            Claimed { now: tx.now, jobs, next: after.next }
        })
    }

    async fn renew(
        &self,
        now: Option<Timestamp>,
        leases: &[Lease],
        lease: Duration,
    ) -> Result<Vec<Option<Timestamp>>> {
        write!(self, self.time(now), |tx| tx.renew(leases, lease).await?)
    }

    async fn settle(
        &self,
        now: Option<Timestamp>,
        settlements: Vec<Settlement>,
    ) -> Result<Vec<Settled>> {
        write!(self, self.time(now), |tx| {
            tx.fold_inbox().await?;
            tx.settle(&settlements).await?
        })
    }

    async fn reap(&self, now: Option<Timestamp>, limit: usize) -> Result<Vec<Lapsed>> {
        let mut reader = self.reader().await?;
        let head = look_head(&mut reader, self.time(now)).await?;
        if head.lapse.is_none_or(|lapse| head.now < lapse) {
            return Ok(Vec::new());
        }
        drop(reader);
        write!(self, self.time(now), |tx| {
            tx.fold_inbox().await?;
            tx.reap(limit).await?
        })
    }

    async fn next_due(
        &self,
        now: Option<Timestamp>,
        queue: &QueueName,
        tasks: &[TaskName],
    ) -> Result<NextDue> {
        let mut reader = self.reader().await?;
        Ok(look(&mut reader, self.time(now), queue, tasks).await?.next)
    }

    fn wakeups(&self) -> Wakeups {
        self.hub.subscribe()
    }

    async fn queues(&self) -> Result<Vec<QueueInfo>> {
        Reader::new(&mut *self.reader().await?).await?.queues().await
    }

    async fn set_queue(&self, queue: &QueueName, settings: &QueueSettings) -> Result<()> {
        // Settings have no time: the store's is left as it is.
        write!(self, Timestamp::MIN, |tx| tx.set_queue(queue, settings).await?)
    }

    async fn job(&self, id: JobId) -> Result<Option<Job>> {
        Reader::new(&mut *self.reader().await?).await?.job(id).await
    }

    async fn jobs(&self, filter: &JobFilter) -> Result<Vec<Job>> {
        Reader::new(&mut *self.reader().await?).await?.jobs(filter).await
    }

    async fn counts(&self) -> Result<Vec<Counts>> {
        Reader::new(&mut *self.reader().await?).await?.counts().await
    }

    async fn attempts(&self, id: JobId) -> Result<Vec<Attempt>> {
        Reader::new(&mut *self.reader().await?).await?.attempts(id).await
    }

    async fn explain(&self, target: &ExplainTarget) -> Result<Option<Explanation>> {
        Reader::new(&mut *self.reader().await?).await?.explain(target).await
    }

    async fn flush(
        &self,
        now: Option<Timestamp>,
        task: &TaskName,
        key: &Key,
    ) -> Result<Option<JobId>> {
        write!(self, self.time(now), |tx| {
            tx.fold_inbox().await?;
            tx.flush(task, key).await?
        })
    }

    async fn cancel_key(
        &self,
        now: Option<Timestamp>,
        task: &TaskName,
        key: &Key,
    ) -> Result<Option<JobId>> {
        write!(self, self.time(now), |tx| {
            tx.fold_inbox().await?;
            tx.cancel_key(task, key).await?
        })
    }

    async fn cancel(&self, now: Option<Timestamp>, id: JobId, reason: &str) -> Result<()> {
        write!(self, self.time(now), |tx| tx.cancel(id, reason).await?)
    }

    async fn redrive(&self, now: Option<Timestamp>, id: JobId) -> Result<SettledAs> {
        write!(self, self.time(now), |tx| {
            tx.fold_inbox().await?;
            tx.redrive(id).await?
        })
    }

    async fn prune(
        &self,
        now: Option<Timestamp>,
        retention: &Retention,
        limit: usize,
    ) -> Result<u64> {
        let mut reader = self.reader().await?;
        if !may_prune(&mut reader, self.time(now), retention).await? {
            return Ok(0);
        }
        drop(reader);
        write!(self, self.time(now), |tx| tx.prune(retention, limit).await?)
    }
}
