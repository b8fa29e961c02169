//! Removing what has expired (R37).

use std::sync::PoisonError;

use quell_core::{Pruned, Result, Retention, Timestamp};

use super::PostgresStore;
use crate::error::wants_retry;
use crate::operate::may_prune;
use crate::parts::Parts;
use crate::tries::Tries;
use crate::tx::{Tx, one_shot};

/// A part of the ended jobs, and the last of its jobs from which all that hung on it is removed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stripped {
    part: i16,
    upto: i64,
}

impl PostgresStore {
    pub(super) async fn remove_expired(
        &self,
        now: Option<Timestamp>,
        retention: &Retention,
        limit: usize,
    ) -> Result<Pruned> {
        const TURN: &str = "select setval('quell.ended_part', $1)";
        self.fold_counts(1).await;
        let parts = Parts::read(&self.pool, &self.sql, self.asked(now)).await?;
        let plan = parts.plan(retention.succeeded);
        if let Some(next) = plan.turn {
            let query = self.sql.query(TURN).bind(i64::from(next));
            one_shot(&self.pool, &self.sql, query).await?;
        }
        let may =
            may_prune(&self.pool, &self.sql, self.asked(now), retention, &plan.sparse).await?;
        let mut pruned = if may {
            write!(self, now, |tx| {
                tx.read_clock().await?;
                tx.prune(retention, &plan.sparse, limit).await?
            })?
        } else {
            Pruned::default()
        };
        let (Some(part), Some(keep)) = (plan.over.first(), retention.succeeded) else {
            return Ok(pruned);
        };
        let upto = parts.now.before(keep);
        let stripped = *self.stripped.read().unwrap_or_else(PoisonError::into_inner);
        let from = stripped.filter(|stripped| stripped.part == *part).map_or(0, |one| one.upto);
        let (next, jobs) = write!(self, now, |tx| {
            tx.read_clock().await?;
            tx.empty_part(*part, (upto, from), limit).await?
        })?;
        let stripped = next.map(|upto| Stripped { part: *part, upto });
        *self.stripped.write().unwrap_or_else(PoisonError::into_inner) = stripped;
        pruned.jobs = pruned.jobs.saturating_add(jobs);
        pruned.more |= next.is_some() || (jobs > 0 && plan.over.len() > 1);
        Ok(pruned)
    }
}
