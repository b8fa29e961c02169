//! The suite on the model store itself.

use std::sync::Arc;

use quell_conformance::{Opened, Rig};
use quell_core::MemoryStore;

async fn open() -> Opened {
    Opened { store: Arc::new(MemoryStore::new(Rig::START)), guard: Box::new(()) }
}

quell_conformance::suite!(open);
