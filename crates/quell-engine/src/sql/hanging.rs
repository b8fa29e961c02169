//! What hangs on jobs: attempts (R25), effects (R23) and what jobs were before (R26); and schedules (R36).

use quell_core::effect::Done;
use quell_core::schedule::{Schedule, ScheduleInfo, ScheduleState};
use quell_core::{
    Attempt, AttemptOutcome, Effect, EffectName, JobId, Key, LeaseToken, Origin, Past, Payload,
    Result, WorkerId,
};

use crate::sql::columns::{Columns, corrupt, signed, unsigned};

/// A value to write in a column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// A number of 64 bits, or null.
    Number(Option<i64>),
    /// A text, or null.
    Text(Option<String>),
}

/// The row of an attempt: token, worker, started_at, ended_at, outcome, error.
///
/// # Errors
/// [`ErrorKind::Corrupt`](quell_core::ErrorKind::Corrupt) where the row holds what Quell never wrote.
pub fn decode_attempt<'r>(row: &impl Columns<'r>) -> Result<Attempt> {
    let worker = row.text(1)?;
    let outcome = row.code(4)?.and_then(AttemptOutcome::from_code);
    Ok(Attempt {
        token: token(row.number(0)?),
        worker: WorkerId::new(worker)?,
        started_at: row.time(2)?,
        ended_at: row.optional_time(3)?,
        outcome: Some(outcome.ok_or_else(|| corrupt("the outcome of an attempt"))?),
        error: row.optional_text(5)?.map(str::to_owned),
    })
}

/// The row of an effect: name, key, begun_at, begun_by, done_at, done_by, result.
///
/// # Errors
/// As [`decode_attempt`].
pub fn decode_effect<'r>(row: &impl Columns<'r>) -> Result<Effect> {
    let (name, key) = (row.text(0)?, row.text(1)?);
    let done = match (row.optional_time(4)?, row.optional_number(5)?, row.optional_text(6)?) {
        (Some(at), Some(by), Some(result)) => {
            Some(Done { at, by: token(by), result: Payload::from_stored(result) })
        }
        _ => None,
    };
    Ok(Effect {
        name: EffectName::new(name)?,
        key: Key::new(key)?,
        begun_at: row.time(2)?,
        begun_by: token(row.number(3)?),
        done,
    })
}

/// The values of an effect's row, as [`decode_effect`] reads them.
#[must_use]
pub fn effect_values(effect: &Effect) -> [Value; 7] {
    let done = effect.done.as_ref();
    [
        Value::Text(Some(effect.name.as_str().to_owned())),
        Value::Text(Some(effect.key.as_str().to_owned())),
        Value::Number(Some(effect.begun_at.as_micros())),
        Value::Number(Some(signed(effect.begun_by.get()))),
        Value::Number(done.map(|done| done.at.as_micros())),
        Value::Number(done.map(|done| signed(done.by.get()))),
        Value::Text(done.map(|done| done.result.as_str().to_owned())),
    ]
}

/// The row of what a job was: original, of_job, of_first_at.
///
/// # Errors
/// As [`decode_attempt`].
pub fn decode_past<'r>(row: &impl Columns<'r>) -> Result<Past> {
    let original = row.optional_text(0)?;
    let job = row.optional_number(1)?.map(|id| JobId::new(unsigned(id)));
    let origin = job.zip(row.optional_time(2)?).map(|(job, first_at)| Origin { job, first_at });
    Ok(Past { original: original.map(Payload::from_stored), origin })
}

/// The row of a schedule: name, schedule, paused, handled_at, last_at, next_at.
///
/// # Errors
/// As [`decode_attempt`].
pub fn decode_schedule<'r>(row: &impl Columns<'r>) -> Result<ScheduleInfo> {
    let name = row.text(0)?;
    let schedule: Schedule = serde_json::from_str(row.text(1)?)
        .map_err(|error| corrupt(format_args!("schedule {name}: {error}")))?;
    let state = if row.flag(2)? { ScheduleState::Paused } else { ScheduleState::Active };
    let (last, next) = (row.optional_time(4)?, row.optional_time(5)?);
    Ok(ScheduleInfo { schedule, state, handled: row.time(3)?, last, next })
}

fn token(number: i64) -> LeaseToken {
    LeaseToken::new(unsigned(number))
}
