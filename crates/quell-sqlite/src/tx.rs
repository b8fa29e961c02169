//! One write transaction: ids, the store's time, and the names it may add.
//!
//! There is one writer connection per process, behind a lock; SQLite's own lock serialises the
//! processes. Each statement is a trip to the connection's thread and back, which costs more than
//! most statements do: so a transaction's first statements go there as one ([`opening`]).

use std::collections::HashMap;
use std::ops::{Deref, DerefMut};

use futures_util::{FutureExt, TryStreamExt};
use quell_core::history::Event;
use quell_core::{JobId, QueueName, QueueSettings, Result, Timestamp};
use sqlx::query::Query;
use sqlx::sqlite::{SqliteArguments, SqliteRow};
use sqlx::{Either, Executor, Row, Sqlite, SqliteConnection};
use tracing::error;

use crate::error::{corrupt, explain, explain_commit};
use crate::names::Names;
use crate::row::{get, time, unsigned};
use crate::tally::{Tally, count_and_commit};

/// The writer connection and what is cached beside it.
#[derive(Debug)]
pub(crate) struct Writer {
    db: SqliteConnection,
    cache: Cache,
}

/// What a process knows of names and settings; good for one version of them.
#[derive(Debug, Default)]
struct Cache {
    /// None where names may hold numbers that were never committed.
    version: Option<i64>,
    names: Names,
    settings: HashMap<QueueName, QueueSettings>,
}

/// What others must hear of once the transaction has committed.
#[derive(Debug, Default)]
pub(crate) struct News {
    /// The earliest new due time of each queue.
    pub(crate) wakes: HashMap<QueueName, Timestamp>,
    /// Queues in which something is due already.
    pub(crate) due_now: Vec<QueueName>,
    /// Something may be due in any queue: the inbox holds more than one transaction folds, or a
    /// task was resumed.
    pub(crate) wakes_all: bool,
    /// When workers, who may know of later ticks only, are to ask for ticks.
    pub(crate) next_tick: Option<Timestamp>,
    /// Jobs that have ended.
    pub(crate) ended: Vec<JobId>,
    /// Running jobs that were cancelled.
    pub(crate) cancelled: Vec<JobId>,
    pub(crate) events: Vec<Event>,
}

/// The writer connection within a transaction, which is rolled back unless it was committed.
///
/// Unlike the driver's own, it can begin together with other statements.
pub(crate) struct OpenTransaction<'w> {
    db: &'w mut SqliteConnection,
    ended: bool,
}

impl Drop for OpenTransaction<'_> {
    fn drop(&mut self) {
        if !self.ended {
            // The first poll hands it to the connection's thread, which runs it after whatever was
            // under way and before all that comes; nobody needs to wait for that. It fails, and
            // may, where there is no transaction any more.
            let _unneeded = sqlx::query("rollback").execute(&mut *self.db).now_or_never();
        }
    }
}

impl Deref for OpenTransaction<'_> {
    type Target = SqliteConnection;

    fn deref(&self) -> &SqliteConnection {
        self.db
    }
}

impl DerefMut for OpenTransaction<'_> {
    fn deref_mut(&mut self) -> &mut SqliteConnection {
        self.db
    }
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
pub(crate) struct Tx<'w> {
    pub(crate) db: OpenTransaction<'w>,
    pub(crate) names: &'w mut Names,
    pub(crate) settings: &'w HashMap<QueueName, QueueSettings>,
    pub(crate) now: Timestamp,
    /// The id of the next new job.
    pub(crate) next_id: u64,
    pub(crate) news: News,
    /// How many jobs came into each lane and state, or left it.
    pub(crate) tally: Tally,
    /// The same of earlier transactions, as far as the table does not have it.
    recent: Option<String>,
    pub(crate) has_history: bool,
    pub(crate) inbox_waits: bool,
    /// Whether a window may wait for the running attempt of its key (R11).
    pub(crate) keys_wait: bool,
    /// Whether a queue's settings changed.
    pub(crate) settings_changed: bool,
    /// A last write that ends in a commit, so that both are one trip. Nothing may read after it. It
    /// writes the recent counts, its last parameter.
    pub(crate) parting: Option<Trip>,
    begun_at: i64,
    version: &'w mut Option<i64>,
}

impl Writer {
    pub(crate) fn new(db: SqliteConnection) -> Self {
        Writer { db, cache: Cache::default() }
    }

    /// Begins a write transaction; returns it with the rows that the rest of the opening brought.
    pub(crate) async fn begin(
        &mut self,
        opening: Trip,
        has_history: bool,
    ) -> Result<(Tx<'_>, Vec<SqliteRow>)> {
        let mut db = OpenTransaction { db: &mut self.db, ended: false };
        let begun = opening.fetch_all(&mut *db).await;
        let mut rows = begun.map_err(|e| explain("begin a transaction", e))?.into_iter();
        let ticked = rows.next().ok_or_else(|| corrupt("quell_meta"))?;
        let version = get(&ticked, 2)?;
        let cache = &mut self.cache;
        if cache.version != Some(version) {
            cache.names = Names::load(&mut db).await?;
            cache.settings = load_settings(&mut db).await?;
        }
        // Until the commit, numbers of new names are guesses.
        cache.version = None;
        let tx = Tx {
            next_id: unsigned(get(&ticked, 0)?),
            now: time(&ticked, 1)?,
            inbox_waits: get(&ticked, 3)?,
            keys_wait: get(&ticked, 4)?,
            db,
            names: &mut cache.names,
            settings: &cache.settings,
            news: News::default(),
            tally: Tally::default(),
            recent: get(&ticked, 5)?,
            has_history,
            settings_changed: false,
            parting: None,
            begun_at: version,
            version: &mut cache.version,
        };
        Ok((tx, rows.collect()))
    }
}

impl Tx<'_> {
    /// Makes everything durable; says what others must hear of.
    pub(crate) async fn commit(mut self) -> Result<News> {
        const CHANGED: &str = "update quell_meta set version = version + 1";
        const COUNT: &str = count_and_commit!("?1");
        let names_changed = self.names.take_changed();
        if names_changed || self.settings_changed {
            let counted = sqlx::query(CHANGED).execute(&mut *self.db).await;
            counted.map_err(|e| explain("count a change of names or settings", e))?;
        }
        // With the number of statements before the commit.
        let (last, before) = match self.parting.take() {
            Some(parting) => (parting.bind(self.recent_counts().await?), 2),
            None if self.tally.is_empty() => (sqlx::query("commit"), 0),
            None => (sqlx::query(COUNT).bind(self.recent_counts().await?), 1),
        };
        run_last(&mut self.db, last, before).await?;
        self.db.ended = true;
        // A wake-up without a time is about settings, not about a job.
        let is_due = |due: Timestamp| due > Timestamp::MIN && due <= self.now;
        let due_now = self.news.wakes.iter().filter(|(_, due)| is_due(**due));
        self.news.due_now.extend(due_now.map(|(queue, _)| queue.clone()));
        if !self.settings_changed {
            // The write lock was ours, so that nobody else can have counted.
            *self.version = Some(self.begun_at + i64::from(names_changed));
        }
        Ok(self.news)
    }

    /// The counts that stay on the row of the store; adds them to the table where they are many.
    async fn recent_counts(&mut self) -> Result<Option<String>> {
        let tally = std::mem::take(&mut self.tally).with_recent(self.recent.as_deref());
        if tally.are_many() {
            tally.write(&mut self.db).await?;
            return Ok(None);
        }
        tally.json()
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

    pub(crate) fn tell(&mut self, event: impl FnOnce() -> Event) {
        if self.has_history {
            self.news.events.push(event());
        }
    }

    /// Puts what happened before what it led to, which is told from `place` on.
    pub(crate) fn tell_at(&mut self, place: usize, event: impl FnOnce() -> Event) {
        if self.has_history {
            self.news.events.insert(place.min(self.news.events.len()), event());
        }
    }

    /// Where the next event comes.
    pub(crate) fn told(&self) -> usize {
        self.news.events.len()
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

async fn load_settings(db: &mut SqliteConnection) -> Result<HashMap<QueueName, QueueSettings>> {
    let what = "read the settings of queues";
    let sql = "select name, settings, deleted from quell_queue";
    let rows = sqlx::query(sql).fetch_all(db).await;
    let mut settings = HashMap::new();
    for row in rows.map_err(|e| explain(what, e))? {
        let name: &str = row.try_get(0).map_err(|e| explain(what, e))?;
        let text: &str = row.try_get(1).map_err(|e| explain(what, e))?;
        let deleted = row.try_get(2).map_err(|e| explain(what, e))?;
        settings.insert(QueueName::new(name)?, parse_settings(name, text, deleted));
    }
    Ok(settings)
}

/// R32: a queue that was deleted has no settings, and hands out nothing. Nor does one whose settings
/// cannot be decoded (R25): it holds itself back, and no other queue.
pub(crate) fn parse_settings(queue: &str, text: &str, deleted: bool) -> QueueSettings {
    let held = QueueSettings { paused: true, ..QueueSettings::default() };
    if deleted {
        return held;
    }
    serde_json::from_str(text).unwrap_or_else(|error| {
        error!(%error, queue, "settings cannot be decoded: the queue is held");
        held
    })
}
