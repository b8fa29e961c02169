//! What operators change: windows by key, jobs by id, queue settings, and what has ended (R7, R32,
//! R33, R37). Dead letters are in `dead`.

use std::time::Duration;

use quell_core::history::Event;
use quell_core::schedule::RECORD;
use quell_core::{
    AttemptOutcome, Job, JobId, JobState, Key, Pruned, QueueName, QueueSettings, Result, Retention,
    TaskName, TaskSettings, Timestamp, clipped, no_such_job,
};
use sqlx::SqliteConnection;

use crate::error::{corrupt, explain};
use crate::keys::json;
use crate::row::unsigned;
use crate::tally::{decode_lane_state, lane_state_columns};
use crate::tx::Tx;

/// Looks, without writing, whether there may be anything to remove.
pub(crate) async fn may_prune(
    db: &mut SqliteConnection,
    now: Timestamp,
    retention: &Retention,
) -> Result<bool> {
    const OLD: &str = "with clock (now) as (select max(?3, clock) from quell_meta)
         select exists (select 1 from clock, quell_job
                         where state >= 2 and state in (2, 4, 5) and ended_at <= now - ?1)
             or exists (select 1 from clock, quell_job
                         where state >= 2 and state = 3 and ended_at <= now - ?2)
             or exists (select 1 from clock, quell_memory where expires_at <= now)
             or exists (select 1 from clock, quell_hold where expires_at <= now)
             or exists (select 1 from clock, quell_idempotency where look_at <= now)
             or exists (select 1 from clock, quell_start where expires_at <= now)
             or exists (select 1 from clock, quell_tick where tick_at < now - ?4)";
    let micros = |keep: Option<Duration>| {
        keep.map(|keep| i64::try_from(keep.as_micros()).unwrap_or(i64::MAX))
    };
    sqlx::query_scalar(OLD)
        .bind(micros(retention.succeeded))
        .bind(micros(retention.dead))
        .bind(now.as_micros())
        .bind(micros(Some(RECORD)))
        .fetch_one(db)
        .await
        .map_err(|e| explain("look for ended jobs", e))
}

impl Tx<'_> {
    pub(crate) async fn flush(&mut self, task: &TaskName, key: &Key) -> Result<Option<JobId>> {
        let Some(mut job) = self.open_window(task, key.as_str()).await? else { return Ok(None) };
        job.window = job.window.flush(self.now);
        self.put_back(&job, None).await?;
        Ok(Some(job.id))
    }

    pub(crate) async fn cancel_key(&mut self, task: &TaskName, key: &Key) -> Result<Option<JobId>> {
        let Some(job) = self.open_window(task, key.as_str()).await? else { return Ok(None) };
        self.cancel_job(job.clone(), "the window was cancelled by its key").await?;
        Ok(Some(job.id))
    }

    pub(crate) async fn cancel(&mut self, id: JobId, reason: &str) -> Result<()> {
        let job = self.load(id).await?.ok_or_else(|| no_such_job(id))?;
        self.cancel_job(job, reason).await
    }

    async fn cancel_job(&mut self, mut job: Job, reason: &str) -> Result<()> {
        let ran = job.clone();
        job.cancel(self.now, reason)?;
        if ran.state == JobState::Running {
            let why = Some(clipped(reason));
            self.record_attempt(&ran, AttemptOutcome::Cancelled, why).await?;
        }
        self.put_back(&job, None).await?;
        self.free_keys(std::iter::once(job.id)).await?;
        if ran.state == JobState::Running {
            self.free_slots();
            self.news.cancelled.push(job.id);
            // Other processes watch it.
            let count = "update quell_meta set cancels = cancels + 1";
            let counted = sqlx::query(count).execute(&mut *self.db).await;
            counted.map_err(|e| explain("count a cancelled attempt", e))?;
        }
        let t = self.now;
        self.tell(|| Event::Cancel { t, job: job.id });
        Ok(())
    }

    pub(crate) async fn set_queue(
        &mut self,
        queue: &QueueName,
        settings: &QueueSettings,
    ) -> Result<()> {
        let text = serde_json::to_string(settings)
            .map_err(|error| corrupt(format_args!("settings of queue {queue}: {error}")))?;
        let id = self.names.intern_queue(&mut self.db, queue).await?;
        let was = self.settings.get(queue).cloned().unwrap_or_default();
        self.change_rates(id, &was, settings).await?;
        let set = sqlx::query("update quell_queue set settings = ?2, deleted = 0 where id = ?1");
        let set = set.bind(id).bind(text).execute(&mut *self.db).await;
        set.map_err(|e| explain("set a queue", e))?;
        self.settings_changed = true;
        let t = self.now;
        self.tell(|| Event::Queue { t, queue: queue.clone(), settings: settings.clone() });
        self.wake(queue, Timestamp::MIN);
        Ok(())
    }

    /// R32: nothing of the queue starts until it is set again.
    pub(crate) async fn delete_queue(&mut self, queue: &QueueName) -> Result<bool> {
        const DELETE: &str =
            "update quell_queue set settings = '{}', deleted = 1 where id = ?1 and deleted = 0";
        let Some(id) = self.names.queue_id(queue) else { return Ok(false) };
        let deleted = sqlx::query(DELETE).bind(id).execute(&mut *self.db).await;
        if deleted.map_err(|e| explain("delete a queue", e))?.rows_affected() == 0 {
            return Ok(false);
        }
        let was = self.settings.get(queue).cloned().unwrap_or_default();
        self.change_rates(id, &was, &QueueSettings::default()).await?;
        self.settings_changed = true;
        let t = self.now;
        self.tell(|| Event::QueueDeleted { t, queue: queue.clone() });
        self.wake(queue, Timestamp::MIN);
        Ok(true)
    }

    pub(crate) async fn set_task(
        &mut self,
        task: &TaskName,
        settings: &TaskSettings,
    ) -> Result<()> {
        let text = serde_json::to_string(settings)
            .map_err(|error| corrupt(format_args!("settings of task {task}: {error}")))?;
        let id = self.names.intern_task(&mut self.db, task).await?;
        let set = sqlx::query("update quell_task set settings = ?2 where id = ?1");
        let set = set.bind(id).bind(text).execute(&mut *self.db).await;
        set.map_err(|e| explain("set a task", e))?;
        let (t, settings) = (self.now, *settings);
        self.tell(|| Event::TaskChanged { t, task: task.clone(), settings });
        // Its jobs may wait in any queue.
        self.news.wakes_all = true;
        Ok(())
    }

    /// Removes ended jobs, and keys that have no effect any more, in one small batch.
    pub(crate) async fn prune(&mut self, retention: &Retention, limit: usize) -> Result<Pruned> {
        // The bound on the state is what makes the index of ended jobs serve.
        const OLD: &str = "select id from quell_job
              where state >= 2 and state = ?1 and ended_at <= ?2 order by ended_at limit ?3 + 0";
        let mut old: Vec<i64> = Vec::new();
        for (state, keep) in [
            (JobState::Succeeded, retention.succeeded),
            (JobState::Cancelled, retention.succeeded),
            (JobState::Absorbed, retention.succeeded),
            (JobState::Dead, retention.dead),
        ] {
            let Some(keep) = keep else { continue };
            let left = limit.saturating_sub(old.len());
            let more: Vec<i64> = sqlx::query_scalar(OLD)
                .bind(state.code())
                .bind(self.now.before(keep).as_micros())
                .bind(i64::try_from(left).unwrap_or(i64::MAX))
                .fetch_all(&mut *self.db)
                .await
                .map_err(|e| explain("read ended jobs", e))?;
            old.extend(more);
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
        const REMOVE: [&str; 5] = [
            "delete from quell_attempt where job_id in (select value from json_each(?1))",
            "delete from quell_effect where job_id in (select value from json_each(?1))",
            // R16: keys that were taken until the job started or ended. Others run on.
            "delete from quell_hold
              where job_id in (select value from json_each(?1))
                and expires_at = 9223372036854775807",
            "delete from quell_past where job_id in (select value from json_each(?1))",
            "delete from quell_unreadable where job_id in (select value from json_each(?1))",
        ];
        const REMOVE_JOBS: &str = concat!(
            "delete from quell_job where id in (select value from json_each(?1)) returning ",
            lane_state_columns!()
        );
        if ids.is_empty() {
            return Ok(());
        }
        let ids = json(&ids)?;
        self.keep_results(&ids).await?;
        for sql in REMOVE {
            let removed = sqlx::query(sql).bind(ids.clone()).execute(&mut *self.db).await;
            removed.map_err(|e| explain("remove ended jobs", e))?;
        }
        let removed = sqlx::query(REMOVE_JOBS).bind(ids).fetch_all(&mut *self.db).await;
        for row in &removed.map_err(|e| explain("remove ended jobs", e))? {
            self.tally.remove(decode_lane_state(row, 0)?);
        }
        Ok(())
    }

    async fn remove_expired(&mut self, limit: usize, pruned: &mut Pruned) -> Result<()> {
        const EXPIRED: [&str; 3] = [
            "delete from quell_memory
              where (task_id, key) in (select task_id, key from quell_memory
                                        where expires_at <= ?1 limit ?2 + 0)",
            "delete from quell_hold
              where (task_id, key) in (select task_id, key from quell_hold
                                        where expires_at <= ?1 limit ?2 + 0)",
            "delete from quell_start
              where (queue_id, partition, at) in (select queue_id, partition, at from quell_start
                                                   where expires_at <= ?1 limit ?2 + 0)",
        ];
        for sql in EXPIRED {
            let removed = sqlx::query(sql)
                .bind(self.now.as_micros())
                .bind(i64::try_from(limit).unwrap_or(i64::MAX))
                .execute(&mut *self.db)
                .await
                .map_err(|e| explain("remove keys without effect", e))?;
            pruned.count_expired(removed.rows_affected(), limit);
        }
        self.prune_records(limit, pruned).await
    }
}
