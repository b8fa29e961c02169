//! Removing what has expired (R37), job by job and key by key: parts that have many jobs are emptied whole,
//! see `parts`.

use std::time::Duration;

use quell_core::history::Event;
use quell_core::schedule::RECORD;
use quell_core::{JobId, JobState, Pruned, Result, Retention};

use crate::connections::Connections;
use crate::row::{get, unsigned};
use crate::sql::Sql;
use crate::tx::{Asked, Tx, first, read};

/// Whether a queue has limits.
macro_rules! limited {
    () => {
        "coalesce(settings::json ->> 'concurrency', settings::json ->> 'worker_concurrency',
                  settings::json ->> 'partition_concurrency', settings::json ->> 'rate',
                  settings::json ->> 'partition_rate') is not null"
    };
}
pub(crate) use limited;

/// Looks, without writing, whether there may be anything to remove; of ended jobs, those in these parts.
pub(crate) async fn may_prune(
    pool: &Connections,
    sql: &Sql,
    asked: Asked,
    retention: &Retention,
    parts: &[i16],
) -> Result<bool> {
    const OLD: &str = "with clock as materialized (select quell.peek($1, $2) as now)
         select exists (select from unnest($6::smallint[]) p (part),
                                    unnest('{2,4,5}'::smallint[]) s (state)
                         where exists (select from quell.ended e
                                        where e.part = p.part and e.state = s.state
                                          and e.ended_at <= now - $3 offset 0))
             or exists (select from quell.ended
                         where part = 0 and state = 3 and ended_at <= now - $4)
             or exists (select from quell.memory where expires_at <= now)
             or exists (select from quell.hold where expires_at <= now)
             or exists (select from quell.idempotency
                             where coalesce(look_at, expires_at) <= now)
             or exists (select from quell.start where expires_at <= now)
             or exists (select from quell.tick_fired where tick_at < now - $5)
           from clock";
    let micros = |keep: Option<Duration>| {
        keep.map(|keep| i64::try_from(keep.as_micros()).unwrap_or(i64::MAX))
    };
    let query = asked.bind(sql.query(OLD)).bind(micros(retention.succeeded));
    let query = query.bind(micros(retention.dead)).bind(micros(Some(RECORD))).bind(parts.to_vec());
    let rows = read(pool, sql, "look for ended jobs", query).await?;
    get(first(&rows)?, 0)
}

impl Tx {
    /// Removes ended jobs of these parts, and keys that have no effect any more, in one small batch.
    pub(crate) async fn prune(
        &mut self,
        retention: &Retention,
        parts: &[i16],
        limit: usize,
    ) -> Result<Pruned> {
        // Each part by itself: the server does not leave out the others by an array.
        const OLD: &str = "select e.id from unnest($4::smallint[]) p (part)
              cross join lateral (
                    select id, ended_at from quell.ended
                     where part = p.part and state = $1 and ended_at <= $2
                     order by ended_at limit $3 for update skip locked) e
              order by e.ended_at limit $3";
        let mut old: Vec<i64> = Vec::new();
        for (state, keep, parts) in [
            (JobState::Succeeded, retention.succeeded, parts),
            (JobState::Cancelled, retention.succeeded, parts),
            (JobState::Absorbed, retention.succeeded, parts),
            (JobState::Dead, retention.dead, &[0]),
        ] {
            let Some(keep) = keep else { continue };
            let left = limit.saturating_sub(old.len());
            let query = self
                .sql
                .query(OLD)
                .bind(i16::from(state.code()))
                .bind(self.now.before(keep).as_micros())
                .bind(i64::try_from(left).unwrap_or(i64::MAX))
                .bind(parts.to_vec());
            for row in &self.fetch("read ended jobs", query).await? {
                old.push(get(row, 0)?);
            }
        }
        self.remove(&old).await?;
        let t = self.now;
        for id in &old {
            self.record_event(|| Event::Prune { t, job: JobId::new(unsigned(*id)) });
        }
        let jobs = u64::try_from(old.len()).unwrap_or(u64::MAX);
        let mut pruned = Pruned { jobs, ..Pruned::default() };
        pruned.reaches(jobs, limit);
        self.remove_expired(limit, &mut pruned).await?;
        pruned.count_expired(self.prune_ticks(limit).await?, limit);
        Ok(pruned)
    }

    /// Removes jobs with all that hangs on them.
    pub(crate) async fn remove(&mut self, ids: &[i64]) -> Result<()> {
        const REMOVE: [&str; 6] = [
            "delete from quell.attempt where job_id = any($1)",
            "delete from quell.effect where job_id = any($1)",
            // R16: keys that were taken until the job started or ended. Others run on.
            "delete from quell.hold
              where job_id = any($1) and expires_at + 0 = 9223372036854775807",
            "delete from quell.past where job_id = any($1)",
            "delete from quell.unreadable where job_id = any($1)",
            "delete from quell.ended where id = any($1)",
        ];
        if ids.is_empty() {
            return Ok(());
        }
        self.keep_results(ids).await?;
        for sql in REMOVE {
            self.run("remove ended jobs", self.sql.query(sql).bind(ids.to_vec())).await?;
        }
        Ok(())
    }

    async fn remove_expired(&mut self, limit: usize, pruned: &mut Pruned) -> Result<()> {
        const EXPIRED: [&str; 3] = [
            "delete from quell.memory
              where ctid = any(array(select ctid from quell.memory
                                      where expires_at <= $1 limit $2 for update skip locked))",
            "delete from quell.hold
              where ctid = any(array(select ctid from quell.hold
                                      where expires_at <= $1 limit $2 for update skip locked))",
            "delete from quell.start
              where ctid = any(array(select ctid from quell.start
                                      where expires_at <= $1 limit $2 for update skip locked))",
        ];
        for sql in EXPIRED {
            let query = self.sql.query(sql).bind(self.now.as_micros());
            let query = query.bind(i64::try_from(limit).unwrap_or(i64::MAX));
            let removed = self.run_counted("remove keys without effect", query).await?;
            pruned.count_expired(removed, limit);
        }
        self.prune_records(limit, pruned).await
    }
}
