//! Upkeep: taking back leases that lapsed (R21), and removing what has expired (R37).

use std::sync::PoisonError;

use quell_core::{Lapsed, Pruned, Result, Retention, Timestamp};

use super::PostgresStore;
use crate::error::wants_retry;
use crate::leases::has_lapsed;
use crate::operate::may_prune;
use crate::parts::{Parts, empty_part};
use crate::tries::Tries;
use crate::tx::{Tx, one_shot};

impl PostgresStore {
    /// Takes back what lapsed; where nothing did, it is one look.
    pub(super) async fn take_back(
        &self,
        now: Option<Timestamp>,
        limit: usize,
    ) -> Result<Vec<Lapsed>> {
        if !has_lapsed(&self.upkeep, &self.sql, self.asked(now)).await? {
            return Ok(Vec::new());
        }
        write!(self on upkeep, now, |tx| {
            tx.fold_inbox().await?;
            let lapsed = tx.reap(limit).await?;
            if !lapsed.is_empty() {
                tx.free_slots().await?;
            }
            lapsed
        })
    }

    pub(super) async fn remove_expired(
        &self,
        now: Option<Timestamp>,
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
            write!(self on upkeep, now, |tx| {
                tx.read_clock().await?;
                tx.prune(retention, &plan.sparse, limit).await?
            })?
        } else {
            Pruned::default()
        };
        let expired = retention.succeeded.map_or(Timestamp::MIN, |keep| parts.now.before(keep));
        for part in plan.over {
            let before = *self.stripped.read().unwrap_or_else(PoisonError::into_inner);
            let stripped = write!(self on upkeep, now, |tx| {
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
