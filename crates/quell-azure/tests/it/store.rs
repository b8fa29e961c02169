//! The store on Azurite: the suite, the comparison with the model and the simulation.

use std::sync::Arc;
use std::time::Duration;

use quell_conformance::sim::Place as SimPlace;
use quell_conformance::{Opened, oracle};
use quell_core::Store;
use quell_core::history::Sink;

use crate::server::Place;

/// On a busy machine, Azurite is slow: no test here is about how long a call may take.
const PATIENCE: Duration = Duration::from_secs(60);

async fn open() -> Opened {
    let store = Place::new().options().timeout(PATIENCE).open().await.unwrap();
    Opened { store: Arc::new(store), guard: Box::new(()) }
}

async fn open_recorded(sink: Sink) -> Opened {
    let options = Place::new().options().timeout(PATIENCE).history(sink);
    Opened { store: Arc::new(options.open().await.unwrap()), guard: Box::new(()) }
}

// One random script: each of its calls takes several requests of some milliseconds.
quell_conformance::suite!(open, open_recorded, oracle::COUNTED, 1);

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
