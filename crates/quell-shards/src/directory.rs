//! What a store author writes.

use std::fmt::Debug;
use std::sync::Arc;

use async_trait::async_trait;
use quell_core::{QueueName, Result, Steps, TaskName, TaskSettings};

use crate::layout::Spread;

/// The most shards of a store: their numbers take so much room in ids.
pub const MOST_SHARDS: u64 = 1_024;

/// The list of a store's shards. Shards are never removed, and what is written once stays, so a call that
/// is made again changes nothing.
#[async_trait]
pub trait Directory: Debug + Send + Sync + 'static {
    /// A shard: a store whose ids leave its number as the rest of [`MOST_SHARDS`].
    type Shard: Steps + Debug + 'static;

    /// The shard that lists the others: it holds no jobs, and the alerts, the settings of tasks, and the
    /// rows of workers of queues that have no shard yet. Of a store with one shard, that one.
    fn first(&self) -> &Arc<Self::Shard>;

    /// Whether the store has one shard, which holds everything.
    fn is_whole(&self) -> bool {
        false
    }

    /// The tags of a queue's shards, in their order: that of a queue with one shard is the queue's name.
    fn tags_of(&self, queue: &QueueName, count: u32) -> Vec<String>;

    /// The queues that are spread over several shards, and over how many, as the directory has it.
    async fn spread(&self) -> Result<Spread>;

    /// Writes over how many shards a queue is spread, unless it is written; answers with what is.
    async fn agree_on_spread(&self, queue: &QueueName, count: u32) -> Result<u32>;

    /// The queue in which a task has its keys: this one where it has none yet.
    async fn keep_to(&self, task: &TaskName, queue: &QueueName) -> Result<QueueName>;

    /// The queue in which a task has its keys; none where it has none yet.
    async fn kept_to(&self, task: &TaskName) -> Result<Option<QueueName>>;

    /// The number of a tag's shard; the next one, from 1 on, where it has none yet; 0 where all are given.
    async fn enter(&self, tag: &str) -> Result<u64>;

    /// The number of a tag's shard; none where it has none.
    async fn number_of(&self, tag: &str) -> Result<Option<u64>>;

    /// All tags with their numbers.
    async fn listed(&self) -> Result<Vec<(String, u64)>>;

    /// Opens a shard, and copies to it the directory's records of tasks, and of workers of its queue.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`](quell_core::ErrorKind::Corrupt) for a shard that has jobs of another number.
    async fn open(&self, tag: &str, number: u64) -> Result<Self::Shard>;

    /// Whether a shard can be reached, as far as is known: looks for work leave the others out.
    fn is_reachable(&self, shard: &Self::Shard) -> bool {
        let _unused = shard;
        true
    }

    /// Writes the settings of a task to a shard, without putting them on record again.
    async fn tell_of_task(
        &self,
        shard: &Self::Shard,
        task: &TaskName,
        settings: &TaskSettings,
    ) -> Result<()>;
}
