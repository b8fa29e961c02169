//! Simulated clients and workers on one file, each with a store of its own.

use std::sync::Arc;

use quell_conformance::sim::Place;
use quell_core::Store;
use quell_sqlite::{SqliteOptions, Synchronous};

/// A fresh file. What a commit survives is tested elsewhere.
fn place() -> Place {
    let folder = Arc::new(tempfile::tempdir().unwrap());
    Place::new(move |sink| {
        let folder = Arc::clone(&folder);
        async move {
            let options = SqliteOptions::new(folder.path().join("quell.db")).history(sink);
            let store = options.synchronous(Synchronous::Normal).open().await.unwrap();
            Arc::new(store) as Arc<dyn Store>
        }
    })
}

quell_conformance::simulation!("sqlite", place);
