//! Rows as Redis keeps them: jobs as MessagePack arrays, which scripts read too, and the rest as
//! JSON.

use quell_core::dedup::{Hold, HoldUntil};
use quell_core::idempotency::{Fingerprint, Kept, Record};
use quell_core::job::Shape;
use quell_core::limit::StartLog;
use quell_core::window::{DueReason, Window};
use quell_core::{
    Error, ErrorKind, Job, JobId, JobState, Key, Payload, Result, Timestamp, WorkerId,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::known::{Known, Lane};

/// A job's row: an array, in this order. Scripts know the places.
#[derive(Serialize, Deserialize)]
struct Stored {
    state: u8,
    lane: u32,
    waits: bool,
    first_at: i64,
    last_at: i64,
    due_at: i64,
    bound_at: Option<i64>,
    /// None for the earliest moment: Lua's numbers end at 2^53.
    asked_at: Option<i64>,
    not_before: Option<i64>,
    reason: u8,
    triggers: u64,
    shape: u32,
    key: Option<String>,
    partition: Option<String>,
    payload: String,
    suppressed: u64,
    attempt: u32,
    failures: u32,
    starts: u64,
    lapses: u32,
    worker: Option<String>,
    lease_until: Option<i64>,
    started_at: Option<i64>,
    ended_at: Option<i64>,
    absorbed_by: Option<u64>,
    error: Option<String>,
    output: Option<String>,
}

/// A job's row, with the numbers of its lane and its shape.
pub(crate) fn encode_job(job: &Job, lane: u32, shape: u32) -> Result<Vec<u8>> {
    let window = &job.window;
    let stored = Stored {
        state: job.state.code(),
        lane,
        waits: job.waits,
        first_at: window.first_at.as_micros(),
        last_at: window.last_at.as_micros(),
        due_at: window.due_at.as_micros(),
        bound_at: window.bound_at.map(Timestamp::as_micros),
        asked_at: some_moment(window.asked_at),
        not_before: some_moment(window.not_before),
        reason: window.reason.code(),
        triggers: window.triggers,
        shape,
        key: job.key.as_ref().map(|key| key.as_str().to_owned()),
        partition: job.partition.as_ref().map(|key| key.as_str().to_owned()),
        payload: job.payload.as_str().to_owned(),
        suppressed: job.suppressed,
        attempt: job.attempt,
        failures: job.failures,
        starts: job.starts,
        lapses: job.lapses,
        worker: job.worker.as_ref().map(|worker| worker.as_str().to_owned()),
        lease_until: job.lease_until.map(Timestamp::as_micros),
        started_at: job.started_at.map(Timestamp::as_micros),
        ended_at: job.ended_at.map(Timestamp::as_micros),
        absorbed_by: job.absorbed_by.map(JobId::get),
        error: job.error.clone(),
        output: job.output.as_ref().map(|output| output.as_str().to_owned()),
    };
    rmp_serde::to_vec(&stored).map_err(|error| internal("write a job's row", error))
}

/// Reads what [`encode_job`] wrote.
pub(crate) fn decode_job(id: JobId, bytes: &[u8], known: &Known) -> Result<Job> {
    let wrong = |why: &dyn std::fmt::Display| corrupt(format_args!("the row of job {id}: {why}"));
    let stored: Stored = rmp_serde::from_slice(bytes).map_err(|error| wrong(&error))?;
    let Lane { queue, task, priority } =
        known.lane(stored.lane).ok_or_else(|| wrong(&"its lane is unknown"))?.clone();
    let shape = known.shape(stored.shape).ok_or_else(|| wrong(&"its shape is unknown"))?;
    let state = JobState::from_code(stored.state).ok_or_else(|| wrong(&"its state is unknown"))?;
    let reason = DueReason::from_code(stored.reason).ok_or_else(|| wrong(&"its reason"))?;
    let moment = |at: Option<i64>| at.map(Timestamp::from_micros);
    Ok(Job {
        id,
        task,
        queue,
        partition: stored.partition.map(Key::new).transpose()?,
        key: stored.key.map(Key::new).transpose()?,
        priority,
        state,
        payload: Payload::from_stored(stored.payload),
        window: Window {
            first_at: Timestamp::from_micros(stored.first_at),
            last_at: Timestamp::from_micros(stored.last_at),
            bound_at: moment(stored.bound_at),
            asked_at: moment(stored.asked_at).unwrap_or(Timestamp::MIN),
            not_before: moment(stored.not_before).unwrap_or(Timestamp::MIN),
            due_at: Timestamp::from_micros(stored.due_at),
            reason,
            triggers: stored.triggers,
        },
        shape,
        waits: stored.waits,
        suppressed: stored.suppressed,
        attempt: stored.attempt,
        failures: stored.failures,
        starts: stored.starts,
        lapses: stored.lapses,
        worker: stored.worker.map(WorkerId::new).transpose()?,
        lease_until: moment(stored.lease_until),
        started_at: moment(stored.started_at),
        ended_at: moment(stored.ended_at),
        absorbed_by: stored.absorbed_by.map(JobId::new),
        error: stored.error,
        output: stored.output.map(Payload::from_stored),
    })
}

fn some_moment(at: Timestamp) -> Option<i64> {
    (at > Timestamp::MIN).then_some(at.as_micros())
}

/// A dedup key's row.
#[derive(Serialize, Deserialize)]
pub(crate) struct StoredHold {
    job: JobId,
    until: HoldUntil,
    expires_at: Timestamp,
}

impl From<&Hold> for StoredHold {
    fn from(hold: &Hold) -> Self {
        StoredHold { job: hold.job, until: hold.until, expires_at: hold.expires_at }
    }
}

impl From<StoredHold> for Hold {
    fn from(stored: StoredHold) -> Self {
        Hold { job: stored.job, until: stored.until, expires_at: stored.expires_at }
    }
}

/// An idempotency key's row.
#[derive(Serialize, Deserialize)]
pub(crate) struct StoredRecord {
    fingerprint: String,
    job: JobId,
    expires_at: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    state: Option<JobState>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    output: Option<Payload>,
}

impl From<&Record> for StoredRecord {
    fn from(record: &Record) -> Self {
        let kept = record.kept.as_ref();
        StoredRecord {
            fingerprint: record.fingerprint.to_string(),
            job: record.job,
            expires_at: record.expires_at,
            state: kept.map(|kept| kept.state),
            output: kept.and_then(|kept| kept.output.clone()),
        }
    }
}

impl TryFrom<StoredRecord> for Record {
    type Error = Error;

    fn try_from(stored: StoredRecord) -> Result<Self> {
        let StoredRecord { fingerprint, job, expires_at, state, output } = stored;
        let read = Fingerprint::from_hex(&fingerprint);
        Ok(Record {
            fingerprint: read
                .ok_or_else(|| corrupt(format_args!("fingerprint {fingerprint:?}")))?,
            job,
            expires_at,
            kept: state.map(|state| Kept { state, output }),
        })
    }
}

/// The JSON of a row.
pub(crate) fn to_json(row: &impl Serialize) -> Result<Vec<u8>> {
    serde_json::to_vec(row).map_err(|error| internal("write a row", error))
}

/// Reads what [`to_json`] wrote; `what` names the row.
pub(crate) fn from_json<T: DeserializeOwned>(what: &str, bytes: &[u8]) -> Result<T> {
    serde_json::from_slice(bytes).map_err(|error| corrupt(format_args!("{what}: {error}")))
}

/// A log of starts: moments, and how many there were at each.
pub(crate) fn encode_starts(log: &StartLog) -> Result<Vec<u8>> {
    let mut runs: Vec<(i64, u32)> = Vec::new();
    for at in log.starts() {
        match runs.last_mut() {
            Some((last, count)) if *last == at.as_micros() => *count = count.saturating_add(1),
            _ => runs.push((at.as_micros(), 1)),
        }
    }
    to_json(&runs)
}

/// Reads what [`encode_starts`] wrote.
pub(crate) fn decode_starts(bytes: &[u8]) -> Result<StartLog> {
    let runs: Vec<(i64, u32)> = from_json("a log of starts", bytes)?;
    let each = |(at, count): (i64, u32)| {
        std::iter::repeat_n(Timestamp::from_micros(at), usize::try_from(count).unwrap_or(0))
    };
    Ok(runs.into_iter().flat_map(each).collect())
}

/// What Quell never wrote.
pub(crate) fn corrupt(what: impl std::fmt::Display) -> Error {
    let message = format!("the store holds what Quell never wrote: {what}");
    Error::new(ErrorKind::Corrupt, message)
}

fn internal(what: &str, error: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::new(ErrorKind::Internal, format!("cannot {what}")).with_source(error)
}

/// The number of a shape that is none of the others: that of jobs without a key.
pub(crate) const DEFAULT_SHAPE: u32 = 0;

/// The JSON under which a shape is known.
pub(crate) fn shape_name(shape: &Shape) -> Result<String> {
    serde_json::to_string(shape).map_err(|error| internal("write a shape", error))
}
