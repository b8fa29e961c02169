//! Worker rows of several shards: a heartbeat goes to each shard that its worker claims from, and a
//! list shows each worker once.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures_util::future::{join_all, try_join_all};
use quell_core::heartbeat::{Beaten, Heartbeat, WorkerDrain, WorkerRow, Workers};
use quell_core::{Now, Result, Steps, Timestamp, WorkerId};

use crate::directory::Directory;
use crate::door::Sharded;
use crate::shards::found_of;

impl<D: Directory> Sharded<D> {
    /// Sends a heartbeat to each shard of the worker's queues. A shard that is away, or that the
    /// directory cannot name now, does not keep the others from getting it, and gets the next one:
    /// the call fails only where no shard got it.
    pub(crate) async fn beat_each(&self, now: Now, beat: &Heartbeat) -> Result<Beaten> {
        let found = beat.queues.iter().map(|queue| self.shards.of_workers(queue));
        let mut shards = found_of(join_all(found).await)?;
        shards.sort_by_key(Arc::as_ptr);
        shards.dedup_by(|one, other| Arc::ptr_eq(one, other));
        let asked = self.visits.each("send a heartbeat", shards, |shard| {
            let beat = beat.clone();
            Box::pin(async move { shard.heartbeat(now, &beat).await })
        });
        let answers = asked.await.or_failure()?;
        Ok(Beaten { drained: answers.iter().any(|(_, beaten)| beaten.drained) })
    }

    /// Drains a worker in each shard that has a row of it: how many processes it has.
    pub(crate) async fn drain_in_each(&self, now: Now, drain: &WorkerDrain) -> Result<u64> {
        drain.validate()?;
        if let Some(only) = self.shards.only() {
            return only.drain_worker(now, drain).await;
        }
        let mut shards = self.shards.all().await?;
        shards.push(Arc::clone(self.shards.first()));
        let drained = shards.iter().map(|shard| shard.drain_worker(now, drain));
        Ok(try_join_all(drained).await?.into_iter().max().unwrap_or_default())
    }

    /// Takes a worker's rows from each shard.
    pub(crate) async fn remove_from_each(&self, worker: &WorkerId, incarnation: u32) -> Result<()> {
        let mut shards = self.shards.within_reach().await?;
        if self.shards.only().is_none() {
            shards.push(Arc::clone(self.shards.first()));
        }
        let asked = self.visits.each("remove a worker", shards, |shard| {
            let worker = worker.clone();
            Box::pin(async move { shard.remove_worker(&worker, incarnation).await })
        });
        match asked.await.failed {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    /// Each worker once, as the shard shows it that saw it last.
    pub(crate) async fn list_workers(&self, now: Now) -> Result<Workers> {
        if let Some(only) = self.shards.only() {
            return only.workers(now).await;
        }
        let mut newest: BTreeMap<(WorkerId, u32), WorkerRow> = BTreeMap::new();
        let mut latest = Timestamp::MIN;
        let mut shards = self.shards.all().await?;
        // Of workers that claim from queues that nothing was written to.
        shards.push(Arc::clone(self.shards.first()));
        for workers in try_join_all(shards.iter().map(|shard| shard.workers(now))).await? {
            latest = latest.max(workers.now);
            for row in workers.rows {
                let name = (row.worker.clone(), row.incarnation);
                match newest.get_mut(&name) {
                    Some(known) => {
                        let drained = known.drained.take().or_else(|| row.drained.clone());
                        if known.seen_at < row.seen_at {
                            *known = row;
                        }
                        known.drained = drained;
                    }
                    None => drop(newest.insert(name, row)),
                }
            }
        }
        Ok(Workers { now: latest, rows: newest.into_values().collect() })
    }
}
