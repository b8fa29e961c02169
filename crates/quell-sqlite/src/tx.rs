//! One write transaction: ids, the store's time, and the names it may add.
//!
//! There is one writer connection per process, behind a lock; SQLite's own lock serialises the
//! processes. A transaction whose future is dropped rolls back before the next one begins.

use std::collections::HashMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use quell_core::history::Event;
use quell_core::{QueueName, QueueSettings, Result, Timestamp};
use sqlx::{Connection, Row, Sqlite, SqliteConnection, Transaction};

use crate::error::{corrupt, explain, explain_commit};
use crate::names::Names;
use crate::row::{signed, unsigned};

/// The writer connection and what is cached beside it.
#[derive(Debug)]
pub(crate) struct Writer {
    db: SqliteConnection,
    names: Option<Names>,
    /// Whether names may hold numbers that were never committed.
    unsure: bool,
    settings: (i64, HashMap<QueueName, QueueSettings>),
}

/// What others must hear of once the transaction has committed.
#[derive(Debug, Default)]
pub(crate) struct News {
    /// The earliest new due time of each queue.
    pub(crate) wakes: HashMap<QueueName, Timestamp>,
    pub(crate) events: Vec<Event>,
}

/// An open write transaction.
pub(crate) struct Tx<'w> {
    pub(crate) db: Transaction<'w, Sqlite>,
    pub(crate) names: &'w mut Names,
    pub(crate) settings: &'w HashMap<QueueName, QueueSettings>,
    pub(crate) now: Timestamp,
    first_id: u64,
    /// The id of the next new job.
    pub(crate) next_id: u64,
    pub(crate) news: News,
    pub(crate) has_history: bool,
    pub(crate) inbox_waits: bool,
    unsure: &'w mut bool,
}

/// The machine's clock.
pub(crate) fn wall_clock() -> Timestamp {
    let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    Timestamp::from_micros(0) + wall
}

impl Writer {
    pub(crate) fn new(db: SqliteConnection) -> Self {
        Writer { db, names: None, unsure: false, settings: (-1, HashMap::new()) }
    }

    /// Begins a write transaction at `now`, or later where the store has seen later (R38).
    pub(crate) async fn begin(&mut self, now: Timestamp, has_history: bool) -> Result<Tx<'_>> {
        const TICK: &str = "update quell_meta
                set clock = max(clock, ?1)
              returning next_id, clock, settings_version,
                        exists (select 1 from quell_inbox where refused is null)";
        let begun = self.db.begin_with("begin immediate").await;
        let mut db = begun.map_err(|e| explain("begin a transaction", e))?;
        let ticked = sqlx::query(TICK)
            .bind(now.as_micros())
            .fetch_one(&mut *db)
            .await
            .map_err(|e| explain("begin a transaction", e))?;
        let field = |index: usize| {
            ticked.try_get::<i64, _>(index).map_err(|e| explain("begin a transaction", e))
        };
        if self.unsure || self.names.is_none() {
            self.names = Some(Names::load(&mut db).await?);
        }
        // Until the commit, numbers of new names are guesses.
        self.unsure = true;
        if self.settings.0 != field(2)? {
            self.settings = (field(2)?, load_settings(&mut db).await?);
        }
        let names = self.names.as_mut().ok_or_else(|| corrupt("the names"))?;
        Ok(Tx {
            first_id: unsigned(field(0)?),
            next_id: unsigned(field(0)?),
            now: Timestamp::from_micros(field(1)?),
            inbox_waits: field(3)? != 0,
            db,
            names,
            settings: &self.settings.1,
            news: News::default(),
            has_history,
            unsure: &mut self.unsure,
        })
    }
}

impl Tx<'_> {
    /// Makes everything durable; says what others must hear of.
    pub(crate) async fn commit(mut self) -> Result<News> {
        if self.next_id != self.first_id {
            sqlx::query("update quell_meta set next_id = ?1")
                .bind(signed(self.next_id))
                .execute(&mut *self.db)
                .await
                .map_err(|e| explain("number new jobs", e))?;
        }
        self.db.commit().await.map_err(explain_commit)?;
        *self.unsure = false;
        Ok(self.news)
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

    pub(crate) fn tell(&mut self, event: Option<Event>) {
        if self.has_history {
            self.news.events.extend(event);
        }
    }
}

async fn load_settings(db: &mut SqliteConnection) -> Result<HashMap<QueueName, QueueSettings>> {
    let what = "read the settings of queues";
    let rows = sqlx::query("select name, settings from quell_queue").fetch_all(db).await;
    let mut settings = HashMap::new();
    for row in rows.map_err(|e| explain(what, e))? {
        let name: &str = row.try_get(0).map_err(|e| explain(what, e))?;
        let text: &str = row.try_get(1).map_err(|e| explain(what, e))?;
        settings.insert(QueueName::new(name)?, parse_settings(name, text)?);
    }
    Ok(settings)
}

pub(crate) fn parse_settings(queue: &str, text: &str) -> Result<QueueSettings> {
    serde_json::from_str(text)
        .map_err(|error| corrupt(format_args!("settings of queue {queue}: {error}")))
}
