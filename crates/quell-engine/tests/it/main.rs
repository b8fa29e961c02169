//! The engine over ordered maps: the whole suite, the oracle and the simulation.
#![expect(clippy::unwrap_used, reason = "these are tests")]

mod begun;
mod hot;
mod over_maps;

use std::sync::{Arc, OnceLock};

use quell_conformance::sim::Place;
use quell_conformance::{Opened, Rig};
use quell_core::Store;
use quell_core::history::Sink;
use quell_engine::{Engine, Maps};

fn opened(store: impl Store) -> Opened {
    Opened { store: Arc::new(store), guard: Box::new(()) }
}

async fn open() -> Opened {
    opened(Engine::new(Maps::new(Rig::START)))
}

async fn open_recorded(sink: Sink) -> Opened {
    opened(Engine::new(Maps::new(Rig::START)).with_history(sink))
}

quell_conformance::suite!(open, open_recorded);

fn place() -> Place {
    let store: OnceLock<Arc<dyn Store>> = OnceLock::new();
    Place::new(move |sink| {
        let store =
            store.get_or_init(|| Arc::new(Engine::new(Maps::new(Rig::START)).with_history(sink)));
        let store = Arc::clone(store);
        async move { store }
    })
}

quell_conformance::simulation!("engine", place);
