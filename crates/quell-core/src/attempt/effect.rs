//! Recorded effects (R23): the state of an outside call, so that no attempt repeats it.
//!
//! An attempt records its intent before the call and the result after it, both under its lease. A
//! store shows these functions the job and the record, and writes what they return. Keys come from
//! the caller: the first intent's stands.

use std::collections::BTreeSet;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::envelope::Envelope;
use crate::{
    EffectName, Error, ErrorKind, Job, JobId, Key, Lease, LeaseToken, Payload, Result, Timestamp,
};

/// The largest recorded result, in bytes of JSON.
pub const MAX_RESULT_BYTES: usize = 256 << 10;
/// How many effects one job may have.
pub const MAX_EFFECTS: usize = 100;

/// What is on record of one effect of a job.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Effect {
    /// Its name, which is its job's own.
    pub name: EffectName,
    /// The idempotency key of every call that is made for it.
    pub key: Key,
    /// When the intent was recorded.
    pub begun_at: Timestamp,
    /// The attempt that recorded the intent.
    pub begun_by: LeaseToken,
    /// Its result; none while only the intent is known: it may have happened or not.
    pub done: Option<Done>,
}

/// The result of an effect, and who recorded it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Done {
    /// When it was recorded.
    pub at: Timestamp,
    /// The attempt that recorded it.
    pub by: LeaseToken,
    /// What the call, or its verification, answered.
    pub result: Payload,
}

/// What an attempt that begins an effect has to do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EffectStart {
    /// The intent is on record, and no attempt acted on it before: perform with this key.
    New {
        /// The idempotency key.
        key: Key,
    },
    /// An earlier attempt meant to perform, and its outcome is unknown: verify first.
    Intended {
        /// The idempotency key.
        key: Key,
    },
    /// It happened: go on with this result.
    Done {
        /// The idempotency key it was performed with.
        key: Key,
        /// The recorded result.
        result: Payload,
    },
}

impl Effect {
    /// The intent of an attempt.
    #[must_use]
    pub fn intended(now: Timestamp, by: LeaseToken, name: &EffectName, key: &Key) -> Self {
        let (name, key) = (name.clone(), key.clone());
        Effect { name, key, begun_at: now, begun_by: by, done: None }
    }

    /// Its result as people are shown it: the beginning, where it is long.
    #[must_use]
    pub fn shown_result(&self) -> Option<&str> {
        const SHOWN: usize = 500;
        let text = self.done.as_ref()?.result.as_str();
        text.get(..text.floor_char_boundary(SHOWN))
    }

    /// What to do about this intent in view of what is `known`, where `job` has this number of
    /// effects on record. For [`EffectStart::New`] the intent is to be written, unless it is there.
    ///
    /// An intent that is known with the same key is this very one: its caller did not receive
    /// the answer and asks again.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] where the job has [`MAX_EFFECTS`].
    pub fn begin(&self, job: JobId, known: Option<&Effect>, effects: usize) -> Result<EffectStart> {
        match known {
            Some(Effect { key, done: Some(done), .. }) => {
                Ok(EffectStart::Done { key: key.clone(), result: done.result.clone() })
            }
            Some(Effect { key, .. }) if *key != self.key => {
                Ok(EffectStart::Intended { key: key.clone() })
            }
            None if effects >= MAX_EFFECTS => {
                let message = format!(
                    "job {job} has {effects} effects, the limit is {MAX_EFFECTS}: make more jobs \
                     of fewer effects each"
                );
                Err(Error::invalid("effect", message))
            }
            Some(_) | None => Ok(EffectStart::New { key: self.key.clone() }),
        }
    }
}

impl fmt::Display for Effect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Effect { name, key, begun_at, begun_by, done } = self;
        match (done, self.shown_result()) {
            (Some(done), Some(result)) => {
                let (at, by) = (done.at, done.by.get());
                write!(f, "{name}: done {at} by attempt {by}, key {key}, result {result}")
            }
            (None, _) | (_, None) => {
                let by = begun_by.get();
                write!(
                    f,
                    "{name}: begun {begun_at} by attempt {by}, key {key}: it may have happened"
                )
            }
        }
    }
}

/// The record with its result, to be written; none where it stands there already.
///
/// # Errors
/// [`ErrorKind::IllegalMove`] where no intent is known, or another result is.
pub fn end(
    now: Timestamp,
    lease: &Lease,
    name: &EffectName,
    known: Option<Effect>,
    result: &Payload,
) -> Result<Option<Effect>> {
    let refused = |why: &str| {
        let job = lease.job;
        Err(Error::new(ErrorKind::IllegalMove, format!("effect `{name}` of job {job} {why}")))
    };
    match known {
        None => refused("has no recorded intent: record it before the call"),
        Some(Effect { done: Some(done), .. })
            if done.by == lease.token && done.result == *result =>
        {
            Ok(None)
        }
        Some(Effect { done: Some(_), .. }) => refused("has a result already: it stays"),
        Some(effect) => {
            let done = Done { at: now, by: lease.token, result: result.clone() };
            Ok(Some(Effect { done: Some(done), ..effect }))
        }
    }
}

/// Refuses a result that is too large to be recorded; the caller has checked that it is JSON.
///
/// # Errors
/// [`ErrorKind::Invalid`] that names `result`.
pub fn check_result(name: &EffectName, result: &Payload) -> Result<()> {
    let bytes = Envelope::counted(result.as_str());
    if bytes <= MAX_RESULT_BYTES {
        return Ok(());
    }
    let message = format!(
        "the result of effect `{name}` has {bytes} bytes, the limit is {MAX_RESULT_BYTES}: record \
         less of it, such as an id"
    );
    Err(Error::invalid("result", message))
}

/// Refuses records from outside that no job could have whose last attempt was `starts`.
///
/// # Errors
/// [`ErrorKind::Invalid`] that names `effects` or `result`.
pub fn check_all(effects: &[Effect], starts: u64) -> Result<()> {
    if effects.len() > MAX_EFFECTS {
        let count = effects.len();
        let message = format!("the job has {count} effects, the limit is {MAX_EFFECTS}");
        return Err(Error::invalid("effects", message));
    }
    let mut names = BTreeSet::new();
    for Effect { name, begun_by, done, .. } in effects {
        let done = done.as_ref();
        let is_on_record = |token: LeaseToken| (1..=starts).contains(&token.starts());
        if !is_on_record(*begun_by)
            || done.is_some_and(|done| !is_on_record(done.by))
            || !names.insert(name)
        {
            let message = format!(
                "effect `{name}` is listed twice, or names an attempt that is not on record"
            );
            return Err(Error::invalid("effects", message));
        }
        done.map_or(Ok(()), |done| check_result(name, &done.result))?;
    }
    Ok(())
}

/// Refuses what an attempt does to the record once its lease is lost (R21).
///
/// # Errors
/// [`ErrorKind::IllegalMove`] where the lease does not hold.
pub fn check_lease(now: Timestamp, lease: &Lease, job: Option<&Job>) -> Result<()> {
    match job {
        Some(job) if job.is_held_by(lease.token, now) => Ok(()),
        Some(_) | None => Err(lease_lost(lease.job)),
    }
}

/// The answer to an attempt that goes on without its lease.
#[must_use]
pub fn lease_lost(job: JobId) -> Error {
    Error::new(
        ErrorKind::IllegalMove,
        format!("the lease of job {job} was lost: another attempt has it now, stop this one"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> EffectName {
        EffectName::new(text).unwrap()
    }

    fn key(text: &str) -> Key {
        Key::new(text).unwrap()
    }

    fn lease(token: u64) -> Lease {
        Lease { job: JobId::new(7), token: LeaseToken::new(token) }
    }

    fn intent(token: u64, text: &str) -> Effect {
        Effect::intended(
            Timestamp::from_secs(1),
            LeaseToken::new(token),
            &name("charge"),
            &key(text),
        )
    }

    fn done(by: u64, result: &str) -> Effect {
        let (at, by) = (Timestamp::from_secs(2), LeaseToken::new(by));
        let done = Done { at, by, result: Payload::from_stored(result) };
        Effect { done: Some(done), ..intent(1, "a") }
    }

    #[test]
    fn r23_what_is_known_decides_what_to_do() {
        let new = |text: &str| Ok(EffectStart::New { key: key(text) });
        let result = Payload::from_stored("5");
        let table: [(Option<Effect>, usize, Result<EffectStart, ()>); 6] = [
            (None, 0, new("b")),
            (None, MAX_EFFECTS - 1, new("b")),
            (None, MAX_EFFECTS, Err(())),
            (Some(intent(1, "a")), MAX_EFFECTS, Ok(EffectStart::Intended { key: key("a") })),
            (Some(intent(1, "b")), MAX_EFFECTS, new("b")),
            (Some(done(1, "5")), 1, Ok(EffectStart::Done { key: key("a"), result })),
        ];
        for (row, (known, effects, expected)) in table.into_iter().enumerate() {
            let begun = intent(2, "b").begin(JobId::new(7), known.as_ref(), effects);
            assert_eq!(begun.map_err(drop), expected, "row {row}");
        }
    }

    #[test]
    fn r23_a_result_is_recorded_once_and_stays() {
        let now = Timestamp::from_secs(2);
        let ends = |known, token, result: &str| {
            let ended =
                end(now, &lease(token), &name("charge"), known, &Payload::from_stored(result));
            ended.map_err(|error| error.kind())
        };
        let illegal = Err(ErrorKind::IllegalMove);
        assert_eq!(ends(None, 1, "5"), illegal);
        assert_eq!(ends(Some(intent(1, "a")), 1, "5"), Ok(Some(done(1, "5"))));
        assert_eq!(ends(Some(intent(1, "a")), 2, "5"), Ok(Some(done(2, "5"))), "verified");
        assert_eq!(ends(Some(done(1, "5")), 1, "5"), Ok(None), "its answer was lost");
        assert_eq!(ends(Some(done(1, "5")), 1, "6"), illegal);
        assert_eq!(ends(Some(done(1, "5")), 2, "5"), illegal);
    }

    #[test]
    fn r40_a_result_is_refused_at_the_bound_plus_one() {
        let of = |bytes: usize| Payload::encode(&"x".repeat(bytes - 2)).unwrap();
        assert!(check_result(&name("charge"), &of(MAX_RESULT_BYTES)).is_ok());
        let error = check_result(&name("charge"), &of(MAX_RESULT_BYTES + 1)).unwrap_err();
        assert_eq!((error.kind(), error.field()), (ErrorKind::Invalid, Some("result")));
    }
}
