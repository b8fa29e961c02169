//! Where a workload runs: a fresh store for each.

use std::any::Any;
use std::path::PathBuf;
use std::sync::Arc;

use quell::Quell;
use quell::sqlite::{SqliteOptions, Synchronous};

/// What a store is made on.
#[derive(Clone, Debug)]
pub(crate) enum Place {
    /// A file below this folder.
    Sqlite { folder: PathBuf, mode: Synchronous },
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
        }
    }
}
