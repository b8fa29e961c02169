//! Rows as Redis keeps them: jobs as MessagePack arrays, which scripts read too, and the rest as
//! JSON.

use std::borrow::Cow;

use quell_core::dedup::{Hold, HoldUntil};
use quell_core::idempotency::{Fingerprint, Kept, Record};
use quell_core::job::Shape;
use quell_core::limit::StartLog;
use quell_core::trace::Traces;
use quell_core::window::{DueReason, Window};
use quell_core::{
    Draw, Error, ErrorKind, Job, JobId, JobState, Key, LeaseToken, Payload, QueueName, Result,
    TaskName, Timestamp, UnreadableJob, WorkerId,
};
use quell_engine::Note;
use rmp::decode::read_array_len;
use rmp::encode::{write_array_len, write_bool, write_nil, write_sint, write_str, write_uint};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::known::{Known, Lane};

/// A job's row: an array, in this order. Defaults at its end are left out, and the times of the window
/// are stored as offsets from the first trigger: this keeps most rows short.
/// `lua/begin.lua` knows the places.
#[derive(Deserialize)]
struct Stored {
    state: u8,
    lane: u32,
    first_at: i64,
    last: i64,
    due: i64,
    bound: Option<i64>,
    reason: u8,
    triggers: u64,
    shape: u32,
    key: Option<String>,
    payload: String,
    #[serde(default)]
    waits: bool,
    #[serde(default)]
    partition: Option<String>,
    /// None for the earliest moment.
    #[serde(default)]
    asked: Option<i64>,
    /// None for the earliest moment.
    #[serde(default)]
    not_before: Option<i64>,
    #[serde(default)]
    attempt: u32,
    #[serde(default)]
    starts: u64,
    /// What was drawn for the newest start (R21).
    #[serde(default)]
    draw: u64,
    #[serde(default)]
    worker: Option<String>,
    #[serde(default)]
    lease_until: Option<i64>,
    #[serde(default)]
    started_at: Option<i64>,
    #[serde(default)]
    ended_at: Option<i64>,
    #[serde(default)]
    output: Option<String>,
    #[serde(default)]
    failures: u32,
    #[serde(default)]
    crashes: u32,
    #[serde(default)]
    suppressed: u64,
    #[serde(default)]
    absorbed_by: Option<u64>,
    #[serde(default)]
    error: Option<String>,
    /// What of the shape is the job's own: see [`policy_of`].
    #[serde(default)]
    closed: bool,
    #[serde(default)]
    surplus: i64,
    #[serde(default)]
    traces: Option<String>,
}

/// How many fields [`Stored`] has.
const FIELDS: u32 = 31;

/// A job's row, with the numbers of its lane and its shape.
pub(crate) fn encode_job(job: &Job, lane: u32, shape: u32) -> Vec<u8> {
    let window = &job.window;
    let after_first = |at: Timestamp| at.as_micros().wrapping_sub(window.first_at.as_micros());
    let some_after = |at: Timestamp| (at > Timestamp::MIN).then(|| after_first(at));
    let mut row = Row::default();
    row.number(Some(job.state.code().into()));
    row.number(Some(lane.into()));
    row.number(Some(window.first_at.as_micros()));
    row.number(Some(after_first(window.last_at)));
    row.number(Some(after_first(window.due_at)));
    row.number(window.bound_at.map(after_first).map(short_bound));
    row.count(window.reason.code().into());
    row.count(window.triggers);
    row.count(shape.into());
    row.text(job.key.as_ref().map(Key::as_str));
    row.text(Some(job.payload.as_str()));
    row.flag(job.waits);
    row.text(job.partition.as_ref().map(Key::as_str));
    row.number(some_after(window.asked_at));
    row.number(some_after(window.not_before));
    row.count(job.attempt.into());
    row.count(job.token.starts());
    row.count(job.token.draw().get());
    row.text(job.worker.as_ref().map(WorkerId::as_str));
    row.number(job.lease_until.map(Timestamp::as_micros));
    row.number(job.started_at.map(Timestamp::as_micros));
    row.number(job.ended_at.map(Timestamp::as_micros));
    row.text(job.output.as_ref().map(Payload::as_str));
    row.count(job.failures.into());
    row.count(job.crashes.into());
    row.count(job.suppressed);
    row.id(job.absorbed_by);
    row.text(job.error.as_deref());
    row.flag(job.shape.closed);
    row.signed(job.shape.surplus);
    row.text(job.traces.as_str());
    let mut bytes = Vec::with_capacity(row.kept.saturating_add(3));
    // Writing to memory does not fail.
    let _written = write_array_len(&mut bytes, row.kept_fields);
    bytes.extend(row.bytes.iter().take(row.kept));
    bytes
}

/// The fields of a row while it is written.
#[derive(Default)]
struct Row {
    bytes: Vec<u8>,
    fields: u32,
    /// How much of it is there up to the last field that is not its default.
    kept: usize,
    kept_fields: u32,
}

impl Row {
    fn end(&mut self, is_default: bool) {
        self.fields = self.fields.saturating_add(1);
        if !is_default {
            (self.kept, self.kept_fields) = (self.bytes.len(), self.fields);
        }
    }

    fn nothing(&mut self) {
        let _written = write_nil(&mut self.bytes);
        self.end(true);
    }

    fn number(&mut self, number: Option<i64>) {
        let Some(number) = number else { return self.nothing() };
        write_number(&mut self.bytes, number);
        // A time of 0 is a time.
        self.end(false);
    }

    fn count(&mut self, count: u64) {
        let _written = write_uint(&mut self.bytes, count);
        self.end(count == 0);
    }

    fn signed(&mut self, count: i64) {
        write_number(&mut self.bytes, count);
        self.end(count == 0);
    }

    fn flag(&mut self, flag: bool) {
        let _written = write_bool(&mut self.bytes, flag);
        self.end(!flag);
    }

    fn id(&mut self, id: Option<JobId>) {
        let Some(id) = id else { return self.nothing() };
        self.count(id.get());
    }

    fn text(&mut self, text: Option<&str>) {
        let Some(text) = text else { return self.nothing() };
        let _written = write_str(&mut self.bytes, text);
        self.end(false);
    }
}

/// A bound as rows store it: one that is further from the first trigger than 32 bits reach is stored in
/// milliseconds where it is a whole number of them, and is negative then. Up to 24 days it takes
/// five bytes instead of nine; no window ends before it began. `lua/begin.lua` reads it, too.
pub(crate) fn short_bound(micros: i64) -> i64 {
    let is_long = micros > i64::from(u32::MAX) && micros % 1_000 == 0;
    if is_long { -(micros / 1_000) } else { micros }
}

/// Reads what [`short_bound`] wrote. What is further below zero than that is a difference of moments
/// that did not fit into 64 bits.
fn long_bound(stored: i64) -> i64 {
    let is_short = (-(i64::MAX / 1_000)..0).contains(&stored);
    if is_short { stored.saturating_mul(-1_000) } else { stored }
}

fn write_number(bytes: &mut Vec<u8>, number: i64) {
    let _written = write_sint(bytes, number);
}

/// Reads what [`encode_job`] wrote.
///
/// Fails with an error that names the job where the row cannot be decoded.
pub(crate) fn decode_job(id: JobId, bytes: &[u8], known: &Known) -> Result<Job> {
    let wrong = |why: &dyn std::fmt::Display| Error::unreadable(id, why);
    let stored = Stored::read(bytes).map_err(|error| wrong(&error))?;
    let lane = known.lane(stored.lane).ok_or_else(|| wrong(&"its lane is unknown"))?.clone();
    let policy = known.shape(stored.shape).ok_or_else(|| wrong(&"its shape is unknown"))?;
    let state = JobState::from_code(stored.state).ok_or_else(|| wrong(&"its state is unknown"))?;
    let reason = DueReason::from_code(stored.reason).ok_or_else(|| wrong(&"its reason"))?;
    stored.into_job(id, lane, (policy, state, reason)).map_err(|error| wrong(&error))
}

/// What is known of a job whose row cannot be decoded as a whole: enough to take it out of the
/// indexes, which do not depend on its shape and reason. None where nothing of it can be decoded.
pub(crate) fn decode_in_part(id: JobId, bytes: &[u8], known: &Known) -> Option<Job> {
    let stored = Stored::read(bytes).ok()?;
    let lane = known.lane(stored.lane)?.clone();
    let state = JobState::from_code(stored.state)?;
    stored.into_job(id, lane, (Shape::default(), state, DueReason::Immediate)).ok()
}

impl Stored {
    /// Reads a row. What a later version has added at its end is passed over.
    fn read(mut bytes: &[u8]) -> Result<Self, rmp_serde::decode::Error> {
        let whole = bytes;
        match read_array_len(&mut bytes) {
            Ok(fields) if fields > FIELDS => {
                let mut known = Vec::with_capacity(whole.len());
                // Writing to memory does not fail.
                let _written = write_array_len(&mut known, FIELDS);
                known.extend_from_slice(bytes);
                rmp_serde::from_slice(&known)
            }
            _ => rmp_serde::from_slice(whole),
        }
    }

    fn into_job(
        self,
        id: JobId,
        Lane { queue, task, priority }: Lane,
        (policy, state, reason): (Shape, JobState, DueReason),
    ) -> Result<Job> {
        let shape = Shape { closed: self.closed, surplus: self.surplus, ..policy };
        let window = self.window(reason);
        let moment = |at: Option<i64>| at.map(Timestamp::from_micros);
        Ok(Job {
            id,
            task,
            queue,
            partition: self.partition.map(Key::new).transpose()?,
            key: self.key.map(Key::new).transpose()?,
            priority,
            state,
            payload: Payload::from_stored(self.payload),
            window,
            shape,
            waits: self.waits,
            suppressed: self.suppressed,
            attempt: self.attempt,
            failures: self.failures,
            token: LeaseToken::of(self.starts, Draw::new(self.draw)),
            crashes: self.crashes,
            worker: self.worker.map(WorkerId::new).transpose()?,
            lease_until: moment(self.lease_until),
            started_at: moment(self.started_at),
            ended_at: moment(self.ended_at),
            absorbed_by: self.absorbed_by.map(JobId::new),
            error: self.error,
            output: self.output.map(Payload::from_stored),
            traces: self.traces.as_deref().map(Traces::from_stored).unwrap_or_default(),
        })
    }

    fn window(&self, reason: DueReason) -> Window {
        let after_first = |after: i64| Timestamp::from_micros(self.first_at.wrapping_add(after));
        let some_after = |after: Option<i64>| after.map_or(Timestamp::MIN, after_first);
        Window {
            first_at: Timestamp::from_micros(self.first_at),
            last_at: after_first(self.last),
            bound_at: self.bound.map(long_bound).map(after_first),
            asked_at: some_after(self.asked),
            not_before: some_after(self.not_before),
            due_at: after_first(self.due),
            reason,
            triggers: self.triggers,
        }
    }
}

/// A dedup key's row.
#[derive(Serialize, Deserialize)]
pub(crate) struct StoredHold {
    job: JobId,
    until: HoldUntil,
    pub(crate) expires_at: Timestamp,
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
    pub(crate) expires_at: Timestamp,
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

/// What is kept of a job that is set aside, beside its row.
#[derive(Serialize, Deserialize)]
pub(crate) struct StoredAside {
    queue: Option<QueueName>,
    task: Option<TaskName>,
    was: Option<JobState>,
    set_aside_at: Timestamp,
    reason: String,
}

impl StoredAside {
    /// None for what cannot be decoded.
    pub(crate) fn read(bytes: &[u8]) -> Option<Self> {
        serde_json::from_slice(bytes).ok()
    }

    /// The job that it is of.
    pub(crate) fn of(self, id: JobId) -> UnreadableJob {
        let StoredAside { queue, task, was, set_aside_at, reason } = self;
        UnreadableJob { id, queue, task, was, set_aside_at, reason }
    }

    /// What an index says of the job; none where its queue and task are not known.
    pub(crate) fn note(self) -> Option<Note> {
        let (queue, task, state) = (self.queue?, self.task?, JobState::Unreadable);
        Some(Note { queue, task, state, partition: None, worker: None })
    }
}

impl From<&UnreadableJob> for StoredAside {
    fn from(job: &UnreadableJob) -> Self {
        StoredAside {
            queue: job.queue.clone(),
            task: job.task.clone(),
            was: job.was,
            set_aside_at: job.set_aside_at,
            reason: job.reason.clone(),
        }
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

/// A number as text.
pub(crate) fn number(bytes: &[u8]) -> Option<u64> {
    std::str::from_utf8(bytes).ok()?.parse().ok()
}

/// The same of what must be one.
pub(crate) fn parse_number(bytes: &[u8]) -> Result<u64> {
    let wrong = || corrupt(format_args!("the number {:?}", String::from_utf8_lossy(bytes)));
    number(bytes).ok_or_else(wrong)
}

/// What Quell never wrote.
pub(crate) fn corrupt(what: impl std::fmt::Display) -> Error {
    let message = format!("the store holds what Quell never wrote: {what}");
    Error::new(ErrorKind::Corrupt, message)
}

pub(crate) fn internal(what: &str, error: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::new(ErrorKind::Internal, format!("cannot {what}")).with_source(error)
}

/// The number of a shape that is none of the others: that of jobs without a key.
pub(crate) const DEFAULT_SHAPE: u32 = 0;

/// What jobs share of a shape, which has a number. Whether a window is closed and its surplus (R10)
/// are in its row: each surplus would be another shape, and no shape is ever removed.
pub(crate) fn policy_of(shape: &Shape) -> Cow<'_, Shape> {
    if !shape.closed && shape.surplus == 0 {
        return Cow::Borrowed(shape);
    }
    Cow::Owned(Shape { closed: false, surplus: 0, ..shape.clone() })
}

/// The JSON under which a shape is known.
pub(crate) fn shape_name(shape: &Shape) -> Result<String> {
    serde_json::to_string(shape).map_err(|error| internal("write a shape", error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_later_version_adds_to_a_row_is_passed_over() {
        let (task, queue) = (TaskName::new("t").unwrap(), QueueName::new("q").unwrap());
        let window = Window::unkeyed(Timestamp::from_secs(1), Timestamp::MIN);
        let mut job = Job::new(JobId::new(1), task, queue, Payload::from_stored("1"), window);
        job.traces = Traces::from_stored("00-a");
        let row = encode_job(&job, 1, DEFAULT_SHAPE);
        let mut fields = row.as_slice();
        assert_eq!(read_array_len(&mut fields).unwrap(), FIELDS);
        for later in 0..3 {
            let mut bytes = Vec::new();
            let _written = write_array_len(&mut bytes, FIELDS + later);
            bytes.extend_from_slice(fields);
            (0..later).for_each(|_| write_str(&mut bytes, "later").unwrap());
            let stored = Stored::read(&bytes).unwrap();
            assert_eq!((stored.payload.as_str(), stored.traces.as_deref()), ("1", Some("00-a")));
        }
    }

    #[test]
    fn bounds_are_read_as_they_were() {
        let hours = 7_200_000_000;
        assert_eq!(short_bound(hours), -7_200_000);
        let moments = [0, 1, 1_000, i64::from(u32::MAX), hours, hours + 1, i64::MAX, i64::MIN];
        for micros in moments {
            assert_eq!(long_bound(short_bound(micros)), micros);
        }
        assert_eq!(long_bound(hours), hours, "as the first version wrote it");
    }
}
