//! Every rule on a fresh schema; at the end of each test the counts say what the rows say.

use std::sync::Arc;

use quell_conformance::Opened;
use quell_core::history::Sink;
use quell_postgres::PostgresOptions;

use crate::counts::WRONG;
use crate::scene::{MISSED, Scene};

/// Whatever was done to a store, its counts are those of its rows, and no job comes before the heads of
/// its partition (R31).
struct Kept(Scene);

impl Drop for Kept {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            // In one session, as each of hundreds of tests would else make two.
            let found = self.0.sql(&format!("{WRONG}; {MISSED}"));
            let found: Vec<&str> = found.split_whitespace().collect();
            assert_eq!(found, ["for", "0"], "counts that are wrong, jobs that no head leads to");
        }
    }
}

async fn open() -> Opened {
    open_with(|options| options).await
}

async fn open_recorded(sink: Sink) -> Opened {
    open_with(|options| options.history(sink)).await
}

async fn open_with(set: impl FnOnce(PostgresOptions) -> PostgresOptions) -> Opened {
    let scene = Scene::new();
    let options = PostgresOptions::from_url(&scene.url).unwrap();
    let store = set(options).open().await.unwrap();
    Opened { store: Arc::new(store), guard: Box::new(Kept(scene)) }
}

quell_conformance::suite!(open, open_recorded);
