//! A store on one SQL table: the trait [`Table`] on a SQLite file.
//!
//! `docs/write-a-store.md` builds this crate step by step; a test compares the code on that page with
//! this file.
//!
//! Invariant: nothing here knows a rule of Quell. It reads rows, compares versions and writes.

use std::collections::HashMap;
use std::time::Duration;

use async_trait::async_trait;
use quell_core::{Error, ErrorKind, Result, Timestamp};
use quell_portable::{Bounds, Change, Committed, Condition, Page, Range, Row, Table, Version};
use sqlx::SqliteConnection;
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePool, SqlitePoolOptions};
use tokio::time::timeout;

/// The one table. It orders names byte by byte, which is how SQLite compares text by default.
const SCHEMA: &str = "
    create table if not exists quell_rows (
        partition text not null,
        name text not null,
        value blob not null,
        version integer not null,
        primary key (partition, name)
    ) without rowid";

/// The limits of a [`SqlTable`]. SQLite does not limit the rows of a transaction.
pub const BOUNDS: Bounds =
    Bounds { changes: usize::MAX, batch_bytes: 256 << 20, row_bytes: 1 << 20, name_bytes: 512 };

/// The connections of one [`SqlTable`].
const CONNECTIONS: u32 = 4;

/// Partitions of rows in one table of a SQLite file. Clones share their connections.
#[derive(Clone, Debug)]
pub struct SqlTable {
    pool: SqlitePool,
    deadline: Duration,
    bounds: Bounds,
}

impl SqlTable {
    /// Opens the table, and creates it where it does not exist. Each call ends within `deadline`, and
    /// a COMMIT within another.
    ///
    /// # Errors
    /// Fails when the file cannot be opened or written.
    pub async fn open(file: SqliteConnectOptions, deadline: Duration) -> Result<Self> {
        let file = file.create_if_missing(true).journal_mode(SqliteJournalMode::Wal);
        let options = SqlitePoolOptions::new().max_connections(CONNECTIONS);
        let pool = options.acquire_timeout(deadline).connect_lazy_with(file.busy_timeout(deadline));
        let table = SqlTable { pool, deadline, bounds: BOUNDS };
        table.within("open the table", sqlx::query(SCHEMA).execute(&table.pool)).await?;
        Ok(table)
    }

    /// Sets other limits.
    #[must_use]
    pub fn with_bounds(self, bounds: Bounds) -> Self {
        SqlTable { bounds, ..self }
    }

    /// Runs a read, or a transaction up to its COMMIT: if it fails, nothing was written.
    async fn within<T>(
        &self,
        what: &str,
        call: impl Future<Output = sqlx::Result<T>>,
    ) -> Result<T> {
        match timeout(self.deadline, call).await {
            Ok(done) => done.map_err(|error| map_error(what, error)),
            Err(elapsed) => {
                let message = format!("cannot {what} within {:?}: try again", self.deadline);
                Err(Error::new(ErrorKind::Unavailable, message).with_source(elapsed))
            }
        }
    }

    fn check(&self, partition: &str, changes: &[Change]) -> Result<()> {
        let value_bytes = |change: &Change| change.value.as_ref().map_or(0, |value| value.len());
        let bytes = changes.iter().map(|change| change.row.len() + value_bytes(change)).sum();
        let longest_value = changes.iter().map(value_bytes).max().unwrap_or(0);
        let longest_name = changes.iter().map(|change| change.row.len()).max().unwrap_or(0);
        for (what, actual, limit) in [
            ("changes in a batch", changes.len(), self.bounds.changes),
            ("bytes in a batch", bytes, self.bounds.batch_bytes),
            ("bytes in a value", longest_value, self.bounds.row_bytes),
            ("bytes in a name", longest_name.max(partition.len()), self.bounds.name_bytes),
        ] {
            if actual > limit {
                let message = format!("{actual} {what}, the limit is {limit}: split the batch");
                return Err(Error::invalid("batch", message));
            }
        }
        // The row of the last version has an empty partition.
        let is_empty = partition.is_empty() || changes.iter().any(|change| change.row.is_empty());
        match is_empty {
            true => Err(Error::invalid("batch", "a name is empty: give it a character")),
            false => Ok(()),
        }
    }
}

#[async_trait]
impl Table for SqlTable {
    fn bounds(&self) -> Bounds {
        self.bounds
    }

    async fn now(&self) -> Result<Timestamp> {
        const NOW: &str = "select cast(round(unixepoch('now', 'subsec') * 1000) as integer)";
        let read = sqlx::query_scalar(NOW).fetch_one(&self.pool);
        let milliseconds: i64 = self.within("read the time", read).await?;
        Ok(Timestamp::from_micros(milliseconds.saturating_mul(1_000)))
    }

    async fn get(&self, partition: &str, rows: &[String]) -> Result<Vec<Option<Row>>> {
        const GET: &str = "select name, value, version from quell_rows
            where partition = ?1 and name in (select value from json_each(?2))";
        let names = serde_json::json!(rows).to_string();
        let read = sqlx::query_as(GET).bind(partition).bind(names).fetch_all(&self.pool);
        let found = self.within("read rows", read).await?.into_iter().map(row);
        let found: HashMap<String, Row> = found.map(|row| (row.name.clone(), row)).collect();
        Ok(rows.iter().map(|name| found.get(name).cloned()).collect())
    }

    async fn range(&self, partition: &str, range: &Range, limit: usize) -> Result<Page> {
        const RANGE: &str = "select name, value, version from quell_rows
            where partition = ?1 and name >= ?2 and name < ?3 order by name limit ?4";
        // One row more shows whether there is a next page.
        let most = i64::try_from(limit.saturating_add(1)).unwrap_or(i64::MAX);
        let query = sqlx::query_as(RANGE).bind(partition).bind(&range.from).bind(&range.to);
        let read = query.bind(most).fetch_all(&self.pool);
        let mut rows: Vec<Row> =
            self.within("read a range", read).await?.into_iter().map(row).collect();
        let next = rows.get(limit).map(|row| row.name.clone());
        rows.truncate(limit);
        Ok(Page { rows, next })
    }

    async fn commit(&self, partition: &str, changes: Vec<Change>) -> Result<Committed> {
        self.check(partition, &changes)?;
        let write = async {
            let mut tx = self.pool.begin_with("begin immediate").await?;
            let versions = write(&mut tx, partition, &changes).await?;
            Ok((tx, versions))
        };
        let (tx, versions) = self.within("write a batch", write).await?;
        // A transaction that is dropped rolls back.
        let Some(versions) = versions else { return Ok(Committed::Conflict) };
        match timeout(self.deadline, tx.commit()).await {
            Ok(Ok(())) => Ok(Committed::Done(versions)),
            Ok(Err(error)) => Err(map_commit_error(error)),
            Err(elapsed) => Err(unknown_outcome(elapsed)),
        }
    }
}

/// Checks all conditions and makes all changes; none if a condition does not hold.
async fn write(
    db: &mut SqliteConnection,
    partition: &str,
    changes: &[Change],
) -> sqlx::Result<Option<Vec<Option<Version>>>> {
    const VERSIONS: &str = "select name, version from quell_rows
        where partition = ?1 and name in (select value from json_each(?2))";
    // One row counts all batches, so a row that is deleted and inserted again has another version.
    const NEXT_VERSION: &str = "insert into quell_rows values ('', 'version', x'', 1)
        on conflict do update set version = version + 1 returning version";
    const PUT: &str = "insert into quell_rows values (?1, ?2, ?3, ?4)
        on conflict do update set value = excluded.value, version = excluded.version";
    const DELETE: &str = "delete from quell_rows where partition = ?1 and name = ?2";

    let names: Vec<&str> = changes.iter().map(|change| change.row.as_str()).collect();
    let names = serde_json::json!(names).to_string();
    let stored = sqlx::query_as(VERSIONS).bind(partition).bind(names).fetch_all(&mut *db).await?;
    let stored: HashMap<String, i64> = stored.into_iter().collect();
    if !changes.iter().all(|change| holds(&change.condition, stored.get(&change.row))) {
        return Ok(None);
    }
    let version: i64 = sqlx::query_scalar(NEXT_VERSION).fetch_one(&mut *db).await?;
    let mut versions = Vec::with_capacity(changes.len());
    for Change { row, value, .. } in changes {
        let query = match value {
            Some(value) => {
                sqlx::query(PUT).bind(partition).bind(row).bind(&value[..]).bind(version)
            }
            None => sqlx::query(DELETE).bind(partition).bind(row),
        };
        query.execute(&mut *db).await?;
        versions.push(value.as_ref().map(|_| Version::new(version.to_string())));
    }
    Ok(Some(versions))
}

fn holds(condition: &Condition, stored: Option<&i64>) -> bool {
    match condition {
        Condition::Absent => stored.is_none(),
        Condition::Present => stored.is_some(),
        Condition::Version(version) => stored.is_some_and(|is| is.to_string() == version.as_str()),
        Condition::Any => true,
    }
}

fn row((name, value, version): (String, Vec<u8>, i64)) -> Row {
    Row { name, value: value.into(), version: Version::new(version.to_string()) }
}

/// SQLite's primary result codes, <https://sqlite.org/rescode.html>; none where the driver failed.
fn code(error: &sqlx::Error) -> Option<i32> {
    let code = error.as_database_error()?.code()?;
    code.parse::<i32>().ok().map(|code| code & 0xff)
}

/// The error of a call that wrote nothing.
fn map_error(what: &str, error: sqlx::Error) -> Error {
    let (kind, why) = match (code(&error), &error) {
        (Some(5 | 6), _) => (ErrorKind::Unavailable, "the file is locked: try again"),
        (Some(8), _) => (ErrorKind::ReadOnly, "the file is read-only: give write access to it"),
        (Some(13), _) => (ErrorKind::Full, "the disk is full: free some space"),
        (Some(11 | 26), _) => (ErrorKind::Corrupt, "the file is damaged: restore a backup"),
        (Some(10 | 14), _)
        | (None, sqlx::Error::Io(_) | sqlx::Error::PoolTimedOut | sqlx::Error::WorkerCrashed) => {
            (ErrorKind::Unavailable, "the file cannot be read or written: check its disk")
        }
        _ => (ErrorKind::Internal, "SQLite rejected a statement"),
    };
    Error::new(kind, format!("cannot {what}: {why}")).with_source(error)
}

/// The error of a COMMIT. Where the file is locked or full, the transaction is still open.
fn map_commit_error(error: sqlx::Error) -> Error {
    match code(&error) {
        Some(5 | 13) => map_error("commit a batch", error),
        _ => unknown_outcome(error),
    }
}

fn unknown_outcome(source: impl std::error::Error + Send + Sync + 'static) -> Error {
    let message = "the COMMIT failed: the batch may be stored or not, read before a retry";
    Error::new(ErrorKind::UnknownOutcome, message).with_source(source)
}
