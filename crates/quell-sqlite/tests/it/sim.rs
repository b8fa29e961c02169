//! Simulated clients and workers on one file, each with a store of its own; at the end of each run the
//! counts say what the rows say.

use std::sync::Arc;

use quell_conformance::sim::Place;
use quell_core::Store;
use quell_sqlite::{SqliteOptions, Synchronous};

use crate::counts::Kept;

/// A fresh file. What a commit survives is tested elsewhere.
fn place() -> Place {
    let folder = Arc::new(Kept(tempfile::tempdir().unwrap()));
    Place::new(move |sink| {
        let folder = Arc::clone(&folder);
        async move {
            let options = SqliteOptions::new(folder.0.path().join("quell.db")).history(sink);
            let store = options.synchronous(Synchronous::Normal).open().await.unwrap();
            Arc::new(store) as Arc<dyn Store>
        }
    })
}

quell_conformance::simulation!("sqlite", place);
