//! The files of a store as the file system has them: made for their owner alone, there still, and with
//! space to grow.
//!
//! SQLite goes on in a file that was deleted or replaced, and all that it writes is lost when the
//! process ends. So each call looks at the names before it begins, and each commit before it is
//! acknowledged: that costs some microseconds, and a commit some hundred.
//!
//! Invariant: nothing here opens a file that SQLite may have open in this process. Closing it would
//! release SQLite's locks, which belong to the process.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use quell_core::{Error, ErrorKind, Result, Trouble};

/// With less free space the disk counts as full: a checkpoint may need as much at once.
pub(crate) const LEAST_FREE: u64 = 8 << 20;
/// Space is back where this much more is free than when a write failed.
const SPACE_IS_BACK: u64 = 16 << 20;
/// No write has failed for want of space.
const NOT_FULL: u64 = u64::MAX;

/// Which file a name stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileId {
    device: u64,
    number: u64,
}

impl FileId {
    /// The file behind a name, links followed.
    ///
    /// It asks for no times. Linux writes a file's next change with a time of its own where a caller has
    /// asked for the last one. The next sync then writes the file system's journal as well, and takes longer.
    /// Source: <https://docs.kernel.org/filesystems/multigrain-ts.html>.
    #[cfg(target_os = "linux")]
    pub(crate) fn of(path: &Path) -> io::Result<FileId> {
        use rustix::fs::{AtFlags, CWD, StatxFlags, makedev, statx};
        match statx(CWD, path, AtFlags::empty(), StatxFlags::INO) {
            Ok(found) => {
                let device = makedev(found.stx_dev_major, found.stx_dev_minor);
                Ok(FileId { device, number: found.stx_ino })
            }
            // Linux before 4.11.
            Err(rustix::io::Errno::NOSYS) => FileId::of_metadata(path),
            Err(error) => Err(error.into()),
        }
    }

    /// The file behind a name, links followed.
    #[cfg(all(unix, not(target_os = "linux")))]
    pub(crate) fn of(path: &Path) -> io::Result<FileId> {
        FileId::of_metadata(path)
    }

    #[cfg(unix)]
    fn of_metadata(path: &Path) -> io::Result<FileId> {
        use std::os::unix::fs::MetadataExt;
        let found = std::fs::metadata(path)?;
        Ok(FileId { device: found.dev(), number: found.ino() })
    }

    /// Elsewhere an open file can be neither deleted nor replaced.
    #[cfg(not(unix))]
    pub(crate) fn of(path: &Path) -> io::Result<FileId> {
        std::fs::metadata(path).map(|_| FileId { device: 0, number: 0 })
    }
}

/// The files that a store's connections have open.
#[derive(Debug)]
pub(crate) struct Files {
    database: PathBuf,
    open: Vec<(PathBuf, FileId)>,
    /// Why the store is lost, once it is: a file that comes back may miss what others did meanwhile.
    lost: OnceLock<String>,
    /// How much space was free when the last write failed for want of it.
    full_at: AtomicU64,
}

impl Files {
    /// The files of a database that is open as `id`. Its journal and the index of that are there while
    /// any connection is.
    pub(crate) fn new(database: &Path, id: FileId) -> Self {
        let database = std::path::absolute(database).unwrap_or_else(|_| database.to_owned());
        let beside = ["-wal", "-shm"].into_iter().filter_map(|end| {
            let path = sibling(&database, end)?;
            let id = FileId::of(&path).ok()?;
            Some((path, id))
        });
        let open = [(database.clone(), id)].into_iter().chain(beside).collect();
        Files { database, open, lost: OnceLock::new(), full_at: AtomicU64::new(NOT_FULL) }
    }

    /// Whether the store's files are those that are open.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] where one is gone; from then on always.
    pub(crate) fn check(&self) -> Result<()> {
        if let Some(why) = self.lost.get() {
            return Err(Error::new(ErrorKind::Unavailable, why.clone()));
        }
        for (path, id) in &self.open {
            let what = match FileId::of(path) {
                Ok(found) if found == *id => continue,
                Ok(_) => "replaced",
                Err(error) if error.kind() == io::ErrorKind::NotFound => "deleted or moved",
                Err(error) => {
                    let message = format!("cannot look at {}", path.display());
                    return Err(Error::new(ErrorKind::Unavailable, message).with_source(error));
                }
            };
            let why = format!(
                "{} was {what} while the store is open, so nothing more is accepted: stop all \
                 processes of the store, put the file back or restore a backup, and start them again",
                path.display()
            );
            tracing::error!(path = %path.display(), what, "store file is gone, refusing all calls");
            return Err(Error::new(ErrorKind::Unavailable, self.lost.get_or_init(|| why).clone()));
        }
        Ok(())
    }

    /// The same after a commit, which may be in a file that is gone (R1).
    ///
    /// # Errors
    /// [`ErrorKind::UnknownOutcome`] where the commit may be lost.
    pub(crate) fn check_commit(&self) -> Result<()> {
        self.check().map_err(|error| {
            let message =
                "the commit went into a file that is no longer the store's, or may not be";
            Error::new(ErrorKind::UnknownOutcome, format!("{message}: {error}")).with_source(error)
        })
    }

    /// Remembers how a write ended.
    pub(crate) fn note_full(&self) {
        self.full_at.store(self.free().unwrap_or(0).min(NOT_FULL - 1), Ordering::Relaxed);
    }

    /// A commit succeeded.
    pub(crate) fn note_written(&self) {
        if self.full_at.load(Ordering::Relaxed) != NOT_FULL {
            self.full_at.store(NOT_FULL, Ordering::Relaxed);
        }
    }

    /// Free space on the disk of the file, where the system says it.
    pub(crate) fn free(&self) -> Option<u64> {
        free_space(&self.database)
    }

    /// Why the store accepts nothing; it does not touch the database.
    pub(crate) fn trouble(&self) -> Option<Trouble> {
        if let (Err(error), true) = (self.check(), self.lost.get().is_some()) {
            return Some(Trouble::Lost(error.to_string()));
        }
        let (free, file) = (self.free(), self.database.display());
        if let Some(free) = free.filter(|free| *free < LEAST_FREE) {
            return Some(Trouble::Full(format!(
                "the disk of {file} has {free} bytes left, of {LEAST_FREE} that the store needs: \
                 free some space"
            )));
        }
        let full_at = self.full_at.load(Ordering::Relaxed);
        if full_at == NOT_FULL {
            return None;
        }
        if free.is_some_and(|free| free >= full_at.saturating_add(SPACE_IS_BACK)) {
            self.note_written();
            return None;
        }
        Some(Trouble::Full(format!("the last write to {file} found no space: free some")))
    }
}

/// A file that SQLite keeps beside the real database, where its name is a link.
pub(crate) fn sibling(database: &Path, end: &str) -> Option<PathBuf> {
    Some(with_end(&std::fs::canonicalize(database).ok()?, end))
}

/// A name with something added to it.
pub(crate) fn with_end(path: &Path, end: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(end);
    PathBuf::from(name)
}

/// What unprivileged processes may still write on the disk of a file or folder.
#[cfg(unix)]
pub(crate) fn free_space(path: &Path) -> Option<u64> {
    let disk = rustix::fs::statvfs(path).ok()?;
    Some(disk.f_bavail.saturating_mul(disk.f_frsize))
}

/// What may still be written on the disk of a file or folder.
#[cfg(not(unix))]
pub(crate) fn free_space(_path: &Path) -> Option<u64> {
    None
}

/// The rights of a file by its mode, where it has one: `0600`.
#[cfg(unix)]
pub(crate) fn mode(path: &Path) -> Option<u32> {
    use std::os::unix::fs::MetadataExt;
    Some(std::fs::metadata(path).ok()?.mode() & 0o777)
}

/// The rights of a file by its mode, where it has one.
#[cfg(not(unix))]
pub(crate) fn mode(_path: &Path) -> Option<u32> {
    None
}

/// Makes an empty file for its owner alone where there is none; the journal gets the same rights from
/// SQLite. A file that is there stays as it is.
///
/// The new file gets its name once it is closed: another thread may open a file with a name.
///
/// # Errors
/// Why the file cannot be made.
pub(crate) fn create_private(path: &Path) -> io::Result<()> {
    if std::fs::symlink_metadata(path).is_ok() {
        return Ok(());
    }
    let new = unused_name(path, "new");
    drop(open_private(&new)?);
    let named = std::fs::hard_link(&new, path);
    let removed = std::fs::remove_file(&new);
    match named {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => removed,
        // Some file systems have no links: there the last of several renames wins, and nothing has
        // opened the file of another yet.
        Err(_) if !path.exists() => {
            drop(open_private(&new)?);
            std::fs::rename(&new, path)
        }
        named => named.and(removed),
    }
}

/// Makes a new file for its owner alone, to write.
///
/// # Errors
/// Why it cannot be made; that it is there already.
pub(crate) fn open_private(path: &Path) -> io::Result<std::fs::File> {
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)
}

/// A name beside `path` that no file has.
pub(crate) fn unused_name(path: &Path, why: &str) -> PathBuf {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let mut name = path.file_name().unwrap_or_default().to_owned();
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    name.push(format!(".{why}-{}-{number}", std::process::id()));
    path.with_file_name(name)
}

/// Makes a new name, or the lack of an old one, durable.
///
/// # Errors
/// Why the folder cannot be written.
pub(crate) fn sync_folder(of: &Path) -> io::Result<()> {
    let folder = match of.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    if cfg!(unix) { std::fs::File::open(folder)?.sync_all() } else { Ok(()) }
}
