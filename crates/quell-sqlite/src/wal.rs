//! Bounds the size of the write-ahead log.
//!
//! SQLite reuses the log and never shortens it by itself. `journal_size_limit` shortens it when a
//! writer starts it over, which readers can prevent for as long as they overlap. So upkeep also
//! checkpoints and truncates a large log, on a connection of its own and without waiting long.

use std::path::PathBuf;
use std::time::Duration;

use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{Connection, SqliteConnection};
use tracing::{debug, info};

use crate::files::sibling;

/// A log of more bytes is truncated. SQLite checkpoints each 4 MB, so a calm store stays far below.
pub(crate) const MAX_LOG_BYTES: u64 = 32 << 20;

/// How long truncating waits for readers; writers wait as long.
const WAIT: Duration = Duration::from_millis(50);
/// The same at the end, when no one waits.
const LAST_WAIT: Duration = Duration::from_secs(1);

/// The log of a store.
#[derive(Debug)]
pub(crate) struct Wal {
    path: Option<PathBuf>,
    connect: SqliteConnectOptions,
}

impl Wal {
    pub(crate) fn new(connect: &SqliteConnectOptions) -> Self {
        let path = sibling(connect.get_filename(), "-wal");
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

    /// Moves all of the log into the database at the end of a process, so that the file alone is the
    /// store. Another process that reads or writes keeps a part of it, and does the same at its end.
    pub(crate) async fn empty(&self) -> Result<(), sqlx::Error> {
        let moved = truncate(&self.connect.clone().busy_timeout(LAST_WAIT)).await?;
        if !moved {
            info!("write-ahead log is in use by another process, which moves it at its end");
        }
        Ok(())
    }
}

/// Moves the log into the database; returns whether all of it could be.
async fn truncate(connect: &SqliteConnectOptions) -> Result<bool, sqlx::Error> {
    let mut db = SqliteConnection::connect_with(connect).await?;
    // Most of the pages are copied while others write.
    sqlx::query("pragma wal_checkpoint(passive)").execute(&mut db).await?;
    let truncated = sqlx::query_scalar("pragma wal_checkpoint(truncate)").fetch_one(&mut db);
    let is_busy: i64 = truncated.await?;
    db.close().await?;
    Ok(is_busy == 0)
}
