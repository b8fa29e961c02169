//! Where a workload runs: a fresh store for each.

use std::any::Any;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use quell::sqlite::{SqliteOptions, Synchronous};
use quell::{Quell, QueueName, Timestamp};
use quell_azure::{AzureOptions, Connection, Layout};
use quell_engine::Engine;
use quell_portable::{MemoryTable, Partition};

/// What a store is made on.
#[derive(Clone, Debug)]
pub(crate) enum Place {
    /// A file below this folder.
    Sqlite { folder: PathBuf, mode: Synchronous },
    /// A table in memory, of one partition.
    Table,
    /// A table on the Azurite of this connection string; its queue in this number of partitions.
    Azurite { connection: String, partitions: u32 },
}

/// What a batch on a table takes at most (R18): 100 rows.
const BATCH_ON_TABLE: usize = 40;

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
            Place::Table => {
                let table = MemoryTable::new(Timestamp::from_secs(1_000_000));
                let store = Engine::new(Partition::new(table, "p"));
                Ok((Quell::with_store(Arc::new(store)).build()?, Box::new(())))
            }
            Place::Azurite { connection, partitions } => {
                let options = azure_table(connection)?;
                let options = match partitions {
                    1 => options,
                    _ => options
                        .layout(Layout::Queues)
                        .shards(&QueueName::new("default")?, *partitions)?,
                };
                let store = options.open_store().await?;
                Ok((Quell::with_store(store).build()?, Box::new(())))
            }
        }
    }

    /// Triggers of one batch.
    pub(crate) fn batch(&self) -> usize {
        match self {
            Place::Sqlite { .. } => 1_000,
            Place::Table | Place::Azurite { .. } => BATCH_ON_TABLE,
        }
    }
}

/// A table that nothing else uses.
pub(crate) fn azure_table(connection: &str) -> anyhow::Result<AzureOptions> {
    static TABLES: AtomicU32 = AtomicU32::new(0);
    let name = format!("bench{}", TABLES.fetch_add(1, Ordering::Relaxed));
    let options = AzureOptions::new(Connection::from_string(connection)?, name)?;
    Ok(options.create(true).timeout(Duration::from_secs(60)))
}
