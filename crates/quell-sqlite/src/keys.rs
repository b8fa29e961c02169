//! What is kept of keys beside their windows: dedup holds (R16) and the memories of edges (R13).

use std::collections::{BTreeMap, BTreeSet};

use quell_core::dedup::{Hold, HoldUntil};
use quell_core::edge::{Edge, KeyMemory};
use quell_core::touched::{Loaded, TaskKey, Wanted};
use quell_core::{Job, JobId, JobState, Key, Result, SettledAs};
use serde::Serialize;
use sqlx::SqliteConnection;
use sqlx::sqlite::SqliteRow;

use crate::error::{corrupt, explain};
use crate::names::Names;
use crate::row::{decode, get, job_columns, signed, time, unsigned};
use crate::tx::Tx;

/// The column after those of the job.
pub(crate) const NEXT: usize = 28;

impl Tx<'_> {
    /// A job that is scheduled again waits for what its key does: an attempt that still runs (R11),
    /// the period since its last start (R13).
    pub(crate) async fn heed_key(&mut self, job: &mut Job, became: SettledAs) -> Result<SettledAs> {
        let (JobState::Scheduled, Some(key)) = (job.state, job.key.clone()) else {
            return Ok(became);
        };
        let is_busy = !job.shape.overlap && self.key_is_busy(job, &key).await?;
        let memory = match job.shape.edge {
            Edge::Throttle => {
                let wanted = BTreeMap::from([(&job.task, BTreeSet::from([key.as_str()]))]);
                load_memories(&mut self.db, self.names, &wanted).await?.pop()
            }
            _ => None,
        };
        self.keys_wait |= is_busy;
        Ok(job.heed_key(self.now, is_busy, memory.map(|loaded| loaded.value).as_ref()))
    }

    /// Whether an attempt of the key runs that is not of this job, or an older window of it waits.
    async fn key_is_busy(&mut self, job: &Job, key: &Key) -> Result<bool> {
        sqlx::query_scalar(
            "select exists (select 1 from quell_job
                             where task_id = ?1 and key = ?2 and hold > 0 and id <> ?3)
                 or exists (select 1 from quell_job
                             where task_id = ?1 and key = ?2 and hold > -?3 and hold < 0)
                 or exists (select 1 from quell_job
                             where task_id = ?1 and key = ?2 and hold = 0 and id < ?3)",
        )
        .bind(self.names.task_id(&job.task))
        .bind(key.as_str().to_owned())
        .bind(signed(job.id.get()))
        .fetch_one(&mut *self.db)
        .await
        .map_err(|e| explain("look for a running attempt", e))
    }
}

/// Loads dedup holds with their jobs, whose states decide whether they hold.
pub(crate) async fn load_holds(
    db: &mut SqliteConnection,
    names: &Names,
    wanted: &Wanted<'_>,
) -> Result<Vec<Loaded<Hold>>> {
    const HOLDS: &str = concat!(
        "select ",
        job_columns!("j.payload"),
        ", h.key, h.job_id, h.until, h.expires_at
           from json_each(?2) k
           cross join quell_hold h on h.task_id = ?1 and h.key = k.value
           left join quell_job j on j.id = h.job_id and j.state is not 6"
    );
    load(db, names, wanted, HOLDS, |row| {
        let until = serde_json::from_str::<HoldUntil>(get(row, NEXT + 2)?)
            .map_err(|error| corrupt(format_args!("a dedup key: {error}")))?;
        let job = JobId::new(unsigned(get(row, NEXT + 1)?));
        Ok(Hold { job, until, expires_at: time(row, NEXT + 3)? })
    })
    .await
}

/// Loads what is remembered of keys, with the leading jobs that suppressed triggers count on.
pub(crate) async fn load_memories(
    db: &mut SqliteConnection,
    names: &Names,
    wanted: &Wanted<'_>,
) -> Result<Vec<Loaded<KeyMemory>>> {
    const MEMORIES: &str = concat!(
        "select ",
        job_columns!("j.payload"),
        ", m.key, m.leader, m.burst_at, m.last_at, m.started_at, m.expires_at, m.triggers
           from json_each(?2) k
           cross join quell_memory m on m.task_id = ?1 and m.key = k.value
           left join quell_job j on j.id = m.leader and j.state is not 6"
    );
    load(db, names, wanted, MEMORIES, |row| {
        Ok(KeyMemory {
            leader: JobId::new(unsigned(get(row, NEXT + 1)?)),
            burst_at: time(row, NEXT + 2)?,
            last_at: time(row, NEXT + 3)?,
            started_at: time(row, NEXT + 4)?,
            expires_at: time(row, NEXT + 5)?,
            triggers: unsigned(get(row, NEXT + 6)?),
        })
    })
    .await
}

/// Runs `sql` for the keys of each task.
pub(crate) async fn load<T>(
    db: &mut SqliteConnection,
    names: &Names,
    wanted: &Wanted<'_>,
    sql: &'static str,
    value: impl Fn(&SqliteRow) -> Result<T>,
) -> Result<Vec<Loaded<T>>> {
    let mut loaded = Vec::new();
    for (&task, keys) in wanted {
        let Some(task_id) = names.task_id(task) else { continue };
        let rows = sqlx::query(sql).bind(task_id).bind(json(&keys)?).fetch_all(&mut *db).await;
        for row in rows.map_err(|e| explain("read keys", e))? {
            let job = get::<Option<i64>, _>(&row, 0)?.map(|_| decode(&row, names)).transpose()?;
            let key = (task.clone(), Key::new(get::<&str, _>(&row, NEXT)?)?);
            loaded.push(Loaded { key, value: value(&row)?, job });
        }
    }
    Ok(loaded)
}

/// A value as JSON, for `json_each`.
pub(crate) fn json(value: &impl Serialize) -> Result<String> {
    serde_json::to_string(value).map_err(|error| corrupt(format_args!("keys: {error}")))
}

/// Takes dedup keys. Their tasks have names by now: a trigger that takes a key makes or joins a job.
pub(crate) async fn write_holds(
    db: &mut SqliteConnection,
    names: &Names,
    holds: &[(TaskKey, Hold)],
) -> Result<()> {
    const TAKE: &str = "insert into quell_hold (task_id, key, job_id, until, expires_at)
         select value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4
           from json_each(?1)
          where true
         on conflict (task_id, key) do update set
             job_id = excluded.job_id, until = excluded.until, expires_at = excluded.expires_at";
    let row = |((task, key), hold): &(TaskKey, Hold)| {
        let until = json(&hold.until)?;
        let job = signed(hold.job.get());
        Ok((names.task_id(task), key.clone(), job, until, hold.expires_at.as_micros()))
    };
    let rows = holds.iter().map(row).collect::<Result<Vec<_>>>()?;
    write(db, TAKE, &rows).await
}

/// Remembers keys.
pub(crate) async fn write_memories(
    db: &mut SqliteConnection,
    names: &Names,
    memories: &[(TaskKey, KeyMemory)],
) -> Result<()> {
    const REMEMBER: &str = "insert into quell_memory
                (task_id, key, leader, triggers, burst_at, last_at, started_at, expires_at)
         select value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4, value ->> 5,
                value ->> 6, value ->> 7
           from json_each(?1)
          where true
         on conflict (task_id, key) do update set
             leader = excluded.leader, triggers = excluded.triggers, burst_at = excluded.burst_at, last_at = excluded.last_at,
             started_at = excluded.started_at, expires_at = excluded.expires_at";
    let row = |((task, key), memory): &(TaskKey, KeyMemory)| {
        let at = (memory.burst_at, memory.last_at, memory.started_at, memory.expires_at);
        let leader = (signed(memory.leader.get()), signed(memory.triggers));
        (names.task_id(task), key.clone(), leader.0, leader.1, at.0, at.1, at.2, at.3)
    };
    let rows: Vec<_> = memories.iter().map(row).collect();
    write(db, REMEMBER, &rows).await
}

async fn write(
    db: &mut SqliteConnection,
    sql: &'static str,
    rows: &[impl Serialize],
) -> Result<()> {
    if rows.is_empty() {
        return Ok(());
    }
    let written = sqlx::query(sql).bind(json(&rows)?).execute(db).await;
    written.map(drop).map_err(|e| explain("write keys", e))
}
