//! The keys that encrypt payloads (R43): a file that is read again when it has changed.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use quell::encryption::{Cipher, Keyring, OpenError, Sealed};
use quell::trigger::Fingerprint;
use quell::{Error, Payload, Quell, Result, TaskName};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::private_file::{self, Reread, Version};

/// How often schedules are looked at.
const RENEW: Duration = Duration::from_secs(60);
/// The longest file of keys, in bytes.
pub(crate) const MAX_FILE_BYTES: u64 = 64 << 10;

/// The keys of a file. Clones share them.
#[derive(Clone, Debug)]
pub struct FileKeys(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    keys: Reread<Arc<Keyring>>,
    /// The tasks whose payloads are stored as they are.
    plain: RwLock<BTreeSet<TaskName>>,
}

impl FileKeys {
    /// Reads a file; the payloads of these tasks are stored as they are.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](quell::ErrorKind::Invalid) for a file that cannot be read, that others can read,
    /// or that has no keys.
    pub fn open(path: &Path, plain: BTreeSet<TaskName>) -> Result<Self> {
        if !path.exists() {
            let message = format!("{} does not exist: make it by `quell keys add`", path.display());
            return Err(Error::invalid("secret", message));
        }
        let (version, keys) = read(path)?;
        let (keys, plain) = (Reread::new(path, version, keys), RwLock::new(plain));
        Ok(FileKeys(Arc::new(Shared { keys, plain })))
    }

    /// Where the keys are.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.0.keys.path()
    }

    /// Reads the file now, and takes the exceptions of a newer configuration. Returns those before.
    pub fn take_over(&self, newer: &FileKeys) -> BTreeSet<TaskName> {
        self.0.keys.look(read);
        self.set_plain(newer.0.plain.read().unwrap_or_else(PoisonError::into_inner).clone())
    }

    /// Sets the tasks whose payloads stay plain; returns those before.
    pub fn set_plain(&self, plain: BTreeSet<TaskName>) -> BTreeSet<TaskName> {
        std::mem::replace(&mut self.0.plain.write().unwrap_or_else(PoisonError::into_inner), plain)
    }

    fn now(&self) -> Arc<Keyring> {
        self.0.keys.current(read)
    }
}

/// Encrypts schedules by the newest key, at the start and each minute, until `stop`.
pub(crate) async fn renew(quell: Quell, stop: CancellationToken) {
    let mut ticks = tokio::time::interval(RENEW);
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            () = stop.cancelled() => return,
        }
        match quell.renew_encryption().await {
            Ok(0) => {}
            Ok(schedules) => info!(schedules, "schedules are encrypted by the newest key"),
            Err(error) => warn!(%error, "schedules are not encrypted by the newest key yet"),
        }
    }
}

fn read(path: &Path) -> Result<(Version, Arc<Keyring>)> {
    let (version, text) = private_file::read(path, MAX_FILE_BYTES)?;
    Ok((version, Arc::new(Keyring::parse(&text)?)))
}

impl Cipher for FileKeys {
    fn encrypts(&self, task: &TaskName) -> bool {
        !self.0.plain.read().unwrap_or_else(PoisonError::into_inner).contains(task)
    }

    fn seal(&self, document: &[u8], context: &[u8]) -> Result<Sealed> {
        self.now().seal(document, context)
    }

    fn open(&self, sealed: &Sealed, context: &[u8]) -> std::result::Result<Vec<u8>, OpenError> {
        self.now().open(sealed, context)
    }

    fn fingerprint(&self, payload: &Payload) -> Fingerprint {
        self.now().fingerprint(payload)
    }
}
