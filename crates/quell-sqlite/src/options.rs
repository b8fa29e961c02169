//! Which file, and how durable.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use quell_core::history::Sink;
use quell_core::{Error, ErrorKind};
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqliteSynchronous};
use sqlx::{Connection, SqliteConnection};

use crate::SqliteStore;
use crate::clock::{ClockOffset, DAY, LONGEST_REST};
use crate::error::explain;
use crate::files::{FileId, create_private};
use crate::schema::migrate;
use crate::wal::MAX_LOG_BYTES;

/// SQLite's own default, named because sizes are counted in it.
const PAGE_BYTES: u32 = 4096;

/// The smallest file that may be asked for: an empty store needs a quarter of it.
const LEAST_MAX_BYTES: u64 = 1 << 20;

/// Between two tries to open a file that others are opening too.
const RETRY_OPEN: Duration = Duration::from_millis(5);

/// When a commit is on the disk (R1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Synchronous {
    /// Before the commit returns: a power cut loses nothing that was accepted.
    #[default]
    Full,
    /// Soon after: a crash of the process loses nothing, a power cut may lose the last commits.
    Normal,
}

/// How to open a store.
///
/// ```no_run
/// # async fn open() -> quell_core::Result<()> {
/// use quell_sqlite::{SqliteOptions, Synchronous};
///
/// let store = SqliteOptions::new("app.db").synchronous(Synchronous::Normal).open().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct SqliteOptions {
    path: PathBuf,
    read_only: bool,
    synchronous: Synchronous,
    busy_timeout: Duration,
    max_bytes: Option<u64>,
    history: Option<Sink>,
    steps: Option<StepCounter>,
    longest_clock_jump: Option<Duration>,
    clock_offset: Option<ClockOffset>,
    has_hot_paths: bool,
}

/// Counts the steps of SQLite's virtual machine: one at each turn of a loop, and some more.
pub type StepCounter = Arc<AtomicU64>;

impl SqliteOptions {
    /// A store in this file, which is made when missing.
    pub fn new(path: impl AsRef<Path>) -> Self {
        SqliteOptions {
            path: path.as_ref().to_owned(),
            read_only: false,
            synchronous: Synchronous::default(),
            busy_timeout: Duration::from_secs(5),
            max_bytes: None,
            history: None,
            steps: None,
            longest_clock_jump: Some(LONGEST_REST),
            clock_offset: None,
            has_hot_paths: true,
        }
    }

    /// Reads `sqlite://FILE`, with `?synchronous=full` or `?synchronous=normal` if wanted, and
    /// `clock_jump=accept` for [`SqliteOptions::accept_clock_jump`] or a number of days for
    /// [`SqliteOptions::longest_clock_jump`], and `max_bytes=NUMBER` for [`SqliteOptions::max_bytes`].
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for anything else, in memory databases among it: they would vanish
    /// with their last connection.
    pub fn from_url(url: &str) -> quell_core::Result<Self> {
        let refuse = |why: String| Err(Error::invalid("url", format!("store url {url:?}: {why}")));
        let Some(rest) = url.strip_prefix("sqlite:") else {
            return refuse("it does not begin with `sqlite://`".to_owned());
        };
        let rest = rest.strip_prefix("//").unwrap_or(rest);
        let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
        if path.is_empty() || path.contains(":memory:") {
            return refuse("name a file, or use `memory:` for a store that keeps nothing".into());
        }
        let mut options = SqliteOptions::new(path);
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            match pair {
                "synchronous=full" => options.synchronous = Synchronous::Full,
                "synchronous=normal" => options.synchronous = Synchronous::Normal,
                "clock_jump=accept" => options.longest_clock_jump = None,
                other if other.starts_with("max_bytes=") => {
                    let bytes = other.strip_prefix("max_bytes=").and_then(|n| n.parse().ok());
                    let Some(bytes) = bytes.filter(|bytes| *bytes >= LEAST_MAX_BYTES) else {
                        return refuse(format!(
                            "{other:?}: give a number of bytes from {LEAST_MAX_BYTES} on"
                        ));
                    };
                    options.max_bytes = Some(bytes);
                }
                "mode=ro" => options.read_only = true,
                "mode=rwc" => {}
                other => {
                    let days = other.strip_prefix("clock_jump=").and_then(|days| days.parse().ok());
                    let Some(days) = days.filter(|days: &u32| *days > 0) else {
                        return refuse(format!(
                            "{other:?} is not known: synchronous=full|normal, \
                             clock_jump=accept|DAYS, max_bytes=NUMBER"
                        ));
                    };
                    options.longest_clock_jump = Some(DAY * days);
                }
            }
        }
        Ok(options)
    }

    /// When a commit is on the disk. [`Synchronous::Full`] by default.
    pub fn synchronous(mut self, synchronous: Synchronous) -> Self {
        self.synchronous = synchronous;
        self
    }

    /// How long to wait for another connection's write before giving up with
    /// [`ErrorKind::Contention`]. 5 s by default.
    pub fn busy_timeout(mut self, timeout: Duration) -> Self {
        self.busy_timeout = timeout;
        self
    }

    /// How large the file may grow; past that, calls fail with [`ErrorKind::Full`] as on a full
    /// disk. Not bounded by default.
    pub fn max_bytes(mut self, bytes: u64) -> Self {
        self.max_bytes = Some(bytes);
        self
    }

    /// Lets the host's clock move the store's by more than five years at once. Without it, calls
    /// fail then with [`ErrorKind::Unavailable`]: store time never goes back (R38), so a host with
    /// a wrong date would hold it for years.
    pub fn accept_clock_jump(mut self) -> Self {
        self.longest_clock_jump = None;
        self
    }

    /// Refuses shorter jumps of the host's clock, too: a day, say, for a store that is always in
    /// use on a machine that never sleeps. Five years by default, as a store may rest that long.
    pub fn longest_clock_jump(mut self, longest: Duration) -> Self {
        self.longest_clock_jump = Some(longest);
        self
    }

    /// Moves the host's clock, for tests: see [`ClockOffset`].
    #[doc(hidden)]
    pub fn offset_clock(mut self, offset: ClockOffset) -> Self {
        self.clock_offset = Some(offset);
        self
    }

    /// Where the events go that only the store sees.
    pub fn history(mut self, sink: Sink) -> Self {
        self.history = Some(sink);
        self
    }

    /// Counts what the calls of the store cost, for tests: see [`StepCounter`].
    #[doc(hidden)]
    pub fn count_steps(mut self, steps: StepCounter) -> Self {
        self.steps = Some(steps);
        self
    }

    /// Leaves every operation to the engine, for tests that compare it with the hot paths.
    #[doc(hidden)]
    pub fn without_hot_paths(mut self) -> Self {
        self.has_hot_paths = false;
        self
    }

    /// Opens the store; call it inside a tokio runtime, on which its watcher will run.
    ///
    /// # Errors
    /// [`ErrorKind::Foreign`] for a file that is not Quell's, [`ErrorKind::Newer`] for one of a
    /// newer Quell, [`ErrorKind::ReadOnly`], [`ErrorKind::Full`] and [`ErrorKind::Unavailable`]
    /// for a file that cannot be used; each says what to do.
    pub async fn open(self) -> quell_core::Result<SqliteStore> {
        let (connect, writer) = (self.connect_options(), self.connect_known().await?);
        let shared = Shared {
            history: self.history,
            steps: self.steps,
            longest_clock_jump: self.longest_clock_jump,
            clock_offset: self.clock_offset,
            has_hot_paths: self.has_hot_paths,
        };
        SqliteStore::start(writer, &connect.create_if_missing(false), shared).await
    }

    /// A connection that changes neither the schema nor the journal's mode, of a file that is there.
    pub(crate) fn reading_options(&self) -> SqliteConnectOptions {
        SqliteConnectOptions::new()
            .filename(&self.path)
            .create_if_missing(false)
            .busy_timeout(self.busy_timeout)
            .pragma("temp_store", "memory")
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// A connection to a store that is up to date.
    pub(crate) async fn connect(&self) -> quell_core::Result<SqliteConnection> {
        self.connect_known().await.map(|(db, _)| db)
    }

    /// The same with the file that it has open.
    async fn connect_known(&self) -> quell_core::Result<(SqliteConnection, FileId)> {
        let connect = self.connect_options();
        let deadline = Instant::now() + self.busy_timeout;
        loop {
            match open_writer(&connect, self.read_only).await {
                // Of several that make a new file at once, all but one may be turned away without
                // a wait: entering WAL mode takes a lock that SQLite does not wait for.
                Err(error)
                    if error.kind() == ErrorKind::Contention && Instant::now() < deadline =>
                {
                    tokio::time::sleep(RETRY_OPEN).await;
                }
                opened => break opened.map_err(|error| error.at(self.path.display())),
            }
        }
    }

    fn connect_options(&self) -> SqliteConnectOptions {
        let synchronous = match self.synchronous {
            Synchronous::Full => SqliteSynchronous::Full,
            Synchronous::Normal => SqliteSynchronous::Normal,
        };
        let options = SqliteConnectOptions::new()
            .filename(&self.path)
            .create_if_missing(!self.read_only)
            .read_only(self.read_only)
            .busy_timeout(self.busy_timeout)
            .synchronous(synchronous)
            .page_size(PAGE_BYTES)
            .statement_cache_capacity(200)
            .pragma("journal_size_limit", MAX_LOG_BYTES.to_string())
            // Statement journals of large upserts stay off the disk.
            .pragma("temp_store", "memory")
            .row_buffer_size(1_024)
            // 16 MiB: enough for hot pages, and a worker's memory stays flat whatever the backlog.
            .pragma("cache_size", "-16384");
        let options = match self.max_bytes {
            Some(bytes) => {
                options.pragma("max_page_count", (bytes / u64::from(PAGE_BYTES)).to_string())
            }
            None => options,
        };
        if self.read_only { options } else { options.journal_mode(SqliteJournalMode::Wal) }
    }
}

/// What all connections of a store share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) history: Option<Sink>,
    pub(crate) steps: Option<StepCounter>,
    pub(crate) longest_clock_jump: Option<Duration>,
    pub(crate) clock_offset: Option<ClockOffset>,
    pub(crate) has_hot_paths: bool,
}

/// Counts the steps of a connection, where a test asks for it.
pub(crate) async fn count_steps(
    db: &mut SqliteConnection,
    steps: Option<StepCounter>,
) -> Result<(), sqlx::Error> {
    let Some(steps) = steps else { return Ok(()) };
    db.lock_handle().await?.set_progress_handler(1, move || {
        steps.fetch_add(1, Ordering::Relaxed);
        true
    });
    Ok(())
}

async fn open_writer(
    connect: &SqliteConnectOptions,
    read_only: bool,
) -> quell_core::Result<(SqliteConnection, FileId)> {
    let path = connect.get_filename();
    if !read_only {
        // Where it cannot be made, SQLite's own error says why.
        let _refused = create_private(path);
    }
    let before = FileId::of(path).ok();
    let opened = SqliteConnection::connect_with(connect).await;
    let mut writer = opened.map_err(|e| explain("open the store", e))?;
    check_wal(&mut writer).await?;
    migrate(&mut writer).await?;
    // Between two equal looks at the name, SQLite has opened that file.
    let id = FileId::of(path).ok();
    match id.filter(|_| id == before) {
        Some(id) => Ok((writer, id)),
        None => {
            let message = "the file was replaced while it was opened, try again";
            Err(Error::new(ErrorKind::Contention, message))
        }
    }
}

/// Setting WAL mode can fail without an error, on a file system without shared memory.
async fn check_wal(db: &mut SqliteConnection) -> quell_core::Result<()> {
    let mode: String = sqlx::query_scalar("pragma journal_mode")
        .fetch_one(db)
        .await
        .map_err(|e| explain("open the store", e))?;
    if mode == "wal" {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::ReadOnly,
        format!(
            "the store's journal is in mode `{mode}`, not `wal`: the file must be writable and on a \
             local file system"
        ),
    ))
}
