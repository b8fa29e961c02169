//! The places where a server listens: bound before anything else, so that a second server stops before it touches
//! the store.
//!
//! Invariant: a Unix socket is never one that others may use for a moment before its mode is set, and the socket of
//! another server is neither replaced nor removed.

use std::fs::{File, Permissions};
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use rustix::fs::Mode;
use tokio::net::{TcpListener, UnixListener, UnixSocket, UnixStream};
use tracing::warn;

use crate::config::{Config, Place};

/// Connections that the system holds until they are accepted.
const BACKLOG: u32 = 1_024;

/// A place that is bound.
#[derive(Debug)]
pub(super) enum Listener {
    Tcp(TcpListener, SocketAddr),
    Unix(Socket),
}

impl Listener {
    /// Where it is, with the port that it got.
    pub(super) fn place(&self) -> Place {
        match self {
            Listener::Tcp(_, address) => Place::Tcp(*address),
            Listener::Unix(socket) => Place::Unix(socket.path.clone()),
        }
    }
}

/// Binds all places of a configuration.
///
/// # Errors
/// The place that cannot be bound, and why.
pub(super) async fn bind(config: &Config) -> anyhow::Result<Vec<Listener>> {
    let mut bound = Vec::new();
    for place in config.listen.places() {
        bound.push(match place {
            Place::Tcp(address) => {
                let listener = TcpListener::bind(address).await.with_context(|| {
                    format!(
                        "server.listen: cannot listen on {address}: choose another address or port"
                    )
                })?;
                let address = listener.local_addr()?;
                Listener::Tcp(listener, address)
            }
            Place::Unix(path) => {
                let socket = Socket::bind(path, config.socket_mode).await;
                let cannot = || format!("server.listen: cannot listen on {}", path.display());
                Listener::Unix(socket.with_context(cannot)?)
            }
        });
    }
    Ok(bound)
}

/// A Unix socket that is bound; its file goes with it.
#[derive(Debug)]
pub(super) struct Socket {
    pub(super) listener: UnixListener,
    path: PathBuf,
    /// What the file is: another server may have put its own there.
    file: (u64, u64),
}

impl Socket {
    async fn bind(path: &Path, mode: u32) -> anyhow::Result<Self> {
        // One server at a time looks at the folder: two could replace the same stale socket.
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let folder = folder.unwrap_or(Path::new("."));
        let lock = File::open(folder)
            .with_context(|| format!("the folder {} cannot be used", folder.display()))?;
        let lock = tokio::task::spawn_blocking(move || lock.lock().map(|()| lock)).await??;
        remove_stale(path).await?;
        let socket = UnixSocket::new_stream()?;
        // On Linux the file gets this mode, so no one else can connect before the next step.
        let _elsewhere = rustix::fs::fchmod(&socket, Mode::from_raw_mode(0o600));
        socket.bind(path)?;
        std::fs::set_permissions(path, Permissions::from_mode(mode))?;
        let found = std::fs::metadata(path)?;
        let listener = socket.listen(BACKLOG)?;
        drop(lock);
        Ok(Socket { listener, path: path.to_owned(), file: (found.dev(), found.ino()) })
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        let found = std::fs::symlink_metadata(&self.path);
        if found.is_ok_and(|found| (found.dev(), found.ino()) == self.file)
            && let Err(error) = std::fs::remove_file(&self.path)
        {
            warn!(path = %self.path.display(), %error, "the socket's file stays");
        }
    }
}

/// Removes the socket of a process that has ended.
async fn remove_stale(path: &Path) -> anyhow::Result<()> {
    let found = match std::fs::symlink_metadata(path) {
        Ok(found) => found,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    if !found.file_type().is_socket() {
        bail!("a file is there that is not a socket: remove it, or choose another path");
    }
    match UnixStream::connect(path).await {
        Ok(_) => bail!("another server answers there: stop it, or choose another path"),
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
            std::fs::remove_file(path).context("the socket of an ended process stays")
        }
        Err(error) => Err(error).context("a socket is there that cannot be used"),
    }
}
