//! Jobs as rows on disk, read.
//!
//! Reading only; `write` is the other way.
//!
//! Invariant: an error of a job's row names the job.

use quell_core::effect::Done;
use quell_core::job::Shape;
use quell_core::trace::Traces;
use quell_core::window::{DueReason, Window};
use quell_core::{
    Attempt, AttemptOutcome, Effect, EffectName, Error, Job, JobId, JobState, Key, LeaseToken,
    Origin, Past, Payload, Result, Timestamp, UnreadableJob, WorkerId,
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
            ", j.partition, j.output, j.traces"
        )
    };
}
pub(crate) use job_columns;

/// How many columns [`job_columns`] has.
pub(crate) const JOB_COLUMNS: usize = 29;
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
        traces: traces(row, 28)?,
    })
}

/// The trace contexts of a job (R42).
pub(crate) fn traces(row: &SqliteRow, index: usize) -> Result<Traces> {
    Ok(get::<Option<&str>, _>(row, index)?.map(Traces::from_stored).unwrap_or_default())
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

/// What can be decoded of a row of [`job_columns`] and the place at its key, with what is usual in place
/// of the rest; none where not even its queue and task can be.
pub(crate) fn decode_in_part(id: JobId, row: &SqliteRow, names: &Names) -> Option<Job> {
    let number = |index: usize| row.try_get::<i64, _>(index).ok();
    let text = |index: usize| row.try_get::<Option<String>, _>(index).ok().flatten();
    let lane = names.lane(number(1)?)?;
    let (task, queue) = (lane.task.clone(), lane.queue.clone());
    let window = decode_window(row);
    let window = window.unwrap_or(Window::unkeyed(Timestamp::MIN, Timestamp::MIN));
    let payload = Payload::from_stored(text(25).unwrap_or_default());
    let code = number(2).and_then(|code| u8::try_from(code).ok());
    let shape = text(24).and_then(|shape| serde_json::from_str::<Shape>(&shape).ok());
    // Its place at its key says whether the window is closed.
    let closed = number(JOB_COLUMNS).is_some_and(|hold| hold < 0);
    let at = |index: usize| number(index).map(Timestamp::from_micros);
    Some(Job {
        partition: text(26).and_then(|partition| Key::new(partition).ok()),
        key: text(17).and_then(|key| Key::new(key).ok()),
        priority: lane.priority,
        state: code.and_then(JobState::from_code).unwrap_or(JobState::Unreadable),
        shape: Shape { closed, ..shape.unwrap_or_default() },
        waits: number(3) == Some(1),
        suppressed: number(12).map_or(0, unsigned),
        attempt: number(13).and_then(|attempt| u32::try_from(attempt).ok()).unwrap_or(0),
        failures: number(14).and_then(|failures| u32::try_from(failures).ok()).unwrap_or(0),
        token: LeaseToken::new(number(15).map_or(0, unsigned)),
        worker: text(22).and_then(|worker| WorkerId::new(worker).ok()),
        lease_until: at(18),
        started_at: at(19),
        ended_at: at(ENDED_AT),
        absorbed_by: number(21).map(|id| JobId::new(unsigned(id))),
        error: text(23),
        traces: traces(row, 28).unwrap_or_default(),
        ..Job::new(id, task, queue, payload, window)
    })
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

/// A row of `quell_effect`: name, key, begun_at, begun_by, done_at, done_by, result.
pub(crate) fn decode_effect(row: &SqliteRow) -> Result<Effect> {
    let (name, key): (&str, &str) = (get(row, 0)?, get(row, 1)?);
    let by = |number: i64| LeaseToken::new(unsigned(number));
    let done: (Option<Timestamp>, Option<i64>, Option<&str>) =
        (optional_time(row, 4)?, get(row, 5)?, get(row, 6)?);
    let done = match done {
        (Some(at), Some(token), Some(result)) => {
            Some(Done { at, by: by(token), result: Payload::from_stored(result) })
        }
        _ => None,
    };
    Ok(Effect {
        name: EffectName::new(name)?,
        key: Key::new(key)?,
        begun_at: time(row, 2)?,
        begun_by: by(get(row, 3)?),
        done,
    })
}

/// A row of `quell_past`: original, of_job, of_first_at.
pub(crate) fn decode_past(row: &SqliteRow) -> Result<Past> {
    let original: Option<&str> = get(row, 0)?;
    let job = get::<Option<i64>, _>(row, 1)?.map(|id| JobId::new(unsigned(id)));
    let origin = job.zip(optional_time(row, 2)?).map(|(job, first_at)| Origin { job, first_at });
    Ok(Past { original: original.map(Payload::from_stored), origin })
}

/// A row of `quell_unreadable` and the lane of its job: job_id, was, set_aside_at, reason, lane_id.
pub(crate) fn decode_unreadable(row: &SqliteRow, names: &Names) -> Result<UnreadableJob> {
    let lane = row.try_get::<i64, _>(4).ok().and_then(|lane| names.lane(lane));
    let code = row.try_get::<i64, _>(1).ok().and_then(|code| u8::try_from(code).ok());
    let was = code.and_then(JobState::from_code);
    Ok(UnreadableJob {
        id: JobId::new(unsigned(get(row, 0)?)),
        queue: lane.map(|lane| lane.queue.clone()),
        task: lane.map(|lane| lane.task.clone()),
        was: was.filter(|state| *state != JobState::Unreadable),
        set_aside_at: time(row, 2)?,
        reason: get(row, 3)?,
    })
}
