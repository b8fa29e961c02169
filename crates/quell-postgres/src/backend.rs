//! The engine's backend: rows in the tables of one schema, locked by the steps that change them, and the
//! calls that one statement makes.
//!
//! Invariant: notifications of a commit are published after it, and history events in the order of commits.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, RwLock};
use std::time::Duration;

use async_trait::async_trait;
use quell_core::checkup::Checkup;
use quell_core::history::Sink;
use quell_core::part::{Ids, Notifications};
use quell_core::{
    Batch, Cancelled, Capabilities, Claim, Claimed, Error, Job, JobId, JobState, Lease, Location,
    NextDue, Now, Pruned, QueueName, Receipt, Renewal, Result, Settled, Settlement, TaskName,
    Timestamp, WakeHub,
};
use quell_engine::{
    Access, Backend, Beginning, Changes, Committed, Removal, Row, RowName, Scan, Seen, Taken,
    Tally, TasksOf, Time,
};
use tokio::sync::Mutex;
use tokio::task::JoinSet;

use crate::checkup::read_checkup;
use crate::connections::Connections;
use crate::counts::Deltas;
use crate::drafts::Drafts;
use crate::ends::{Ends, ask};
use crate::error::{corrupt, wants_retry};
use crate::hot::look::peek;
use crate::hot::trail::{Places, Trails};
use crate::hot::warm::Warmth;
use crate::listen::{Listener, receive};
use crate::names::Names;
use crate::parts::Stripped;
use crate::push::{FREED, Outbox, publish_outbox};
use crate::row::{get, time};
use crate::sql::Sql;
use crate::step::Step;
use crate::tx::{Asked, Outgoing, Tx, Unnamed, first, read};
use crate::watch::{Watch, keep_watch};

/// A schema, and what this process knows of it.
#[derive(Debug)]
pub(crate) struct PostgresBackend {
    pub(crate) pool: Connections,
    /// The same connections, for calls that no job waits for.
    pub(crate) upkeep: Connections,
    pub(crate) sql: Arc<Sql>,
    pub(crate) names: Arc<Names>,
    pub(crate) hub: Arc<WakeHub>,
    pub(crate) ends: Arc<Ends>,
    pub(crate) outbox: Arc<Outbox>,
    pushes: bool,
    pub(crate) history: Option<Sink>,
    pub(crate) location: Location,
    /// Commits hold it one at a time where a history must record them in their order.
    pub(crate) order: Option<Mutex<()>>,
    /// The highest time that this process has seen, in microseconds (R38).
    seen: AtomicI64,
    /// Queues with limits, as this process last saw them. The claims of one process on one of them
    /// go one after the other, so that only other processes are met as contention (R35).
    pub(crate) limited: RwLock<BTreeMap<QueueName, Arc<Mutex<()>>>>,
    /// Queues whose claims begin with a look: when they were last seen, one statement was not enough.
    pub(crate) winding: RwLock<BTreeSet<QueueName>>,
    pub(crate) watch: Arc<Watch>,
    /// Where the claims of each queue left off.
    pub(crate) trails: Arc<Trails>,
    pub(crate) warmth: Warmth,
    /// What this process wrote of the counts.
    pub(crate) deltas: Deltas,
    /// How far this process came with a part that it empties.
    pub(crate) stripped: RwLock<Option<Stripped>>,
    /// The errors of jobs that have started and cannot be decoded, until they are set aside.
    pub(crate) unreadable: Mutex<Vec<Error>>,
    pub(crate) drafts: Drafts,
    // Owned so that they end with the store.
    _tasks: JoinSet<()>,
}

impl PostgresBackend {
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
        tasks.spawn(publish_outbox(teller, Arc::clone(&sql), Arc::clone(&outbox)));
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
        PostgresBackend {
            pool,
            upkeep,
            sql,
            names: Arc::default(),
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
            unreadable: Mutex::default(),
            drafts: Drafts::default(),
            _tasks: tasks,
        }
    }

    pub(crate) fn asked(&self, now: Now) -> Asked {
        Asked { now, seen: Timestamp::from_micros(self.seen.load(Ordering::Relaxed)) }
    }

    pub(crate) fn saw(&self, now: Timestamp) {
        self.seen.fetch_max(now.as_micros(), Ordering::Relaxed);
    }

    /// Notifies workers of what a commit changed, and records it in the history.
    pub(crate) fn publish(&self, now: Timestamp, news: Outgoing) {
        self.saw(now);
        if let Some(history) = &self.history {
            news.events.iter().for_each(|event| history.record(event));
        }
        for (queue, due) in &news.wakes {
            self.trails.note_due(queue, *due);
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

    pub(crate) async fn intern(&self, unnamed: Unnamed) -> Result<()> {
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
}

#[async_trait]
impl Backend for PostgresBackend {
    type Tx = Step;

    fn capabilities(&self) -> Capabilities {
        Capabilities::all().with_push(self.pushes).with_timed(false)
    }

    async fn begin(&self, time: Time, access: Access) -> Result<Beginning<Step>> {
        // The earliest of all leaves the store's time as it is.
        let asked = self.asked(time.asked().unwrap_or(Some(Timestamp::MIN)));
        if access == Access::Read {
            let now = if time == Time::Last { asked.seen } else { self.peek_clock(asked).await? };
            let ids = Ids { next: 1, step: 1 };
            return Ok(Beginning { tx: Step::new(None, asked), now, ids });
        }
        // What a step writes is no later than what is promised (R38).
        let clock = self.sql.rewrite(&format!("; select quell.tick({})", asked.literals()));
        let names = (&self.sql, &self.names);
        let tx = Tx::begin(&self.pool, names, asked, false, Some(clock)).await?;
        let now = tx.now;
        let mut step = Step::new(Some(tx), asked);
        step.first_draft = self.drafts.draw(access.jobs());
        let ids = Ids { next: step.first_draft, step: 1 };
        Ok(Beginning { tx: step, now, ids })
    }

    /// Its locks would keep others from the rows, or make them pass over them.
    async fn give_up(&self, mut step: Step) {
        if let Ok(tx) = step.take_tx() {
            tx.roll_back().await;
        }
    }

    fn late(&self, step: &Step) -> Option<Timestamp> {
        step.late
    }

    async fn load(
        &self,
        step: &mut Step,
        names: &BTreeSet<RowName>,
    ) -> Result<Vec<(RowName, Row)>> {
        self.load_rows(step, names).await
    }

    async fn scan(&self, step: &mut Step, scans: &[Scan]) -> Result<Vec<Seen>> {
        self.scan_indexes(step, scans).await
    }

    async fn commit(
        &self,
        step: Step,
        changes: Changes,
        news: &Notifications,
    ) -> Result<Committed> {
        self.commit_step(step, changes, news).await
    }

    fn unchanged(&self, news: &Notifications) {
        if let Some(history) = &self.history {
            news.events.iter().for_each(|event| history.record(event));
        }
    }

    fn is_conflict(&self, error: &Error) -> bool {
        wants_retry(error)
    }

    async fn load_aside(&self, step: &mut Step, id: JobId) -> Result<Option<Row>> {
        self.decode_aside(step, id).await
    }

    fn decides_by_leases(&self, step: &mut Step, ids: &[JobId]) {
        step.ending.extend(ids);
    }

    async fn load_in_part(&self, step: &mut Step, id: JobId) -> Result<Option<Job>> {
        self.decode_in_part(step, id).await
    }

    async fn counts(&self, step: &mut Step) -> Result<Tally> {
        const COUNTS: &str = "select queue, task, state, jobs from quell.counts";
        self.fold_many().await;
        let mut tally = Tally::new();
        for row in &step.fetch(self, "count jobs", self.sql.query(COUNTS)).await? {
            let state = u8::try_from(get::<i16, _>(row, 2)?).ok().and_then(JobState::from_code);
            let state = state.ok_or_else(|| corrupt("the state of a job"))?;
            let queue = QueueName::new(get::<&str, _>(row, 0)?)?;
            let lane = (queue, TaskName::new(get::<&str, _>(row, 1)?)?, state);
            tally.insert(lane, get::<i64, _>(row, 3)?.max(0));
        }
        Ok(tally)
    }

    async fn checkup(&self) -> Result<Checkup> {
        let mut db = self.pool.acquire().await?;
        let checkup = read_checkup(&mut db, &self.sql, self.pushes).await?;
        db.release();
        Ok(checkup)
    }

    async fn hot_enqueue(&self, now: Now, batches: &[Batch]) -> Taken<Vec<Result<Vec<Receipt>>>> {
        Ok(Some((self.enqueue(now, batches).await?, Notifications::default())))
    }

    async fn hot_claim(&self, now: Now, claim: &Claim) -> Taken<Claimed> {
        let claimed = self.claim_due(now, claim).await?;
        if claimed.jobs.is_empty() {
            self.warm_up(std::iter::once((&claim.queue, &claim.tasks))).await;
        }
        Ok(Some((claimed, Notifications::default())))
    }

    async fn hot_renew(&self, now: Now, leases: &[Lease], lease: Duration) -> Taken<Vec<Renewal>> {
        Ok(Some((self.renew(now, leases, lease).await?, Notifications::default())))
    }

    async fn hot_settle(
        &self,
        now: Now,
        settlements: &[Settlement],
    ) -> Taken<Vec<Option<Settled>>> {
        let settled = self.settle_some(now, settlements).await?;
        Ok(settled.map(|settled| (settled, Notifications::default())))
    }

    async fn hot_next_due(&self, now: Now, (queue, tasks): TasksOf<'_>) -> Result<Option<NextDue>> {
        let look = self.look(now, (queue, tasks, None), &Places::HEAD).await?;
        Ok(Some(look.line.next()))
    }

    async fn hot_peek(
        &self,
        now: Now,
        queues: &[(QueueName, Arc<[TaskName]>)],
    ) -> Result<Option<Vec<NextDue>>> {
        let next = peek(&self.pool, &self.sql, self.asked(now), queues).await?;
        next.iter().for_each(|next| self.saw(next.now));
        if next.iter().all(|next| next.due.is_none_or(|due| due > next.now)) {
            self.warm_up(queues.iter().map(|(queue, tasks)| (queue, tasks))).await;
        }
        Ok(Some(next))
    }

    async fn hot_prune(&self, now: Now, removal: Removal<'_>) -> Result<Option<Pruned>> {
        let Removal { retention, limit } = removal;
        self.remove_expired(now, retention, limit).await.map(Some)
    }
}

impl PostgresBackend {
    /// The store's time, for a read.
    pub(crate) async fn peek_clock(&self, asked: Asked) -> Result<Timestamp> {
        let query = asked.bind(self.sql.query("select quell.peek($1, $2)"));
        let rows = read(&self.pool, &self.sql, "read the time", query).await?;
        let now = time(first(&rows)?, 0)?;
        self.saw(now);
        Ok(now)
    }
}
