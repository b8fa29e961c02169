//! Jobs as rows on disk, read.
//!
//! Reading only; `write` is the other way.

use quell_core::{Attempt, Effect, Job, JobId, Past, Result, Timestamp};
use quell_engine::sql::{self, Places, unreadable_row};
pub(crate) use quell_engine::sql::{signed, unsigned};
use sqlx::postgres::PgRow;
use sqlx::{ColumnIndex, Decode, Postgres, Row, Type};

use crate::error::explain;
use crate::names::Names;

/// Whether an attempt of the key of the waiting job `j` runs, or an older window of it waits, so that
/// `j` may not start (R10, R11). Where other stores keep this on the row, here it follows from the
/// rows: nothing needs to keep it true.
///
/// The first row of the key in the index of turns decides: what runs comes first, then the oldest
/// closed window. A query for one value is no set, which the server could read whole for each claim.
macro_rules! blocked {
    () => {
        "(j.key is not null and not j.overlap and (
              coalesce((select r.state = 1 or r.id < j.id from quell.job r
                         where r.task_id = j.task_id and r.key = j.key
                           and (r.state = 1 or r.closed) and r.state <= 1
                         order by r.state desc, r.id limit 1), false)
              or j.closed and coalesce((select r.id < j.id from quell.job r
                         where r.task_id = j.task_id and r.key = j.key
                           and r.state = 0 and not r.closed
                         order by r.key limit 1), false)))"
    };
}
pub(crate) use blocked;

/// The id of the next window of the key of `$of`: the smallest (R10).
macro_rules! next_window {
    ($of:literal) => {
        concat!(
            "least((select n.id from quell.job n
                     where n.task_id = ",
            $of,
            ".task_id and n.key = ",
            $of,
            ".key and n.state = 0 and n.closed
                     order by n.id limit 1),
                   (select n.id from quell.job n
                     where n.task_id = ",
            $of,
            ".task_id and n.key = ",
            $of,
            ".key and n.state = 0 and not n.closed
                     -- The order of the index of open windows.
                     order by n.key limit 1))"
        )
    };
}
pub(crate) use next_window;

/// The id of the closed window that comes before `$of`, whichever of its key's is nearest (R10).
macro_rules! closed_before {
    ($of:literal) => {
        concat!(
            "(select n.id from quell.job n
               where n.task_id = ",
            $of,
            ".task_id and n.key = ",
            $of,
            ".key and n.state = 0 and n.closed and n.id < ",
            $of,
            ".id
               order by n.id desc limit 1)"
        )
    };
}
pub(crate) use closed_before;

/// The columns of a job, in the order that [`decode`] reads them. `$payload` is where its payload
/// comes from: a null there is decoded as an empty one, which no write puts in a payload's place.
/// `$waits` is whether an attempt of its key holds it back, and `$until` is when its lease expires, for
/// queries that need it.
macro_rules! job_columns {
    ($payload:expr, $waits:expr) => {
        $crate::row::job_columns!($payload, $waits, "null::bigint")
    };
    ($payload:expr, $waits:expr, $until:expr) => {
        concat!(
            "j.id, j.lane_id, j.state, ",
            $waits,
            ", j.due_at, j.first_at, j.last_at, j.bound_at, j.asked_at, j.not_before, j.reason, \
             j.triggers, j.suppressed, j.attempt, j.failures, j.token, j.lapses, j.key, ",
            $until,
            ", j.started_at, j.ended_at, j.absorbed_by, j.worker, j.error, j.shape, \
             j.partition, ",
            $payload,
            ", j.output, j.traces"
        )
    };
}
pub(crate) use job_columns;

/// How many columns [`job_columns`] has.
pub(crate) const JOB_COLUMNS: usize = 29;
/// The place of the time of a job's end among [`job_columns`].
pub(crate) const ENDED_AT: usize = 20;

/// A column's value.
pub(crate) fn get<'r, T, I>(row: &'r PgRow, index: I) -> Result<T>
where
    T: Decode<'r, Postgres> + Type<Postgres>,
    I: ColumnIndex<PgRow>,
{
    row.try_get(index).map_err(|e| explain("read a row", e))
}

pub(crate) fn time(row: &PgRow, index: usize) -> Result<Timestamp> {
    Ok(Timestamp::from_micros(get(row, index)?))
}

pub(crate) fn optional_time(row: &PgRow, index: usize) -> Result<Option<Timestamp>> {
    Ok(get::<Option<i64>, _>(row, index)?.map(Timestamp::from_micros))
}

/// A row whose columns the shared decoding reads.
pub(crate) struct Columns<'r>(pub(crate) &'r PgRow);

impl<'r, T> sql::Get<T> for Columns<'r>
where
    T: Decode<'r, Postgres> + Type<Postgres>,
{
    fn get(&self, place: usize) -> Result<T> {
        get(self.0, place)
    }
}

impl<'r> sql::Columns<'r> for Columns<'r> {
    fn count(&self, place: usize) -> Result<u32> {
        count(self.0, place)
    }

    fn code(&self, place: usize) -> Result<Option<u8>> {
        Ok(u8::try_from(get::<i16, _>(self.0, place)?).ok())
    }
}

/// A row of [`job_columns`] as a job.
///
/// Fails with `Corrupt`, naming the job, where the row holds what Quell never wrote.
pub(crate) fn decode(row: &PgRow, names: &Names) -> Result<Job> {
    const PLACES: Places = Places { partition: 25, payload: 26 };
    let id = JobId::new(unsigned(get(row, 0)?));
    let decoded = lane_of(row)
        .and_then(|lane| sql::decode_job(&Columns(row), id, names.lane(lane).as_deref(), PLACES));
    decoded.map_err(|error| unreadable_row(id, &error))
}

/// The number of a job's lane.
pub(crate) fn lane_of(row: &PgRow) -> Result<i32> {
    get(row, 1)
}

/// A count, which PostgreSQL keeps signed.
pub(crate) fn count(row: &PgRow, index: usize) -> Result<u32> {
    Ok(u32::try_from(get::<i32, _>(row, index)?).unwrap_or(0))
}

/// A count as PostgreSQL keeps it.
pub(crate) fn signed_count(number: u32) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}

/// A row of `quell.attempt`, as [`sql::decode_attempt`] reads it.
pub(crate) fn decode_attempt(row: &PgRow) -> Result<Attempt> {
    sql::decode_attempt(&Columns(row))
}

/// A row of `quell.effect`, as [`sql::decode_effect`] reads it.
pub(crate) fn decode_effect(row: &PgRow) -> Result<Effect> {
    sql::decode_effect(&Columns(row))
}

/// A row of `quell.past`, as [`sql::decode_past`] reads it.
pub(crate) fn decode_past(row: &PgRow) -> Result<Past> {
    sql::decode_past(&Columns(row))
}
