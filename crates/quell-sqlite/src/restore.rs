//! Puts a backup in the place of a store that no process has open.
//!
//! The copy is made and judged beside the store first, so a bad backup changes nothing. Then this
//! process holds the store's only lock until the copy has its name. Ids that were given since the backup
//! are left out: receipts with them are known elsewhere (R21).
//!
//! Invariant: the store's name has the old store or the new one at any time, and no journal of the other.

use std::fs::File;
use std::path::{Path, PathBuf};

use quell_core::checkup::SKIPPED_IDS;
use quell_core::{Error, ErrorKind, Result, StoreId, Timestamp};
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{Connection, SqliteConnection};

use crate::SqliteOptions;
use crate::backup::{Part, folder_of, unwritable};
use crate::clock::wall_clock;
use crate::error::explain;
use crate::files::{FileId, free_space, sibling, sync_folder, with_end};
use crate::restored::SKIP;
use crate::row::{signed, unsigned};
use crate::schema::{check_version, location, version};

/// The files of a database, by what is added to its name.
const ENDS: [&str; 4] = ["", "-wal", "-shm", "-journal"];

/// How a backup is restored.
///
/// ```
/// use quell_sqlite::RestoreOptions;
///
/// let options = RestoreOptions::new().discard(true);
/// # let _ = options;
/// ```
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct RestoreOptions {
    discard: bool,
}

impl RestoreOptions {
    /// Keeps the store that is replaced, under another name.
    pub fn new() -> Self {
        RestoreOptions::default()
    }

    /// Removes the store that is replaced.
    pub fn discard(mut self, discard: bool) -> Self {
        self.discard = discard;
        self
    }
}

/// A backup that was restored.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Restored {
    /// The store's id.
    pub store: StoreId,
    /// The length of the file.
    pub bytes: u64,
    /// The version of its schema; the next start brings it up to date.
    pub schema: i64,
    /// The store's time at the backup, or shortly before.
    pub as_of: Timestamp,
    /// Jobs that ran at the backup: they run again, once their leases have expired.
    pub running: u64,
    /// Where the store that was replaced is now.
    pub aside: Option<PathBuf>,
}

impl SqliteOptions {
    /// Puts a backup in the place of the store, whose file no process may have open. The backup
    /// stays as it is. The store that was there is kept as `FILE.before-restore-TIME`, unless it is to be
    /// discarded. The next [`SKIPPED_IDS`] ids are left out.
    ///
    /// ```no_run
    /// # async fn restore() -> quell_core::Result<()> {
    /// use quell_sqlite::{RestoreOptions, SqliteOptions};
    ///
    /// let restored = SqliteOptions::new("app.db").restore("app.bak", RestoreOptions::new()).await?;
    /// println!("the store before is {:?}", restored.aside);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::Contention`] while a process has the store open; [`ErrorKind::NotFound`],
    /// [`ErrorKind::Foreign`], [`ErrorKind::Corrupt`] and [`ErrorKind::Newer`] for a backup that is
    /// missing, not Quell's, damaged or of a newer Quell; [`ErrorKind::Full`] and
    /// [`ErrorKind::Unavailable`] where it cannot be written. The store is as before then.
    pub async fn restore(self, from: impl AsRef<Path>, how: RestoreOptions) -> Result<Restored> {
        let (from, to) = (from.as_ref(), real_name(self.path()));
        check_backup(from, &to)?;
        // At once where the store is in use: the copy may take long.
        Locked::take(&self, &to).await?.release().await?;
        let copy = Copy::make(from, &to).await?;
        let (place, schema, as_of, running) =
            copy.prepare().await.map_err(|e| e.at(from.display()))?;
        let locked = Locked::take(&self, &to).await?;
        let aside = locked.move_aside(&to, how.discard)?;
        let bytes = copy.part.finish(&to, !locked.was_missing()).await?;
        locked.release().await?;
        Ok(Restored { store: place, bytes, schema, as_of, running, aside })
    }
}

/// The file itself where its name is a link: what replaces it gets the file's place, not the link's.
fn real_name(path: &Path) -> PathBuf {
    std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned())
}

fn check_backup(from: &Path, to: &Path) -> Result<()> {
    let found = FileId::of(from).map_err(|error| {
        let message = format!("cannot read the backup {}", from.display());
        Error::new(ErrorKind::NotFound, message).with_source(error)
    })?;
    if FileId::of(to).is_ok_and(|own| own == found) {
        let message = format!("{} is the store itself: name a backup", from.display());
        return Err(Error::invalid("restore", message));
    }
    let bytes = std::fs::metadata(from).map_or(0, |file| file.len());
    match free_space(folder_of(to)) {
        Some(free) if free < bytes => {
            let message = format!(
                "the disk of {} has {free} bytes left, and the backup has {bytes}: free some space",
                to.display()
            );
            Err(Error::new(ErrorKind::Full, message))
        }
        _ => Ok(()),
    }
}

/// A copy of the backup beside the store.
struct Copy {
    part: Part,
}

impl Copy {
    /// Copies the backup, with the journal that is beside it where it was copied by hand.
    async fn make(from: &Path, to: &Path) -> Result<Copy> {
        let part = Part::create(to)?;
        let (source, target) = (from.to_owned(), part.path.clone());
        let copied = tokio::task::spawn_blocking(move || -> std::io::Result<()> {
            for end in ["-wal", "-shm", "-journal"] {
                match std::fs::remove_file(with_end(&target, end)) {
                    Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                        return Err(error);
                    }
                    _ => {}
                }
            }
            copy_into(&source, &target)?;
            let journal = sibling(&source, "-wal").filter(|journal| journal.exists());
            match journal {
                Some(journal) => {
                    let target = with_end(&target, "-wal");
                    drop(crate::files::open_private(&target)?);
                    copy_into(&journal, &target)
                }
                None => Ok(()),
            }
        });
        let copied = copied.await.unwrap_or_else(|ended| Err(std::io::Error::other(ended)));
        copied.map_err(|e| unwritable(&part.path, e))?;
        Ok(Copy { part })
    }

    /// Judges the copy, and leaves ids out in it.
    async fn prepare(&self) -> Result<(StoreId, i64, Timestamp, u64)> {
        const WHAT: &str = "read the backup";
        let failed = |e: sqlx::Error| explain(WHAT, e);
        let connect = SqliteConnectOptions::new().filename(&self.part.path);
        let mut db = SqliteConnection::connect_with(&connect).await.map_err(failed)?;
        let schema = check_version(version(&mut db).await?)?;
        let found = sqlx::query_scalar::<_, String>("pragma integrity_check(10)");
        let found = found.fetch_all(&mut db).await.map_err(failed)?;
        if found != ["ok"] {
            let message = format!("the backup is damaged: {}: restore another", found.join("; "));
            return Err(Error::new(ErrorKind::Corrupt, message));
        }
        let (place, as_of) = location(&mut db).await?;
        let running = sqlx::query_scalar("select count(*) from quell_job where state = 1");
        let running: i64 = running.fetch_one(&mut db).await.map_err(failed)?;
        let skipped = sqlx::query(SKIP).bind(signed(SKIPPED_IDS)).execute(&mut db).await;
        skipped.map_err(failed)?;
        // What was a copy by hand becomes one file.
        let mode = sqlx::query_scalar::<_, String>("pragma journal_mode = delete");
        mode.fetch_one(&mut db).await.map_err(failed)?;
        db.close().await.map_err(failed)?;
        Ok((place.id, schema, as_of, unsigned(running)))
    }
}

fn copy_into(from: &Path, to: &Path) -> std::io::Result<()> {
    let mut to = File::options().write(true).truncate(true).open(to)?;
    std::io::copy(&mut File::open(from)?, &mut to).map(drop)
}

/// The store's name while no other process has its file open.
struct Locked {
    /// SQLite's own lock, where it can read the file. The journal is in the file.
    db: Option<SqliteConnection>,
    /// Else a lock on the whole of the file; none where no file has the name.
    damaged: Option<File>,
}

impl Locked {
    async fn take(options: &SqliteOptions, to: &Path) -> Result<Locked> {
        if !to.exists() {
            return Ok(Locked { db: None, damaged: None });
        }
        let (db, damaged) = match lock(options).await {
            Ok(db) => (Some(db), None),
            Err(error) if error.kind() == ErrorKind::Contention => return Err(in_use(to, error)),
            Err(error) if error.kind() == ErrorKind::Corrupt => (None, Some(lock_damaged(to)?)),
            Err(error) => return Err(error.at(to.display())),
        };
        Ok(Locked { db, damaged })
    }

    fn was_missing(&self) -> bool {
        self.db.is_none() && self.damaged.is_none()
    }

    async fn release(self) -> Result<()> {
        match self.db {
            Some(db) => db.close().await.map_err(|e| explain("close the store", e)),
            None => Ok(()),
        }
    }

    /// Gives the old store another name beside its own, or none. Its journal loses its name in any case:
    /// SQLite would take it for the new file's.
    fn move_aside(&self, to: &Path, discard: bool) -> Result<Option<PathBuf>> {
        let aside = with_end(to, &format!(".before-restore-{}", stamp(wall_clock())));
        for end in ENDS {
            let (file, other) = (with_end(to, end), with_end(&aside, end));
            if !file.exists() {
                continue;
            }
            let moved = match (end, discard) {
                // The new file takes the name, so that it always has one.
                ("", true) => Ok(()),
                ("", false) => {
                    std::fs::hard_link(&file, &other).or_else(|_| std::fs::rename(&file, &other))
                }
                (_, true) => std::fs::remove_file(&file),
                (_, false) => std::fs::rename(&file, &other),
            };
            moved.map_err(|e| unwritable(&file, e))?;
        }
        sync_folder(to).map_err(|e| unwritable(to, e))?;
        Ok(aside.exists().then_some(aside))
    }
}

/// Takes a lock that no other connection to the file is compatible with.
async fn lock(options: &SqliteOptions) -> Result<SqliteConnection> {
    const WHAT: &str = "lock the store";
    let connect = options.reading_options();
    let failed = |e: sqlx::Error| match explain(WHAT, e) {
        // A store whose first page is damaged; what is another program's database can be read.
        error if error.kind() == ErrorKind::Foreign => {
            Error::new(ErrorKind::Corrupt, error.to_string())
        }
        error => error,
    };
    let mut db = SqliteConnection::connect_with(&connect).await.map_err(failed)?;
    if version(&mut db).await.is_ok_and(|version| version.is_none()) {
        let message = "the file is a database without Quell tables: name another file";
        return Err(Error::new(ErrorKind::Foreign, message));
    }
    // Only the file's only connection may leave WAL mode.
    for sql in ["pragma journal_mode = delete", "begin exclusive"] {
        sqlx::raw_sql(sql).execute(&mut db).await.map_err(failed)?;
    }
    Ok(db)
}

/// Connections hold a lock on a part of the file, damaged or not.
#[cfg(unix)]
fn lock_damaged(to: &Path) -> Result<File> {
    use rustix::fs::{FlockOperation, fcntl_lock};
    let file = File::options().read(true).write(true).open(to).map_err(|e| unwritable(to, e))?;
    match fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(error) => Err(in_use(to, Error::new(ErrorKind::Contention, error.to_string()))),
    }
}

#[cfg(not(unix))]
fn lock_damaged(to: &Path) -> Result<File> {
    File::options().read(true).write(true).open(to).map_err(|e| unwritable(to, e))
}

fn in_use(to: &Path, error: Error) -> Error {
    let message = format!(
        "{} is open in another process, which would go on in the file that was replaced: stop all \
         processes of the store first",
        to.display()
    );
    Error::new(ErrorKind::Contention, message).with_source(error)
}

/// A time for a file's name.
fn stamp(now: Timestamp) -> String {
    let text = now.to_string();
    text.chars().filter(|c| c.is_ascii_alphanumeric()).collect()
}
