//! What these tests share: a folder with a store in it, and a plain connection beside it.

use std::path::PathBuf;
use std::sync::Arc;

use quell_conformance::{Opened, Rig};
use quell_core::{Batch, NewTrigger, Receipt, Store};
use quell_sqlite::{SqliteOptions, SqliteStore, Synchronous};
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{Connection, SqliteConnection};
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

    pub(crate) async fn execute(&self, sql: &'static str) {
        sqlx::raw_sql(sql).execute(&mut self.connect().await).await.unwrap();
    }
}

/// Triggers once.
pub(crate) async fn trigger(store: &impl Store, trigger: NewTrigger) -> Receipt {
    let batches = vec![Batch::one(trigger)];
    store.enqueue(None, batches).await.unwrap().remove(0).unwrap().remove(0)
}
