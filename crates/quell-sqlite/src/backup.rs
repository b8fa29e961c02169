//! A copy of a store that is in use.
//!
//! The driver does not have SQLite's backup API, so `VACUUM INTO` makes the copy: it reads one snapshot
//! and blocks no writer. While it reads, the write-ahead log grows, as no page of the snapshot may be
//! overwritten. SQLite calls back in between, which paces the copy and ends one that no one waits for.
//!
//! Invariant: a file under the final name is whole and on the disk. Until then it is `NAME.part`.

use std::fs::{File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use quell_core::{Error, ErrorKind, Result, StoreId};
use sqlx::sqlite::{SqliteConnectOptions, SqliteSynchronous};
use sqlx::{Connection, SqliteConnection};

use crate::error::explain;
use crate::files::{FileId, free_space, open_private, sibling, sync_folder};
use crate::schema::location;
use crate::{SqliteOptions, SqliteStore};

/// Steps of SQLite between two looks: some ten rows, as one may be large.
const STEPS: i32 = 100;
/// Written pages go to the disk in portions of this size, so that no commit of the store waits for
/// more.
const PORTION: u64 = 1 << 20;
/// How often the length of the log is looked at.
const LOOK: Duration = Duration::from_millis(100);
/// The longest rest at once, so that a copy that no one waits for ends soon.
const LONGEST_REST: Duration = Duration::from_millis(50);

/// How a backup is made.
///
/// ```
/// use quell_sqlite::BackupOptions;
///
/// let options = BackupOptions::new().replace(true).bytes_per_second(32 << 20);
/// # let _ = options;
/// ```
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct BackupOptions {
    replace: bool,
    bytes_per_second: Option<u64>,
    progress: Option<BackupProgress>,
}

impl BackupOptions {
    /// As fast as the disk allows, to a file that is not there yet.
    pub fn new() -> Self {
        BackupOptions::default()
    }

    /// Replaces a file of that name, once the copy is whole.
    pub fn replace(mut self, replace: bool) -> Self {
        self.replace = replace;
        self
    }

    /// How much of the copy is written in a second, at most: a slower one leaves more of the disk and the
    /// processor to the store, and the write-ahead log grows for longer.
    pub fn bytes_per_second(mut self, bytes: u64) -> Self {
        self.bytes_per_second = Some(bytes);
        self
    }

    /// Where the number of written bytes is kept, to show it.
    pub fn progress(mut self, progress: BackupProgress) -> Self {
        self.progress = Some(progress);
        self
    }
}

/// How far a backup is.
#[derive(Clone, Debug, Default)]
pub struct BackupProgress(Arc<(AtomicU64, AtomicU64)>);

impl BackupProgress {
    /// The bytes written, and those of the store's pages: a copy has no unused ones, so it may end
    /// earlier.
    #[must_use]
    pub fn bytes(&self) -> (u64, u64) {
        (self.0.0.load(Ordering::Relaxed), self.0.1.load(Ordering::Relaxed))
    }
}

/// A backup that was made.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Backup {
    /// The store's id.
    pub store: StoreId,
    /// The length of the copy.
    pub bytes: u64,
    /// How long the copy took.
    pub took: Duration,
    /// The longest that the write-ahead log was meanwhile.
    pub log_bytes: u64,
}

impl SqliteOptions {
    /// Copies the store to a file, while processes use it: the copy has all that was committed before
    /// the call. It is made under the name `FILE.part`, for its owner alone, and gets its own name once
    /// it is on the disk. Dropping the future ends it.
    ///
    /// ```no_run
    /// # async fn copy() -> quell_core::Result<()> {
    /// use quell_sqlite::{BackupOptions, SqliteOptions};
    ///
    /// let made = SqliteOptions::new("app.db").backup("app.bak", BackupOptions::new()).await?;
    /// println!("{} bytes", made.bytes);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for a file that is there and may not be replaced, or is the store itself;
    /// [`ErrorKind::Contention`] while another backup writes it; [`ErrorKind::Full`],
    /// [`ErrorKind::Unavailable`] and [`ErrorKind::Foreign`] as for [`SqliteOptions::open`].
    pub async fn backup(self, to: impl AsRef<Path>, how: BackupOptions) -> Result<Backup> {
        back_up(&self.reading_options(), to.as_ref(), &how).await
    }
}

impl SqliteStore {
    /// As [`SqliteOptions::backup`], of a store that is open.
    ///
    /// # Errors
    /// As for [`SqliteOptions::backup`].
    pub async fn backup(&self, to: impl AsRef<Path>, how: BackupOptions) -> Result<Backup> {
        self.check_files()?;
        let options = SqliteOptions::new(self.path()).reading_options();
        let made = back_up(&options, to.as_ref(), &how).await?;
        self.check_files()?;
        Ok(made)
    }
}

async fn back_up(from: &SqliteConnectOptions, to: &Path, how: &BackupOptions) -> Result<Backup> {
    let begun = Instant::now();
    let source = from.get_filename();
    let mut db = SqliteConnection::connect_with(&from.clone().synchronous(SqliteSynchronous::Off))
        .await
        .map_err(|e| explain("open the store", e).at(source.display()))?;
    let (place, _) = location(&mut db).await.map_err(|error| error.at(source.display()))?;
    check_target(source, to, how.replace)?;
    let size: i64 = sqlx::query_scalar(
        "select page_count * page_size from pragma_page_count, pragma_page_size",
    )
    .fetch_one(&mut db)
    .await
    .map_err(|e| explain("read the store's size", e))?;
    let size = u64::try_from(size).unwrap_or(0);
    check_space(to, size)?;

    let part = Part::create(to)?;
    let pace = Pace::new(&part, source, size, how, begun)?;
    let (stopped, log_bytes) = (Arc::clone(&pace.stopped), Arc::clone(&pace.log_bytes));
    let stop = StopOnDrop(stopped);
    let handle = db.lock_handle().await;
    handle
        .map_err(|e| explain("open the store", e))?
        .set_progress_handler(STEPS, pace.into_handler());
    let name = part.path.to_str().ok_or_else(|| {
        Error::invalid("backup", format!("{}: give a name that is UTF-8", to.display()))
    })?;
    let copied = sqlx::query("vacuum into ?1").bind(name.to_owned()).execute(&mut db).await;
    copied.map_err(|e| explain("copy the store", e).at(part.path.display()))?;
    db.close().await.map_err(|e| explain("close the store", e))?;
    drop(stop);
    let bytes = part.finish(to, how.replace).await?;
    let log_bytes = log_bytes.load(Ordering::Relaxed);
    Ok(Backup { store: place.id, bytes, took: begun.elapsed(), log_bytes })
}

fn check_target(source: &Path, to: &Path, replace: bool) -> Result<()> {
    let Ok(found) = FileId::of(to) else { return Ok(()) };
    let own = ["", "-wal", "-shm"].into_iter().filter_map(|end| sibling(source, end));
    if own.filter_map(|path| FileId::of(&path).ok()).any(|own| own == found) {
        let message = format!("{} is the store itself: name another file", to.display());
        return Err(Error::invalid("backup", message));
    }
    if replace { Ok(()) } else { Err(exists(to)) }
}

fn exists(to: &Path) -> Error {
    let message = format!("{} is there already: name another file, or replace it", to.display());
    Error::invalid("backup", message)
}

fn check_space(to: &Path, size: u64) -> Result<()> {
    let Some(free) = free_space(folder_of(to)).filter(|free| *free < size) else { return Ok(()) };
    let message = format!(
        "the disk of {} has {free} bytes left, and the store has {size}: free some space, or name \
         another disk",
        to.display()
    );
    Err(Error::new(ErrorKind::Full, message))
}

pub(crate) fn folder_of(file: &Path) -> &Path {
    match file.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

/// A file that is not whole yet. Its writer holds a lock on it, so a file that a killed process left has
/// none.
pub(crate) struct Part {
    pub(crate) path: PathBuf,
    file: File,
    is_named: bool,
}

impl Part {
    /// Makes an empty file beside the final name, or empties one that was left.
    pub(crate) fn create(to: &Path) -> Result<Part> {
        let to = std::path::absolute(to).map_err(|e| unwritable(to, e))?;
        let mut name = to.file_name().unwrap_or_default().to_owned();
        name.push(".part");
        let path = to.with_file_name(name);
        loop {
            let file = match open_private(&path) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                    File::options().write(true).open(&path)
                }
                opened => opened,
            };
            let file = file.map_err(|e| unwritable(&path, e))?;
            match file.try_lock() {
                Err(TryLockError::WouldBlock) => {
                    let message =
                        "another process writes it: wait for its end, or name another file";
                    let error = Error::new(ErrorKind::Contention, message);
                    return Err(error.at(path.display()));
                }
                Err(TryLockError::Error(error)) => return Err(unwritable(&path, error)),
                Ok(()) => {}
            }
            // Another may have given it its final name since it was opened.
            if is_open(&file, &path) {
                let emptied = make_private(&file).and_then(|()| file.set_len(0));
                emptied.map_err(|e| unwritable(&path, e))?;
                return Ok(Part { path, file, is_named: false });
            }
        }
    }

    /// Gives the whole file its name; returns its length.
    pub(crate) async fn finish(mut self, to: &Path, replace: bool) -> Result<u64> {
        let file = self.file.try_clone().map_err(|e| unwritable(&self.path, e))?;
        let synced = tokio::task::spawn_blocking(move || {
            file.sync_all()?;
            file.metadata().map(|file| file.len())
        });
        let synced = synced.await.unwrap_or_else(|ended| Err(io::Error::other(ended)));
        let bytes = synced.map_err(|e| unwritable(&self.path, e))?;
        if replace {
            std::fs::rename(&self.path, to).map_err(|e| unwritable(to, e))?;
        } else {
            rename_new(&self.path, to)?;
        }
        self.is_named = true;
        sync_folder(to).map_err(|e| unwritable(to, e))?;
        Ok(bytes)
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        if !self.is_named {
            let _gone = std::fs::remove_file(&self.path);
        }
    }
}

/// Renames a file to a name that no file has.
fn rename_new(from: &Path, to: &Path) -> Result<()> {
    match std::fs::hard_link(from, to) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Err(exists(to)),
        // Some file systems have no links.
        Err(_) => std::fs::rename(from, to).map_err(|e| unwritable(to, e)),
        Ok(()) => std::fs::remove_file(from).map_err(|e| unwritable(from, e)),
    }
}

#[cfg(unix)]
fn is_open(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let (Ok(open), Ok(named)) = (file.metadata(), std::fs::metadata(path)) else { return false };
    (open.dev(), open.ino()) == (named.dev(), named.ino())
}

#[cfg(not(unix))]
fn is_open(_file: &File, path: &Path) -> bool {
    path.exists()
}

/// What was left may have come from elsewhere.
fn make_private(file: &File) -> io::Result<()> {
    #[cfg(unix)]
    file.set_permissions(std::os::unix::fs::PermissionsExt::from_mode(0o600))?;
    #[cfg(not(unix))]
    let _unused = file;
    Ok(())
}

/// Why a file of a backup cannot be written.
pub(crate) fn unwritable(path: &Path, error: io::Error) -> Error {
    let kind = match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => ErrorKind::Full,
        _ => ErrorKind::Unavailable,
    };
    Error::new(kind, format!("cannot write {}", path.display())).with_source(error)
}

/// Ends a copy that no one waits for.
struct StopOnDrop(Arc<AtomicBool>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// What SQLite calls back between its steps.
struct Pace {
    part: File,
    log: PathBuf,
    log_bytes: Arc<AtomicU64>,
    progress: BackupProgress,
    bytes_per_second: Option<u64>,
    stopped: Arc<AtomicBool>,
    begun: Instant,
    looked: Instant,
    synced: u64,
}

impl Pace {
    fn new(
        part: &Part,
        source: &Path,
        size: u64,
        how: &BackupOptions,
        begun: Instant,
    ) -> Result<Pace> {
        let progress = how.progress.clone().unwrap_or_default();
        progress.0.1.store(size, Ordering::Relaxed);
        Ok(Pace {
            part: part.file.try_clone().map_err(|e| unwritable(&part.path, e))?,
            log: sibling(source, "-wal").unwrap_or_default(),
            log_bytes: Arc::default(),
            progress,
            bytes_per_second: how.bytes_per_second,
            stopped: Arc::default(),
            begun,
            looked: begun,
            synced: 0,
        })
    }

    fn into_handler(mut self) -> impl FnMut() -> bool + Send + 'static {
        move || self.goes_on()
    }

    /// Whether the copy goes on; rests where it is too fast.
    fn goes_on(&mut self) -> bool {
        let written = self.part.metadata().map_or(0, |part| part.len());
        self.progress.0.0.store(written, Ordering::Relaxed);
        if self.looked.elapsed() >= LOOK {
            self.looked = Instant::now();
            let log = std::fs::metadata(&self.log).map_or(0, |log| log.len());
            self.log_bytes.fetch_max(log, Ordering::Relaxed);
        }
        if written.saturating_sub(self.synced) >= PORTION {
            self.synced = written;
            // A failure shows at the end, which writes all again that is not on the disk.
            let _later = self.part.sync_data();
        }
        while !self.stopped.load(Ordering::Relaxed) {
            let Some(rest) = self.rest(written) else { return true };
            // On the thread of the connection, which has nothing else to do.
            std::thread::park_timeout(rest.min(LONGEST_REST));
        }
        false
    }

    /// How long the copy is ahead of its rate.
    fn rest(&self, written: u64) -> Option<Duration> {
        let rate = self.bytes_per_second?.max(1);
        let due = Duration::try_from_secs_f64(written as f64 / rate as f64).ok()?;
        due.checked_sub(self.begun.elapsed()).filter(|rest| !rest.is_zero())
    }
}
