//! Idempotency records, and the results of jobs (R19, R37).
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
use quell_core::{JobId, JobState, Payload, Pruned, Result};
use sqlx::postgres::PgRow;

use crate::error::corrupt;
use crate::keys::both_ways;
use crate::row::{get, job_columns, signed, time, unsigned};
use crate::tx::Tx;

/// The keys that upkeep looks at, at the time `$1`, at most `$2`.
macro_rules! due {
    () => {
        "select ctid from quell.idempotency where coalesce(look_at, expires_at) <= $1
          order by coalesce(look_at, expires_at) limit $2 for update skip locked"
    };
}

fn kept(row: &PgRow, index: usize) -> Result<Option<Kept>> {
    let Some(code) = get::<Option<i16>, _>(row, index)? else { return Ok(None) };
    let state = u8::try_from(code).ok().and_then(JobState::from_code);
    let state = state.ok_or_else(|| corrupt("the state of a result"))?;
    let output = get::<Option<&str>, _>(row, index + 1)?.map(Payload::from_stored);
    Ok(Some(Kept { state, output }))
}

/// Records.
pub(crate) const RECORDS: (&str, &str) =
    both_ways!("r.job_id, r.fingerprint, r.expires_at, r.state, r.output", "idempotency");

/// A row of [`RECORDS`].
pub(crate) fn decode_record(row: &PgRow) -> Result<Record> {
    let fingerprint = Fingerprint::from_hex(get::<&str, _>(row, 3)?);
    Ok(Record {
        fingerprint: fingerprint.ok_or_else(|| corrupt("a fingerprint"))?,
        job: JobId::new(unsigned(get(row, 2)?)),
        expires_at: time(row, 4)?,
        kept: kept(row, 5)?,
    })
}

impl Tx {
    /// Loads records with their jobs, but without payloads, which no caller needs.
    pub(crate) async fn load_records(
        &mut self,
        wanted: &Wanted<'_>,
    ) -> Result<Vec<Loaded<Record>>> {
        // In one statement, so that a job which moves from here to there is seen once.
        const JOBS: &str = concat!(
            "select ",
            job_columns!("null::text", "false"),
            " from quell.job j where j.id = any($1)
             union all select ",
            job_columns!("null::text", "false"),
            " from quell.ended j where j.id = any($1) and j.state + 0 <> 6"
        );
        let mut loaded = self.load_keys(wanted, RECORDS.0, decode_record).await?;
        let ids = loaded.iter().map(|one| one.value.job).collect::<BTreeSet<_>>();
        let jobs = self.load_by_id(JOBS, ids.into_iter().collect()).await?;
        for one in &mut loaded {
            one.job = jobs.get(&one.value.job).cloned();
        }
        Ok(loaded)
    }

    /// Takes idempotency keys. Those that were there are locked by this call; if another call took
    /// one a moment earlier, this one has a write conflict and is retried.
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
                (task_id, key, job_id, fingerprint, expires_at, state, output)
             select * from unnest($1::int[], $2::text[], $3::bigint[], $4::text[], $5::bigint[],
                                  $6::smallint[], $7::text[])
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
        let kept = || records.iter().map(|(_, record)| record.kept.as_ref());
        let states = kept().map(|kept| kept.map(|kept| i16::from(kept.state.code())));
        let output = |kept: &Kept| kept.output.as_ref().map(|output| output.as_str().to_owned());
        let query = query.bind(states.collect::<Vec<_>>());
        let query = query.bind(kept().map(|kept| kept.and_then(output)).collect::<Vec<_>>());
        self.run("take idempotency keys", query).await
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
