//! The file as a backend of the engine: rows in tables, indexes of SQL, one writer at a time.
//!
//! A step that may write begins with SQLite's write lock, so no commit conflicts; a step that reads takes a
//! connection of its own and no lock.
//!
//! Invariant: no claim and no settlement trusts a caller's clock; an idle worker writes nothing.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::path::PathBuf;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use quell_core::checkup::Checkup;
use quell_core::history::Sink;
use quell_core::part::{Ids, Notifications};
use quell_core::touched::Needs;
use quell_core::{
    Backlog, BacklogOf, Batch, Capabilities, Claim, Claimed, EndHub, Job, JobId, Lease, LeaseToken,
    NextDue, Now, Pruned, QueueName, Receipt, Renewal, Result, Settled, Settlement, Timestamp,
    WakeHub,
};
use quell_engine::{
    Access, Backend, Beginning, Changes, Committed, Removal, Row, RowName, Scan, Seen, Taken,
    Tally, TasksOf, Time,
};
use sqlx::{SqliteConnection, SqlitePool};
use tokio::sync::Mutex;

use crate::backlog::read_backlog;
use crate::checkup::read_checkup;
use crate::clock::HostClock;
use crate::counts::{LaneState, read_counts};
use crate::files::Files;
use crate::hot::enqueue::open_with_windows;
use crate::hot::look::{Asked, Look, look, open_with_look, settings_of};
use crate::hot::prune::look_for_old;
use crate::hot::settle::open_with_success;
use crate::names::Names;
use crate::scan::scan;
use crate::tx::{Done, Reader, SharedNames, Trip, Tx, Writer, due_queues, open_at};
use crate::wal::Wal;

/// One file, with its connections.
#[derive(Debug)]
pub(crate) struct SqliteBackend {
    pub(crate) writer: Arc<Mutex<Writer>>,
    /// For what workers ask all the time; it waits behind no operator's read.
    pub(crate) looker: Mutex<SqliteConnection>,
    pub(crate) readers: SqlitePool,
    pub(crate) names: SharedNames,
    pub(crate) wal: Wal,
    pub(crate) files: Arc<Files>,
    pub(crate) path: PathBuf,
    pub(crate) clock: HostClock,
    pub(crate) hints: Hints,
    /// Where notifications of commits go that no step of the engine makes.
    pub(crate) hub: Arc<WakeHub>,
    pub(crate) ends: Arc<EndHub>,
    pub(crate) history: Option<Sink>,
    /// Not in tests that compare the engine with them.
    pub(crate) has_hot_paths: bool,
}

/// Queues in which this process has just seen a job that is due: their next claim need not look
/// before it writes.
#[derive(Debug, Default)]
pub(crate) struct Hints(std::sync::Mutex<HashSet<QueueName>>);

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

/// An open step.
pub(crate) struct SqliteTx {
    open: Open,
    pub(crate) seen: Loaded,
}

enum Open {
    Read(Reader),
    Write(Box<Tx>),
}

/// What a step has loaded, as far as its commit needs it.
#[derive(Debug, Default)]
pub(crate) struct Loaded {
    pub(crate) jobs: HashMap<JobId, LaneState>,
    pub(crate) attempts: BTreeMap<JobId, BTreeSet<LeaseToken>>,
    /// Jobs that the engine has in part, as far as they can be decoded.
    pub(crate) apart: BTreeSet<JobId>,
}

impl SqliteTx {
    pub(crate) fn connection(&mut self) -> &mut SqliteConnection {
        match &mut self.open {
            Open::Read(reader) => &mut reader.db,
            Open::Write(tx) => &mut tx.writer.db,
        }
    }

    pub(crate) fn names(&self) -> &Names {
        match &self.open {
            Open::Read(reader) => &reader.names,
            Open::Write(tx) => tx.names(),
        }
    }

    fn parts(&mut self) -> (&mut SqliteConnection, &Names) {
        match &mut self.open {
            Open::Read(reader) => (&mut *reader.db, &*reader.names),
            Open::Write(tx) => {
                let (db, names, _) = tx.parts();
                (db, &*names)
            }
        }
    }
}

impl SqliteBackend {
    fn time(&self, time: Time) -> Result<Timestamp> {
        match time.asked() {
            Some(now) => self.clock.time(now),
            None => Ok(self.clock.seen()),
        }
    }

    async fn write(&self, opening: Trip) -> Result<(Tx, Vec<sqlx::sqlite::SqliteRow>)> {
        Writer::begin(&self.writer, opening, self.history.is_some()).await
    }

    /// Commits a hot path; returns what the engine publishes.
    async fn end(&self, tx: Tx) -> Result<Notifications> {
        let Done { news, due_now, wakes_all } = tx.commit().await?;
        self.files.check_commit()?;
        self.files.note_written();
        self.hints.add(due_now);
        if wakes_all {
            self.hub.wake(None, Timestamp::MIN);
        }
        Ok(news)
    }

    /// Begins a transaction after all that callers' committed transactions have left in the inbox.
    async fn after_inbox(&self, now: Timestamp) -> Result<Tx> {
        loop {
            let (mut tx, _) = self.write(open_at(now)).await?;
            if !tx.inbox_waits {
                return Ok(tx);
            }
            tx.fold_inbox().await?;
            let news = self.end(tx).await?;
            quell_engine::publish(news, &self.hub, &self.ends, self.history.as_ref());
        }
    }

    /// Leaves a claim to the engine, which knows whose turn it is (R41), once nothing waits in the inbox:
    /// the engine's look does not see that.
    async fn decline(&self, now: Now, inbox_waits: bool) -> Taken<Claimed> {
        if inbox_waits {
            drop(self.after_inbox(self.clock.time(now)?).await?);
        }
        Ok(None)
    }

    async fn look(&self, now: Now, asked: &Asked<'_>) -> Result<Look> {
        look(&mut *self.looker.lock().await, self.clock.time(now)?, asked).await
    }
}

#[async_trait]
impl Backend for SqliteBackend {
    type Tx = SqliteTx;

    fn capabilities(&self) -> Capabilities {
        Capabilities::all().with_timed(false)
    }

    fn page(&self) -> usize {
        16
    }

    fn locks(&self) -> bool {
        true
    }

    fn looks_before_claims(&self) -> bool {
        self.has_hot_paths
    }

    fn finds_jobs(&self) -> bool {
        true
    }

    fn finds_lanes(&self) -> bool {
        true
    }

    fn longest_pause(&self) -> Duration {
        Duration::ZERO
    }

    async fn begin(&self, time: Time, access: Access) -> Result<Beginning<SqliteTx>> {
        let at = self.time(time)?;
        let seen = Loaded::default();
        if access == Access::Read {
            let reader = Reader::new(&self.readers, &self.names, at).await?;
            let (now, ids) = (reader.now, Ids { next: 0, step: 1 });
            return Ok(Beginning { tx: SqliteTx { open: Open::Read(reader), seen }, now, ids });
        }
        // What decides nothing by the time needs no trigger before it. So a queue can be paused at once,
        // and a job set aside that keeps the inbox from being folded.
        let tx = match time {
            Time::Last | Time::Noted(_) => self.write(open_at(at)).await?.0,
            Time::At(_) | Time::Clock => self.after_inbox(at).await?,
        };
        let (now, ids) = (tx.now, Ids { next: tx.next_id, step: 1 });
        Ok(Beginning { tx: SqliteTx { open: Open::Write(Box::new(tx)), seen }, now, ids })
    }

    async fn load(
        &self,
        tx: &mut SqliteTx,
        names: &BTreeSet<RowName>,
    ) -> Result<Vec<(RowName, Row)>> {
        tx.load(names).await
    }

    async fn scan(&self, tx: &mut SqliteTx, scans: &[Scan]) -> Result<Vec<Seen>> {
        let (db, names) = tx.parts();
        let mut seen = Vec::with_capacity(scans.len());
        for one in scans {
            seen.push(scan(db, names, one).await?);
        }
        Ok(seen)
    }

    async fn commit(
        &self,
        tx: SqliteTx,
        changes: Changes,
        news: &Notifications,
    ) -> Result<Committed> {
        let SqliteTx { open: Open::Write(mut tx), seen } = tx else {
            return Err(crate::error::corrupt("a step that reads writes"));
        };
        tx.apply(changes, &seen).await?;
        tx.count_cancelled(news.cancelled.len()).await?;
        let due_now: Vec<QueueName> = due_queues(news, tx.now).collect();
        tx.due_now.extend(due_now);
        let news = self.end(*tx).await?;
        quell_engine::publish(news, &self.hub, &self.ends, self.history.as_ref());
        Ok(Committed::Done)
    }

    async fn load_aside(&self, tx: &mut SqliteTx, id: JobId) -> Result<Option<Row>> {
        tx.load_aside(id).await
    }

    async fn load_in_part(&self, tx: &mut SqliteTx, id: JobId) -> Result<Option<Job>> {
        tx.load_in_part(id).await
    }

    async fn counts(&self, tx: &mut SqliteTx) -> Result<Tally> {
        let (db, names) = tx.parts();
        read_counts(db, names).await
    }

    async fn tidy(&self) -> Result<()> {
        self.wal.shrink().await;
        Ok(())
    }

    async fn checkup(&self) -> Result<Checkup> {
        read_checkup(&mut *self.looker.lock().await, &self.path, &self.files).await
    }

    async fn hot_enqueue(&self, now: Now, batches: &[Batch]) -> Taken<Vec<Result<Vec<Receipt>>>> {
        if !self.has_hot_paths {
            return Ok(None);
        }
        let needs = Needs::of(batches);
        let (mut tx, windows) =
            self.write(open_with_windows(self.clock.time(now)?, &needs)?).await?;
        let answer = tx.enqueue(batches, &needs, &windows).await?;
        Ok(Some((answer, self.end(tx).await?)))
    }

    async fn hot_claim(&self, now: Now, claim: &Claim) -> Taken<Claimed> {
        if !self.has_hot_paths {
            return Ok(None);
        }
        let asked = Asked::of(claim);
        if claim.limit == 0 || !self.hints.take(&claim.queue) {
            let before = self.look(now, &asked).await?;
            if before.line.settings.is_strict() {
                return self.decline(now, before.inbox_waits).await;
            }
            if !before.is_due() || claim.limit == 0 {
                let (next, rated) = (before.line.next(), before.line.settings.limits_rate());
                let now = before.line.now;
                return Ok(Some((
                    Claimed { now, jobs: Vec::new(), next, rated },
                    Notifications::default(),
                )));
            }
        }
        let (mut tx, looked) = self.write(open_with_look(self.clock.time(now)?, &asked)?).await?;
        let settings = settings_of(&looked, &asked)?;
        if settings.is_strict() {
            let inbox_waits = tx.inbox_waits;
            drop(tx);
            return self.decline(now, inbox_waits).await;
        }
        let (jobs, next, rated) = tx.claim(claim, (&looked, settings)).await?;
        if jobs.len() == claim.limit && next.due.is_some_and(|due| due <= next.now) {
            tx.due_now.push(claim.queue.clone());
        }
        let claimed = Claimed { now: tx.now, jobs, next, rated };
        Ok(Some((claimed, self.end(tx).await?)))
    }

    async fn hot_renew(&self, now: Now, leases: &[Lease], lease: Duration) -> Taken<Vec<Renewal>> {
        if !self.has_hot_paths {
            return Ok(None);
        }
        if leases.is_empty() {
            return Ok(Some((Vec::new(), Notifications::default())));
        }
        let (mut tx, _) = self.write(open_at(self.clock.time(now)?)).await?;
        let renewed = tx.renew(leases, lease).await?;
        Ok(Some((renewed, self.end(tx).await?)))
    }

    /// Ends attempts that succeeded, and declines where one did not.
    async fn hot_settle(
        &self,
        now: Now,
        settlements: &[Settlement],
    ) -> Taken<Vec<Option<Settled>>> {
        if !self.has_hot_paths {
            return Ok(None);
        }
        if !settlements.iter().all(|one| one.outcome.is_success()) {
            return Ok(None);
        }
        let opening = open_with_success(self.clock.time(now)?, settlements);
        let (mut tx, succeeded) = self.write(opening).await?;
        let settled = tx.succeed(settlements, &succeeded).await?;
        tx.fold_inbox().await?;
        Ok(Some((settled.into_iter().map(Some).collect(), self.end(tx).await?)))
    }

    async fn hot_next_due(&self, now: Now, (queue, tasks): TasksOf<'_>) -> Result<Option<NextDue>> {
        if !self.has_hot_paths {
            return Ok(None);
        }
        let asked = Asked { queue, tasks, worker: None, limit: 0 };
        let line = self.look(now, &asked).await?.line;
        Ok((!line.settings.is_strict()).then(|| line.next()))
    }

    async fn hot_backlog(&self, now: Now, of: &BacklogOf) -> Result<Option<Backlog>> {
        if !self.has_hot_paths {
            return Ok(None);
        }
        let mut begun = self.begin(now.into(), Access::Read).await?;
        let (db, names) = begun.tx.parts();
        let backlog = read_backlog(db, names, begun.now, of).await;
        self.give_up(begun.tx).await;
        backlog.map(Some)
    }

    /// Removes expired dedup keys where there are many and nothing else is old: a caller that triggers with
    /// keys leaves one for each trigger. Answers, too, where a look shows that there is nothing to remove.
    async fn hot_prune(&self, now: Now, removal: Removal<'_>) -> Result<Option<Pruned>> {
        let Removal { retention, limit } = removal;
        if !self.has_hot_paths {
            return Ok(None);
        }
        let now = self.clock.time(now)?;
        let old = look_for_old(&mut *self.looker.lock().await, now, retention, limit).await?;
        if old.others || (old.holds && !old.many_holds) {
            return Ok(None);
        }
        let mut pruned = Pruned::default();
        if old.many_holds {
            let (mut tx, _) = self.write(open_at(now)).await?;
            pruned.count_expired(tx.remove_holds(limit).await?, limit);
            let news = self.end(tx).await?;
            quell_engine::publish(news, &self.hub, &self.ends, self.history.as_ref());
        }
        self.wal.shrink().await;
        Ok(Some(pruned))
    }
}
