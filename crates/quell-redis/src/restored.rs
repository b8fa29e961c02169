//! What a store needs that was restored, or lost its newest writes in a failover.

use std::sync::Arc;

use quell_core::Result;
use quell_core::checkup::SKIPPED_IDS;

use crate::RedisOptions;
use crate::open::Tries;
use crate::row::parse_number;
use crate::shard::{Shard, Time};

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
                shard.backend().shard.skip_ids().await?;
            }
            Ok(())
        };
        Box::pin(skipped).await
    }
}

impl Shard {
    async fn skip_ids(self: &Arc<Self>) -> Result<()> {
        let skipped = SKIPPED_IDS.saturating_mul(self.ids.step);
        let mut tries = Tries::default();
        loop {
            let (mut open, mut writes) = self.begin(Time::Last).await?;
            let key = self.keys.seq();
            let newest = open.fetch_text(&key).await?;
            let newest = newest.as_deref().map_or(Ok(self.ids.first), parse_number)?;
            let next = newest.saturating_add(skipped).saturating_add(self.ids.step);
            writes.set(key, next.to_string());
            // It fails where another process takes ids meanwhile.
            if open.finish(writes).await? {
                return Ok(());
            }
            tries.again("skip ids").await?;
        }
    }
}
