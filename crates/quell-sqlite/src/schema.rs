//! The schema's version, and how a file gets to it.
//!
//! Migrations run in one write transaction, so two processes may start at once: the second finds
//! the work done. A file of a newer Quell is left alone.

use quell_core::{Error, ErrorKind, Location, Result, StoreId, Timestamp};
use sqlx::{Connection, SqliteConnection};

use crate::error::{corrupt, explain};

/// The tables of a new file, and their version. Files of earlier versions are refused: no release wrote
/// them.
const SCHEMA: &str = include_str!("sql/schema.sql");
const FIRST: i64 = 11;
/// What came after that, in order: each raises the version by one.
const MIGRATIONS: [&str; 3] = [
    include_str!("sql/traces.sql"),
    include_str!("sql/turns.sql"),
    include_str!("sql/remarks.sql"),
];

/// Brings the schema up to date.
pub(crate) async fn migrate(db: &mut SqliteConnection) -> Result<()> {
    let since = i64::try_from(MIGRATIONS.len()).map_err(|_| corrupt("the schema"))?;
    let newest = FIRST + since;
    if version(db).await? == Some(newest) {
        return Ok(());
    }
    let begun = db.begin_with("begin immediate").await;
    let mut tx = begun.map_err(|e| explain("migrate the schema", e))?;
    let ran = |ran: sqlx::Result<_>| ran.map_err(|e| explain("migrate the schema", e));
    let found = match version(&mut tx).await? {
        Some(found) => found,
        None => {
            ran(sqlx::raw_sql(SCHEMA).execute(&mut *tx).await)?;
            FIRST
        }
    };
    check_version(Some(found))?;
    let done = usize::try_from(found - FIRST).map_err(|_| corrupt("the schema's version"))?;
    for migration in MIGRATIONS.iter().skip(done) {
        ran(sqlx::raw_sql(*migration).execute(&mut *tx).await)?;
    }
    let set = sqlx::query("update quell_meta set schema_version = ?1").bind(newest);
    ran(set.execute(&mut *tx).await)?;
    tx.commit().await.map_err(|e| explain("migrate the schema", e))
}

/// Whether this program can read a file of that version.
///
/// # Errors
/// What the file is instead, and what to do.
pub(crate) fn check_version(found: Option<i64>) -> Result<i64> {
    let newest = FIRST + i64::try_from(MIGRATIONS.len()).map_err(|_| corrupt("the schema"))?;
    match found {
        None => {
            Err(Error::new(ErrorKind::Foreign, "the file has no Quell tables: name another file"))
        }
        Some(found) if found < FIRST => Err(too_old(found)),
        Some(found) if found > newest => Err(too_new(found, newest)),
        Some(found) => Ok(found),
    }
}

fn too_old(found: i64) -> Error {
    let message = format!(
        "the store has schema version {found}, which a development build wrote; this Quell reads \
         versions from {FIRST} on: name another file"
    );
    Error::new(ErrorKind::Unsupported, message)
}

fn too_new(found: i64, newest: i64) -> Error {
    let message = format!(
        "the store has schema version {found}, this Quell knows up to {newest}: update this program"
    );
    Error::new(ErrorKind::Newer, message)
}

/// The id that the store got when it was made, and its time.
pub(crate) async fn location(db: &mut SqliteConnection) -> Result<(Location, Timestamp)> {
    let (id, clock): (String, i64) = sqlx::query_as("select store_id, clock from quell_meta")
        .fetch_one(db)
        .await
        .map_err(|e| explain("read the store's id", e))?;
    let place = Location { id: StoreId::new(id)?, schema: None };
    Ok((place, Timestamp::from_micros(clock)))
}

/// The file's schema version; none where it has no Quell tables yet.
pub(crate) async fn version(db: &mut SqliteConnection) -> Result<Option<i64>> {
    let what = "read the schema's version";
    let tables: i64 = sqlx::query_scalar(
        "select count(*) from sqlite_schema where type = 'table' and name = 'quell_meta'",
    )
    .fetch_one(&mut *db)
    .await
    .map_err(|e| explain(what, e))?;
    if tables == 0 {
        return Ok(None);
    }
    let version = sqlx::query_scalar("select schema_version from quell_meta");
    match version.fetch_optional(&mut *db).await {
        Ok(Some(version)) => Ok(Some(version)),
        Ok(None) => Err(foreign()),
        Err(error @ sqlx::Error::ColumnDecode { .. }) => Err(foreign().with_source(error)),
        Err(error)
            if error.as_database_error().is_some_and(|e| e.message().contains("no such")) =>
        {
            Err(foreign().with_source(error))
        }
        Err(error) => Err(explain(what, error)),
    }
}

fn foreign() -> Error {
    Error::new(
        ErrorKind::Foreign,
        "the file has a table `quell_meta` that is not Quell's: name another file",
    )
}
