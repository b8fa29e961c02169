//! The door: each method of the trait is one transaction here, or one statement that is its own.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, RwLock};
use std::time::Duration;

use async_trait::async_trait;
use quell_core::alert::{AlertRow, AlertState, Overview};
use quell_core::checkup::Checkup;
use quell_core::effect::{Begun, check_result};
use quell_core::heartbeat::{Heartbeat, Workers};
use quell_core::history::{Event, Sink};
use quell_core::schedule::{Schedule, ScheduleInfo, ScheduleState, Ticked};
use quell_core::touched::Needs;
use quell_core::{
    AlertName, Answer, Attempt, Batch, Cancelled, Capabilities, Claim, Claimed, Counts, Effect,
    EffectName, Ended, Error, ExplainTarget, Explanation, Job, JobFilter, JobId, JobResult, Key,
    Lapsed, Lease, Location, NewTrigger, NextDue, Operation, Payload, Pruned, QueueInfo, QueueName,
    QueueSettings, Receipt, Redrive, Renewal, Result, Retention, ScheduleName, Settled, SettledAs,
    Settlement, Steps, Store, TaskInfo, TaskName, TaskSettings, Timestamp, WakeHub, Wakeups,
    WorkerId, dispatch,
};
use tokio::sync::Mutex;
use tokio::task::JoinSet;

use crate::PostgresOptions;
use crate::checkup::read_checkup;
use crate::connections::Connections;
use crate::counts::Deltas;
use crate::ends::{Ends, ask};
use crate::error::wants_retry;
use crate::leases::{decode_renewed, renew_query};
use crate::listen::{Listener, receive};
use crate::look::peek;
use crate::names::Names;
use crate::opening::opening;
use crate::parts::Stripped;
use crate::push::{FREED, Outbox, tell};
use crate::read::Reader;
use crate::row::time;
use crate::schedules::look_for_ticks;

use crate::sql::Sql;
use crate::trail::{Places, Trails};
use crate::tries::Tries;
use crate::tx::{Asked, News, Tx, Unnamed, one_shot, read};
use crate::warm::Warmth;
use crate::watch::{Watch, keep_watch};
use crate::workers::{beat_query, decode_list, list_query, remove_query};

/// A store in one schema of a PostgreSQL database.
///
/// ```no_run
/// # async fn open() -> quell_core::Result<()> {
/// let store = quell_postgres::PostgresStore::open("postgres://app@localhost/app").await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct PostgresStore {
    pub(crate) pool: Connections,
    /// The same connections, for calls that no job waits for.
    pub(crate) upkeep: Connections,
    pub(crate) sql: Arc<Sql>,
    pub(crate) names: Names,
    hub: Arc<WakeHub>,
    pub(crate) ends: Arc<Ends>,
    outbox: Arc<Outbox>,
    pushes: bool,
    pub(crate) history: Option<Sink>,
    location: Location,
    /// Passed by commits, one by one, where a history must tell of them in their order.
    pub(crate) order: Option<Mutex<()>>,
    /// The highest time that this process has seen, in microseconds (R38).
    seen: AtomicI64,
    /// Queues with limits, as this process last saw them. The claims of one process on one of them
    /// go one after the other, so that only other processes are met as contention (R35).
    limited: RwLock<BTreeMap<QueueName, Arc<Mutex<()>>>>,
    /// Queues of which a claim begins with a look: when they were last seen, one statement did not do.
    winding: RwLock<BTreeSet<QueueName>>,
    watch: Arc<Watch>,
    /// Where the claims of each queue left off.
    pub(crate) trails: Arc<Trails>,
    pub(crate) warmth: Warmth,
    /// What this process wrote of the counts.
    pub(crate) deltas: Deltas,
    /// How far this process came with a part that it empties.
    stripped: RwLock<Option<Stripped>>,
    // Owned so that they end with the store.
    _tasks: JoinSet<()>,
}

/// One transaction, from begin to commit; it starts over where it met another call on its rows.
macro_rules! write {
    ($self:ident $(on $pool:ident)?, $now:expr, |$tx:ident| $body:expr) => {
        write!($self $(on $pool)?, $now, |_asked| None, |$tx| $body)
    };
    ($self:ident, $now:expr, |$asked:ident| $opening:expr, |$tx:ident| $body:expr) => {
        write!($self on pool, $now, |$asked| $opening, |$tx| $body)
    };
    ($self:ident on $pool:ident, $now:expr, |$asked:ident| $opening:expr, |$tx:ident| $body:expr) => {{
        let mut rows_set_aside = 0;
        loop {
            let done: Result<_> =
                write_once!($self on $pool, $now, |$asked| $opening, |$tx| $body);
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
    ($self:ident on $pool:ident, $now:expr, |$asked:ident| $opening:expr, |$tx:ident| $body:expr) => {{
        let mut tries = Tries::new();
        loop {
            let $asked = $self.asked($now);
            let (history, opening) = ($self.history.is_some(), $opening);
            let begun = Tx::begin(&$self.$pool, &$self.sql, &$self.names, $asked, history, opening);
            let mut $tx = match begun.await {
                Ok(tx) => tx,
                // It may have locked windows.
                Err(error) if wants_retry(&error) && tries.again().await => continue,
                Err(error) => break Err(error),
            };
            let done: Result<_> = async { Ok($body) }.await;
            let error = match done {
                Ok(answer) => {
                    let now = $tx.now;
                    let _ordered = match &$self.order {
                        Some(order) => Some(order.lock().await),
                        None => None,
                    };
                    match $tx.commit().await {
                        Ok(news) => {
                            $self.spread(now, news);
                            break Ok(answer);
                        }
                        Err(error) => error,
                    }
                }
                Err(error) => {
                    let unnamed = std::mem::take(&mut $tx.unnamed);
                    $tx.roll_back().await;
                    if !unnamed.is_empty() && tries.again().await {
                        $self.intern(unnamed).await?;
                        continue;
                    }
                    error
                }
            };
            if !wants_retry(&error) || !tries.again().await {
                break Err(error);
            }
        }
    }};
}

/// An answer from one state of the store; `long` where that may take a while and no job waits for it.
macro_rules! read {
    ($self:ident, |$reader:ident| $asked:expr) => {
        read!($self, $self.pool.begin("begin to read", crate::read::BEGIN), |$reader| $asked)
    };
    ($self:ident, long, |$reader:ident| $asked:expr) => {
        read!($self, $self.upkeep.begin_long("begin to read", crate::read::BEGIN_LONG), |$reader| {
            $asked
        })
    };
    ($self:ident, $begun:expr, |$reader:ident| $asked:expr) => {{
        let (mut db, _) = $begun.await?;
        let mut $reader = Reader::new(&mut db, &$self.sql, &$self.names);
        let answer = $asked.await;
        if $reader.end().await.is_ok() {
            db.release();
        }
        answer
    }};
}

// Below the macros, which they use.
mod dead;
mod due;
mod prune;

impl PostgresStore {
    /// Opens the store behind `postgres://…`, with the defaults of [`PostgresOptions`].
    ///
    /// # Errors
    /// As for [`PostgresOptions::from_url`] and [`PostgresOptions::open`].
    pub async fn open(url: &str) -> Result<Self> {
        PostgresOptions::from_url(url)?.open().await
    }

    pub(crate) fn start(
        (pool, teller): (Connections, Connections),
        sql: Sql,
        location: Location,
        listener: Option<Listener>,
        history: Option<Sink>,
    ) -> Self {
        let (hub, outbox) = (Arc::new(WakeHub::new()), Arc::new(Outbox::new()));
        let ends = Arc::new(Ends::default());
        let sql = Arc::new(sql);
        let upkeep = pool.for_upkeep();
        let mut tasks = JoinSet::new();
        tasks.spawn(tell(teller, Arc::clone(&sql), Arc::clone(&outbox)));
        let pushes = listener.is_some();
        let trails = Arc::new(Trails::new(pushes));
        let watch = Arc::new(Watch::default());
        let (notified, woken) = (Arc::clone(&watch), Arc::clone(&hub));
        tasks.spawn(keep_watch(upkeep.clone(), Arc::clone(&sql), woken, notified));
        if let Some(listener) = listener {
            let hub = (Arc::clone(&hub), Arc::clone(&trails), Arc::clone(&watch));
            tasks.spawn(ask(Arc::clone(&ends), Arc::clone(&outbox)));
            tasks.spawn(receive(listener, Arc::clone(&outbox), hub, Arc::clone(&ends)));
        }
        PostgresStore {
            pool,
            upkeep,
            sql,
            names: Names::default(),
            hub,
            ends,
            outbox,
            pushes,
            order: history.is_some().then(Mutex::default),
            history,
            location,
            seen: AtomicI64::new(i64::MIN),
            limited: RwLock::default(),
            winding: RwLock::default(),
            watch,
            trails,
            warmth: Warmth::default(),
            deltas: Deltas::default(),
            stripped: RwLock::default(),
            _tasks: tasks,
        }
    }

    pub(crate) fn asked(&self, now: Option<Timestamp>) -> Asked {
        Asked { now, seen: Timestamp::from_micros(self.seen.load(Ordering::Relaxed)) }
    }

    fn saw(&self, now: Timestamp) {
        self.seen.fetch_max(now.as_micros(), Ordering::Relaxed);
    }

    /// Tells workers and the history what a commit changed.
    pub(crate) fn spread(&self, now: Timestamp, news: News) {
        self.saw(now);
        if let Some(history) = &self.history {
            news.events.iter().for_each(|event| history.record(event));
        }
        for (queue, due) in &news.wakes {
            self.trails.tell(queue, *due);
            self.hub.wake(Some(queue), *due);
        }
        news.frees.iter().for_each(|queue| self.hub.wake(Some(queue), FREED));
        let all = news.wakes_all.then_some(Timestamp::MIN).into_iter().chain(news.next_tick).min();
        if let Some(due) = all {
            self.hub.wake(None, due);
        }
        let wakes = news.wakes.into_iter().map(|(queue, due)| (Some(queue), due));
        self.outbox.put(wakes.chain(all.map(|due| (None, due))));
        self.outbox.put_frees(news.frees);
        if !news.cancelled.is_empty() {
            news.cancelled.iter().for_each(|job| self.hub.cancelled(Cancelled::Job(*job)));
            self.outbox.put_cancelled(news.cancelled);
        }
        if !news.ended.is_empty() {
            self.outbox.put_ends(self.ends.ended_here(&news.ended));
        }
    }

    /// Sets the job aside whose row cannot be decoded, if that is what `error` says; `false` where
    /// there is nothing to set aside.
    pub(crate) async fn set_aside(&self, error: &Error) -> Result<bool> {
        let Some(id) = error.unreadable_job() else { return Ok(false) };
        write_once!(self on pool, Some(Timestamp::MIN), |_asked| None, |tx| tx
            .set_aside(id, error)
            .await?)
    }

    async fn intern(&self, unnamed: Unnamed) -> Result<()> {
        let Unnamed { lanes, partitions } = unnamed;
        self.names.intern(&self.pool, &self.sql, lanes.into_iter()).await?;
        self.names.intern_partitions(&self.pool, &self.sql, partitions.into_iter()).await
    }

    /// Makes these lanes known, which another process may have made.
    pub(crate) async fn know_lanes(&self, lanes: &[i32]) -> Result<()> {
        if lanes.iter().all(|lane| self.names.lane(*lane).is_some()) {
            return Ok(());
        }
        let mut db = self.pool.acquire().await?;
        self.names.load(&mut db, &self.sql, lanes.iter().copied()).await?;
        db.release();
        Ok(())
    }

    /// Accepts triggers in a transaction of several statements. The names that exist are known.
    pub(crate) async fn enqueue_whole(
        &self,
        now: Option<Timestamp>,
        batches: &[Batch],
    ) -> Result<Vec<Result<Vec<Receipt>>>> {
        let (sql, names, needs) = (&self.sql, &self.names, Needs::of(batches));
        write!(self, now, |asked| opening(sql, names, asked, &needs), |tx| {
            tx.fold_inbox_first().await?;
            tx.accept(batches, &needs).await?
        })
    }

    /// Whether triggers touch no row but their own.
    fn is_plain(batches: &[Batch]) -> bool {
        batches.iter().all(|batch| {
            let plain = |trigger: &NewTrigger| {
                trigger.is_bare() && trigger.dedup.is_none() && trigger.idempotency.is_none()
            };
            batch.dedup.is_none() && batch.triggers.iter().all(plain)
        })
    }
}

#[async_trait]
impl Store for PostgresStore {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            dedup: true,
            transactions: true,
            push: self.pushes,
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
        let wakeups = self.hub.subscribe();
        self.watch.look();
        wakeups
    }

    fn transaction_committed(&self) {
        self.hub.wake(None, Timestamp::MIN);
        self.outbox.put([(None, Timestamp::MIN)]);
    }

    fn ended(&self, job: JobId) -> Ended {
        self.ends.wait_for(job)
    }
}

#[async_trait]
impl Steps for PostgresStore {
    async fn enqueue(
        &self,
        now: Option<Timestamp>,
        batches: Vec<Batch>,
    ) -> Result<Vec<Result<Vec<Receipt>>>> {
        self.expect_deltas(1).await;
        let triggers = || batches.iter().flat_map(|batch| &batch.triggers);
        let lanes = triggers().map(|t| (t.queue.clone(), t.task.clone(), t.priority));
        if Self::is_plain(&batches) {
            let partitions = triggers().filter_map(|t| t.partition.clone()).collect();
            self.intern(Unnamed { lanes: lanes.collect(), partitions }).await?;
            return self.enqueue_plain(now, &batches).await;
        }
        self.names.look_up(&self.pool, &self.sql, lanes).await?;
        self.gather_or_enqueue(now, &batches).await
    }

    async fn claim(&self, now: Option<Timestamp>, claim: &Claim) -> Result<Claimed> {
        let claimed = self.claim_due(now, claim).await?;
        if claimed.jobs.is_empty() {
            self.warm_up(std::iter::once((&claim.queue, &claim.tasks))).await;
        }
        Ok(claimed)
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
        let query = renew_query(&self.sql, self.asked(now), leases, lease);
        let (rows, _ordered) = self.one_shot(query).await?;
        let (now, renewed) = decode_renewed(&rows)?;
        let mut news = News::default();
        for (Lease { job, token }, until) in &renewed {
            if self.history.is_some() {
                let (job, token, until) = (*job, *token, *until);
                news.events.push(Event::Renew { t: now, job, token, until });
            }
        }
        self.spread(now, news);
        Ok(leases.iter().map(|lease| renewed.get(lease).copied().into()).collect())
    }

    async fn settle(
        &self,
        now: Option<Timestamp>,
        settlements: Vec<Settlement>,
    ) -> Result<Vec<Settled>> {
        if settlements.is_empty() {
            return Ok(Vec::new());
        }
        // That of the claim is among them.
        self.expect_deltas(2).await;
        if settlements.iter().all(|one| one.outcome.is_success()) {
            return self.settle_well(now, &settlements).await;
        }
        write!(self, now, |tx| {
            let settled = tx.settle(&settlements).await?;
            if settled.iter().any(|one| one.became != SettledAs::Refused) {
                self.free_slots(&mut tx.news);
            }
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
        write!(self, now, |tx| tx.begin_effect(lease, name, key).await?)
    }

    async fn end_effect(
        &self,
        now: Option<Timestamp>,
        lease: &Lease,
        name: &EffectName,
        result: &Payload,
    ) -> Result<()> {
        check_result(name, result)?;
        write!(self, now, |tx| tx.end_effect(lease, name, result).await?)
    }

    async fn effects(&self, id: JobId) -> Result<Vec<Effect>> {
        read!(self, |reader| reader.effects(id))
    }

    async fn reap(&self, now: Option<Timestamp>, limit: usize) -> Result<Vec<Lapsed>> {
        self.take_back(now, limit).await
    }

    async fn heartbeat(&self, now: Option<Timestamp>, beat: &Heartbeat) -> Result<()> {
        let query = beat_query(&self.sql, self.asked(now), beat);
        match one_shot(&self.upkeep, &self.sql, query).await?.first() {
            Some(row) => self.saw(time(row, 0)?),
            None => write!(self on upkeep, now, |tx| tx.make_worker(beat).await?)?,
        }
        self.warmth.fade();
        Ok(())
    }

    async fn remove_worker(&self, worker: &WorkerId, incarnation: u32) -> Result<()> {
        let query = remove_query(&self.sql, worker, incarnation);
        one_shot(&self.upkeep, &self.sql, query).await.map(drop)
    }

    async fn workers(&self, now: Option<Timestamp>) -> Result<Workers> {
        let query = list_query(&self.sql, self.asked(now));
        decode_list(&read(&self.pool, &self.sql, "read workers", query).await?)
    }

    async fn next_due(
        &self,
        now: Option<Timestamp>,
        queue: &QueueName,
        tasks: &[TaskName],
    ) -> Result<NextDue> {
        Ok(self.look(now, (queue, tasks, None), &Places::HEAD).await?.line.next())
    }

    async fn peek(
        &self,
        now: Option<Timestamp>,
        queues: &[(QueueName, Arc<[TaskName]>)],
    ) -> Result<Vec<NextDue>> {
        let next = peek(&self.pool, &self.sql, self.asked(now), queues).await?;
        next.iter().for_each(|next| self.saw(next.now));
        if next.iter().all(|next| next.due.is_none_or(|due| due > next.now)) {
            self.warm_up(queues.iter().map(|(queue, tasks)| (queue, tasks))).await;
        }
        Ok(next)
    }

    async fn queues(&self) -> Result<Vec<QueueInfo>> {
        read!(self, |reader| reader.queues())
    }

    async fn set_queue(&self, queue: &QueueName, settings: &QueueSettings) -> Result<()> {
        settings.validate()?;
        // Settings have no time: the store's is left as it is.
        write!(self, Some(Timestamp::MIN), |tx| tx.set_queue(queue, settings).await?)
    }

    async fn delete_queue(&self, queue: &QueueName) -> Result<bool> {
        write!(self, Some(Timestamp::MIN), |tx| tx.delete_queue(queue).await?)
    }

    async fn tasks(&self) -> Result<Vec<TaskInfo>> {
        read!(self, |reader| reader.tasks())
    }

    async fn set_task(&self, task: &TaskName, settings: &TaskSettings) -> Result<()> {
        write!(self, Some(Timestamp::MIN), |tx| tx.set_task(task, settings).await?)
    }

    async fn job(&self, id: JobId) -> Result<Option<Job>> {
        read!(self, |reader| reader.job(id))
    }

    async fn result(&self, id: JobId) -> Result<Option<JobResult>> {
        read!(self, |reader| reader.result(id))
    }

    async fn jobs(&self, filter: &JobFilter) -> Result<Vec<Job>> {
        read!(self, long, |reader| reader.jobs(filter))
    }

    async fn counts(&self) -> Result<Vec<Counts>> {
        self.fold_many().await;
        read!(self, |reader| reader.counts())
    }

    async fn attempts(&self, id: JobId) -> Result<Vec<Attempt>> {
        read!(self, |reader| reader.attempts(id))
    }

    async fn explain(&self, target: &ExplainTarget) -> Result<Option<Explanation>> {
        read!(self, long, |reader| reader.explain(target))
    }

    async fn flush(
        &self,
        now: Option<Timestamp>,
        task: &TaskName,
        key: &Key,
    ) -> Result<Option<JobId>> {
        write!(self, now, |tx| {
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
        write!(self, now, |tx| {
            tx.fold_inbox_first().await?;
            tx.cancel_key(task, key).await?
        })
    }

    async fn cancel(&self, now: Option<Timestamp>, id: JobId, reason: &str) -> Result<()> {
        write!(self, now, |tx| {
            tx.cancel(id, reason).await?;
            tx.free_slots().await?
        })
    }

    async fn redrive(&self, now: Option<Timestamp>, redrive: &Redrive) -> Result<SettledAs> {
        write!(self, now, |tx| {
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
        self.remove_expired(now, retention, limit).await
    }

    async fn overview(&self, now: Option<Timestamp>) -> Result<Overview> {
        let asked = self.asked(now);
        let overview = read!(self, long, |reader| reader.overview(asked))?;
        self.saw(overview.now);
        Ok(overview)
    }

    async fn checkup(&self) -> Result<Checkup> {
        let mut db = self.pool.acquire().await?;
        let checkup = read_checkup(&mut db, &self.sql, self.pushes).await?;
        db.release();
        Ok(checkup)
    }

    async fn alerts(&self) -> Result<Vec<AlertRow>> {
        read!(self, |reader| reader.alerts())
    }

    async fn set_alert(
        &self,
        name: &AlertName,
        version: u64,
        state: Option<&AlertState>,
    ) -> Result<bool> {
        // It has its times within: the store's is left as it is.
        write!(self, Some(Timestamp::MIN), |tx| tx.set_alert(name, version, state).await?)
    }

    async fn set_schedule(&self, now: Option<Timestamp>, schedule: &Schedule) -> Result<()> {
        let known = read!(self, |reader| reader.schedules())?;
        if known.iter().any(|info| info.schedule == *schedule) {
            // Declared at each start: most often there is nothing to write.
            return Ok(());
        }
        write!(self, now, |tx| tx.set_schedule(schedule).await?)
    }

    async fn set_schedule_state(
        &self,
        now: Option<Timestamp>,
        name: &ScheduleName,
        state: ScheduleState,
    ) -> Result<()> {
        write!(self, now, |tx| tx.set_schedule_state(name, state).await?)
    }

    async fn delete_schedule(&self, now: Option<Timestamp>, name: &ScheduleName) -> Result<()> {
        write!(self, now, |tx| tx.delete_schedule(name).await?)
    }

    async fn schedules(&self) -> Result<Vec<ScheduleInfo>> {
        read!(self, |reader| reader.schedules())
    }

    async fn tick(&self, now: Option<Timestamp>, limit: usize) -> Result<Ticked> {
        let seen = look_for_ticks(&self.upkeep, &self.sql, self.asked(now)).await?;
        self.saw(seen.now);
        if seen.next.is_none_or(|next| next > seen.now) || limit == 0 {
            return Ok(seen);
        }
        write!(self, now, |tx| {
            tx.fold_inbox_first().await?;
            tx.fire_due(limit).await?
        })
    }

    async fn run_schedule(&self, now: Option<Timestamp>, name: &ScheduleName) -> Result<Receipt> {
        write!(self, now, |tx| {
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
        write!(self, now, |tx| {
            tx.fold_inbox_first().await?;
            tx.backfill(name, from, to).await?
        })
    }
}
