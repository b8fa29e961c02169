//! Bounds the size of the write-ahead log.
//!
//! SQLite reuses the log and never shortens it by itself. `journal_size_limit` shortens it when a
//! writer starts it over, which readers can prevent for as long as they overlap. So upkeep also
//! checkpoints and truncates a large log, on a connection of its own and without waiting long.

use std::path::PathBuf;
use std::time::Duration;

use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{Connection, SqliteConnection};
use tracing::debug;

use crate::watch::log_path;

/// A log of more bytes is truncated. SQLite checkpoints each 4 MB, so a calm store stays far below.
pub(crate) const MAX_LOG_BYTES: u64 = 32 << 20;

/// How long truncating waits for readers; writers wait as long.
const WAIT: Duration = Duration::from_millis(50);

/// The log of a store.
#[derive(Debug)]
pub(crate) struct Wal {
    path: Option<PathBuf>,
    connect: SqliteConnectOptions,
}

impl Wal {
    pub(crate) fn new(connect: &SqliteConnectOptions) -> Self {
        let path = log_path(connect.get_filename());
        Wal { path, connect: connect.clone().busy_timeout(WAIT) }
    }

    /// Truncates the log if it is large and no reader needs it. Otherwise the next call tries again.
    pub(crate) async fn shrink(&self) {
        let size = self.path.as_ref().and_then(|path| std::fs::metadata(path).ok());
        if size.is_none_or(|size| size.len() <= MAX_LOG_BYTES) {
            return;
        }
        if let Err(error) = truncate(&self.connect).await {
            debug!(%error, "write-ahead log could not be truncated, trying again");
        }
    }
}

async fn truncate(connect: &SqliteConnectOptions) -> Result<(), sqlx::Error> {
    let mut db = SqliteConnection::connect_with(connect).await?;
    // Most of the pages are copied while others write.
    for checkpoint in ["pragma wal_checkpoint(passive)", "pragma wal_checkpoint(truncate)"] {
        sqlx::query(checkpoint).execute(&mut db).await?;
    }
    db.close().await
}
