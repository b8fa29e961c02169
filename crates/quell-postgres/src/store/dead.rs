//! Dead and unreadable jobs: each method of the traits is one transaction.

use async_trait::async_trait;
use quell_core::{
    DeadFilter, DeadLetter, DeadLetters, Imported, Job, JobId, Result, Timestamp, UnreadableJob,
    UnreadableJobs, UnreadablePage,
};

use super::PostgresStore;
use crate::error::wants_retry;
use crate::read::Reader;
use crate::tries::Tries;
use crate::tx::Tx;

#[async_trait]
impl DeadLetters for PostgresStore {
    async fn dead(&self, filter: &DeadFilter) -> Result<Vec<Job>> {
        read!(self, long, |reader| reader.dead(filter))
    }

    async fn count_dead(&self, filter: &DeadFilter) -> Result<u64> {
        read!(self, long, |reader| reader.count_dead(filter))
    }

    async fn letters(&self, ids: &[JobId]) -> Result<Vec<DeadLetter>> {
        read!(self, long, |reader| reader.letters(ids))
    }

    async fn discard(
        &self,
        now: Option<Timestamp>,
        ids: &[JobId],
        reason: &str,
    ) -> Result<Vec<JobId>> {
        write!(self, now, |tx| tx.discard(ids, reason).await?)
    }

    async fn import_dead(
        &self,
        now: Option<Timestamp>,
        letters: &[DeadLetter],
    ) -> Result<Vec<Imported>> {
        write!(self, now, |tx| tx.import_dead(letters).await?)
    }
}

#[async_trait]
impl UnreadableJobs for PostgresStore {
    async fn unreadable(&self, page: &UnreadablePage) -> Result<Vec<UnreadableJob>> {
        read!(self, long, |reader| reader.unreadable(page))
    }

    async fn restore(&self, now: Option<Timestamp>, ids: &[JobId]) -> Result<Vec<JobId>> {
        write!(self on upkeep, now, |tx| tx.restore(ids).await?)
    }
}
