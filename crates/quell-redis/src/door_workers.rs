//! Worker rows of several shards: a heartbeat goes to each shard that its worker claims from, and a
//! list shows each worker once.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures_util::future::join_all;
use quell_core::heartbeat::{Heartbeat, WorkerRow, Workers};
use quell_core::{Result, Store, Timestamp, WorkerId};

use crate::door::RedisStore;
use crate::store::ShardStore;

impl RedisStore {
    /// Sends a heartbeat to each shard of the worker's queues. A shard that is away does not keep
    /// the others from getting it.
    pub(crate) async fn beat_each(&self, now: Option<Timestamp>, beat: &Heartbeat) -> Result<()> {
        let mut shards: Vec<Arc<ShardStore>> = Vec::new();
        for queue in &beat.queues {
            for shard in self.shards.of_queue(queue).await? {
                if !shards.iter().any(|known| Arc::ptr_eq(known, &shard)) {
                    shards.push(shard);
                }
            }
        }
        let sent = shards.iter().map(|shard| shard.heartbeat(now, beat));
        join_all(sent).await.into_iter().collect()
    }

    /// Each worker once, as the shard shows it that saw it last.
    pub(crate) async fn list_workers(&self, now: Option<Timestamp>) -> Result<Workers> {
        if let Some(only) = self.shards.only() {
            return only.workers(now).await;
        }
        let mut newest: BTreeMap<(WorkerId, u32), WorkerRow> = BTreeMap::new();
        // The directory has no rows, and tells the time before there is a shard.
        let mut latest = self.shards.first.workers(now).await?.now;
        for shard in self.shards.all().await? {
            let workers = shard.workers(now).await?;
            latest = latest.max(workers.now);
            for row in workers.rows {
                let name = (row.worker.clone(), row.incarnation);
                match newest.get_mut(&name) {
                    Some(known) if known.seen_at >= row.seen_at => {}
                    Some(known) => *known = row,
                    None => drop(newest.insert(name, row)),
                }
            }
        }
        Ok(Workers { now: latest, rows: newest.into_values().collect() })
    }
}
