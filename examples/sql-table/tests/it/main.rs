//! The SQL table under the whole suite, the oracle and the simulation.
#![expect(clippy::unwrap_used, reason = "these are tests")]

mod page;
mod table;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use quell_conformance::Opened;
use quell_conformance::sim::Place;
use quell_core::Store;
use quell_core::history::Sink;
use quell_engine::Engine;
use quell_example_sql_table::SqlTable;
use quell_portable::Partition;
use sqlx::sqlite::{SqliteConnectOptions, SqliteSynchronous};

async fn engine(folder: &Path) -> Engine<Partition<SqlTable>> {
    let file = SqliteConnectOptions::new().filename(folder.join("quell.db"));
    // No test cuts the power, so no commit waits for the disk.
    let file = file.synchronous(SqliteSynchronous::Normal);
    let table = SqlTable::open(file, Duration::from_secs(10)).await.unwrap();
    Engine::new(Partition::new(table, "p"))
}

async fn open() -> Opened {
    let folder = tempfile::tempdir().unwrap();
    let store = engine(folder.path()).await;
    Opened { store: Arc::new(store), guard: Box::new(folder) }
}

async fn open_recorded(sink: Sink) -> Opened {
    let folder = tempfile::tempdir().unwrap();
    let store = engine(folder.path()).await.with_history(sink);
    Opened { store: Arc::new(store), guard: Box::new(folder) }
}

/// One file, which each simulated process opens.
fn place() -> Place {
    let folder = Arc::new(tempfile::tempdir().unwrap());
    Place::new(move |sink| {
        let folder = Arc::clone(&folder);
        async move { Arc::new(engine(folder.path()).await.with_history(sink)) as Arc<dyn Store> }
    })
}

quell_conformance::prove!("sql-table", open, open_recorded, place);
