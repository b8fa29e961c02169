//! What a store needs that was restored, or lost its newest writes in a failover.

use quell_core::Result;
use quell_core::checkup::SKIPPED_IDS;

use crate::RedisOptions;
use crate::pace::TRIES;
use crate::shard::Time;
use crate::store::{ShardStore, step};
use crate::tx::{Committed, Tx, contended};

impl RedisOptions {
    /// Leaves the next [`SKIPPED_IDS`] ids of each shard out: those that were given and then lost may
    /// be known elsewhere. Other processes may run meanwhile.
    ///
    /// # Errors
    /// As for [`RedisOptions::open`].
    pub async fn skip_ids(self) -> Result<()> {
        let store = self.open().await?;
        // Boxed, as in `open`.
        let skipped = async {
            for shard in store.shards().all().await? {
                shard.skip_ids().await?;
            }
            Ok(())
        };
        Box::pin(skipped).await
    }
}

impl ShardStore {
    async fn skip_ids(&self) -> Result<()> {
        // The step is taken as if it made a job, so that it fails where another took the id.
        step!(self, "skip ids", (Time::Last, 1, false), |tx| {
            tx.skip_ids();
            Some(())
        });
        Ok(())
    }
}

impl Tx<'_> {
    fn skip_ids(&mut self) {
        let newest = SKIPPED_IDS.saturating_mul(self.shard.ids.step).saturating_add(self.next_id());
        self.beside.set(self.shard.keys.seq(), newest.to_string());
    }
}
