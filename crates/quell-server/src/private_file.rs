//! Files of secrets: read again when they have changed, refused where every user of the machine can read them,
//! and written whole or not at all.

use std::fs::{File, Metadata, OpenOptions, Permissions};
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use quell::{Error, Result};
use tracing::{info, warn};

/// How long a file may be unread: it is looked at no more often than this.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// The rights of users who neither own a file nor are of its group.
const OTHERS: u32 = 0o007;

/// What changes with a file's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Version {
    modified: SystemTime,
    bytes: u64,
    file: u64,
}

impl Version {
    pub(crate) fn of(found: &Metadata) -> std::io::Result<Self> {
        Ok(Version { modified: found.modified()?, bytes: found.len(), file: found.ino() })
    }
}

/// Reads a file of secrets.
///
/// # Errors
/// [`ErrorKind::Invalid`](quell::ErrorKind::Invalid) for one that cannot be read, that others can read, or that
/// has more bytes than `most`.
pub(crate) fn read(path: &Path, most: u64) -> Result<(Version, String)> {
    let shown = path.display();
    let unreadable = |error: std::io::Error| {
        Error::invalid("secret", format!("the file {shown} cannot be read: {error}"))
    };
    let file = File::open(path).map_err(unreadable)?;
    // Before the text: a change in between is seen the next time.
    let found = file.metadata().map_err(unreadable)?;
    let mode = found.permissions().mode();
    if mode & OTHERS != 0 {
        let mode = mode & 0o7777;
        let message = format!(
            "the file {shown} has mode {mode:04o}, so every user of this machine may use it: chmod 600 or \
             640"
        );
        return Err(Error::invalid("secret", message));
    }
    let version = Version::of(&found).map_err(unreadable)?;
    let mut text = String::new();
    let bytes = file.take(most + 1).read_to_string(&mut text).map_err(unreadable)?;
    if u64::try_from(bytes).unwrap_or(u64::MAX) > most {
        let message = format!("the file {shown} has more than {most} bytes, the limit");
        return Err(Error::invalid("secret", message));
    }
    Ok((version, text))
}

/// Writes a file that its owner alone can read, in place of the one that is there. Readers see all of the old
/// text or all of the new one, whenever this ends.
///
/// # Errors
/// [`ErrorKind::Invalid`](quell::ErrorKind::Invalid) with the path and the cause.
pub(crate) fn write(path: &Path, text: &str) -> Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.unwrap_or(Path::new("."));
    let written = || -> std::io::Result<()> {
        let mut file = tempfile::Builder::new()
            .prefix(".quell-")
            .permissions(Permissions::from_mode(0o600))
            .tempfile_in(folder)?;
        file.write_all(text.as_bytes())?;
        file.as_file().sync_all()?;
        file.persist(path).map_err(|error| error.error)?;
        File::open(folder)?.sync_all()
    };
    written().map_err(|error| {
        let message = format!("the file {} cannot be written: {error}", path.display());
        Error::invalid("secret", message)
    })
}

/// Runs `change` while no other process changes the same file this way.
///
/// # Errors
/// Those of `change`, and [`ErrorKind::Invalid`](quell::ErrorKind::Invalid) where the lock file cannot be made.
pub(crate) fn locked<T>(path: &Path, change: impl FnOnce() -> Result<T>) -> Result<T> {
    let mut lock = path.as_os_str().to_owned();
    lock.push(".lock");
    let lock = PathBuf::from(lock);
    let failed = |error: std::io::Error| {
        let message = format!("the lock file {} cannot be used: {error}", lock.display());
        Error::invalid("secret", message)
    };
    let file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .mode(0o600)
        .open(&lock)
        .map_err(failed)?;
    file.lock().map_err(failed)?;
    change()
}

/// What a file says, read again when it has changed.
#[derive(Debug)]
pub(crate) struct Reread<T> {
    file: PathBuf,
    kept: Mutex<Kept<T>>,
}

#[derive(Debug)]
struct Kept<T> {
    value: T,
    /// What the file was when it was read.
    version: Option<Version>,
    looked_at: Instant,
}

impl<T: Clone> Reread<T> {
    /// What was read of a file before.
    pub(crate) fn new(file: &Path, version: Version, value: T) -> Self {
        let kept = Kept { value, version: Some(version), looked_at: Instant::now() };
        Reread { file: file.to_owned(), kept: Mutex::new(kept) }
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.file
    }

    /// What the file says now, read by `read` if it has changed since the last look, which is a second ago or more.
    /// A file that cannot be read leaves what was read before.
    pub(crate) fn current(&self, read: impl FnOnce(&Path) -> Result<(Version, T)>) -> T {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.looked_at.elapsed() >= LOOK_INTERVAL {
            kept.look_at(&self.file, read);
        }
        kept.value.clone()
    }

    /// Looks at the file now.
    pub(crate) fn look(&self, read: impl FnOnce(&Path) -> Result<(Version, T)>) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.look_at(&self.file, read);
    }

    /// What was read last, and the file's version then.
    pub(crate) fn last(&self) -> (Option<Version>, T) {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        (kept.version, kept.value.clone())
    }

    /// Makes the file due for a look, as a second would.
    #[cfg(test)]
    pub(crate) fn wait(&self) {
        let mut kept = self.kept.lock().unwrap();
        kept.looked_at = kept.looked_at.checked_sub(LOOK_INTERVAL).unwrap();
    }
}

impl<T> Kept<T> {
    fn look_at(&mut self, file: &Path, read: impl FnOnce(&Path) -> Result<(Version, T)>) {
        self.looked_at = Instant::now();
        let found = std::fs::metadata(file).and_then(|found| Version::of(&found)).ok();
        if found.is_some() && found == self.version {
            return;
        }
        match read(file) {
            Ok((version, value)) => {
                info!(file = %file.display(), "read again, as the file has changed");
                (self.version, self.value) = (Some(version), value);
            }
            // Once for each version: of a file that is gone, once.
            Err(error) if self.version.is_some() || found.is_some() => {
                let kept = "what was read before still counts";
                warn!(file = %file.display(), %error, kept, "the file cannot be read");
                self.version = found;
            }
            Err(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_others_can_read_is_refused_with_the_remedy() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("secret");
        write(&file, "hidden").unwrap();
        assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(read(&file, 6).unwrap().1, "hidden");
        assert!(read(&file, 5).unwrap_err().to_string().contains("5 bytes"));
        for (mode, is_fine) in [(0o400, true), (0o640, true), (0o604, false), (0o646, false)] {
            std::fs::set_permissions(&file, Permissions::from_mode(mode)).unwrap();
            let refused = read(&file, 6).err().map(|error| error.to_string());
            assert_eq!(refused.is_none(), is_fine, "{mode:o}: {refused:?}");
            let named = refused.is_none_or(|why| why.contains("chmod") && !why.contains("hidden"));
            assert!(named, "{mode:o}");
        }
        assert!(write(&folder.path().join("nosuch/secret"), "x").is_err());
    }

    #[test]
    fn changes_under_the_lock_do_not_meet() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("count");
        write(&file, "0").unwrap();
        let add = || {
            locked(&file, || {
                let count: u32 = read(&file, 9)?.1.parse().unwrap();
                write(&file, &(count + 1).to_string())
            })
        };
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| (0..10).for_each(|_| add().unwrap()));
            }
        });
        assert_eq!(read(&file, 9).unwrap().1, "80");
    }
}
