//! A table in memory under the whole suite, the oracle and the simulation.
#![expect(clippy::unwrap_used, reason = "these are tests")]

mod beside;
mod between;
mod budget;
mod cancels;
mod contention;
mod counted;
mod crowd;
mod damage;
mod dedup_races;
mod deliveries;
mod duplicates;
mod native_dedup;
mod on_timer;
mod partitions;
mod races;
mod scenarios;
mod splits;
mod stores;
mod takeover;
mod timed;
mod timed_partitions;
mod unruly;
mod world;
mod worlds;

use std::sync::Arc;

use quell_conformance::sim::Place;
use quell_conformance::{Opened, Rig};
use quell_core::Store;
use quell_core::history::Sink;
use quell_engine::Engine;
use quell_portable::{MemoryTable, Partition};

use crate::counted::Kept;

fn store(table: &MemoryTable) -> Engine<Partition<MemoryTable>> {
    Engine::new(Partition::new(table.clone(), "p"))
}

/// At the end the counts say what the entries say.
fn opened(table: MemoryTable, store: impl Store) -> Opened {
    Opened { store: Arc::new(store), guard: Box::new(Kept(table)) }
}

async fn open() -> Opened {
    let table = MemoryTable::new(Rig::START);
    let store = store(&table);
    opened(table, store)
}

async fn open_recorded(sink: Sink) -> Opened {
    let table = MemoryTable::new(Rig::START);
    let store = store(&table).with_history(sink);
    opened(table, store)
}

quell_conformance::suite!(open, open_recorded);

fn place() -> Place {
    let table = Arc::new(Kept(MemoryTable::new(Rig::START)));
    Place::new(move |sink| {
        let partition = Partition::new(table.0.clone(), "p");
        async move { Arc::new(Engine::new(partition).with_history(sink)) as Arc<dyn Store> }
    })
}

quell_conformance::simulation!("portable", place);

/// As a service may give fewer rows at a time than it was asked for.
#[test]
fn a_store_on_short_pages_answers_like_the_model() {
    let open = || async {
        let table = MemoryTable::new(Rig::START).with_page_limit(2);
        let store = store(&table);
        opened(table, store)
    };
    quell_conformance::oracle::compare(open, quell_conformance::oracle::COUNTED);
}
