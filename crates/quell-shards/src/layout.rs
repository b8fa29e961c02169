//! Whether a store has several shards, and over how many a queue is spread.

use std::collections::BTreeMap;

use quell_core::{Error, QueueName, Result};

/// The most shards of one queue.
pub const MOST_SHARDS_OF_QUEUE: u32 = 64;

/// How a store's rows are spread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Layout {
    /// One shard has all of them: one step may touch any, so a batch may name several queues.
    #[default]
    One,
    /// Each queue has a shard of its own, or several, so that the servers of a Cluster, or the partitions
    /// of a table, share the work.
    Queues,
}

/// Over how many shards queues are spread, of a store of [`Layout::Queues`].
pub type Spread = BTreeMap<QueueName, u32>;

/// Refuses what no store can have.
///
/// # Errors
/// [`ErrorKind::Invalid`](quell_core::ErrorKind::Invalid) for a queue with no shard or more than
/// [`MOST_SHARDS_OF_QUEUE`], and for a queue with several in a store of [`Layout::One`].
pub fn check_spread(layout: Layout, spread: &Spread) -> Result<()> {
    for (queue, shards) in spread {
        if !(1..=MOST_SHARDS_OF_QUEUE).contains(shards) {
            let message = format!("queue {queue}: give 1 to {MOST_SHARDS_OF_QUEUE} shards");
            return Err(Error::invalid("shards", message));
        }
        if layout != Layout::Queues {
            let message = format!("queue {queue}: only layout `queues` has shards");
            return Err(Error::invalid("shards", message));
        }
    }
    Ok(())
}
