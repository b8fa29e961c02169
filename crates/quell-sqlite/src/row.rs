//! Jobs as rows: reading them, and writing them back whole.
//!
//! Hot paths have statements of their own; every other move loads a [`Job`], calls the core's move
//! and puts the row back with [`put`].

use quell_core::job::Shape;
use quell_core::window::{DueReason, Window};
use quell_core::{
    Attempt, AttemptOutcome, Error, Job, JobId, JobState, Key, LeaseToken, Payload, Result,
    Timestamp, WorkerId,
};
use sqlx::query::Query;
use sqlx::sqlite::{SqliteArguments, SqliteRow};
use sqlx::{AssertSqlSafe, ColumnIndex, Decode, Row, Sqlite, SqliteConnection, Type};

use crate::error::{corrupt, explain};
use crate::names::Names;

/// The columns of a job, in the order that [`decode`] reads them.
macro_rules! job_columns {
    () => {
        "j.id, j.lane_id, j.state, j.waits, j.due_at, j.first_at, j.last_at, j.bound_at, \
         j.asked_at, j.not_before, j.reason, j.triggers, j.suppressed, j.attempt, j.failures, \
         j.starts, j.lapses, j.key, j.lease_until, j.started_at, j.ended_at, j.absorbed_by, \
         j.worker, j.error, j.shape, j.payload"
    };
}
pub(crate) use job_columns;

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

fn broken(id: JobId, error: &Error) -> Error {
    let why = std::error::Error::source(error).map_or_else(String::new, |e| format!(" ({e})"));
    corrupt(format_args!("job {id}: {error}{why}"))
}

fn decode_known(id: JobId, row: &SqliteRow, names: &Names) -> Result<Job> {
    let lane = names.lane(get(row, 1)?).ok_or_else(|| corrupt("lane"))?;
    let state = code(row, 2)?.and_then(JobState::from_code).ok_or_else(|| corrupt("state"))?;
    let shape: Option<&str> = get(row, 24)?;
    let shape = shape.map(serde_json::from_str::<Shape>).transpose();
    let key: Option<&str> = get(row, 17)?;
    let worker: Option<&str> = get(row, 22)?;
    let payload: Option<&str> = get(row, 25)?;
    Ok(Job {
        id,
        task: lane.task.clone(),
        queue: lane.queue.clone(),
        priority: lane.priority,
        state,
        waits: get(row, 3)?,
        window: decode_window(row)?,
        suppressed: unsigned(get(row, 12)?),
        attempt: get(row, 13)?,
        failures: get(row, 14)?,
        starts: unsigned(get(row, 15)?),
        lapses: get(row, 16)?,
        key: key.map(Key::new).transpose()?,
        lease_until: optional_time(row, 18)?,
        started_at: optional_time(row, 19)?,
        ended_at: optional_time(row, 20)?,
        absorbed_by: get::<Option<i64>, _>(row, 21)?.map(|id| JobId::new(unsigned(id))),
        worker: worker.map(WorkerId::new).transpose()?,
        error: get(row, 23)?,
        shape: shape.map_err(|error| corrupt(format_args!("shape: {error}")))?.unwrap_or_default(),
        payload: Payload::from_stored(payload.unwrap_or_default()),
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

/// How many rows one statement writes: few sizes, so that few statements are prepared.
const CHUNKS: [usize; 5] = [256, 64, 16, 4, 1];
const PUT_COLUMNS: usize = 28;

/// Cuts `items` into chunks of the prepared sizes.
pub(crate) fn chunks<T>(mut items: &[T]) -> Vec<&[T]> {
    let mut cut = Vec::new();
    for size in CHUNKS {
        while items.len() >= size {
            let (head, tail) = items.split_at(size);
            cut.push(head);
            items = tail;
        }
    }
    cut
}

/// The statement that puts `rows` whole jobs.
fn put_sql(rows: usize) -> String {
    let one = format!("({})", vec!["?"; PUT_COLUMNS].join(","));
    let values = vec![one; rows].join(",");
    format!(
        "insert into quell_job (id, lane_id, task_id, state, waits, due_at, first_at, last_at,
             bound_at, asked_at, not_before, reason, triggers, suppressed, attempt, failures,
             starts, lapses, key, hold, lease_until, started_at, ended_at, absorbed_by, worker,
             error, shape, payload)
         values {values}
         on conflict (id) do update set
             lane_id = excluded.lane_id, state = excluded.state, waits = excluded.waits,
             due_at = excluded.due_at, first_at = excluded.first_at, last_at = excluded.last_at,
             bound_at = excluded.bound_at, asked_at = excluded.asked_at,
             not_before = excluded.not_before, reason = excluded.reason,
             triggers = excluded.triggers, suppressed = excluded.suppressed,
             attempt = excluded.attempt, failures = excluded.failures, starts = excluded.starts,
             lapses = excluded.lapses, hold = excluded.hold, lease_until = excluded.lease_until,
             started_at = excluded.started_at, ended_at = excluded.ended_at,
             absorbed_by = excluded.absorbed_by, worker = excluded.worker, error = excluded.error,
             shape = excluded.shape, payload = excluded.payload"
    )
}

/// Writes whole jobs, new or changed. Within one call, a job whose key another takes over must
/// come first.
pub(crate) async fn put(db: &mut SqliteConnection, names: &mut Names, jobs: &[&Job]) -> Result<()> {
    for chunk in chunks(jobs) {
        let sql = put_sql(chunk.len());
        let mut query = sqlx::query(AssertSqlSafe(sql));
        for job in chunk {
            let lane = names.intern(db, &job.queue, &job.task, job.priority).await?;
            query = bind_job(query, job, lane.id, lane.task_id)?;
        }
        query.execute(&mut *db).await.map_err(|e| explain("write jobs", e))?;
    }
    Ok(())
}

type JobQuery<'q> = Query<'q, Sqlite, SqliteArguments>;

fn bind_job<'q>(
    query: JobQuery<'q>,
    job: &Job,
    lane_id: i64,
    task_id: i64,
) -> Result<JobQuery<'q>> {
    let shape = (job.shape != Shape::default()).then(|| serde_json::to_string(&job.shape));
    let shape = shape.transpose().map_err(|e| corrupt(format_args!("shape of a job: {e}")))?;
    let hold = match (job.state, &job.key) {
        (JobState::Scheduled, Some(_)) => Some(0),
        (JobState::Running, Some(_)) => Some(signed(job.id.get())),
        _ => None,
    };
    let at = |time: Timestamp| (time != Timestamp::MIN).then(|| time.as_micros());
    let maybe = |time: Option<Timestamp>| time.map(Timestamp::as_micros);
    let window = &job.window;
    Ok(query
        .bind(signed(job.id.get()))
        .bind(lane_id)
        .bind(task_id)
        .bind(job.state.code())
        .bind(job.waits)
        .bind(window.due_at.as_micros())
        .bind(window.first_at.as_micros())
        .bind((window.last_at != window.first_at).then(|| window.last_at.as_micros()))
        .bind(maybe(window.bound_at))
        .bind(at(window.asked_at))
        .bind(at(window.not_before))
        .bind(window.reason.code())
        .bind(signed(window.triggers))
        .bind(signed(job.suppressed))
        .bind(job.attempt)
        .bind(job.failures)
        .bind(signed(job.starts))
        .bind(job.lapses)
        .bind(job.key.as_ref().map(|key| key.as_str().to_owned()))
        .bind(hold)
        .bind(maybe(job.lease_until))
        .bind(maybe(job.started_at))
        .bind(maybe(job.ended_at))
        .bind(job.absorbed_by.map(|id| signed(id.get())))
        .bind(job.worker.as_ref().map(|worker| worker.as_str().to_owned()))
        .bind(job.error.clone())
        .bind(shape)
        .bind(job.payload.as_str().to_owned()))
}
