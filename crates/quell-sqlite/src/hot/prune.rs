//! Removing what is old (R37): whether there is anything, and dedup keys that expire in numbers.

use std::time::Duration;

use quell_core::schedule::RECORD;
use quell_core::{Result, Retention, Timestamp};
use sqlx::SqliteConnection;

use crate::error::explain;
use crate::row::get;
use crate::tx::Tx;

/// What a call of `prune` finds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Old {
    /// Whether dedup keys have expired.
    pub(crate) holds: bool,
    /// Whether anything else may be removed.
    pub(crate) others: bool,
    /// Whether as many dedup keys have expired as the call may remove.
    pub(crate) many_holds: bool,
}

/// Looks for ended jobs past their retention, and for other rows that have expired.
pub(crate) async fn look_for_old(
    db: &mut SqliteConnection,
    now: Timestamp,
    retention: &Retention,
    limit: usize,
) -> Result<Old> {
    const OLD: &str = "with clock (now) as (select max(?3, clock) from quell_meta)
         select exists (select 1 from clock, quell_job
                         where state >= 2 and state in (2, 4, 5) and ended_at <= now - ?1)
             or exists (select 1 from clock, quell_job
                         where state >= 2 and state = 3 and ended_at <= now - ?2)
             or exists (select 1 from clock, quell_memory where expires_at <= now)
             or exists (select 1 from clock, quell_idempotency where look_at <= now)
             or exists (select 1 from clock, quell_start where expires_at <= now)
             or exists (select 1 from clock, quell_tick where tick_at < now - ?4),
                exists (select 1 from clock, quell_hold where expires_at <= now),
                (select count(*) from (select 1 from clock, quell_hold where expires_at <= now
                                        limit ?5 + 0)) >= ?5";
    let micros = |keep: Option<Duration>| {
        keep.map(|keep| i64::try_from(keep.as_micros()).unwrap_or(i64::MAX))
    };
    let row = sqlx::query(OLD)
        .bind(micros(retention.succeeded))
        .bind(micros(retention.dead))
        .bind(now.as_micros())
        .bind(micros(Some(RECORD)))
        .bind(count(limit))
        .fetch_one(db)
        .await
        .map_err(|e| explain("look for ended jobs", e))?;
    Ok(Old { others: get(&row, 0)?, holds: get(&row, 1)?, many_holds: limit > 0 && get(&row, 2)? })
}

impl Tx {
    /// Removes at most `limit` dedup keys that have expired, the oldest first; returns their number. Only
    /// keys that are held for a time have one.
    pub(crate) async fn remove_holds(&mut self, limit: usize) -> Result<u64> {
        const REMOVE: &str = "delete from quell_hold where (task_id, key) in
             (select task_id, key from quell_hold where expires_at <= ?1
               order by expires_at limit ?2 + 0)";
        let removed = sqlx::query(REMOVE)
            .bind(self.now.as_micros())
            .bind(count(limit))
            .execute(&mut self.writer.db)
            .await
            .map_err(|e| explain("remove expired dedup keys", e))?;
        Ok(removed.rows_affected())
    }
}

fn count(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX)
}
