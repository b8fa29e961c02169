//! The store's interface: what opens a file, and the engine on it.
//!
//! Invariant: all rules are the engine's; a backend of this file keeps the rows.

use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use quell_core::{
    Answer, Capabilities, EndHub, EndNotification, ErrorKind, JobId, Location, Now, Operation,
    Result, Store, Timestamp, Trouble, WakeHub, Wakeups,
};
use quell_engine::Engine;
use sqlx::sqlite::{SqliteConnectOptions, SqlitePoolOptions};
use sqlx::{Connection, SqliteConnection};
use tokio::sync::Mutex;
use tokio::task::JoinSet;

use crate::SqliteOptions;
use crate::backend::{Hints, SqliteBackend};
use crate::clock::HostClock;
use crate::error::explain;
use crate::files::{FileId, Files};
use crate::options::{Shared, count_steps};
use crate::schema::location;
use crate::tx::{SharedNames, Writer};
use crate::wal::Wal;
use crate::watch::watch;

/// Connections for reading; writes and looks have their own.
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
    engine: Engine<SqliteBackend>,
    location: Location,
    files: Arc<Files>,
    // Owned so that it ends with the store.
    _watcher: JoinSet<()>,
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
        (mut writer, id): (SqliteConnection, FileId),
        connect: &SqliteConnectOptions,
        Shared { history, steps, longest_clock_jump, clock_offset, has_hot_paths }: Shared,
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
        let files = Arc::new(Files::new(connect.get_filename(), id));
        let (hub, ends) = (Arc::new(WakeHub::new()), Arc::new(EndHub::new()));
        let mut watcher = JoinSet::new();
        watcher.spawn(watch(
            watched,
            connect.get_filename().to_owned(),
            Arc::clone(&hub),
            Arc::clone(&ends),
        ));
        let backend = SqliteBackend {
            writer: Writer::new(writer),
            looker: Mutex::new(looker),
            readers,
            names: SharedNames::default(),
            wal: Wal::new(connect),
            files: Arc::clone(&files),
            path: connect.get_filename().to_owned(),
            clock: HostClock::new(opened_at, longest_clock_jump, clock_offset),
            hints: Hints::default(),
            hub: Arc::clone(&hub),
            ends: Arc::clone(&ends),
            history: history.clone(),
            has_hot_paths,
        };
        let engine = Engine::new(backend).with_hints(hub, ends);
        let engine = match history {
            Some(history) => engine.with_history(history),
            None => engine,
        };
        Ok(SqliteStore { engine, location, files, _watcher: watcher })
    }
}

impl SqliteStore {
    pub(crate) fn path(&self) -> &Path {
        &self.engine.backend().path
    }

    pub(crate) fn check_files(&self) -> Result<()> {
        self.files.check()
    }
}

#[async_trait]
impl Store for SqliteStore {
    fn capabilities(&self) -> Capabilities {
        self.engine.capabilities()
    }

    fn location(&self) -> Option<&Location> {
        Some(&self.location)
    }

    async fn call(&self, now: Now, operation: Operation) -> Result<Answer> {
        self.files.check()?;
        let answer = self.engine.call(now, operation).await;
        if answer.as_ref().is_err_and(|error| error.kind() == ErrorKind::Full) {
            self.files.note_full();
        }
        answer
    }

    fn wakeups(&self) -> Wakeups {
        self.engine.wakeups()
    }

    /// Other processes notice the commit by themselves.
    fn transaction_committed(&self) {
        self.engine.hub().wake(None, Timestamp::MIN);
    }

    fn ended(&self, job: JobId) -> EndNotification {
        self.engine.ended(job)
    }

    fn trouble(&self) -> Option<Trouble> {
        self.files.trouble()
    }

    async fn close(&self) -> Result<()> {
        self.files.check()?;
        let emptied = self.engine.backend().wal.empty().await;
        emptied.map_err(|e| explain("move the write-ahead log into the file", e))
    }
}
