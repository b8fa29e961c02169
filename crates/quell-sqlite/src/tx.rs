//! One write transaction: ids, the store's time, and the names it may add.
//!
//! There is one writer connection per process, behind a lock; SQLite's own lock serialises the
//! processes. Each statement is a trip to the connection's thread and back, which costs more than
//! most statements do: so a transaction's first statements go there as one ([`opening`]).
//!
//! Invariant: a transaction that is dropped before its commit is rolled back.

use std::sync::{Arc, PoisonError};

use futures_util::{FutureExt, TryStreamExt};
use quell_core::history::Event;
use quell_core::part::Notifications;
use quell_core::{QueueName, Result, Timestamp};
use sqlx::query::Query;
use sqlx::sqlite::{SqliteArguments, SqliteRow};
use sqlx::{Either, Executor, Sqlite, SqliteConnection, SqlitePool, Transaction};
use tokio::sync::{Mutex, OwnedMutexGuard};

use crate::counts::{LaneTally, count_and_commit};
use crate::error::{corrupt, explain, explain_commit};
use crate::names::Names;
use crate::row::{get, time, unsigned};

/// The writer connection and the names that are cached beside it.
#[derive(Debug)]
pub(crate) struct Writer {
    pub(crate) db: SqliteConnection,
    pub(crate) names: Names,
    /// The version of the names; none where they may hold numbers that were never committed.
    version: Option<i64>,
}

/// Begins a transaction, and goes on with `$more`, as one query; `?1` is the time.
///
/// The next id is put on record before the transaction may remove the newest job's row.
macro_rules! opening {
    ($more:expr) => {
        concat!(
            "begin immediate;
             update quell_meta
                set clock = max(clock, ?1),
                    next_id = max(next_id, 1 + coalesce((select max(id) from quell_job), 0))
          returning next_id, clock, version,
                    exists (select 1 from quell_inbox where refused is null),
                    exists (select 1 from quell_job where waits = 1), recent;",
            $more
        )
    };
}
pub(crate) use opening;

/// Several statements that go to the connection's thread as one: an [`opening`] or an end.
pub(crate) type Trip = Query<'static, Sqlite, SqliteArguments>;

/// Begins a transaction at `now`, or later where the store has seen later (R38).
pub(crate) fn open_at(now: Timestamp) -> Trip {
    sqlx::query(opening!("")).bind(now.as_micros())
}

/// An open write transaction.
pub(crate) struct Tx {
    pub(crate) writer: OwnedMutexGuard<Writer>,
    pub(crate) now: Timestamp,
    /// The id of the next new job.
    pub(crate) next_id: u64,
    /// What to publish after the commit.
    pub(crate) news: Notifications,
    /// Queues in which a job is due already.
    pub(crate) due_now: Vec<QueueName>,
    /// Something may be due in any queue: the inbox holds more than one transaction folds.
    pub(crate) wakes_all: bool,
    /// How many jobs came into each lane and state, or left it.
    pub(crate) tally: LaneTally,
    /// The same of earlier transactions, as far as the table does not have it.
    recent: Option<String>,
    pub(crate) has_history: bool,
    pub(crate) inbox_waits: bool,
    /// Whether a window may wait for the running attempt of its key (R11).
    pub(crate) keys_wait: bool,
    /// Whether the settings of a queue or a task changed.
    pub(crate) settings_changed: bool,
    /// A last write that ends in a commit, so that both are one trip. Nothing may read after it. It
    /// writes the recent counts, its last parameter.
    pub(crate) parting: Option<Trip>,
    begun_at: i64,
    has_ended: bool,
}

/// What to publish after a commit.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) news: Notifications,
    /// Queues in which a job is due already.
    pub(crate) due_now: Vec<QueueName>,
    /// Whether something may be due in any queue.
    pub(crate) wakes_all: bool,
}

impl Drop for Tx {
    fn drop(&mut self) {
        if !self.has_ended {
            // The first poll hands it to the connection's thread, which runs it after whatever was
            // in flight and before all that comes; nothing needs to wait for that. It fails, and
            // may, where there is no transaction any more.
            let _unneeded = sqlx::query("rollback").execute(&mut self.writer.db).now_or_never();
        }
    }
}

impl Writer {
    pub(crate) fn new(db: SqliteConnection) -> Arc<Mutex<Self>> {
        Arc::new(Mutex::new(Writer { db, names: Names::default(), version: None }))
    }

    /// Begins a write transaction; returns it with the rows that the rest of the opening returned.
    pub(crate) async fn begin(
        writer: &Arc<Mutex<Writer>>,
        opening: Trip,
        has_history: bool,
    ) -> Result<(Tx, Vec<SqliteRow>)> {
        let writer = Arc::clone(writer).lock_owned().await;
        // From here on a failure rolls back.
        let mut tx = Tx {
            writer,
            now: Timestamp::MIN,
            next_id: 0,
            news: Notifications::default(),
            due_now: Vec::new(),
            wakes_all: false,
            tally: LaneTally::default(),
            recent: None,
            has_history,
            inbox_waits: false,
            keys_wait: false,
            settings_changed: false,
            parting: None,
            begun_at: 0,
            has_ended: false,
        };
        let begun = opening.fetch_all(&mut tx.writer.db).await;
        let mut rows = begun.map_err(|e| explain("begin a transaction", e))?.into_iter();
        let ticked = rows.next().ok_or_else(|| corrupt("quell_meta"))?;
        (tx.next_id, tx.now) = (unsigned(get(&ticked, 0)?), time(&ticked, 1)?);
        tx.begun_at = get(&ticked, 2)?;
        (tx.inbox_waits, tx.keys_wait) = (get(&ticked, 3)?, get(&ticked, 4)?);
        tx.recent = get(&ticked, 5)?;
        let writer = &mut *tx.writer;
        // Until the commit, numbers of new names are guesses.
        if writer.version.take() != Some(tx.begun_at) {
            writer.names = Names::load(&mut writer.db).await?;
        }
        Ok((tx, rows.collect()))
    }
}

impl Tx {
    /// Makes everything durable; returns what to publish.
    pub(crate) async fn commit(mut self) -> Result<Done> {
        const CHANGED: &str = "update quell_meta set version = version + 1";
        const COUNT: &str = count_and_commit!("?1");
        let names_changed = self.writer.names.take_changed();
        if names_changed || self.settings_changed {
            let counted = sqlx::query(CHANGED).execute(&mut self.writer.db).await;
            counted.map_err(|e| explain("count a change of names or settings", e))?;
        }
        // With the number of statements before the commit.
        let (last, before) = match self.parting.take() {
            Some(parting) => (parting.bind(self.recent_counts().await?), 2),
            None if self.tally.is_empty() => (sqlx::query("commit"), 0),
            None => (sqlx::query(COUNT).bind(self.recent_counts().await?), 1),
        };
        run_last(&mut self.writer.db, last, before).await?;
        self.has_ended = true;
        if !self.settings_changed {
            // The write lock was ours, so no other process can have counted.
            self.writer.version = Some(self.begun_at + i64::from(names_changed));
        }
        let (news, mut due_now) =
            (std::mem::take(&mut self.news), std::mem::take(&mut self.due_now));
        due_now.extend(due_queues(&news, self.now));
        Ok(Done { news, due_now, wakes_all: self.wakes_all })
    }

    /// Counts cancelled attempts, which other processes watch (R21).
    pub(crate) async fn count_cancelled(&mut self, jobs: usize) -> Result<()> {
        const COUNT: &str = "update quell_meta set cancels = cancels + ?1";
        if jobs == 0 {
            return Ok(());
        }
        let count = sqlx::query(COUNT).bind(i64::try_from(jobs).unwrap_or(i64::MAX));
        let counted = count.execute(&mut self.writer.db).await;
        counted.map(drop).map_err(|e| explain("count a cancelled attempt", e))
    }

    /// The counts that stay on the row of the store; adds them to the table where they are many.
    async fn recent_counts(&mut self) -> Result<Option<String>> {
        let tally = std::mem::take(&mut self.tally).with_recent(self.recent.as_deref());
        if tally.are_many() {
            tally.write(&mut self.writer.db).await?;
            return Ok(None);
        }
        tally.json()
    }

    /// The connection, the names and the counts of the transaction.
    pub(crate) fn parts(&mut self) -> (&mut SqliteConnection, &mut Names, &mut LaneTally) {
        let Writer { db, names, .. } = &mut *self.writer;
        (db, names, &mut self.tally)
    }

    pub(crate) fn names(&self) -> &Names {
        &self.writer.names
    }

    /// Notes that something in `queue` is due at `due`.
    pub(crate) fn wake(&mut self, queue: &QueueName, due: Timestamp) {
        match self.news.wakes.get_mut(queue) {
            Some(earliest) => *earliest = due.min(*earliest),
            None => {
                self.news.wakes.insert(queue.clone(), due);
            }
        }
    }

    pub(crate) fn record_event(&mut self, event: impl FnOnce() -> Event) {
        if self.has_history {
            self.news.events.push(event());
        }
    }
}

/// Runs a trip that ends in a commit, `before` statements after its beginning. The connection runs none
/// after one that failed: so where that is not the commit, the outcome is known.
async fn run_last(db: &mut SqliteConnection, trip: Trip, before: usize) -> Result<()> {
    let (mut steps, mut done) = (db.fetch_many(trip), 0);
    loop {
        match steps.try_next().await {
            Ok(Some(Either::Left(_))) => done += 1,
            Ok(Some(Either::Right(_))) => {}
            Ok(None) => return Ok(()),
            Err(error) if done < before => return Err(explain("write", error)),
            Err(error) => return Err(explain_commit(error)),
        }
    }
}

/// A transaction that reads: one state of the store, with the names and the time as of then.
pub(crate) struct Reader {
    pub(crate) db: Transaction<'static, Sqlite>,
    pub(crate) names: Arc<Names>,
    pub(crate) now: Timestamp,
}

/// The names that readers share, and the version that they are of.
#[derive(Debug, Default)]
pub(crate) struct SharedNames(std::sync::Mutex<Option<(i64, Arc<Names>)>>);

impl SharedNames {
    fn of(&self, version: i64) -> Option<Arc<Names>> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.as_ref().filter(|(of, _)| *of == version).map(|(_, names)| Arc::clone(names))
    }

    fn keep(&self, version: i64, names: &Arc<Names>) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *known = Some((version, Arc::clone(names)));
    }
}

impl Reader {
    /// Begins to read at `now`, or later where the store has seen later (R38).
    pub(crate) async fn new(
        pool: &SqlitePool,
        shared: &SharedNames,
        now: Timestamp,
    ) -> Result<Reader> {
        const META: &str = "select max(?1, clock), version from quell_meta";
        let what = "open a reading connection";
        let mut db = pool.begin().await.map_err(|e| explain(what, e))?;
        let meta = sqlx::query(META).bind(now.as_micros()).fetch_optional(&mut *db).await;
        let meta = meta.map_err(|e| explain(what, e))?.ok_or_else(|| corrupt("quell_meta"))?;
        let (now, version) = (time(&meta, 0)?, get(&meta, 1)?);
        let names = match shared.of(version) {
            Some(names) => names,
            None => {
                let names = Arc::new(Names::load(&mut db).await?);
                shared.keep(version, &names);
                names
            }
        };
        Ok(Reader { db, names, now })
    }
}

/// The queues in which a job that is due already came into line. A wake-up without a time is about
/// settings, not about a job.
pub(crate) fn due_queues(
    news: &Notifications,
    now: Timestamp,
) -> impl Iterator<Item = QueueName> + '_ {
    let is_due = move |due: Timestamp| due > Timestamp::MIN && due <= now;
    let wakes = news.wakes.iter().filter(move |(_, due)| is_due(**due));
    wakes.map(|(queue, _)| queue.clone())
}
