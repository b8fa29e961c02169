//! The row of a job, decoded.

use quell_core::job::Shape;
use quell_core::trigger::Priority;
use quell_core::window::{DueReason, Window};
use quell_core::{
    Job, JobId, JobState, Key, LeaseToken, Payload, QueueName, Result, TaskName, Timestamp,
    WorkerId,
};

use crate::sql::columns::{Columns, corrupt, unsigned};

/// The meaning of a lane's number, which jobs' rows have instead of names.
#[derive(Clone, Debug)]
pub struct Lane<N> {
    /// The lane's number.
    pub id: N,
    /// The task's number.
    pub task_id: N,
    /// The queue.
    pub queue: QueueName,
    /// The task.
    pub task: TaskName,
    /// The priority.
    pub priority: Priority,
}

/// The places of those columns of a job that not all stores have in the same place.
#[derive(Clone, Copy, Debug)]
pub struct Places {
    /// The partition.
    pub partition: usize,
    /// The payload; null is an empty one, which no write puts in a payload's place.
    pub payload: usize,
}

/// A job from its row: id, lane, state, waits, due_at, first_at, last_at, bound_at, asked_at, not_before,
/// reason, triggers, suppressed, attempt, failures, token, crashes, key, lease_until, started_at, ended_at,
/// absorbed_by, worker, error, shape, two columns at `places`, output, traces. `lane` is what the second
/// of them means; none where nothing is known of it.
///
/// # Errors
/// [`ErrorKind::Corrupt`](quell_core::ErrorKind::Corrupt) where the row holds what Quell never wrote.
pub fn decode_job<'r, N>(
    row: &impl Columns<'r>,
    id: JobId,
    lane: Option<&Lane<N>>,
    places: Places,
) -> Result<Job> {
    let lane = lane.ok_or_else(|| corrupt("lane"))?;
    let state = row.code(2)?.and_then(JobState::from_code).ok_or_else(|| corrupt("state"))?;
    let shape = row.optional_text(24)?.map(serde_json::from_str::<Shape>).transpose();
    let shape = shape.map_err(|error| corrupt(format_args!("shape: {error}")))?;
    Ok(Job {
        id,
        task: lane.task.clone(),
        queue: lane.queue.clone(),
        partition: row.optional_text(places.partition)?.map(Key::new).transpose()?,
        priority: lane.priority,
        state,
        waits: row.flag(3)?,
        window: decode_window(row)?,
        suppressed: unsigned(row.number(12)?),
        attempt: row.count(13)?,
        failures: row.count(14)?,
        token: LeaseToken::new(unsigned(row.number(15)?)),
        crashes: row.count(16)?,
        key: row.optional_text(17)?.map(Key::new).transpose()?,
        lease_until: row.optional_time(18)?,
        started_at: row.optional_time(19)?,
        ended_at: row.optional_time(20)?,
        absorbed_by: row.optional_number(21)?.map(|id| JobId::new(unsigned(id))),
        worker: row.optional_text(22)?.map(WorkerId::new).transpose()?,
        error: row.optional_text(23)?.map(str::to_owned),
        shape: shape.unwrap_or_default(),
        payload: Payload::from_stored(row.optional_text(places.payload)?.unwrap_or_default()),
        output: row.optional_text(27)?.map(Payload::from_stored),
        traces: row.traces(28)?,
    })
}

/// The window of a job, from the same row as [`decode_job`].
///
/// # Errors
/// As [`decode_job`].
pub fn decode_window<'r>(row: &impl Columns<'r>) -> Result<Window> {
    let first_at = row.time(5)?;
    let reason = row.code(10)?.and_then(DueReason::from_code).ok_or_else(|| corrupt("reason"))?;
    Ok(Window {
        first_at,
        due_at: row.time(4)?,
        last_at: row.optional_time(6)?.unwrap_or(first_at),
        bound_at: row.optional_time(7)?,
        asked_at: row.optional_time(8)?.unwrap_or(Timestamp::MIN),
        not_before: row.optional_time(9)?.unwrap_or(Timestamp::MIN),
        reason,
        triggers: unsigned(row.number(11)?),
    })
}
