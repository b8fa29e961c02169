//! Dead and unreadable jobs of all shards.

use async_trait::async_trait;
use futures_util::future::try_join_all;
use quell_core::{
    DeadFilter, DeadLetter, DeadLetters, DeadPlace, Imported, Job, JobId, Result, Timestamp,
    UnreadableJob, UnreadableJobs, UnreadablePage,
};

use crate::directory::Directory;
use crate::door::Sharded;

#[async_trait]
impl<D: Directory> DeadLetters for Sharded<D> {
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

    async fn letters(&self, ids: &[JobId]) -> Result<Vec<DeadLetter>> {
        let ids: Vec<JobId> = ids.iter().copied().take(DeadFilter::MAX_PAGE).collect();
        let mut letters = Vec::with_capacity(ids.len());
        for (shard, _, part) in self.by_shard(&ids, |id| *id).await? {
            letters.extend(shard.letters(&part).await?);
        }
        letters.sort_by_key(|letter| ids.iter().position(|id| *id == letter.job.id));
        Ok(letters)
    }

    async fn discard(
        &self,
        now: Option<Timestamp>,
        ids: &[JobId],
        reason: &str,
    ) -> Result<Vec<JobId>> {
        let mut gone = Vec::with_capacity(ids.len());
        for (shard, _, part) in self.by_shard(ids, |id| *id).await? {
            gone.extend(shard.discard(now, &part, reason).await?);
        }
        gone.sort_by_key(|gone| ids.iter().position(|id| id == gone));
        Ok(gone)
    }

    async fn import_dead(
        &self,
        now: Option<Timestamp>,
        letters: &[DeadLetter],
    ) -> Result<Vec<Imported>> {
        if let Some(only) = self.shards.only() {
            return only.import_dead(now, letters).await;
        }
        let mut imported = Vec::with_capacity(letters.len());
        for letter in letters {
            let shard = self.shards.of_arrival(&letter.job).await?;
            imported.extend(shard.import_dead(now, std::slice::from_ref(letter)).await?);
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

    async fn restore(&self, now: Option<Timestamp>, ids: &[JobId]) -> Result<Vec<JobId>> {
        let mut restored = Vec::with_capacity(ids.len());
        for (shard, _, part) in self.by_shard(ids, |id| *id).await? {
            restored.extend(shard.restore(now, &part).await?);
        }
        restored.sort_by_key(|restored| ids.iter().position(|id| id == restored));
        Ok(restored)
    }
}
