//! What an idle worker does ahead of its next job: the names of its queues are looked up, and the
//! statements that a job without a key needs are planned, on the connection that will be used next.
//! Else the first job of a quiet service pays for all of it.
//!
//! Plans do not last: any session that analyzes or vacuums a table, as autovacuum does after a busy
//! time, makes the server drop all plans that read it. So the statements run again after each heartbeat,
//! with nothing to do. They write nothing.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use quell_core::{Claim, Draw, QueueName, Result, TaskName, Timestamp, WorkerId};
use tracing::debug;

use crate::backend::PostgresBackend;
use crate::hot::claim::straight_query;
use crate::hot::settle::succeed_query;
use crate::hot::trail::Places;
use crate::names::{LaneNames, make_query};
use crate::tx::{Asked, rehearse};
use crate::write::insert_plain;

/// What has been planned ahead.
#[derive(Debug, Default)]
pub(crate) struct Warmth {
    /// The queues whose names were looked up.
    queues: RwLock<BTreeSet<QueueName>>,
    /// Whether a heartbeat came since the statements were planned last.
    is_stale: AtomicBool,
}

impl Warmth {
    /// Plans again when the next claim or look finds nothing.
    pub(crate) fn fade(&self) {
        self.is_stale.store(true, Ordering::Relaxed);
    }

    /// Those of the queues that have not been prepared for yet. From now on they count as prepared.
    fn take_new<'q>(
        &self,
        queues: impl Iterator<Item = (&'q QueueName, &'q Arc<[TaskName]>)>,
    ) -> Vec<LaneNames> {
        let new: Vec<_> = {
            // Most polls find all of them.
            let known = self.queues.read().unwrap_or_else(PoisonError::into_inner);
            queues.filter(|(queue, _)| !known.contains(*queue)).collect()
        };
        let mut lanes = Vec::new();
        for (queue, tasks) in new {
            self.queues.write().unwrap_or_else(PoisonError::into_inner).insert(queue.clone());
            lanes.extend(tasks.iter().map(|task| (queue.clone(), task.clone(), 0)));
        }
        lanes
    }
}

impl PostgresBackend {
    /// Called with queues in which nothing was due. Nothing depends on it, so errors stay here.
    pub(crate) async fn warm_up<'q>(
        &self,
        queues: impl Iterator<Item = (&'q QueueName, &'q Arc<[TaskName]>)> + Clone,
    ) {
        let Some((queue, _)) = queues.clone().next() else { return };
        let lanes = self.warmth.take_new(queues);
        let is_stale = self.warmth.is_stale.swap(false, Ordering::Relaxed);
        // Behind a transaction pooler no statement stays prepared.
        if (lanes.is_empty() && !is_stale) || !self.sql.is_persistent() {
            return;
        }
        if let Err(error) = self.plan_ahead(lanes, queue).await {
            debug!(%error, "statements were not planned ahead of their first use");
        }
    }

    /// Plans by running them with nothing to do: PostgreSQL plans a statement when it first runs.
    async fn plan_ahead(&self, lanes: Vec<LaneNames>, queue: &QueueName) -> Result<()> {
        self.names.look_up(&self.pool, &self.sql, lanes.iter().cloned()).await?;
        // It makes the names, which is undone: only before the first job of a queue.
        let make = self.names.unknown(lanes.into_iter()).into_iter().next();
        if let Some(lane) = make {
            rehearse(&self.pool, &self.sql, [make_query(&self.sql, &lane)]).await?;
        }
        let asked = Asked { now: Some(Timestamp::MIN), seen: Timestamp::MIN };
        let insert = insert_plain(&self.sql, &self.names, asked, &[])?;
        let claim = Claim {
            queue: queue.clone(),
            // Without tasks and leases it reads no index: the head of one may be long (see `trail`).
            tasks: Arc::from([]),
            worker: WorkerId::new("rehearsal")?,
            limit: 0,
            lease: Duration::ZERO,
            draw: Draw::new(0),
        };
        let claim = straight_query(&self.sql, asked, &claim, Vec::new(), &Places::nothing());
        let settle = succeed_query(&self.sql, asked, &[]);
        rehearse(&self.pool, &self.sql, [insert, claim, settle]).await
    }
}
