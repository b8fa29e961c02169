//! The door: each method of the trait is one transaction here.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use quell_core::alert::{AlertRow, AlertState, Overview};
use quell_core::checkup::Checkup;
use quell_core::effect::{Begun, check_result};
use quell_core::heartbeat::{Heartbeat, Workers};
use quell_core::history::Sink;
use quell_core::schedule::{Schedule, ScheduleInfo, ScheduleState, Ticked};
use quell_core::touched::Needs;
use quell_core::{
    AlertName, Answer, Attempt, Batch, Cancelled, Capabilities, Claim, Claimed, Counts, DeadFilter,
    DeadLetter, DeadLetters, Effect, EffectName, EndHub, Ended, Error, ExplainTarget, Explanation,
    Imported, Job, JobFilter, JobId, JobResult, Key, Lapsed, Lease, Location, NextDue, Operation,
    Payload, Pruned, QueueInfo, QueueName, QueueSettings, Receipt, Redrive, Renewal, Result,
    Retention, ScheduleName, Settled, SettledAs, Settlement, Steps, Store, TaskInfo, TaskName,
    TaskSettings, Timestamp, UnreadableJob, UnreadableJobs, UnreadablePage, WakeHub, Wakeups,
    WorkerId, dispatch,
};
use sqlx::sqlite::{SqliteConnectOptions, SqlitePoolOptions};
use sqlx::{Connection, SqliteConnection, SqlitePool};
use tokio::sync::Mutex;
use tokio::task::JoinSet;

use crate::SqliteOptions;
use crate::checkup::read_checkup;
use crate::claim::has_lapsed;
use crate::clock::HostClock;
use crate::enqueue::open_with_windows;
use crate::error::explain;
use crate::look::{Asked, Look, look, open_with_look};
use crate::operate::may_prune;
use crate::options::{Shared, count_steps};
use crate::read::Reader;
use crate::schedules::look_for_ticks;
use crate::schema::location;
use crate::settle::open_with_success;
use crate::tx::{News, Writer, open_at};
use crate::wal::Wal;
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
    /// For what workers ask all the time; it waits behind no operator's read.
    looker: Mutex<SqliteConnection>,
    readers: SqlitePool,
    wal: Wal,
    hub: Arc<WakeHub>,
    ends: Arc<EndHub>,
    hints: Hints,
    history: Option<Sink>,
    location: Location,
    path: PathBuf,
    clock: HostClock,
    // Owned so that it ends with the store.
    _watcher: JoinSet<()>,
}

/// Queues in which this process has just seen a job that is due: their next claim need not look
/// before it writes.
#[derive(Debug, Default)]
struct Hints(std::sync::Mutex<HashSet<QueueName>>);

impl Hints {
    fn add(&self, queues: Vec<QueueName>) {
        if !queues.is_empty() {
            self.0.lock().unwrap_or_else(PoisonError::into_inner).extend(queues);
        }
    }

    fn take(&self, queue: &QueueName) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(queue)
    }
}

/// One atomic write, from begin to commit, that opens with a query.
macro_rules! write {
    ($self:ident, $opening:expr, |$tx:ident| $body:expr) => {
        write!($self, $opening, |$tx, _rows| $body)
    };
    ($self:ident, $opening:expr, |$tx:ident, $rows:ident| $body:expr) => {{
        let mut rows_set_aside = 0;
        loop {
            let done: Result<_> = write_once!($self, $opening, |$tx, $rows| $body);
            let Err(error) = &done else { break done };
            // R25: a row that cannot be decoded harms itself only.
            rows_set_aside += 1;
            if rows_set_aside > quell_core::unreadable::MAX_PER_CALL
                || !$self.set_aside(error).await?
            {
                break done;
            }
        }
    }};
}

/// As [`write!`], and fails where a row cannot be decoded.
macro_rules! write_once {
    ($self:ident, $opening:expr, |$tx:ident, $rows:ident| $body:expr) => {
        async {
            let opening = $opening;
            let mut writer = $self.writer.lock().await;
            let (mut $tx, $rows) = writer.begin(opening, $self.history.is_some()).await?;
            let answer = $body;
            let news = $tx.commit().await?;
            // Before the lock is free, so that the history is in the order of the commits.
            $self.spread(news);
            drop(writer);
            Ok(answer)
        }
        .await
    };
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
        mut writer: SqliteConnection,
        connect: &SqliteConnectOptions,
        Shared { history, steps, longest_clock_jump, clock_offset }: Shared,
    ) -> Result<Self> {
        let (location, opened_at) = location(&mut writer).await?;
        let reading = connect.clone().pragma("query_only", "on");
        let open = async || {
            let opened = SqliteConnection::connect_with(&reading).await;
            opened.map_err(|e| explain("open the store", e))
        };
        let (mut looker, watched) = (open().await?, open().await?);
        for db in [&mut writer, &mut looker] {
            let counted = count_steps(db, steps.clone()).await;
            counted.map_err(|e| explain("open the store", e))?;
        }
        let readers = SqlitePoolOptions::new()
            .after_connect(move |db, _| Box::pin(count_steps(db, steps.clone())))
            .max_connections(READERS)
            .test_before_acquire(false)
            .idle_timeout(None)
            .max_lifetime(None)
            .connect_lazy_with(reading);
        let (hub, ends) = (Arc::new(WakeHub::new()), Arc::new(EndHub::new()));
        let mut watcher = JoinSet::new();
        watcher.spawn(watch(
            watched,
            connect.get_filename().to_owned(),
            Arc::clone(&hub),
            Arc::clone(&ends),
        ));
        Ok(SqliteStore {
            writer: Mutex::new(Writer::new(writer)),
            looker: Mutex::new(looker),
            readers,
            wal: Wal::new(connect),
            hub,
            ends,
            hints: Hints::default(),
            history,
            location,
            path: connect.get_filename().to_owned(),
            clock: HostClock::new(opened_at, longest_clock_jump, clock_offset),
            _watcher: watcher,
        })
    }

    async fn reader(&self) -> Result<Reader> {
        Reader::new(&self.readers).await
    }

    async fn look(&self, now: Option<Timestamp>, asked: &Asked<'_>) -> Result<Look> {
        look(&mut *self.looker.lock().await, self.clock.time(now)?, asked).await
    }

    /// Sets the job aside whose row cannot be decoded, if that is what `error` says; `false` where
    /// there is nothing to set aside.
    async fn set_aside(&self, error: &Error) -> Result<bool> {
        let Some(id) = error.unreadable_job() else { return Ok(false) };
        write_once!(self, open_at(self.clock.seen()), |tx, _rows| tx.set_aside(id, error).await?)
    }

    /// Tells workers and the history what a commit changed.
    fn spread(&self, news: News) {
        if let Some(history) = &self.history {
            news.events.iter().for_each(|event| history.record(event));
        }
        for (queue, due) in news.wakes {
            self.hub.wake(Some(&queue), due);
        }
        if news.wakes_all {
            self.hub.wake(None, Timestamp::MIN);
        }
        if let Some(due) = news.next_tick {
            self.hub.wake(None, due);
        }
        news.cancelled.iter().for_each(|job| self.hub.cancelled(Cancelled::Job(*job)));
        self.ends.tell(news.ended);
        self.hints.add(news.due_now);
    }
}

#[async_trait]
impl DeadLetters for SqliteStore {
    async fn dead(&self, filter: &DeadFilter) -> Result<Vec<Job>> {
        self.reader().await?.dead(filter).await
    }

    async fn count_dead(&self, filter: &DeadFilter) -> Result<u64> {
        self.reader().await?.count_dead(filter).await
    }

    async fn letters(&self, ids: &[JobId]) -> Result<Vec<DeadLetter>> {
        self.reader().await?.letters(ids).await
    }

    async fn discard(
        &self,
        now: Option<Timestamp>,
        ids: &[JobId],
        reason: &str,
    ) -> Result<Vec<JobId>> {
        write!(self, open_at(self.clock.time(now)?), |tx| tx.discard(ids, reason).await?)
    }

    async fn import_dead(
        &self,
        now: Option<Timestamp>,
        letters: &[DeadLetter],
    ) -> Result<Vec<Imported>> {
        write!(self, open_at(self.clock.time(now)?), |tx| tx.import_dead(letters).await?)
    }
}

#[async_trait]
impl UnreadableJobs for SqliteStore {
    async fn unreadable(&self, page: &UnreadablePage) -> Result<Vec<UnreadableJob>> {
        self.reader().await?.unreadable(page).await
    }

    async fn restore(&self, now: Option<Timestamp>, ids: &[JobId]) -> Result<Vec<JobId>> {
        write!(self, open_at(self.clock.time(now)?), |tx| tx.restore(ids).await?)
    }
}

#[async_trait]
impl Store for SqliteStore {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            dedup: true,
            transactions: true,
            push: true,
            timed: false,
            priorities: true,
            exact_limits: true,
            listing: true,
            across_queues: true,
            large_batches: true,
        }
    }

    fn location(&self) -> Option<&Location> {
        Some(&self.location)
    }

    async fn call(&self, now: Option<Timestamp>, operation: Operation) -> Result<Answer> {
        dispatch(self, now, operation).await
    }

    fn wakeups(&self) -> Wakeups {
        self.hub.subscribe()
    }

    /// Other processes notice the commit by themselves.
    fn transaction_committed(&self) {
        self.hub.wake(None, Timestamp::MIN);
    }

    fn ended(&self, job: JobId) -> Ended {
        self.ends.wait_for(job)
    }
}

#[async_trait]
impl Steps for SqliteStore {
    async fn enqueue(
        &self,
        now: Option<Timestamp>,
        batches: Vec<Batch>,
    ) -> Result<Vec<Result<Vec<Receipt>>>> {
        let needs = Needs::of(&batches);
        write!(self, open_with_windows(self.clock.time(now)?, &needs)?, |tx, windows| {
            tx.enqueue(&batches, &needs, &windows).await?
        })
    }

    async fn claim(&self, now: Option<Timestamp>, claim: &Claim) -> Result<Claimed> {
        if claim.limit == 0 || !self.hints.take(&claim.queue) {
            let before = self.look(now, &Asked::of(claim)).await?;
            if !before.is_due() || claim.limit == 0 {
                return Ok(Claimed {
                    now: before.line.now,
                    jobs: Vec::new(),
                    next: before.line.next(),
                    rated: before.line.settings.limits_rate(),
                });
            }
        }
        let (at, asked) = (self.clock.time(now)?, Asked::of(claim));
        write!(self, open_with_look(at, &asked)?, |tx, looked| {
            let (jobs, next, rated) = tx.claim(claim, &looked).await?;
            if jobs.len() == claim.limit && next.due.is_some_and(|due| due <= next.now) {
                tx.news.due_now.push(claim.queue.clone());
            }
            Claimed { now: tx.now, jobs, next, rated }
        })
    }

    async fn renew(
        &self,
        now: Option<Timestamp>,
        leases: &[Lease],
        lease: Duration,
    ) -> Result<Vec<Renewal>> {
        if leases.is_empty() {
            return Ok(Vec::new());
        }
        write!(self, open_at(self.clock.time(now)?), |tx| tx.renew(leases, lease).await?)
    }

    async fn settle(
        &self,
        now: Option<Timestamp>,
        settlements: Vec<Settlement>,
    ) -> Result<Vec<Settled>> {
        if settlements.is_empty() {
            return Ok(Vec::new());
        }
        write!(self, open_with_success(self.clock.time(now)?, &settlements), |tx, succeeded| {
            let settled = tx.settle(&settlements, &succeeded).await?;
            tx.fold_inbox().await?;
            settled
        })
    }

    async fn begin_effect(
        &self,
        now: Option<Timestamp>,
        lease: &Lease,
        name: &EffectName,
        key: &Key,
    ) -> Result<Begun> {
        write!(self, open_at(self.clock.time(now)?), |tx| tx.begin_effect(lease, name, key).await?)
    }

    async fn end_effect(
        &self,
        now: Option<Timestamp>,
        lease: &Lease,
        name: &EffectName,
        result: &Payload,
    ) -> Result<()> {
        check_result(name, result)?;
        write!(self, open_at(self.clock.time(now)?), |tx| tx
            .end_effect(lease, name, result)
            .await?)
    }

    async fn effects(&self, id: JobId) -> Result<Vec<Effect>> {
        self.reader().await?.effects(id).await
    }

    async fn reap(&self, now: Option<Timestamp>, limit: usize) -> Result<Vec<Lapsed>> {
        if !has_lapsed(&mut *self.looker.lock().await, self.clock.time(now)?).await? {
            return Ok(Vec::new());
        }
        write!(self, open_at(self.clock.time(now)?), |tx| {
            tx.fold_inbox().await?;
            tx.reap(limit).await?
        })
    }

    async fn heartbeat(&self, now: Option<Timestamp>, beat: &Heartbeat) -> Result<()> {
        write!(self, open_at(self.clock.time(now)?), |tx| tx.heartbeat(beat).await?)
    }

    async fn remove_worker(&self, worker: &WorkerId, incarnation: u32) -> Result<()> {
        write!(self, open_at(self.clock.seen()), |tx| tx.remove_worker(worker, incarnation).await?)
    }

    async fn workers(&self, now: Option<Timestamp>) -> Result<Workers> {
        let now = self.clock.time(now)?;
        self.reader().await?.workers(now).await
    }

    async fn next_due(
        &self,
        now: Option<Timestamp>,
        queue: &QueueName,
        tasks: &[TaskName],
    ) -> Result<NextDue> {
        let asked = Asked { queue, tasks, worker: None, limit: 0 };
        Ok(self.look(now, &asked).await?.line.next())
    }

    async fn queues(&self) -> Result<Vec<QueueInfo>> {
        self.reader().await?.queues().await
    }

    async fn set_queue(&self, queue: &QueueName, settings: &QueueSettings) -> Result<()> {
        settings.validate()?;
        write!(self, open_at(self.clock.seen()), |tx| tx.set_queue(queue, settings).await?)
    }

    async fn delete_queue(&self, queue: &QueueName) -> Result<bool> {
        write!(self, open_at(self.clock.seen()), |tx| tx.delete_queue(queue).await?)
    }

    async fn tasks(&self) -> Result<Vec<TaskInfo>> {
        self.reader().await?.tasks().await
    }

    async fn set_task(&self, task: &TaskName, settings: &TaskSettings) -> Result<()> {
        write!(self, open_at(self.clock.seen()), |tx| tx.set_task(task, settings).await?)
    }

    async fn job(&self, id: JobId) -> Result<Option<Job>> {
        self.reader().await?.job(id).await
    }

    async fn result(&self, id: JobId) -> Result<Option<JobResult>> {
        self.reader().await?.result(id).await
    }

    async fn jobs(&self, filter: &JobFilter) -> Result<Vec<Job>> {
        self.reader().await?.jobs(filter).await
    }

    async fn counts(&self) -> Result<Vec<Counts>> {
        self.reader().await?.counts().await
    }

    async fn attempts(&self, id: JobId) -> Result<Vec<Attempt>> {
        self.reader().await?.attempts(id).await
    }

    async fn explain(&self, target: &ExplainTarget) -> Result<Option<Explanation>> {
        self.reader().await?.explain(target).await
    }

    async fn flush(
        &self,
        now: Option<Timestamp>,
        task: &TaskName,
        key: &Key,
    ) -> Result<Option<JobId>> {
        write!(self, open_at(self.clock.time(now)?), |tx| {
            tx.fold_inbox_first().await?;
            tx.flush(task, key).await?
        })
    }

    async fn cancel_key(
        &self,
        now: Option<Timestamp>,
        task: &TaskName,
        key: &Key,
    ) -> Result<Option<JobId>> {
        write!(self, open_at(self.clock.time(now)?), |tx| {
            tx.fold_inbox_first().await?;
            tx.cancel_key(task, key).await?
        })
    }

    async fn cancel(&self, now: Option<Timestamp>, id: JobId, reason: &str) -> Result<()> {
        write!(self, open_at(self.clock.time(now)?), |tx| tx.cancel(id, reason).await?)
    }

    async fn redrive(&self, now: Option<Timestamp>, redrive: &Redrive) -> Result<SettledAs> {
        write!(self, open_at(self.clock.time(now)?), |tx| {
            tx.fold_inbox().await?;
            tx.redrive(redrive).await?
        })
    }

    async fn prune(
        &self,
        now: Option<Timestamp>,
        retention: &Retention,
        limit: usize,
    ) -> Result<Pruned> {
        if !may_prune(&mut *self.looker.lock().await, self.clock.time(now)?, retention).await? {
            self.wal.shrink().await;
            return Ok(Pruned::default());
        }
        write!(self, open_at(self.clock.time(now)?), |tx| tx.prune(retention, limit).await?)
    }

    async fn overview(&self, now: Option<Timestamp>) -> Result<Overview> {
        let now = self.clock.time(now)?;
        self.reader().await?.overview(now).await
    }

    async fn checkup(&self) -> Result<Checkup> {
        read_checkup(&mut *self.looker.lock().await, &self.path).await
    }

    async fn alerts(&self) -> Result<Vec<AlertRow>> {
        self.reader().await?.alerts().await
    }

    async fn set_alert(
        &self,
        name: &AlertName,
        version: u64,
        state: Option<&AlertState>,
    ) -> Result<bool> {
        write!(self, open_at(self.clock.seen()), |tx| tx.set_alert(name, version, state).await?)
    }

    async fn set_schedule(&self, now: Option<Timestamp>, schedule: &Schedule) -> Result<()> {
        let known = self.reader().await?.schedules().await?;
        if known.iter().any(|info| info.schedule == *schedule) {
            // Declared at each start: most often there is nothing to write.
            self.clock.time(now)?;
            return Ok(());
        }
        write!(self, open_at(self.clock.time(now)?), |tx| tx.set_schedule(schedule).await?)
    }

    async fn set_schedule_state(
        &self,
        now: Option<Timestamp>,
        name: &ScheduleName,
        state: ScheduleState,
    ) -> Result<()> {
        write!(self, open_at(self.clock.time(now)?), |tx| tx
            .set_schedule_state(name, state)
            .await?)
    }

    async fn delete_schedule(&self, now: Option<Timestamp>, name: &ScheduleName) -> Result<()> {
        write!(self, open_at(self.clock.time(now)?), |tx| tx.delete_schedule(name).await?)
    }

    async fn schedules(&self) -> Result<Vec<ScheduleInfo>> {
        self.reader().await?.schedules().await
    }

    async fn tick(&self, now: Option<Timestamp>, limit: usize) -> Result<Ticked> {
        let seen = look_for_ticks(&mut *self.looker.lock().await, self.clock.time(now)?).await?;
        if seen.next.is_none_or(|next| next > seen.now) || limit == 0 {
            return Ok(seen);
        }
        write!(self, open_at(self.clock.time(now)?), |tx| {
            tx.fold_inbox_first().await?;
            tx.tick(limit).await?
        })
    }

    async fn run_schedule(&self, now: Option<Timestamp>, name: &ScheduleName) -> Result<Receipt> {
        write!(self, open_at(self.clock.time(now)?), |tx| {
            tx.fold_inbox_first().await?;
            tx.run_schedule(name).await?
        })
    }

    async fn backfill(
        &self,
        now: Option<Timestamp>,
        name: &ScheduleName,
        from: Timestamp,
        to: Timestamp,
    ) -> Result<u64> {
        write!(self, open_at(self.clock.time(now)?), |tx| {
            tx.fold_inbox_first().await?;
            tx.backfill(name, from, to).await?
        })
    }
}
