//! What a timer wakes the workers of: a partition, or several of one store.

use std::fmt::Debug;

use async_trait::async_trait;
use quell_core::{QueueName, Result, Store};
use quell_engine::Engine;

use crate::partition::Partition;
use crate::partitions::Partitions;
use crate::table::Table;

/// A store whose partitions all send notices of what they write.
#[async_trait]
pub(crate) trait Below<T: Table>: Store + Debug {
    /// The partition that has the clock and what concerns the store as a whole.
    fn first(&self) -> &Partition<T>;

    /// Whether a queue hands out nothing until its settings change.
    async fn is_paused(&self, queue: &QueueName) -> Result<bool>;
}

#[async_trait]
impl<T: Table> Below<T> for Engine<Partition<T>> {
    fn first(&self) -> &Partition<T> {
        self.backend()
    }

    async fn is_paused(&self, queue: &QueueName) -> Result<bool> {
        Engine::is_paused(self, queue).await
    }
}

#[async_trait]
impl<T: Table + Clone> Below<T> for Partitions<T> {
    fn first(&self) -> &Partition<T> {
        self.shards().first().backend()
    }

    async fn is_paused(&self, queue: &QueueName) -> Result<bool> {
        let shards = self.shards().met_of_queue(queue).await?;
        for shard in &shards {
            if !shard.is_paused(queue).await? {
                return Ok(false);
            }
        }
        Ok(!shards.is_empty())
    }
}
