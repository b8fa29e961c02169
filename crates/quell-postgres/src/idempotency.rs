//! Idempotency records, and what came of jobs (R19, R37).
//!
//! While a job's row is there, it says how the job stands; what removes the row first copies state
//! and output to the job's records. So ending a job costs nothing more for having a key.
//!
//! Records are locked after all other rows of a call, and jobs are looked at once they are: what
//! removes a job's row waits for its records.

use std::collections::BTreeSet;
use std::time::Duration;

use quell_core::idempotency::{Fingerprint, Kept, LOOK_AGAIN_MAX, LOOK_AGAIN_MIN, Record};
use quell_core::touched::{Loaded, TaskKey, Wanted};
use quell_core::{JobId, JobResult, JobState, Payload, Pruned, Result};
use sqlx::postgres::PgRow;

use crate::error::corrupt;
use crate::keys::rows_of;
use crate::row::{get, job_columns, signed, time, unsigned};
use crate::tx::Tx;

/// The keys that upkeep looks at, at the time `$1`, at most `$2`.
macro_rules! due {
    () => {
        "select ctid from quell.idempotency where coalesce(look_at, expires_at) <= $1
          order by coalesce(look_at, expires_at) limit $2 for update skip locked"
    };
}

/// The kept result of a job whose row is gone.
pub(crate) const KEPT: &str = "select state, output from quell.idempotency
      where job_id = $1 and state is not null limit 1";

/// A row of [`KEPT`].
pub(crate) fn decode_kept(row: &PgRow, job: JobId) -> Result<Option<JobResult>> {
    Ok(kept(row, 0)?.map(|kept| JobResult::kept(job, &kept)))
}

fn kept(row: &PgRow, index: usize) -> Result<Option<Kept>> {
    let Some(code) = get::<Option<i16>, _>(row, index)? else { return Ok(None) };
    let state = u8::try_from(code).ok().and_then(JobState::from_code);
    let state = state.ok_or_else(|| corrupt("the state of a result"))?;
    let output = get::<Option<&str>, _>(row, index + 1)?.map(Payload::from_stored);
    Ok(Some(Kept { state, output }))
}

impl Tx<'_> {
    /// Loads records with their jobs, whose payloads nobody asks for.
    pub(crate) async fn load_records(
        &mut self,
        wanted: &Wanted<'_>,
    ) -> Result<Vec<Loaded<Record>>> {
        const RECORDS: &str = concat!(
            "select r.task_id, r.key, r.job_id, r.fingerprint, r.expires_at, r.state, r.output ",
            rows_of!("idempotency")
        );
        // In one statement, so that a job which moves from here to there is seen once.
        const JOBS: &str = concat!(
            "select ",
            job_columns!("null::text", "false"),
            " from quell.job j where j.id = any($1)
             union all select ",
            job_columns!("null::text", "false"),
            " from quell.ended j where j.id = any($1) and j.state + 0 <> 6"
        );
        let mut loaded = self
            .load_keys(wanted, RECORDS, |row| {
                let fingerprint = Fingerprint::from_hex(get::<&str, _>(row, 3)?);
                Ok(Record {
                    fingerprint: fingerprint.ok_or_else(|| corrupt("a fingerprint"))?,
                    job: JobId::new(unsigned(get(row, 2)?)),
                    expires_at: time(row, 4)?,
                    kept: kept(row, 5)?,
                })
            })
            .await?;
        let ids = loaded.iter().map(|one| one.value.job).collect::<BTreeSet<_>>();
        let jobs = self.load_by_id(JOBS, ids.into_iter().collect()).await?;
        for one in &mut loaded {
            one.job = jobs.get(&one.value.job).cloned();
        }
        Ok(loaded)
    }

    /// Takes idempotency keys. Those that were there are locked by this call; another call that
    /// took one a moment earlier makes this one start over.
    pub(crate) async fn write_records(&mut self, records: &[(TaskKey, Record)]) -> Result<()> {
        const FREE: &str = "delete from quell.idempotency
              where ctid = any(array(
                    select r.place
                      from unnest($1::int[], $2::text[], $3::bool[]) k (task_id, key, seen)
                     cross join lateral (
                           select i.ctid as place from quell.idempotency i
                            where i.task_id = k.task_id and i.key = k.key
                           offset 0) r
                     where k.seen))";
        const TAKE: &str = "insert into quell.idempotency
                (task_id, key, job_id, fingerprint, expires_at)
             select * from unnest($1::int[], $2::text[], $3::bigint[], $4::text[], $5::bigint[])
              order by 1, 2";
        if records.is_empty() {
            return Ok(());
        }
        let (tasks, keys) = self.columns(records)?;
        let seen: Vec<bool> =
            records.iter().map(|(key, _)| self.locked_records.contains(key)).collect();
        if seen.contains(&true) {
            let query = self.sql.query(FREE).bind(tasks.clone()).bind(keys.clone()).bind(seen);
            self.run("free idempotency keys", query).await?;
        }
        let column = |value: fn(&Record) -> i64| -> Vec<i64> {
            records.iter().map(|(_, record)| value(record)).collect()
        };
        let fingerprints: Vec<String> =
            records.iter().map(|(_, record)| record.fingerprint.to_string()).collect();
        let query = self.sql.query(TAKE).bind(tasks).bind(keys);
        let query = query.bind(column(|record| signed(record.job.get()))).bind(fingerprints);
        let query = query.bind(column(|record| record.expires_at.as_micros()));
        self.run("take idempotency keys", query).await
    }

    /// The records of an absorbed job are its heir's.
    pub(crate) async fn hand_over_records(&mut self, from: JobId, to: JobId) -> Result<()> {
        const FOLLOW: &str = "update quell.idempotency set job_id = $2 where job_id = $1";
        let query = self.sql.query(FOLLOW).bind(signed(from.get())).bind(signed(to.get()));
        self.run("move idempotency keys", query).await
    }

    /// A key that was free while its job was dead is not taken again by a redrive.
    pub(crate) async fn free_records_of(&mut self, id: JobId) -> Result<()> {
        const FREED: &str =
            "delete from quell.idempotency where job_id = $1 and expires_at + 0 <= $2";
        let query = self.sql.query(FREED).bind(signed(id.get())).bind(self.now.as_micros());
        self.run("free idempotency keys", query).await
    }

    /// R37: keeps what the rows of these jobs say, which are about to go.
    pub(crate) async fn keep_results(&mut self, ids: &[i64]) -> Result<()> {
        const KEEP: &str = "update quell.idempotency i set state = e.state, output = e.output
               from quell.ended e
              where i.job_id = any($1) and e.id between i.job_id and i.job_id";
        self.run("keep results", self.sql.query(KEEP).bind(ids.to_vec())).await
    }

    /// Forgets keys that have expired and whose jobs have ended. The others are looked at again
    /// later, so that the keys of jobs that wait are not read each time. Handles at most `limit`.
    ///
    /// A job is looked up by itself: a plan made while the table was empty would read all of it.
    pub(crate) async fn prune_records(&mut self, limit: usize, pruned: &mut Pruned) -> Result<()> {
        const LATER: &str = concat!(
            "update quell.idempotency i
                set look_at = $1 + least(greatest($1 - i.expires_at, $3), $4)
              where i.ctid = any(array(",
            due!(),
            ")) and (select true from quell.job j where j.id = i.job_id)"
        );
        const FORGET: &str = concat!(
            "delete from quell.idempotency i where i.ctid = any(array(",
            due!(),
            ")) and (select true from quell.job j where j.id = i.job_id) is null"
        );
        let rows = i64::try_from(limit).unwrap_or(i64::MAX);
        let micros = |pause: Duration| i64::try_from(pause.as_micros()).unwrap_or(i64::MAX);
        let query = self.sql.query(LATER).bind(self.now.as_micros()).bind(rows);
        let query = query.bind(micros(LOOK_AGAIN_MIN)).bind(micros(LOOK_AGAIN_MAX));
        let later = self.run_counted("look at idempotency keys again later", query).await?;
        let query = self.sql.query(FORGET).bind(self.now.as_micros()).bind(rows);
        let forgot = self.run_counted("remove idempotency keys", query).await?;
        pruned.count_expired(forgot, limit);
        pruned.reaches(forgot.saturating_add(later), limit);
        Ok(())
    }
}
