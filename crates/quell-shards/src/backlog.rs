//! What waits and runs in the partitions of a queue that may be on several shards (R31).

use futures_util::future::try_join_all;
use quell_core::backlog::{Backlog, BacklogOf};
use quell_core::{Now, Result, Steps};

use crate::directory::Directory;
use crate::door::Sharded;

impl<D: Directory> Sharded<D> {
    /// The sum over the shards of the queue. Each looks at its part of the entries.
    pub(crate) async fn backlog_of_each(&self, now: Now, of: &BacklogOf) -> Result<Backlog> {
        if let Some(only) = self.shards().only() {
            return only.backlog(now, of).await;
        }
        let mut shards = self.shards().found_of_queue(&of.queue).await?;
        if shards.is_empty() {
            // It has no jobs, but knows the time.
            shards.push(std::sync::Arc::clone(self.shards().first()));
        }
        let entries = of.most_entries().checked_div(shards.len()).unwrap_or(1).max(1);
        let part =
            BacklogOf::new(of.queue.clone()).entries(entries).partitions(BacklogOf::MOST_ENTRIES);
        let asked = try_join_all(shards.iter().map(|shard| shard.backlog(now, &part)));
        Ok(Backlog::merged(of, asked.await?))
    }
}
