//! Removing what has expired (R37): whole parts of the ended jobs, and the rest in small batches.

use std::sync::PoisonError;

use quell_core::{Now, Pruned, Result, Retention, Timestamp};

use crate::backend::PostgresBackend;
use crate::hot::expire::may_prune;
use crate::parts::{Parts, empty_part};
use crate::tx::one_shot;

impl PostgresBackend {
    pub(crate) async fn remove_expired(
        &self,
        now: Now,
        retention: &Retention,
        limit: usize,
    ) -> Result<Pruned> {
        const TURN: &str = "select setval('quell.ended_part', $1)";
        self.fold_counts(1).await;
        let parts = Parts::read(&self.upkeep, &self.sql, self.asked(now)).await?;
        // What goes on record is removed job by job.
        let plan = parts.plan(retention.succeeded.filter(|_| self.history.is_none()));
        if let Some(next) = plan.turn {
            let query = self.sql.query(TURN).bind(i64::from(next));
            one_shot(&self.upkeep, &self.sql, query).await?;
        }
        let may =
            may_prune(&self.upkeep, &self.sql, self.asked(now), retention, &plan.sparse).await?;
        let mut pruned = if may {
            writing!(self on upkeep, now, |tx| {
                tx.read_clock().await?;
                tx.prune(retention, &plan.sparse, limit).await?
            })?
        } else {
            Pruned::default()
        };
        let expired = retention.succeeded.map_or(Timestamp::MIN, |keep| parts.now.before(keep));
        for part in plan.over {
            let before = *self.stripped.read().unwrap_or_else(PoisonError::into_inner);
            let stripped = writing!(self on upkeep, now, |tx| {
                tx.read_clock().await?;
                tx.strip_part(part, expired, before, limit).await?
            })?;
            *self.stripped.write().unwrap_or_else(PoisonError::into_inner) = Some(stripped);
            if !stripped.is_done {
                pruned.more = true;
                break;
            }
            let jobs = empty_part(&self.upkeep, &self.sql, part, expired).await?;
            pruned.jobs = pruned.jobs.saturating_add(jobs.unwrap_or(0));
        }
        Ok(pruned)
    }
}
