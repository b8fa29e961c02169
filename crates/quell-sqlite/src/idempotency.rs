//! Idempotency records, and what came of jobs (R19, R37).
//!
//! While a job's row is there, it says how the job stands; what removes the row first copies state
//! and output to the job's records. So ending a job costs nothing more for having a key.

use std::time::Duration;

use quell_core::idempotency::{Fingerprint, Kept, LOOK_AGAIN_MAX, LOOK_AGAIN_MIN, Record};
use quell_core::touched::{Loaded, TaskKey, Wanted};
use quell_core::{Job, JobId, JobResult, JobState, Payload, Pruned, Result};
use sqlx::SqliteConnection;
use sqlx::sqlite::SqliteRow;

use crate::error::{corrupt, explain};
use crate::keys::{NEXT, json, load};
use crate::names::Names;
use crate::row::{get, job_columns, signed, time, unsigned};
use crate::tx::Tx;

/// Loads records with their jobs, whose payloads nobody asks for.
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
    load(db, names, wanted, RECORDS, |row| {
        let fingerprint = Fingerprint::from_hex(get::<&str, _>(row, NEXT + 2)?);
        Ok(Record {
            fingerprint: fingerprint.ok_or_else(|| corrupt("a fingerprint"))?,
            job: JobId::new(unsigned(get(row, NEXT + 1)?)),
            expires_at: time(row, NEXT + 3)?,
            kept: kept(row, NEXT + 4)?,
        })
    })
    .await
}

/// Takes idempotency keys. Their tasks have names by now: a trigger that takes one is accepted.
pub(crate) async fn write_records(
    db: &mut SqliteConnection,
    names: &Names,
    records: &[(TaskKey, Record)],
) -> Result<()> {
    const TAKE: &str =
        "insert into quell_idempotency (task_id, key, job_id, fingerprint, expires_at, look_at)
         select value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4, value ->> 4
           from json_each(?1)
          where true
         on conflict (task_id, key) do update set
             job_id = excluded.job_id, fingerprint = excluded.fingerprint,
             expires_at = excluded.expires_at, look_at = excluded.look_at, state = null,
             output = null";
    let row = |((task, key), record): &(TaskKey, Record)| {
        let (job, fingerprint) = (signed(record.job.get()), record.fingerprint.to_string());
        (names.task_id(task), key.clone(), job, fingerprint, record.expires_at.as_micros())
    };
    if records.is_empty() {
        return Ok(());
    }
    let rows: Vec<_> = records.iter().map(row).collect();
    let written = sqlx::query(TAKE).bind(json(&rows)?).execute(db).await;
    written.map(drop).map_err(|e| explain("take idempotency keys", e))
}

/// What the records of a job whose row is gone keep.
pub(crate) async fn read_kept(db: &mut SqliteConnection, job: JobId) -> Result<Option<JobResult>> {
    const KEPT: &str = "select state, output from quell_idempotency
          where job_id = ?1 and state is not null limit 1";
    let row = sqlx::query(KEPT).bind(signed(job.get())).fetch_optional(db).await;
    let row = row.map_err(|e| explain("read a result", e))?;
    let kept = row.as_ref().map(|row| kept(row, 0)).transpose()?.flatten();
    Ok(kept.map(|kept| JobResult::kept(job, &kept)))
}

fn kept(row: &SqliteRow, index: usize) -> Result<Option<Kept>> {
    let Some(code) = get::<Option<i64>, _>(row, index)? else { return Ok(None) };
    let state = u8::try_from(code).ok().and_then(JobState::from_code);
    let state = state.ok_or_else(|| corrupt("the state of a result"))?;
    let output = get::<Option<&str>, _>(row, index + 1)?.map(Payload::from_stored);
    Ok(Some(Kept { state, output }))
}

impl Tx<'_> {
    /// The records of an absorbed job are its heir's.
    pub(crate) async fn hand_over_records(&mut self, from: &Job, to: &Job) -> Result<()> {
        const FOLLOW: &str = "update quell_idempotency set job_id = ?2 where job_id = ?1";
        let query = sqlx::query(FOLLOW).bind(signed(from.id.get())).bind(signed(to.id.get()));
        let moved = query.execute(&mut *self.db).await;
        moved.map(drop).map_err(|e| explain("move idempotency keys", e))
    }

    /// A key that was free while its job was dead is not taken again by a redrive.
    pub(crate) async fn free_records_of(&mut self, id: JobId) -> Result<()> {
        const FREED: &str = "delete from quell_idempotency where job_id = ?1 and expires_at <= ?2";
        let query = sqlx::query(FREED).bind(signed(id.get())).bind(self.now.as_micros());
        let freed = query.execute(&mut *self.db).await;
        freed.map(drop).map_err(|e| explain("free idempotency keys", e))
    }

    /// R37: keeps what the rows of these jobs say, which are about to go.
    pub(crate) async fn keep_results(&mut self, ids: &str) -> Result<()> {
        const KEEP: &str = "update quell_idempotency
                set state = j.state, output = j.output
               from json_each(?1) g cross join quell_job j on j.id = g.value
              where quell_idempotency.job_id = g.value";
        let kept = sqlx::query(KEEP).bind(ids.to_owned()).execute(&mut *self.db).await;
        kept.map(drop).map_err(|e| explain("keep results", e))
    }

    /// Forgets keys that have expired and whose jobs have ended. The others are looked at again
    /// later, so that the keys of jobs that wait are not read each time. Handles at most `limit`.
    pub(crate) async fn prune_records(&mut self, limit: usize, pruned: &mut Pruned) -> Result<()> {
        const LATER: &str = "update quell_idempotency
                set look_at = ?1 + min(max(?1 - expires_at, ?3), ?4)
              where (task_id, key) in (select task_id, key from quell_idempotency
                                        where look_at <= ?1 order by look_at limit ?2 + 0)
                and exists (select 1 from quell_job j where j.id = job_id and j.state < 2)";
        const FORGET: &str = "delete from quell_idempotency
              where (task_id, key) in (select task_id, key from quell_idempotency
                                        where look_at <= ?1 order by look_at limit ?2 + 0)
                and not exists (select 1 from quell_job j where j.id = job_id and j.state < 2)";
        let rows = i64::try_from(limit).unwrap_or(i64::MAX);
        let micros = |pause: Duration| i64::try_from(pause.as_micros()).unwrap_or(i64::MAX);
        let later = sqlx::query(LATER).bind(self.now.as_micros()).bind(rows);
        let later = later.bind(micros(LOOK_AGAIN_MIN)).bind(micros(LOOK_AGAIN_MAX));
        let later = later.execute(&mut *self.db).await;
        let later = later.map_err(|e| explain("look at idempotency keys again later", e))?;
        let forget = sqlx::query(FORGET).bind(self.now.as_micros()).bind(rows);
        let forgot = forget.execute(&mut *self.db).await;
        let forgot = forgot.map_err(|e| explain("remove idempotency keys", e))?.rows_affected();
        pruned.count_expired(forgot, limit);
        pruned.reaches(forgot.saturating_add(later.rows_affected()), limit);
        Ok(())
    }
}
