//! The suite on the model store itself and on stores that must not pass it, the checker's own tests,
//! and the simulation.
#![expect(clippy::unwrap_used, clippy::panic, reason = "these are tests")]

mod broken;
mod check;
mod check_closed;
mod check_limits;
mod exhaustive;
mod lesser;
mod operations;
mod oracle;
mod registry;
mod sim;

use std::sync::Arc;

use quell_conformance::{Opened, Rig};
use quell_core::history::Sink;
use quell_core::{MemoryStore, Store};

fn opened(store: impl Store) -> Opened {
    Opened { store: Arc::new(store), guard: Box::new(()) }
}

async fn open() -> Opened {
    opened(MemoryStore::new(Rig::START))
}

async fn open_recorded(sink: Sink) -> Opened {
    opened(MemoryStore::new(Rig::START).with_history(sink))
}

quell_conformance::suite!(open, open_recorded);
