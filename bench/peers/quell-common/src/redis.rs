//! Quell on Redis.

use anyhow::Result;
use peer_common::Starts;
use quell::{JobState, WorkerBuilder};
use redis_common::{RedisPeer, Settings};

use crate::{Measured, Tuning};

impl Tuning for Settings {
    fn words(self) -> &'static str {
        match self {
            Settings::Defaults => "concurrency 32",
            Settings::Best => "concurrency 256",
        }
    }

    fn applied_to(self, worker: WorkerBuilder<Starts>) -> WorkerBuilder<Starts> {
        match self {
            Settings::Defaults => worker,
            Settings::Best => worker.concurrency(256),
        }
    }
}

impl RedisPeer for Measured<Settings> {
    async fn unfinished(&self, count: usize) -> Result<usize> {
        let counts = self.quell.store().counts().await?;
        let ended = counts.iter().filter(|row| row.state == JobState::Succeeded);
        let ended: u64 = ended.map(|row| row.jobs).sum();
        Ok(count.saturating_sub(usize::try_from(ended)?))
    }
}
