//! Every rule on a fresh file; at the end of each test the counts say what the rows say.

use std::sync::Arc;

use quell_conformance::Opened;
use quell_core::history::Sink;
use quell_sqlite::{SqliteOptions, Synchronous};

use crate::counts::Kept;

/// A store in a temporary folder. What a commit survives is tested elsewhere.
async fn open() -> Opened {
    open_with(|options| options).await
}

async fn open_recorded(sink: Sink) -> Opened {
    open_with(|options| options.history(sink)).await
}

async fn open_with(set: impl FnOnce(SqliteOptions) -> SqliteOptions) -> Opened {
    let folder = tempfile::tempdir().unwrap();
    let options = SqliteOptions::new(folder.path().join("quell.db"));
    let store = set(options).synchronous(Synchronous::Normal).open().await.unwrap();
    Opened { store: Arc::new(store), guard: Box::new(Kept(folder)) }
}

quell_conformance::suite!(open, open_recorded);

/// The engine's steps in place of the hot paths: both keep every rule.
mod without_hot_paths {
    use super::{Opened, Sink, SqliteOptions, open_with};

    async fn open() -> Opened {
        open_with(SqliteOptions::without_hot_paths).await
    }

    async fn open_recorded(sink: Sink) -> Opened {
        open_with(|options| options.without_hot_paths().history(sink)).await
    }

    quell_conformance::suite!(open, open_recorded);
}
