//! Every rule on a fresh schema.

use std::sync::Arc;

use quell_conformance::Opened;
use quell_core::history::Sink;
use quell_postgres::PostgresOptions;

use crate::scene::Scene;

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
    Opened { store: Arc::new(store), guard: Box::new(Heads(scene)) }
}

/// Whatever was done to a store, no job comes before the heads of its partition (R31).
#[derive(Debug)]
struct Heads(Scene);

impl Drop for Heads {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.0.check_heads();
        }
    }
}

quell_conformance::suite!(open, open_recorded);
