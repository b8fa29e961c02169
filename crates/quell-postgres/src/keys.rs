//! What is kept of keys beside their windows: dedup holds (R16) and the memories of edges (R13).
//!
//! What was loaded is locked until the call commits, and what was not there is inserted plainly: if
//! another call took the same key a moment earlier, this one has a write conflict and is retried.
//!
//! Each key is looked up by itself: planned while a table was empty, a plain join would read all of
//! it for each call.

use std::collections::{BTreeMap, BTreeSet};

use quell_core::dedup::{Hold, HoldUntil};
use quell_core::edge::KeyMemory;
use quell_core::touched::{Loaded, TaskKey, Wanted};
use quell_core::{JobId, Key, Result};
use sqlx::postgres::PgRow;

use crate::error::corrupt;
use crate::row::{get, signed, time, unsigned};
use crate::tx::Tx;

/// The rows `r` of the keys `$1`, `$2`, found one by one and locked in the order that all calls share.
macro_rules! rows_of {
    ($table:literal) => {
        $crate::keys::rows_of!($table, " for update")
    };
    ($table:literal, $lock:literal) => {
        concat!(
            "from (select * from unnest($1::int[], $2::text[]) k (task_id, key)
                    order by task_id, key collate \"C\") k
             cross join lateral (
                   select * from quell.",
            $table,
            " w where w.task_id = k.task_id and w.key = k.key",
            $lock,
            ") r"
        )
    };
}
pub(crate) use rows_of;

/// The two ways to read the rows of keys: with a lock, and without.
macro_rules! both_ways {
    ($columns:literal, $table:literal) => {
        (
            concat!("select r.task_id, r.key, ", $columns, " ", $crate::keys::rows_of!($table)),
            concat!("select r.task_id, r.key, ", $columns, " ", $crate::keys::rows_of!($table, "")),
        )
    };
}
pub(crate) use both_ways;

/// Dedup keys.
pub(crate) const HOLDS: (&str, &str) = both_ways!("r.job_id, r.until, r.expires_at", "hold");
/// Memories.
pub(crate) const MEMORIES: (&str, &str) =
    both_ways!("r.leader, r.burst_at, r.last_at, r.started_at, r.expires_at, r.triggers", "memory");

/// A row of [`HOLDS`].
pub(crate) fn decode_hold(row: &PgRow) -> Result<Hold> {
    let until = serde_json::from_str::<HoldUntil>(get(row, 3)?)
        .map_err(|error| corrupt(format_args!("a dedup key: {error}")))?;
    Ok(Hold { job: JobId::new(unsigned(get(row, 2)?)), until, expires_at: time(row, 4)? })
}

/// A row of [`MEMORIES`].
pub(crate) fn decode_memory(row: &PgRow) -> Result<KeyMemory> {
    Ok(KeyMemory {
        leader: JobId::new(unsigned(get(row, 2)?)),
        burst_at: time(row, 3)?,
        last_at: time(row, 4)?,
        started_at: time(row, 5)?,
        expires_at: time(row, 6)?,
        triggers: unsigned(get(row, 7)?),
    })
}

impl Tx {
    /// Loads dedup holds with their jobs, whose states decide whether they hold. A job that is not
    /// among those that wait or run has ended.
    pub(crate) async fn load_holds(&mut self, wanted: &Wanted<'_>) -> Result<Vec<Loaded<Hold>>> {
        let mut loaded = self.load_keys(wanted, HOLDS.0, decode_hold).await?;
        // After the locks, so that a job that moved on meanwhile is seen where it is now.
        let ids = loaded.iter().map(|one| one.value.job).collect::<BTreeSet<_>>();
        let jobs = self.load_here(ids.into_iter().collect()).await?;
        for one in &mut loaded {
            one.job = jobs.get(&one.value.job).cloned();
        }
        Ok(loaded)
    }

    /// Loads what is remembered of keys, with the leading jobs that suppressed triggers count on.
    pub(crate) async fn load_memories(
        &mut self,
        wanted: &Wanted<'_>,
    ) -> Result<Vec<Loaded<KeyMemory>>> {
        self.load_keys(wanted, MEMORIES.0, decode_memory).await
    }

    pub(crate) async fn load_keys<T>(
        &mut self,
        wanted: &Wanted<'_>,
        sql: &'static str,
        value: impl Fn(&PgRow) -> Result<T>,
    ) -> Result<Vec<Loaded<T>>> {
        let (tasks, keys) = self.names.task_keys(wanted);
        if keys.is_empty() {
            return Ok(Vec::new());
        }
        let by_id: BTreeMap<_, _> =
            wanted.keys().filter_map(|task| Some((self.names.task_id(task)?, *task))).collect();
        let rows = self.fetch("read keys", self.sql.query(sql).bind(tasks).bind(keys)).await?;
        let mut loaded = Vec::with_capacity(rows.len());
        for row in &rows {
            let task = by_id.get(&get::<i32, _>(row, 0)?).ok_or_else(|| corrupt("a key's task"))?;
            let key = ((*task).clone(), Key::new(get::<&str, _>(row, 1)?)?);
            loaded.push(Loaded { key, value: value(row)?, job: None });
        }
        Ok(loaded)
    }

    /// Takes dedup keys; `seen` are those that were there before.
    pub(crate) async fn write_holds(&mut self, holds: &[(TaskKey, Hold)]) -> Result<()> {
        // They are locked by this call, so they stay where they are.
        const FREE: &str = "delete from quell.hold
              where ctid = any(array(
                    select h.place
                      from unnest($1::int[], $2::text[], $3::bool[]) k (task_id, key, seen)
                     cross join lateral (
                           select h.ctid as place from quell.hold h
                            where h.task_id = k.task_id and h.key = k.key
                           offset 0) h
                     where k.seen))";
        const TAKE: &str = "insert into quell.hold (task_id, key, job_id, until, expires_at)
             select * from unnest($1::int[], $2::text[], $3::bigint[], $4::text[], $5::bigint[])
              order by 1, 2";
        if holds.is_empty() {
            return Ok(());
        }
        let (tasks, keys) = self.columns(holds)?;
        let seen: Vec<bool> = holds.iter().map(|(key, _)| self.locked.contains(key)).collect();
        if seen.contains(&true) {
            let query = self.sql.query(FREE).bind(tasks.clone()).bind(keys.clone()).bind(seen);
            self.run("free dedup keys", query).await?;
        }
        let untils = holds
            .iter()
            .map(|(_, hold)| serde_json::to_string(&hold.until))
            .collect::<Result<Vec<_>, _>>()
            .map_err(|error| corrupt(format_args!("a dedup key: {error}")))?;
        let jobs: Vec<i64> = holds.iter().map(|(_, hold)| signed(hold.job.get())).collect();
        let ends: Vec<i64> = holds.iter().map(|(_, hold)| hold.expires_at.as_micros()).collect();
        let query = self.sql.query(TAKE).bind(tasks).bind(keys).bind(jobs).bind(untils).bind(ends);
        self.run("take dedup keys", query).await
    }

    /// Remembers keys. The key's window is this call's, so no other call writes its memory, but for a
    /// start of the window, which this call waited for.
    pub(crate) async fn write_memories(&mut self, memories: &[(TaskKey, KeyMemory)]) -> Result<()> {
        const REMEMBER: &str = "insert into quell.memory
                    (task_id, key, leader, burst_at, last_at, started_at, expires_at, triggers)
             select * from unnest($1::int[], $2::text[], $3::bigint[], $4::bigint[], $5::bigint[],
                                  $6::bigint[], $7::bigint[], $8::bigint[])
              order by 1, 2
             on conflict (task_id, key) do update set
                 leader = excluded.leader, burst_at = excluded.burst_at,
                 last_at = excluded.last_at, started_at = excluded.started_at,
                 expires_at = excluded.expires_at, triggers = excluded.triggers";
        if memories.is_empty() {
            return Ok(());
        }
        let (tasks, keys) = self.columns(memories)?;
        let column = |value: fn(&KeyMemory) -> i64| {
            memories.iter().map(|(_, memory)| value(memory)).collect::<Vec<_>>()
        };
        let query = self
            .sql
            .query(REMEMBER)
            .bind(tasks)
            .bind(keys)
            .bind(column(|memory| signed(memory.leader.get())))
            .bind(column(|memory| memory.burst_at.as_micros()))
            .bind(column(|memory| memory.last_at.as_micros()))
            .bind(column(|memory| memory.started_at.as_micros()))
            .bind(column(|memory| memory.expires_at.as_micros()))
            .bind(column(|memory| signed(memory.triggers)));
        self.run("remember keys", query).await
    }

    pub(crate) fn columns<T>(&self, rows: &[(TaskKey, T)]) -> Result<(Vec<i32>, Vec<String>)> {
        let mut columns = (Vec::new(), Vec::new());
        for ((task, key), _) in rows {
            columns.0.push(self.names.task_id(task).ok_or_else(|| corrupt("a key's task"))?);
            columns.1.push(key.as_str().to_owned());
        }
        Ok(columns)
    }
}
