//! What these tests share: a folder with a store in it, and a plain connection beside it.

use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use quell_conformance::suite::transactions::{Connection, Success};
use quell_conformance::{Opened, Rig};
use quell_core::{Batch, Location, NewTrigger, Receipt, Result, Store};
use quell_sqlite::{SqliteOptions, SqliteStore, Synchronous, settle_in, trigger_in};
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{Connection as _, SqliteConnection};
use tempfile::TempDir;

/// A folder for one file.
pub(crate) struct Scene {
    folder: TempDir,
}

impl Scene {
    pub(crate) fn new() -> Self {
        Scene { folder: tempfile::tempdir().unwrap() }
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.folder.path().join("quell.db")
    }

    pub(crate) fn url(&self) -> String {
        format!("sqlite://{}", self.path().display())
    }

    pub(crate) fn options(&self) -> SqliteOptions {
        SqliteOptions::new(self.path()).synchronous(Synchronous::Normal)
    }

    pub(crate) async fn open(&self) -> SqliteStore {
        self.options().open().await.unwrap()
    }

    /// The suite's rig on another opening of the file.
    pub(crate) async fn rig(&self) -> Rig {
        Rig::new(Opened { store: Arc::new(self.open().await), guard: Box::new(()) })
    }

    /// A connection that knows nothing of Quell.
    pub(crate) async fn connect(&self) -> SqliteConnection {
        let options = SqliteConnectOptions::new().filename(self.path()).create_if_missing(true);
        SqliteConnection::connect_with(&options).await.unwrap()
    }

    /// A caller, whose table is made here.
    pub(crate) async fn caller(&self) -> Caller {
        self.execute("create table if not exists written (one integer)").await;
        Caller(self.connect().await)
    }

    pub(crate) async fn execute(&self, sql: &'static str) {
        sqlx::raw_sql(sql).execute(&mut self.connect().await).await.unwrap();
    }
}

/// Triggers once.
pub(crate) async fn trigger(store: &impl Store, trigger: NewTrigger) -> Receipt {
    let batches = vec![Batch::one(trigger)];
    store.enqueue(None, batches).await.unwrap().remove(0).unwrap().remove(0)
}

/// A caller with a connection and a table of its own.
pub(crate) struct Caller(SqliteConnection);

#[async_trait]
impl Connection for Caller {
    async fn begin(&mut self) {
        sqlx::raw_sql("begin immediate").execute(&mut self.0).await.unwrap();
    }

    async fn end(&mut self, commits: bool) {
        let end = if commits { "commit" } else { "rollback" };
        sqlx::raw_sql(end).execute(&mut self.0).await.unwrap();
    }

    async fn trigger(&mut self, store: &Location, batch: &Batch) -> Result<()> {
        trigger_in(&mut self.0, store, batch).await
    }

    async fn settle(&mut self, store: &Location, success: Success<'_>) -> Result<()> {
        let Success { lease, now, output } = success;
        settle_in(&mut self.0, store, &lease, now, output).await
    }

    async fn write(&mut self) {
        sqlx::raw_sql("insert into written values (1)").execute(&mut self.0).await.unwrap();
    }

    async fn written(&mut self) -> u64 {
        let count = sqlx::query_scalar("select count(*) from written").fetch_one(&mut self.0);
        let count: i64 = count.await.unwrap();
        u64::try_from(count).unwrap()
    }

    async fn take_refused(&mut self) -> Vec<String> {
        let refused = "delete from quell_inbox where refused is not null returning refused";
        sqlx::query_scalar(refused).fetch_all(&mut self.0).await.unwrap()
    }
}
