//! Jobs as rows on disk, read.
//!
//! Reading only; `write` is the other way.

use quell_core::job::Shape;
use quell_core::trace::Traces;
use quell_core::window::{DueReason, Window};
use quell_core::{
    Attempt, AttemptOutcome, Error, Job, JobId, JobState, Key, LeaseToken, Payload, Result,
    Timestamp, WorkerId,
};
use sqlx::postgres::PgRow;
use sqlx::{ColumnIndex, Decode, Postgres, Row, Type};

use crate::error::{corrupt, explain};
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

/// PostgreSQL's numbers are signed; ids and counts of Quell never reach the sign.
pub(crate) fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

pub(crate) fn unsigned(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

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

/// A row of [`job_columns`] as a job.
///
/// Fails with `Corrupt`, naming the job, where the row holds what Quell never wrote.
pub(crate) fn decode(row: &PgRow, names: &Names) -> Result<Job> {
    let id = JobId::new(unsigned(get(row, 0)?));
    decode_known(id, row, names).map_err(|error| broken(id, &error))
}

/// The number of a job's lane.
pub(crate) fn lane_of(row: &PgRow) -> Result<i32> {
    get(row, 1)
}

/// The error of a row that cannot be decoded, which names its job.
pub(crate) fn broken(id: JobId, error: &Error) -> Error {
    let why = std::error::Error::source(error).map_or_else(String::new, |e| format!(" ({e})"));
    Error::unreadable(id, format_args!("{error}{why}"))
}

fn decode_known(id: JobId, row: &PgRow, names: &Names) -> Result<Job> {
    let lane = names.lane(get(row, 1)?).ok_or_else(|| corrupt("lane"))?;
    let state = code(row, 2)?.and_then(JobState::from_code).ok_or_else(|| corrupt("state"))?;
    let shape: Option<&str> = get(row, 24)?;
    let shape = shape.map(serde_json::from_str::<Shape>).transpose();
    let key: Option<&str> = get(row, 17)?;
    let worker: Option<&str> = get(row, 22)?;
    let partition: Option<&str> = get(row, 25)?;
    let payload: Option<&str> = get(row, 26)?;
    Ok(Job {
        id,
        task: lane.task.clone(),
        queue: lane.queue.clone(),
        priority: lane.priority,
        state,
        waits: get(row, 3)?,
        window: decode_window(row)?,
        suppressed: unsigned(get(row, 12)?),
        attempt: count(row, 13)?,
        failures: count(row, 14)?,
        token: LeaseToken::new(unsigned(get(row, 15)?)),
        lapses: count(row, 16)?,
        key: key.map(Key::new).transpose()?,
        partition: partition.map(Key::new).transpose()?,
        lease_until: optional_time(row, 18)?,
        started_at: optional_time(row, 19)?,
        ended_at: optional_time(row, ENDED_AT)?,
        absorbed_by: get::<Option<i64>, _>(row, 21)?.map(|id| JobId::new(unsigned(id))),
        worker: worker.map(WorkerId::new).transpose()?,
        error: get(row, 23)?,
        shape: shape.map_err(|error| corrupt(format_args!("shape: {error}")))?.unwrap_or_default(),
        payload: Payload::from_stored(payload.unwrap_or_default()),
        output: get::<Option<&str>, _>(row, 27)?.map(Payload::from_stored),
        traces: traces(row, 28)?,
    })
}

/// The trace contexts of a job (R42).
pub(crate) fn traces(row: &PgRow, index: usize) -> Result<Traces> {
    Ok(get::<Option<&str>, _>(row, index)?.map(Traces::from_stored).unwrap_or_default())
}

fn decode_window(row: &PgRow) -> Result<Window> {
    let first_at = time(row, 5)?;
    Ok(Window {
        first_at,
        due_at: time(row, 4)?,
        last_at: optional_time(row, 6)?.unwrap_or(first_at),
        bound_at: optional_time(row, 7)?,
        asked_at: optional_time(row, 8)?.unwrap_or(Timestamp::MIN),
        not_before: optional_time(row, 9)?.unwrap_or(Timestamp::MIN),
        reason: code(row, 10)?.and_then(DueReason::from_code).ok_or_else(|| corrupt("reason"))?,
        triggers: unsigned(get(row, 11)?),
    })
}

/// A count, which PostgreSQL keeps signed.
pub(crate) fn count(row: &PgRow, index: usize) -> Result<u32> {
    Ok(u32::try_from(get::<i32, _>(row, index)?).unwrap_or(0))
}

/// A count as PostgreSQL keeps it.
pub(crate) fn signed_count(number: u32) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}

fn code(row: &PgRow, index: usize) -> Result<Option<u8>> {
    Ok(u8::try_from(get::<i16, _>(row, index)?).ok())
}

/// A row of the attempts: token, worker, started_at, ended_at, outcome, error.
pub(crate) fn decode_attempt(row: &PgRow) -> Result<Attempt> {
    let worker: &str = get(row, 1)?;
    let outcome = code(row, 4)?.and_then(AttemptOutcome::from_code);
    Ok(Attempt {
        token: LeaseToken::new(unsigned(get(row, 0)?)),
        worker: WorkerId::new(worker)?,
        started_at: time(row, 2)?,
        ended_at: optional_time(row, 3)?,
        outcome: Some(outcome.ok_or_else(|| corrupt("the outcome of an attempt"))?),
        error: get(row, 5)?,
    })
}
