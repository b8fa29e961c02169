//! Jobs as rows on disk, read.
//!
//! Reading only; `write` is the other way.
//!
//! Invariant: an error of a job's row names the job.

use quell_core::job::Shape;
use quell_core::window::Window;
use quell_core::{
    Attempt, Effect, Job, JobId, JobState, Key, LeaseToken, Past, Payload, Result, Timestamp,
    UnreadableJob, WorkerId,
};
use quell_engine::sql::{self, Columns as _, Places, unreadable_row};
pub(crate) use quell_engine::sql::{signed, unsigned};
use sqlx::sqlite::SqliteRow;
use sqlx::{ColumnIndex, Decode, Row, Sqlite, Type};

use crate::error::explain;
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

/// A row whose columns the shared decoding reads.
pub(crate) struct Columns<'r>(pub(crate) &'r SqliteRow);

impl<'r, T> sql::Get<T> for Columns<'r>
where
    T: Decode<'r, Sqlite> + Type<Sqlite>,
{
    fn get(&self, place: usize) -> Result<T> {
        get(self.0, place)
    }
}

impl<'r> sql::Columns<'r> for Columns<'r> {
    fn count(&self, place: usize) -> Result<u32> {
        get(self.0, place)
    }

    fn code(&self, place: usize) -> Result<Option<u8>> {
        Ok(u8::try_from(get::<i64, _>(self.0, place)?).ok())
    }
}

/// The places of [`job_columns`] that other stores have elsewhere.
const PLACES: Places = Places { partition: 26, payload: 25 };

/// A row of [`job_columns`] as a job.
///
/// Fails with `Corrupt`, naming the job, where the row holds what Quell never wrote.
pub(crate) fn decode(row: &SqliteRow, names: &Names) -> Result<Job> {
    let id = JobId::new(unsigned(get(row, 0)?));
    let decoded =
        get(row, 1).and_then(|lane| sql::decode_job(&Columns(row), id, names.lane(lane), PLACES));
    decoded.map_err(|error| unreadable_row(id, &error))
}

/// What can be decoded of a row of [`job_columns`] and the place at its key, with what is usual in place
/// of the rest; none where not even its queue and task can be.
pub(crate) fn decode_in_part(id: JobId, row: &SqliteRow, names: &Names) -> Option<Job> {
    let number = |index: usize| row.try_get::<i64, _>(index).ok();
    let text = |index: usize| row.try_get::<Option<String>, _>(index).ok().flatten();
    let lane = names.lane(number(1)?)?;
    let (task, queue) = (lane.task.clone(), lane.queue.clone());
    let columns = Columns(row);
    let window = sql::decode_window(&columns);
    let window = window.unwrap_or(Window::unkeyed(Timestamp::MIN, Timestamp::MIN));
    let payload = Payload::from_stored(text(PLACES.payload).unwrap_or_default());
    let code = number(2).and_then(|code| u8::try_from(code).ok());
    let shape = text(24).and_then(|shape| serde_json::from_str::<Shape>(&shape).ok());
    // Its place at its key says whether the window is closed.
    let closed = number(JOB_COLUMNS).is_some_and(|hold| hold < 0);
    let at = |index: usize| number(index).map(Timestamp::from_micros);
    Some(Job {
        partition: text(PLACES.partition).and_then(|partition| Key::new(partition).ok()),
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
        traces: columns.traces(28).unwrap_or_default(),
        ..Job::new(id, task, queue, payload, window)
    })
}

/// A row of `quell_attempt`, as [`sql::decode_attempt`] reads it.
pub(crate) fn decode_attempt(row: &SqliteRow) -> Result<Attempt> {
    sql::decode_attempt(&Columns(row))
}

/// A row of `quell_effect`, as [`sql::decode_effect`] reads it.
pub(crate) fn decode_effect(row: &SqliteRow) -> Result<Effect> {
    sql::decode_effect(&Columns(row))
}

/// A row of `quell_past`, as [`sql::decode_past`] reads it.
pub(crate) fn decode_past(row: &SqliteRow) -> Result<Past> {
    sql::decode_past(&Columns(row))
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
