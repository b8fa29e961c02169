//! What is stored of keys beside their windows: dedup keys (R16), idempotency records (R19) and the
//! memories of edges (R13).
//!
//! While a job's row is there, it says how the job stands; the engine copies state and output to the job's
//! records before it removes the row. So ending a job costs nothing more for having an idempotency key.

use quell_core::dedup::Hold;
use quell_core::edge::KeyMemory;
use quell_core::idempotency::Record;
use quell_core::touched::{Loaded, TaskKey, Wanted};
use quell_core::{Key, Result};
use serde::Serialize;
use sqlx::SqliteConnection;
use sqlx::sqlite::SqliteRow;

use crate::error::{corrupt, explain};
use crate::names::Names;
use crate::row::{JOB_COLUMNS, decode, get, job_columns, signed};

/// The column of the key, after those of the job.
const KEY: usize = JOB_COLUMNS;

/// What follows the column of a key.
pub(crate) mod kept {
    use quell_core::dedup::{Hold, HoldUntil};
    use quell_core::edge::KeyMemory;
    use quell_core::idempotency::{Fingerprint, Kept, Record};
    use quell_core::{JobId, JobState, Payload, Result};
    use sqlx::sqlite::SqliteRow;

    use crate::error::corrupt;
    use crate::row::{get, time, unsigned};

    fn job(row: &SqliteRow, index: usize) -> Result<JobId> {
        Ok(JobId::new(unsigned(get(row, index)?)))
    }

    /// Columns job, until, expires_at, the first at `from`.
    pub(crate) fn hold(row: &SqliteRow, from: usize) -> Result<Hold> {
        let until = serde_json::from_str::<HoldUntil>(get(row, from + 1)?)
            .map_err(|error| corrupt(format_args!("a dedup key: {error}")))?;
        Ok(Hold { job: job(row, from)?, until, expires_at: time(row, from + 2)? })
    }

    /// Columns job, fingerprint, expires_at, state, output, the first at `from`.
    pub(crate) fn record(row: &SqliteRow, from: usize) -> Result<Record> {
        let fingerprint = Fingerprint::from_hex(get::<&str, _>(row, from + 1)?);
        Ok(Record {
            fingerprint: fingerprint.ok_or_else(|| corrupt("a fingerprint"))?,
            job: job(row, from)?,
            expires_at: time(row, from + 2)?,
            kept: result(row, from + 3)?,
        })
    }

    fn result(row: &SqliteRow, index: usize) -> Result<Option<Kept>> {
        let Some(code) = get::<Option<i64>, _>(row, index)? else { return Ok(None) };
        let state = u8::try_from(code).ok().and_then(JobState::from_code);
        let state = state.ok_or_else(|| corrupt("the state of a result"))?;
        let output = get::<Option<&str>, _>(row, index + 1)?.map(Payload::from_stored);
        Ok(Some(Kept { state, output }))
    }

    /// Columns leader, burst_at, last_at, started_at, expires_at, triggers, the first at `from`.
    pub(crate) fn memory(row: &SqliteRow, from: usize) -> Result<KeyMemory> {
        Ok(KeyMemory {
            leader: job(row, from)?,
            burst_at: time(row, from + 1)?,
            last_at: time(row, from + 2)?,
            started_at: time(row, from + 3)?,
            expires_at: time(row, from + 4)?,
            triggers: unsigned(get(row, from + 5)?),
        })
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
    load(db, names, wanted, HOLDS, |row| kept::hold(row, KEY + 1)).await
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
    load(db, names, wanted, MEMORIES, |row| kept::memory(row, KEY + 1)).await
}

/// Loads records with their jobs, without the payloads of those.
pub(crate) async fn load_records(
    db: &mut SqliteConnection,
    names: &Names,
    wanted: &Wanted<'_>,
) -> Result<Vec<Loaded<Record>>> {
    const RECORDS: &str = concat!(
        "select ",
        job_columns!("null"),
        ", i.key, i.job_id, i.fingerprint, i.expires_at, i.state, i.output
           from json_each(?2) k
           cross join quell_idempotency i on i.task_id = ?1 and i.key = k.value
           left join quell_job j on j.id = i.job_id and j.state is not 6"
    );
    load(db, names, wanted, RECORDS, |row| kept::record(row, KEY + 1)).await
}

/// Runs `sql` for the keys of each task.
async fn load<T>(
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
            let key = (task.clone(), Key::new(get::<&str, _>(&row, KEY)?)?);
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

/// Writes idempotency records. Their tasks have names by now: a trigger that takes one is accepted.
pub(crate) async fn write_records(
    db: &mut SqliteConnection,
    names: &Names,
    records: &[(TaskKey, Record)],
) -> Result<()> {
    // A record is looked at again when it expires, or later while its job has not ended.
    const TAKE: &str = "insert into quell_idempotency
                (task_id, key, job_id, fingerprint, expires_at, look_at, state, output)
         select value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4, value ->> 4,
                value ->> 5, value ->> 6
           from json_each(?1)
          where true
         on conflict (task_id, key) do update set
             look_at = iif(expires_at = excluded.expires_at, look_at, excluded.look_at),
             job_id = excluded.job_id, fingerprint = excluded.fingerprint,
             expires_at = excluded.expires_at, state = excluded.state, output = excluded.output";
    let row = |((task, key), record): &(TaskKey, Record)| {
        let (job, fingerprint) = (signed(record.job.get()), record.fingerprint.to_string());
        let kept = record.kept.as_ref();
        let state = kept.map(|kept| kept.state.code());
        let output = kept.and_then(|kept| kept.output.as_ref()).map(|output| output.as_str());
        let expires = record.expires_at.as_micros();
        (
            names.task_id(task),
            key.clone(),
            job,
            fingerprint,
            expires,
            state,
            output.map(str::to_owned),
        )
    };
    let rows: Vec<_> = records.iter().map(row).collect();
    write(db, TAKE, &rows).await
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
