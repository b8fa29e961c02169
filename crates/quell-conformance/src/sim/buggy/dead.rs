//! Dead letters of a buggy store: no bug is in them.

use async_trait::async_trait;
use quell_core::{
    DeadFilter, DeadLetter, DeadLetters, Imported, Job, JobId, Result, Timestamp, UnreadableJob,
    UnreadableJobs, UnreadablePage,
};

use super::Buggy;

#[async_trait]
impl DeadLetters for Buggy {
    async fn dead(&self, filter: &DeadFilter) -> Result<Vec<Job>> {
        self.inner.dead(filter).await
    }

    async fn count_dead(&self, filter: &DeadFilter) -> Result<u64> {
        self.inner.count_dead(filter).await
    }

    async fn letters(&self, ids: &[JobId]) -> Result<Vec<DeadLetter>> {
        self.inner.letters(ids).await
    }

    async fn discard(
        &self,
        now: Option<Timestamp>,
        ids: &[JobId],
        reason: &str,
    ) -> Result<Vec<JobId>> {
        let discarded = self.inner.discard(now, ids, reason).await;
        self.tell();
        discarded
    }

    async fn import_dead(
        &self,
        now: Option<Timestamp>,
        letters: &[DeadLetter],
    ) -> Result<Vec<Imported>> {
        let imported = self.inner.import_dead(now, letters).await;
        self.tell();
        imported
    }
}

#[async_trait]
impl UnreadableJobs for Buggy {
    async fn unreadable(&self, page: &UnreadablePage) -> Result<Vec<UnreadableJob>> {
        self.inner.unreadable(page).await
    }

    async fn restore(&self, now: Option<Timestamp>, ids: &[JobId]) -> Result<Vec<JobId>> {
        let restored = self.inner.restore(now, ids).await;
        self.tell();
        restored
    }
}
