//! The schema's version, and how a database gets to it.
//!
//! Migrations run in one transaction under an advisory lock, so several processes may start at
//! once: all but one find the work done. Each adds and takes nothing away that an older Quell uses.
//! A statement that waits for a table's lock holds up all that come after it. So a migration waits for
//! a moment only, rolls back, lets the others go on and tries again. An older Quell works meanwhile.
//! A schema of a newer Quell is left alone.

use std::time::Duration;

use quell_core::{Error, ErrorKind, Location, Result, StoreId};
use sqlx::postgres::PgRow;
use sqlx::{AssertSqlSafe, Row};
use tokio::time::Instant;

use crate::bounded::Bounded;
use crate::error::{corrupt, explain};
use crate::sql::Sql;

/// Every migration, in order; the schema's version is how many have run.
const MIGRATIONS: [&str; 4] = [
    concat!(
        include_str!("sql/tables.sql"),
        include_str!("sql/functions.sql"),
        include_str!("sql/counts.sql"),
        include_str!("sql/triggers.sql"),
    ),
    include_str!("sql/traces.sql"),
    include_str!("sql/turns.sql"),
    include_str!("sql/remarks.sql"),
];

const WHAT: &str = "migrate the schema";

/// Between two tries to have the locks, at first and at the longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));
/// A statement of a migration has this many times the limit of a call's.
const LONG: u32 = 60;

/// How a schema is brought up to date.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Upgrade {
    /// How long it tries to have its locks.
    pub(crate) patience: Duration,
    /// A migration after the known ones, for tests.
    pub(crate) later: Option<&'static str>,
}

impl Upgrade {
    fn migrations(self) -> impl Iterator<Item = &'static str> {
        MIGRATIONS.into_iter().chain(self.later)
    }
}

/// Brings the schema up to date. Only the simple protocol is used, which any pooler passes on.
pub(crate) async fn migrate(
    db: &mut Bounded,
    sql: &Sql,
    limit: Duration,
    upgrade: Upgrade,
) -> Result<()> {
    let newest = i32::try_from(upgrade.migrations().count()).map_err(|_| corrupt("the schema"))?;
    let patience = upgrade.patience;
    // None where it is later than any clock.
    let (deadline, mut pause) = (Instant::now().checked_add(patience), PAUSES.0);
    db.set_limit(limit.saturating_mul(LONG));
    while version(db, sql).await? != Some(newest) {
        match migrate_at_once(db, sql, newest, upgrade).await {
            Ok(()) => break,
            Err(error) if error.kind() != ErrorKind::Contention => return Err(error),
            Err(error) if deadline.is_some_and(|end| Instant::now() + pause >= end) => {
                let message = format!(
                    "cannot {WHAT} within {patience:?}: other transactions hold its tables, or \
                     another process migrates it. Nothing was changed; end them (see \
                     `pg_stat_activity`) and start again"
                );
                return Err(Error::new(ErrorKind::Contention, message).with_source(error));
            }
            Err(_) => {
                // Jitter, so that several that start at once do not keep colliding.
                tokio::time::sleep(pause.mul_f64(0.5 + fastrand::f64())).await;
                pause = pause.saturating_mul(2).min(PAUSES.1);
            }
        }
    }
    db.set_limit(limit);
    Ok(())
}

async fn migrate_at_once(db: &mut Bounded, sql: &Sql, newest: i32, upgrade: Upgrade) -> Result<()> {
    let schema = sql.schema();
    let begin = format!(
        "begin; set local lock_timeout = '200ms'; set local client_min_messages = warning;
         select pg_advisory_xact_lock(hashtextextended('quell {schema}', 0))"
    );
    let done = match run(db, begin).await {
        Ok(()) => locked(db, sql, newest, upgrade).await,
        refused => refused,
    };
    let end = if done.is_ok() { "commit" } else { "rollback" };
    let ended = run(db, end.to_owned()).await;
    done.and(ended)
}

async fn locked(db: &mut Bounded, sql: &Sql, newest: i32, upgrade: Upgrade) -> Result<()> {
    let found = version(db, sql).await?.unwrap_or(0);
    if found > newest {
        return Err(Error::new(
            ErrorKind::Newer,
            format!(
                "the store has schema version {found}, this Quell knows up to {newest}: update \
                 this program"
            ),
        ));
    }
    let done = usize::try_from(found).map_err(|_| corrupt("the schema's version"))?;
    if done == 0 {
        run(db, format!("create schema if not exists \"{}\"", sql.schema())).await?;
    }
    for migration in upgrade.migrations().skip(done) {
        run(db, sql.rewrite(migration)).await?;
    }
    run(db, sql.rewrite(&format!("update quell.meta set schema_version = {newest}"))).await
}

/// The id that the store got when it was made.
pub(crate) async fn location(db: &mut Bounded, sql: &Sql) -> Result<Location> {
    let id: String = scalar(db, sql.rewrite("select store_id from quell.meta")).await?;
    Ok(Location { id: StoreId::new(id)?, schema: Some(sql.schema().to_owned()) })
}

/// Sets whether callers' transactions notify, unless that is as it should be (R34): a role that only
/// reads may have the same URL as others.
pub(crate) async fn set_notifies(db: &mut Bounded, sql: &Sql, enabled: bool) -> Result<()> {
    let is = scalar::<bool>(db, sql.rewrite("select notifies from quell.meta")).await?;
    if is == enabled {
        return Ok(());
    }
    let set = sql.rewrite(&format!("select quell.notify_in_transactions({enabled})"));
    let set = db.execute(sqlx::raw_sql(AssertSqlSafe(set))).await;
    set.map(drop).map_err(|e| explain("set whether transactions notify", e))
}

/// The schema's version; none where there are no Quell tables yet.
async fn version(db: &mut Bounded, sql: &Sql) -> Result<Option<i32>> {
    let schema = sql.schema();
    // The catalogs are asked, not `to_regclass`, which may answer from before a lock was waited for.
    let columns = format!(
        "from pg_attribute a join pg_class c on c.oid = a.attrelid
             join pg_namespace n on n.oid = c.relnamespace
        where n.nspname = '{schema}' and c.relname = 'meta'"
    );
    if !scalar::<bool>(db, format!("select exists (select {columns})")).await? {
        return Ok(None);
    }
    let ours = format!("select exists (select {columns} and a.attname = 'schema_version')");
    if !scalar::<bool>(db, ours).await? {
        let message = format!(
            "schema {schema:?} has a table `meta` that is not Quell's: name another schema"
        );
        return Err(Error::new(ErrorKind::Foreign, message));
    }
    scalar(db, sql.rewrite("select schema_version from quell.meta")).await.map(Some)
}

async fn run(db: &mut Bounded, text: String) -> Result<()> {
    // Only the schema's checked name comes from outside.
    let ran = db.execute(sqlx::raw_sql(AssertSqlSafe(text))).await;
    ran.map(drop).map_err(|e| explain(WHAT, e))
}

async fn scalar<T>(db: &mut Bounded, text: String) -> Result<T>
where
    T: for<'r> sqlx::Decode<'r, sqlx::Postgres> + sqlx::Type<sqlx::Postgres>,
{
    let row: PgRow = db
        .fetch_one(sqlx::raw_sql(AssertSqlSafe(text)))
        .await
        .map_err(|e| explain("read the schema's version", e))?;
    row.try_get(0).map_err(|e| explain("read the schema's version", e))
}
