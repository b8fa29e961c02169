//! Jobs as rows on disk, read.
//!
//! Reading only; `write` is the other way.

use quell_core::job::Shape;
use quell_core::window::{DueReason, Window};
use quell_core::{
    Attempt, AttemptOutcome, Error, Job, JobId, JobState, Key, LeaseToken, Payload, Result,
    Timestamp, WorkerId,
};
use sqlx::sqlite::SqliteRow;
use sqlx::{ColumnIndex, Decode, Row, Sqlite, Type};

use crate::error::{corrupt, explain};
use crate::names::Names;

/// The columns of a job, in the order that [`decode`] reads them. `$payload` is where its payload
/// comes from: a null there is decoded as an empty one, which no write puts in a payload's place.
macro_rules! job_columns {
    ($payload:literal) => {
        concat!(
            "j.id, j.lane_id, j.state, j.waits, j.due_at, j.first_at, j.last_at, j.bound_at, \
             j.asked_at, j.not_before, j.reason, j.triggers, j.suppressed, j.attempt, j.failures, \
             j.token, j.lapses, j.key, j.lease_until, j.started_at, j.ended_at, j.absorbed_by, \
             j.worker, j.error, j.shape, ",
            $payload,
            ", j.partition, j.output"
        )
    };
}
pub(crate) use job_columns;

/// The place of the time of a job's end among [`job_columns`].
pub(crate) const ENDED_AT: usize = 20;

/// SQLite's numbers are signed; ids and counts of Quell never reach the sign.
pub(crate) fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

pub(crate) fn unsigned(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

/// A column's value.
pub(crate) fn get<'r, T, I>(row: &'r SqliteRow, index: I) -> Result<T>
where
    T: Decode<'r, Sqlite> + Type<Sqlite>,
    I: ColumnIndex<SqliteRow>,
{
    row.try_get(index).map_err(|e| explain("read a row", e))
}

pub(crate) fn time(row: &SqliteRow, index: usize) -> Result<Timestamp> {
    Ok(Timestamp::from_micros(get(row, index)?))
}

pub(crate) fn optional_time(row: &SqliteRow, index: usize) -> Result<Option<Timestamp>> {
    Ok(get::<Option<i64>, _>(row, index)?.map(Timestamp::from_micros))
}

/// A row of [`job_columns`] as a job.
///
/// Fails with `Corrupt`, naming the job, where the row holds what Quell never wrote.
pub(crate) fn decode(row: &SqliteRow, names: &Names) -> Result<Job> {
    let id = JobId::new(unsigned(get(row, 0)?));
    decode_known(id, row, names).map_err(|error| broken(id, &error))
}

/// The error of a row that cannot be decoded, which names its job.
pub(crate) fn broken(id: JobId, error: &Error) -> Error {
    let why = std::error::Error::source(error).map_or_else(String::new, |e| format!(" ({e})"));
    Error::unreadable(id, format_args!("{error}{why}"))
}

fn decode_known(id: JobId, row: &SqliteRow, names: &Names) -> Result<Job> {
    let lane = names.lane(get(row, 1)?).ok_or_else(|| corrupt("lane"))?;
    let state = code(row, 2)?.and_then(JobState::from_code).ok_or_else(|| corrupt("state"))?;
    let shape: Option<&str> = get(row, 24)?;
    let shape = shape.map(serde_json::from_str::<Shape>).transpose();
    let key: Option<&str> = get(row, 17)?;
    let worker: Option<&str> = get(row, 22)?;
    let payload: Option<&str> = get(row, 25)?;
    let partition: Option<&str> = get(row, 26)?;
    Ok(Job {
        id,
        task: lane.task.clone(),
        queue: lane.queue.clone(),
        partition: partition.map(Key::new).transpose()?,
        priority: lane.priority,
        state,
        waits: get(row, 3)?,
        window: decode_window(row)?,
        suppressed: unsigned(get(row, 12)?),
        attempt: get(row, 13)?,
        failures: get(row, 14)?,
        token: LeaseToken::new(unsigned(get(row, 15)?)),
        lapses: get(row, 16)?,
        key: key.map(Key::new).transpose()?,
        lease_until: optional_time(row, 18)?,
        started_at: optional_time(row, 19)?,
        ended_at: optional_time(row, ENDED_AT)?,
        absorbed_by: get::<Option<i64>, _>(row, 21)?.map(|id| JobId::new(unsigned(id))),
        worker: worker.map(WorkerId::new).transpose()?,
        error: get(row, 23)?,
        shape: shape.map_err(|error| corrupt(format_args!("shape: {error}")))?.unwrap_or_default(),
        payload: Payload::from_stored(payload.unwrap_or_default()),
        output: get::<Option<&str>, _>(row, 27)?.map(Payload::from_stored),
    })
}

fn decode_window(row: &SqliteRow) -> Result<Window> {
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

fn code(row: &SqliteRow, index: usize) -> Result<Option<u8>> {
    Ok(u8::try_from(get::<i64, _>(row, index)?).ok())
}

/// A row of `quell_attempt`: token, worker, started_at, ended_at, outcome, error.
pub(crate) fn decode_attempt(row: &SqliteRow) -> Result<Attempt> {
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
