//! The floor: what plain SQL does through the same driver, on a table that holds the least.

use std::path::Path;
use std::time::Instant;

use quell::sqlite::Synchronous;
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqliteSynchronous};
use sqlx::{AssertSqlSafe, Connection, SqliteConnection};

use crate::workload::Sizes;

const SCHEMA: &str = "create table job (id integer primary key, state integer not null default 0,
                          due_at integer not null, payload text not null);
                      create index job_ready on job (due_at, id) where state = 0";

/// What a floor does.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Floor {
    /// Inserts, 1,000 a commit.
    Batch,
    /// Claims and deletes, 1,000 a commit each.
    Drain,
    /// Inserts, one a commit.
    Single,
}

/// The floor of a workload, where there is one.
pub(crate) fn of(workload: &str) -> Option<Floor> {
    match workload {
        "batch enqueue" => Some(Floor::Batch),
        "drain" => Some(Floor::Drain),
        "single enqueue, 32 callers" => Some(Floor::Single),
        _ => None,
    }
}

/// Operations a second.
pub(crate) async fn run(
    floor: Floor,
    folder: &Path,
    mode: Synchronous,
    sizes: Sizes,
) -> anyhow::Result<f64> {
    let folder = tempfile::tempdir_in(folder)?;
    let synchronous = match mode {
        Synchronous::Full => SqliteSynchronous::Full,
        Synchronous::Normal => SqliteSynchronous::Normal,
    };
    let options = SqliteConnectOptions::new()
        .filename(folder.path().join("floor.db"))
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(synchronous);
    let mut db = SqliteConnection::connect_with(&options).await?;
    sqlx::raw_sql(SCHEMA).execute(&mut db).await?;
    match floor {
        Floor::Batch => insert(&mut db, sizes.batch, 1_000).await,
        Floor::Single => insert(&mut db, sizes.single / 8, 1).await,
        Floor::Drain => {
            insert(&mut db, sizes.drain, 1_000).await?;
            drain(&mut db, sizes.drain).await
        }
    }
}

async fn insert(db: &mut SqliteConnection, count: usize, per_commit: usize) -> anyhow::Result<f64> {
    let values = vec!["(1, ?)"; per_commit].join(",");
    let sql = format!("insert into job (due_at, payload) values {values}");
    let began = Instant::now();
    for start in (0..count).step_by(per_commit) {
        let mut query = sqlx::query(AssertSqlSafe(sql.clone()));
        for n in start..start + per_commit {
            query = query.bind(format!("{{\"n\":{n}}}"));
        }
        query.execute(&mut *db).await?;
    }
    Ok(count as f64 / began.elapsed().as_secs_f64())
}

async fn drain(db: &mut SqliteConnection, count: usize) -> anyhow::Result<f64> {
    let began = Instant::now();
    loop {
        let claimed: Vec<(i64, String)> = sqlx::query_as(
            "update job set state = 1
              where id in (select id from job where state = 0 order by due_at, id limit 1000)
             returning id, payload",
        )
        .fetch_all(&mut *db)
        .await?;
        if claimed.is_empty() {
            return Ok(count as f64 / began.elapsed().as_secs_f64());
        }
        let ids: Vec<i64> = claimed.into_iter().map(|(id, _)| id).collect();
        sqlx::query("delete from job where id in (select value from json_each(?1))")
            .bind(serde_json::to_string(&ids)?)
            .execute(&mut *db)
            .await?;
    }
}
