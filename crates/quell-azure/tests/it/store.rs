//! The store on Azurite: the comparison with the model, and the simulation. The page
//! docs/conformance.md says what the suite says of it.

use std::sync::Arc;
use std::time::Duration;

use quell_conformance::sim::Place as SimPlace;
use quell_conformance::{Opened, oracle};
use quell_core::Store;

use crate::server::Place;

/// On a busy machine, Azurite is slow: no test here is about how long a call may take.
const PATIENCE: Duration = Duration::from_secs(60);

async fn open() -> Opened {
    let store = Place::new().options().timeout(PATIENCE).open().await.unwrap();
    Opened { store: Arc::new(store), guard: Box::new(()) }
}

#[test]
fn the_store_answers_like_the_model() {
    oracle::compare_some(open, oracle::COUNTED, 1);
}

fn place() -> SimPlace {
    let place = Place::new();
    SimPlace::new(move |sink| {
        let options = place.options().timeout(PATIENCE).history(sink);
        async move { Arc::new(options.open().await.unwrap()) as Arc<dyn Store> }
    })
}

#[test]
fn r39_some_seeds_hold() {
    quell_conformance::sim::some_seeds("azure", place, 2);
}
