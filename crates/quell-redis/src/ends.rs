//! Ends of jobs that callers wait for (R19), here and in other processes.
//!
//! A caller that waits for longer than a moment adds the job to the set of awaited jobs, on the job's
//! shard. The script that ends the job then publishes the end. An end without waiting callers costs
//! next to nothing.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use quell_core::{JobId, Result};
use quell_engine::EndWaiters;
use tokio::time::Instant;
use tracing::debug;

use crate::directory::Nodes;
use crate::shard::Shard;

/// How long the store keeps a registration, in seconds.
const KNOWN_SECS: i64 = 60;
/// How often a registration is renewed.
const RENEWED: Duration = Duration::from_secs(30);

/// Registers the ends that callers await here in the store, and renews the registrations while they
/// wait, until the task that runs it is dropped.
pub(crate) async fn ask(ends: Arc<EndWaiters>, shards: Arc<Nodes>) {
    let mut asked: BTreeMap<JobId, Instant> = BTreeMap::new();
    loop {
        let renewal = ends.hub().is_awaited().then(|| Instant::now() + RENEWED);
        ends.begun(renewal).await;
        let (awaited, now) = (ends.hub().awaited(), Instant::now());
        asked.retain(|job, at| awaited.binary_search(job).is_ok() && now < *at + RENEWED);
        for job in awaited {
            if asked.contains_key(&job) {
                continue;
            }
            let reported = async {
                match shards.of_job(job).await? {
                    Some(shard) => shard.backend().shard.await_end(job).await,
                    None => Ok(()),
                }
            };
            match reported.await {
                Ok(()) => drop(asked.insert(job, now)),
                Err(error) => debug!(%error, %job, "its end will be found by asking"),
            }
        }
    }
}

impl Shard {
    /// Registers a job, so that its end is published to other processes.
    async fn await_end(&self, job: JobId) -> Result<()> {
        let key = self.keys.awaited();
        let mut add = redis::cmd("SADD");
        add.arg(&key).arg(job.get());
        self.link.command("wait for the end of a job", &key, &add).await?;
        let mut expire = redis::cmd("EXPIRE");
        expire.arg(&key).arg(KNOWN_SECS);
        self.link.command("wait for the end of a job", &key, &expire).await.map(drop)
    }
}
