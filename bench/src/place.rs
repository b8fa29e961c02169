//! Where a workload runs: a fresh store for each.

use std::any::Any;
use std::path::PathBuf;
use std::sync::Arc;

use quell::Quell;
use quell::postgres::PostgresOptions;
use quell::sqlite::{SqliteOptions, Synchronous};
use sqlx::{AssertSqlSafe, Connection, PgConnection};

/// What a store is made on.
#[derive(Clone, Debug)]
pub(crate) enum Place {
    /// A file below this folder.
    Sqlite { folder: PathBuf, mode: Synchronous },
    /// A database on the server whose URL ends before the database's name.
    Postgres { server: String },
}

impl Place {
    /// A fresh store, and what must outlive it.
    pub(crate) async fn open(&self) -> anyhow::Result<(Quell, Box<dyn Any>)> {
        match self {
            Place::Sqlite { folder, mode } => {
                let folder = tempfile::tempdir_in(folder)?;
                let options = SqliteOptions::new(folder.path().join("quell.db"));
                let store = options.synchronous(*mode).open().await?;
                Ok((Quell::with_store(Arc::new(store)).build()?, Box::new(folder)))
            }
            Place::Postgres { server } => {
                let url = fresh_database(server).await?;
                let store = PostgresOptions::from_url(&url)?.open().await?;
                Ok((Quell::with_store(Arc::new(store)).build()?, Box::new(())))
            }
        }
    }

    /// The word for it in tables.
    pub(crate) fn mode(&self) -> &'static str {
        match self {
            Place::Sqlite { mode: Synchronous::Full, .. } => "full",
            Place::Sqlite { mode: Synchronous::Normal, .. } => "normal",
            Place::Postgres { .. } => "postgres",
        }
    }
}

/// The URL of a database of its own, so that nothing of an earlier workload is in the way.
pub(crate) async fn fresh_database(server: &str) -> anyhow::Result<String> {
    let name = format!("bench_{:08x}", fastrand::u32(..));
    let mut db = PgConnection::connect(&format!("{server}/postgres")).await?;
    let make = AssertSqlSafe(format!("create database {name}"));
    sqlx::raw_sql(make).execute(&mut db).await?;
    // What earlier workloads left to be written is written before, not during, this one.
    sqlx::raw_sql("checkpoint").execute(&mut db).await?;
    db.close().await?;
    Ok(format!("{server}/{name}"))
}
