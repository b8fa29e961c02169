//! The store as callers see it: its shards, and the notifications from other processes.

use std::sync::Arc;

use async_trait::async_trait;
use quell_core::{
    Answer, Capabilities, EndNotification, JobId, Now, Operation, Result, Store, WakeHub, Wakeups,
    dispatch,
};
use quell_engine::{EndWaiters, caller_error};
use quell_shards::Sharded;
use tokio::task::JoinSet;

use crate::RedisOptions;
use crate::directory::{Nodes, Prefix};
use crate::recorded::Recorded;
use crate::shard::Shard;

/// A store on Redis or Valkey, one node or a Cluster.
///
/// ```no_run
/// # async fn open() -> quell_core::Result<()> {
/// let store = quell_redis::RedisStore::open("redis://127.0.0.1:6379/").await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct RedisStore {
    sharded: Sharded<Prefix>,
    hub: Arc<WakeHub>,
    ends: Arc<EndWaiters>,
    // Owned so that it ends with the store.
    _listener: JoinSet<()>,
    recorded: Option<Arc<Recorded>>,
}

impl RedisStore {
    /// Opens the store behind a URL, with the defaults of [`RedisOptions`].
    ///
    /// # Errors
    /// As for [`RedisOptions::from_url`] and [`RedisOptions::open`].
    pub async fn open(url: &str) -> Result<Self> {
        RedisOptions::from_url(url)?.open().await
    }

    pub(crate) fn new(
        shards: Arc<Nodes>,
        (hub, ends): (Arc<WakeHub>, Arc<EndWaiters>),
        (listener, recorded): (JoinSet<()>, Option<Arc<Recorded>>),
    ) -> Self {
        RedisStore { sharded: Sharded::new(shards), hub, ends, _listener: listener, recorded }
    }

    pub(crate) fn shards(&self) -> &Nodes {
        self.sharded.shards()
    }
}

#[async_trait]
impl Store for RedisStore {
    fn capabilities(&self) -> Capabilities {
        let across_queues = self.shards().only().is_some();
        Capabilities { across_queues, ..self.shards().first().capabilities() }
    }

    /// While the server works on one call, this process reads the answer of another and makes the
    /// next. But steps wait for each other, and where replicas or the disk are waited for, two
    /// calls wait twice.
    fn concurrent_enqueues(&self) -> usize {
        let backend = self.shards().first().backend();
        let Shard { link, steps, syncs, .. } = &*backend.shard;
        let one_by_one = link.waits() || *syncs || steps.are_common();
        if one_by_one { 1 } else { 2 }
    }

    async fn call(&self, now: Now, operation: Operation) -> Result<Answer> {
        let _in_flight = self.recorded.as_ref().map(|recorded| recorded.begin());
        dispatch(&self.sharded, now, operation).await.map_err(caller_error)
    }

    fn wakeups(&self) -> Wakeups {
        self.hub.subscribe()
    }

    fn ended(&self, job: JobId) -> EndNotification {
        self.ends.wait_for(job)
    }
}
