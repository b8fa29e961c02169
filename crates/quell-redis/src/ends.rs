//! Ends of jobs that callers wait for (R19), here and in other processes.
//!
//! A caller that waits for longer than a moment adds the job to the set of awaited jobs, on the job's
//! shard. The script that ends the job then publishes the end. An end without waiting callers costs
//! next to nothing.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use quell_core::{EndHub, EndNotification, JobId, Result};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout};
use tracing::debug;

use crate::directory::Nodes;
use crate::shard::Shard;

/// The delay before an awaited job is registered in the store: most ends that come soon need no
/// registration.
const PATIENCE: Duration = Duration::from_millis(20);
/// How long the store keeps a registration, in seconds.
const KNOWN_SECS: i64 = 60;
/// How often a registration is renewed.
const RENEWED: Duration = Duration::from_secs(30);

/// Who waits for ends in this process.
#[derive(Debug, Default)]
pub(crate) struct Ends {
    pub(crate) here: Arc<EndHub>,
    begun: Notify,
}

impl Ends {
    pub(crate) fn wait_for(&self, job: JobId) -> EndNotification {
        let ended = self.here.wait_for(job);
        self.begun.notify_one();
        ended
    }
}

/// Registers the ends that callers await here in the store, and renews the registrations while they
/// wait, until the task that runs it is dropped.
pub(crate) async fn ask(ends: Arc<Ends>, shards: Arc<Nodes>) {
    let mut asked: BTreeMap<JobId, Instant> = BTreeMap::new();
    loop {
        let begun = ends.begun.notified();
        if ends.here.is_awaited() {
            // Either is a reason to look again.
            let _renewed = timeout(RENEWED, begun).await;
        } else {
            begun.await;
        }
        sleep(PATIENCE).await;
        let (awaited, now) = (ends.here.awaited(), Instant::now());
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
