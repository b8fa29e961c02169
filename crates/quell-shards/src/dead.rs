//! Dead and unreadable jobs of all shards.

use async_trait::async_trait;
use futures_util::future::try_join_all;
use quell_core::{
    DeadExport, DeadFilter, DeadJobs, DeadPlace, Imported, Job, JobId, Now, Result, UnreadableJob,
    UnreadableJobs, UnreadablePage,
};

use crate::directory::Directory;
use crate::door::Sharded;

#[async_trait]
impl<D: Directory> DeadJobs for Sharded<D> {
    async fn dead(&self, filter: &DeadFilter) -> Result<Vec<Job>> {
        let shards = self.shards.all().await?;
        let pages = try_join_all(shards.iter().map(|shard| shard.dead(filter))).await?;
        let mut page: Vec<Job> = pages.into_iter().flatten().collect();
        page.sort_by_key(|job| std::cmp::Reverse(DeadPlace::of(job)));
        page.truncate(filter.page());
        Ok(page)
    }

    async fn count_dead(&self, filter: &DeadFilter) -> Result<u64> {
        let shards = self.shards.all().await?;
        let counts = try_join_all(shards.iter().map(|shard| shard.count_dead(filter))).await?;
        Ok(counts.into_iter().fold(0, u64::saturating_add))
    }

    async fn exports(&self, ids: &[JobId]) -> Result<Vec<DeadExport>> {
        let ids: Vec<JobId> = ids.iter().copied().take(DeadFilter::MAX_PAGE).collect();
        let mut exports = Vec::with_capacity(ids.len());
        for (shard, _, part) in self.by_shard(&ids, |id| *id).await? {
            exports.extend(shard.exports(&part).await?);
        }
        exports.sort_by_key(|export| ids.iter().position(|id| *id == export.job.id));
        Ok(exports)
    }

    async fn discard(&self, now: Now, ids: &[JobId], reason: &str) -> Result<Vec<JobId>> {
        let mut gone = Vec::with_capacity(ids.len());
        for (shard, _, part) in self.by_shard(ids, |id| *id).await? {
            gone.extend(shard.discard(now, &part, reason).await?);
        }
        gone.sort_by_key(|gone| ids.iter().position(|id| id == gone));
        Ok(gone)
    }

    async fn import_dead(&self, now: Now, exports: &[DeadExport]) -> Result<Vec<Imported>> {
        if let Some(only) = self.shards.only() {
            return only.import_dead(now, exports).await;
        }
        let mut imported = Vec::with_capacity(exports.len());
        for export in exports {
            let shard = self.shards.of_arrival(&export.job).await?;
            imported.extend(shard.import_dead(now, std::slice::from_ref(export)).await?);
        }
        Ok(imported)
    }
}

#[async_trait]
impl<D: Directory> UnreadableJobs for Sharded<D> {
    async fn unreadable(&self, page: &UnreadablePage) -> Result<Vec<UnreadableJob>> {
        let shards = self.shards.all().await?;
        let pages = try_join_all(shards.iter().map(|shard| shard.unreadable(page))).await?;
        let mut jobs: Vec<UnreadableJob> = pages.into_iter().flatten().collect();
        jobs.sort_by_key(|job| std::cmp::Reverse(job.id));
        jobs.truncate(page.size());
        Ok(jobs)
    }

    async fn restore(&self, now: Now, ids: &[JobId]) -> Result<Vec<JobId>> {
        let mut restored = Vec::with_capacity(ids.len());
        for (shard, _, part) in self.by_shard(ids, |id| *id).await? {
            restored.extend(shard.restore(now, &part).await?);
        }
        restored.sort_by_key(|restored| ids.iter().position(|id| id == restored));
        Ok(restored)
    }
}
