//! What operators change: windows by key, jobs by id, queue settings, and what has ended (R7, R32,
//! R33, R37). Dead letters are in `dead`.

use std::time::Duration;

use quell_core::history::Event;
use quell_core::schedule::RECORD;
use quell_core::{
    Job, JobId, JobState, Key, Pruned, QueueName, QueueSettings, Result, Retention, TaskName,
    TaskSettings, Timestamp, no_such_job,
};

use crate::connections::Connections;
use crate::error::corrupt;
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

impl Tx<'_> {
    pub(crate) async fn flush(&mut self, task: &TaskName, key: &Key) -> Result<Option<JobId>> {
        let flush = |now, job: &mut Job| {
            job.window = job.window.flush(now);
            Ok(())
        };
        self.move_open_window(task, key, flush).await
    }

    pub(crate) async fn cancel_key(&mut self, task: &TaskName, key: &Key) -> Result<Option<JobId>> {
        let cancel = |now, job: &mut Job| job.cancel(now, "the window was cancelled by its key");
        let cancelled = self.move_open_window(task, key, cancel).await?;
        if let Some(id) = cancelled {
            self.tell_cancelled(id);
        }
        Ok(cancelled)
    }

    pub(crate) async fn cancel(&mut self, id: JobId, reason: &str) -> Result<()> {
        let cancelled = self
            .move_one(id, |now, job, _| {
                job.cancel(now, reason)?;
                Ok(None)
            })
            .await?;
        cancelled.ok_or_else(|| no_such_job(id))?;
        self.tell_cancelled(id);
        Ok(())
    }

    fn tell_cancelled(&mut self, id: JobId) {
        let t = self.now;
        self.tell(|| Event::Cancel { t, job: id });
    }

    pub(crate) async fn set_queue(
        &mut self,
        queue: &QueueName,
        settings: &QueueSettings,
    ) -> Result<()> {
        const MAKE: &str = "insert into quell.queue (name) values ($1) on conflict do nothing";
        const SET: &str = "update quell.queue set settings = $2, deleted = false where id = $1";
        let text = serde_json::to_string(settings)
            .map_err(|error| corrupt(format_args!("settings of queue {queue}: {error}")))?;
        let name = queue.as_str().to_owned();
        self.run("make a queue", self.sql.query(MAKE).bind(name)).await?;
        let (id, was, _) =
            self.queue_row(queue).await?.ok_or_else(|| corrupt("a queue that was just made"))?;
        self.change_rates(id, &was, settings).await?;
        self.run("set a queue", self.sql.query(SET).bind(id).bind(text)).await?;
        let t = self.now;
        self.tell(|| Event::Queue { t, queue: queue.clone(), settings: settings.clone() });
        self.news.wake(queue, Timestamp::MIN);
        Ok(())
    }

    /// R32: nothing of the queue starts until it is set again.
    pub(crate) async fn delete_queue(&mut self, queue: &QueueName) -> Result<bool> {
        const DELETE: &str = "update quell.queue set settings = '{}', deleted = true where id = $1";
        let Some((id, was, deleted)) = self.queue_row(queue).await? else { return Ok(false) };
        if deleted {
            return Ok(false);
        }
        self.change_rates(id, &was, &QueueSettings::default()).await?;
        self.run("delete a queue", self.sql.query(DELETE).bind(id)).await?;
        let t = self.now;
        self.tell(|| Event::QueueDeleted { t, queue: queue.clone() });
        self.news.wake(queue, Timestamp::MIN);
        Ok(true)
    }

    /// A queue's number and settings, and whether it was deleted; locked.
    async fn queue_row(&mut self, queue: &QueueName) -> Result<Option<(i32, QueueSettings, bool)>> {
        const ROW: &str =
            "select id, settings, deleted from quell.queue where name = $1 for update";
        let query = self.sql.query(ROW).bind(queue.as_str().to_owned());
        let rows = self.fetch("read a queue", query).await?;
        let Some(row) = rows.first() else { return Ok(None) };
        let settings = crate::read::parse_settings(queue.as_str(), get(row, 1)?, false);
        Ok(Some((get(row, 0)?, settings, get(row, 2)?)))
    }

    pub(crate) async fn set_task(
        &mut self,
        task: &TaskName,
        settings: &TaskSettings,
    ) -> Result<()> {
        const SET: &str = "insert into quell.task (name, settings) values ($1, $2)
             on conflict (name) do update set settings = excluded.settings";
        let text = serde_json::to_string(settings)
            .map_err(|error| corrupt(format_args!("settings of task {task}: {error}")))?;
        let query = self.sql.query(SET).bind(task.as_str().to_owned()).bind(text);
        self.run("set a task", query).await?;
        let (t, settings) = (self.now, *settings);
        self.tell(|| Event::TaskChanged { t, task: task.clone(), settings });
        // Its jobs may wait in any queue.
        self.news.wakes_all = true;
        Ok(())
    }

    /// R31: what queues' limits held back may start, at any worker.
    pub(crate) async fn free_slots(&mut self) -> Result<()> {
        const LIMITED: &str = concat!("select name from quell.queue where ", limited!());
        for row in &self.fetch("read queues with limits", self.sql.query(LIMITED)).await? {
            self.news.frees.insert(QueueName::new(get::<&str, _>(row, 0)?)?);
        }
        Ok(())
    }

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
            self.tell(|| Event::Prune { t, job: JobId::new(unsigned(*id)) });
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
