//! The store on Azurite: the whole suite, the comparison with the model, and the simulation.

use std::sync::Arc;

use quell_conformance::Opened;
use quell_conformance::sim::Place as SimPlace;
use quell_core::Store;
use quell_core::history::Sink;

use crate::server::Place;

async fn open() -> Opened {
    let store = Place::new().options().open().await.unwrap();
    Opened { store: Arc::new(store), guard: Box::new(()) }
}

async fn open_recorded(sink: Sink) -> Opened {
    let store = Place::new().options().history(sink).open().await.unwrap();
    Opened { store: Arc::new(store), guard: Box::new(()) }
}

quell_conformance::suite!(open, open_recorded, quell_conformance::oracle::COUNTED, 1);

fn place() -> SimPlace {
    let place = Place::new();
    SimPlace::new(move |sink| {
        let options = place.options().history(sink);
        async move { Arc::new(options.open().await.unwrap()) as Arc<dyn Store> }
    })
}

#[test]
fn r39_some_seeds_hold() {
    quell_conformance::sim::some_seeds("azure", place, 2);
}
