//! The schema's version, and how a file gets to it.
//!
//! Migrations run in one write transaction, so two processes may start at once: the second finds
//! the work done. A file of a newer Quell is left alone.

use quell_core::{Error, ErrorKind, Location, Result, StoreId, Timestamp};
use sqlx::{Connection, SqliteConnection};

use crate::error::{corrupt, explain};

/// Every migration, in order; the schema's version is how many have run.
const MIGRATIONS: [&str; 11] = [
    include_str!("sql/0001_schema.sql"),
    include_str!("sql/0002_limits.sql"),
    include_str!("sql/0003_schedules.sql"),
    include_str!("sql/0004_effects.sql"),
    include_str!("sql/0005_dead.sql"),
    include_str!("sql/0006_idempotency.sql"),
    include_str!("sql/0007_alerts.sql"),
    include_str!("sql/0008_workers.sql"),
    include_str!("sql/0009_unreadable.sql"),
    include_str!("sql/0010_alerts_by_queue.sql"),
    include_str!("sql/0011_counts.sql"),
];

/// Brings the schema up to date.
pub(crate) async fn migrate(db: &mut SqliteConnection) -> Result<()> {
    let newest = i64::try_from(MIGRATIONS.len()).map_err(|_| corrupt("the schema"))?;
    if version(db).await? == Some(newest) {
        return Ok(());
    }
    let begun = db.begin_with("begin immediate").await;
    let mut tx = begun.map_err(|e| explain("migrate the schema", e))?;
    let found = version(&mut tx).await?.unwrap_or(0);
    if found > newest {
        return Err(Error::new(
            ErrorKind::Newer,
            format!(
                "the store has schema version {found}, this Quell knows up to {newest}: \
                 update this program"
            ),
        ));
    }
    let done = usize::try_from(found).map_err(|_| corrupt("the schema's version"))?;
    for migration in MIGRATIONS.iter().skip(done) {
        let ran = sqlx::raw_sql(*migration).execute(&mut *tx).await;
        ran.map_err(|e| explain("migrate the schema", e))?;
    }
    let set = sqlx::query("update quell_meta set schema_version = ?1").bind(newest);
    set.execute(&mut *tx).await.map_err(|e| explain("migrate the schema", e))?;
    tx.commit().await.map_err(|e| explain("migrate the schema", e))
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
async fn version(db: &mut SqliteConnection) -> Result<Option<i64>> {
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
