//! The suite on the model store itself, the checker's own tests, and the simulation.
#![expect(clippy::unwrap_used, reason = "these are tests")]

mod check;
mod sim;

use std::sync::Arc;

use quell_conformance::{Opened, Rig};
use quell_core::MemoryStore;
use quell_core::history::Sink;

async fn open() -> Opened {
    Opened { store: Arc::new(MemoryStore::new(Rig::START)), guard: Box::new(()) }
}

async fn open_recorded(sink: Sink) -> Opened {
    let store = MemoryStore::new(Rig::START).with_history(sink);
    Opened { store: Arc::new(store), guard: Box::new(()) }
}

quell_conformance::suite!(open, open_recorded);
