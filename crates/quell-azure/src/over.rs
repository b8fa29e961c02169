//! The store over a table that is open.

use std::sync::Arc;

use quell_core::history::Sink;
use quell_core::{Result, Store};
use quell_engine::Engine;
use quell_portable::{Layout, Partition, Partitions, Spread, Table, Timed, Timer};

use crate::table::TableStorage;

/// The partition that holds a store's rows, and what the names of several begin with.
pub(crate) const PARTITION: &str = "store";

/// How a table is divided, and where its events and notifications go.
#[derive(Clone, Debug, Default)]
pub(crate) struct Over {
    pub(crate) layout: Layout,
    pub(crate) spread: Spread,
    pub(crate) history: Option<Sink>,
}

impl Over {
    /// A store whose workers poll.
    pub(crate) async fn polled(self, table: Arc<TableStorage>) -> Result<Arc<dyn Store>> {
        let Over { layout, spread, history } = self;
        Ok(match layout {
            Layout::One => Arc::new(engine(Partition::new(table, PARTITION), history)),
            Layout::Queues => Arc::new(Partitions::open(table, PARTITION, spread, history).await?),
        })
    }

    /// A store whose workers the timer wakes.
    pub(crate) async fn timed(
        self,
        table: Arc<TableStorage>,
        timer: Arc<dyn Timer>,
    ) -> Result<Timed<Arc<TableStorage>>> {
        let Over { layout, spread, history } = self;
        match layout {
            Layout::One => {
                Timed::new(engine(Partition::new(table, PARTITION).with_timer(timer), history))
            }
            Layout::Queues => {
                let timer = Some(timer);
                let all = Partitions::open_with(table, PARTITION, spread, history, timer).await?;
                Timed::several(all)
            }
        }
    }
}

/// A store on one partition.
pub(crate) fn engine<T: Table>(
    partition: Partition<T>,
    history: Option<Sink>,
) -> Engine<Partition<T>> {
    let store = Engine::new(partition);
    match history {
        Some(history) => store.with_history(history),
        None => store,
    }
}
