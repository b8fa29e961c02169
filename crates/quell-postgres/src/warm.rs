//! What a worker does once while it waits for its first job: the names of its queues are looked up,
//! and the statements that a job needs are planned, on the connection that will be used next. Else
//! the first job of a quiet service pays for all of it.

use std::sync::PoisonError;

use quell_core::{QueueName, Result, TaskName, Timestamp};
use tracing::debug;

use crate::names::{LaneNames, make_query};
use crate::settle::succeed_query;
use crate::store::PostgresStore;
use crate::tx::{Asked, rehearse};
use crate::write::insert_plain;

impl PostgresStore {
    /// Called with queues in which nothing was due. Nothing depends on it, so errors stay here.
    pub(crate) async fn warm_up<'q>(
        &self,
        queues: impl Iterator<Item = (&'q QueueName, &'q [TaskName])>,
    ) {
        let new: Vec<_> = {
            // Asked by every idle poll, of which the first only finds something.
            let warmed = self.warmed.read().unwrap_or_else(PoisonError::into_inner);
            queues.filter(|(queue, _)| !warmed.contains(*queue)).collect()
        };
        let mut lanes: Vec<LaneNames> = Vec::new();
        for (queue, tasks) in new {
            self.warmed.write().unwrap_or_else(PoisonError::into_inner).insert(queue.clone());
            lanes.extend(tasks.iter().map(|task| (queue.clone(), task.clone(), 0)));
        }
        if lanes.is_empty() || !self.sql.is_persistent() {
            return;
        }
        if let Err(error) = self.plan_ahead(lanes).await {
            debug!(%error, "statements were not planned ahead of their first use");
        }
    }

    /// Plans by running them with nothing to do: PostgreSQL plans a statement when it first runs.
    async fn plan_ahead(&self, lanes: Vec<LaneNames>) -> Result<()> {
        self.names.look_up(&self.pool, &self.sql, lanes.iter().cloned()).await?;
        let make = self.names.unknown(lanes.into_iter()).into_iter().next();
        let make = make.map(|lane| make_query(&self.sql, &lane));
        let asked = Asked { now: Some(Timestamp::MIN), seen: Timestamp::MIN };
        let insert = insert_plain(&self.sql, &self.names, asked, &[])?;
        let settle = succeed_query(&self.sql, asked, &[]);
        for query in make.into_iter().chain([insert, settle]) {
            rehearse(&self.pool, &self.sql, query).await?;
        }
        Ok(())
    }
}
