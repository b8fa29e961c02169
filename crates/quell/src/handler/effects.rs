//! Effects on the outside that no attempt repeats (R23): [`Ctx::effect`](crate::Ctx::effect) and
//! [`Ctx::once`](crate::Ctx::once).
//!
//! The intent is on record before the call and the result after it, both under the attempt's lease.
//! The record decides what an attempt does: the rules are in `quell_core::effect`.

use std::error::Error as StdError;
use std::fmt;
use std::future::Future;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use quell_core::effect::{EffectStart, check_result};
use quell_core::{EffectName, Error, ErrorKind, Key, Lease, Payload, Result};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::TaskError;
use crate::handler::ctx::Attempted;
use crate::handler::task::Answer;
use crate::random::drawn;

/// The waits before a store call that failed is made again. A result that is not recorded leaves
/// the next attempt in doubt, so it is worth some patience.
const PAUSES: [Duration; 3] =
    [Duration::from_millis(50), Duration::from_millis(250), Duration::from_secs(1)];

/// An effect that is about to run: see [`Ctx::effect`](crate::Ctx::effect).
#[derive(Debug)]
#[must_use = "an effect happens when it is run"]
pub struct EffectCall<V = Unverified> {
    call: Call,
    verify: V,
}

/// An effect whose outcome cannot be verified: its call is made again, with its key.
#[derive(Clone, Copy, Debug)]
pub struct Unverified;

/// An effect that may run once: see [`Ctx::once`](crate::Ctx::once).
#[derive(Debug)]
#[must_use = "an effect happens when it is run"]
pub struct OnceCall(Call);

/// What became of [`Ctx::once`](crate::Ctx::once).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Once<T> {
    /// It happened, in this attempt or in an earlier one, with this result.
    Done(T),
    /// An earlier attempt began it, and nothing is known of how that ended: it may have happened.
    Unclear,
}

impl EffectCall {
    pub(crate) fn new(job: Arc<Attempted>, name: &str) -> Self {
        EffectCall { call: Call { job, name: name.to_owned() }, verify: Unverified }
    }

    /// Asks the outside, where an earlier attempt meant to perform, whether it happened: `verify`
    /// answers with the result, or with none where it did not. Where it fails, so does the attempt,
    /// and nothing is performed.
    pub fn verify<T, V, Fut>(self, verify: V) -> EffectCall<Verify<V>>
    where
        V: FnOnce(Key) -> Fut,
        Fut: Future<Output = Result<Option<T>, TaskError>>,
    {
        EffectCall { call: self.call, verify: Verify(verify) }
    }

    /// Performs the effect, unless it is on record, and returns its result.
    ///
    /// Where an earlier attempt meant to perform, `perform` is called again with the same key: the
    /// outside must know the key, or [`verify`](EffectCall::verify) must be given.
    ///
    /// # Errors
    /// What `perform` says; else as for [`Ctx::effect`](crate::Ctx::effect).
    pub async fn run<T, P, Fut>(self, perform: P) -> Result<T, TaskError>
    where
        T: Serialize + DeserializeOwned,
        P: FnOnce(Key) -> Fut,
        Fut: Future<Output = Result<T, TaskError>>,
    {
        let call = self.call.named()?;
        match call.begin().await? {
            EffectStart::Done { result, .. } => call.recorded(&result),
            EffectStart::New { key } | EffectStart::Intended { key } => {
                call.perform(perform(key)).await
            }
        }
    }
}

/// How it is found out whether an effect happened.
#[derive(Clone, Copy, Debug)]
pub struct Verify<V>(V);

impl<V> EffectCall<Verify<V>> {
    /// Performs the effect, unless it is on record or was verified, and returns its result.
    ///
    /// # Errors
    /// What `perform` or the verification says; else as for [`Ctx::effect`](crate::Ctx::effect).
    pub async fn run<T, P, Fut, Verified>(self, perform: P) -> Result<T, TaskError>
    where
        T: Serialize + DeserializeOwned,
        P: FnOnce(Key) -> Fut,
        Fut: Future<Output = Result<T, TaskError>>,
        V: FnOnce(Key) -> Verified,
        Verified: Future<Output = Result<Option<T>, TaskError>>,
    {
        let (call, Verify(verify)) = (self.call.named()?, self.verify);
        match call.begin().await? {
            EffectStart::Done { result, .. } => call.recorded(&result),
            EffectStart::New { key } => call.perform(perform(key)).await,
            EffectStart::Intended { key } => match verify(key.clone()).await {
                Ok(Some(result)) => call.record(result).await,
                Ok(None) => call.perform(perform(key)).await,
                Err(error) => {
                    Err(call
                        .in_context("it is not known whether it happened, nothing was done", error))
                }
            },
        }
    }
}

impl OnceCall {
    pub(crate) fn new(job: Arc<Attempted>, name: &str) -> Self {
        OnceCall(Call { job, name: name.to_owned() })
    }

    /// Performs the effect, unless an attempt has begun it.
    ///
    /// # Errors
    /// What `perform` says: the effect counts as begun all the same, and is not made again. Else as
    /// for [`Ctx::effect`](crate::Ctx::effect).
    pub async fn run<T, P, Fut>(self, perform: P) -> Result<Once<T>, TaskError>
    where
        T: Serialize + DeserializeOwned,
        P: FnOnce() -> Fut,
        Fut: Future<Output = Result<T, TaskError>>,
    {
        let call = self.0.named()?;
        match call.begin().await? {
            EffectStart::Done { result, .. } => call.recorded(&result).map(Once::Done),
            EffectStart::New { .. } => call.perform(perform()).await.map(Once::Done),
            EffectStart::Intended { .. } => Ok(Once::Unclear),
        }
    }
}

/// An effect and the attempt that it is part of.
#[derive(Debug)]
struct Call {
    job: Arc<Attempted>,
    name: String,
}

/// As [`Call`], with a name that is good and this attempt's first use of it.
struct Named {
    job: Arc<Attempted>,
    name: EffectName,
}

impl Call {
    fn named(self) -> Result<Named, TaskError> {
        let Call { job, name } = self;
        let name = EffectName::new(name).map_err(TaskError::permanent)?;
        if job.settled.load(Ordering::SeqCst) {
            let why = "the job is settled already: effects come before the transaction";
            return Err(TaskError::permanent(format!("effect `{name}`: {why}")));
        }
        let mut used = job.effects.lock().unwrap_or_else(PoisonError::into_inner);
        if !used.insert(name.clone()) {
            let why = "its name is used twice in one attempt: give each effect a name of its own";
            return Err(TaskError::permanent(format!("effect `{name}`: {why}")));
        }
        drop(used);
        Ok(Named { job, name })
    }
}

impl Named {
    async fn begin(&self) -> Result<EffectStart, TaskError> {
        let (job, lease) = (&*self.job, self.job.lease());
        let key = fresh_key(&lease).map_err(TaskError::permanent)?;
        let (store, clock, name) = (job.quell.store(), job.quell.clock(), &self.name);
        let begun =
            self.insist(|| store.begin_effect(clock.store_time(), &lease, name, &key)).await;
        begun.map_err(|error| refused(name, error))
    }

    /// What an earlier attempt recorded.
    fn recorded<T: DeserializeOwned>(&self, result: &Payload) -> Result<T, TaskError> {
        serde_json::from_str(result.as_str()).map_err(|error| {
            let name = &self.name;
            TaskError::permanent(format!(
                "effect `{name}`: the recorded result does not match the type: {error}"
            ))
        })
    }

    async fn perform<T: Serialize>(
        &self,
        performed: impl Future<Output = Result<T, TaskError>>,
    ) -> Result<T, TaskError> {
        match performed.await {
            Ok(result) => self.record(result).await,
            Err(error) => Err(self.in_context("it failed", error)),
        }
    }

    /// Records what happened, before anything else is done about it.
    async fn record<T: Serialize>(&self, result: T) -> Result<T, TaskError> {
        let (name, lease) = (&self.name, self.job.lease());
        let json = Payload::encode(&result);
        let json = json.and_then(|json| check_result(name, &json).map(|()| json));
        let json = json.map_err(|error| {
            let why = "it happened, but its result cannot be recorded";
            TaskError::permanent(format!("effect `{name}`: {why}: {error}"))
        })?;
        let (store, clock) = (self.job.quell.store(), self.job.quell.clock());
        let ended = self.insist(|| store.end_effect(clock.store_time(), &lease, name, &json)).await;
        ended.map_err(|error| refused(name, error))?;
        Ok(result)
    }

    /// Makes a call that may be repeated until it is known to have come through.
    async fn insist<R, Fut: Future<Output = Result<R>>>(
        &self,
        call: impl Fn() -> Fut,
    ) -> Result<R> {
        for pause in PAUSES {
            match call().await {
                Err(error) if error.is_retryable() || error.is_unknown_outcome() => {
                    self.job.sleep(pause).await;
                }
                answer => return answer,
            }
        }
        call().await
    }

    /// The error of a closure, with the effect that it is about.
    fn in_context(&self, what: &str, TaskError(answer): TaskError) -> TaskError {
        let with_context = |error| format!("effect `{}`: {what}\ncaused by: {error}", self.name);
        TaskError(match answer {
            // Its class is found by what it is: it stays the source.
            Answer::Failed { error } => {
                let what = format!("effect `{}`: {what}", self.name);
                Answer::Failed { error: Box::new(InEffect { what, source: error }) }
            }
            Answer::Retry { wait, error } => Answer::Retry { wait, error: with_context(error) },
            Answer::TimedOut { error } => Answer::TimedOut { error: with_context(error) },
            Answer::Permanent { error } => Answer::Permanent { error: with_context(error) },
            Answer::Broke { ended, error } => Answer::Broke { ended, error: with_context(error) },
            Answer::Snooze { .. } | Answer::Cancel { .. } | Answer::HandOver { .. } => answer,
        })
    }
}

/// The error of a closure, with the effect that it is about.
#[derive(Debug)]
struct InEffect {
    what: String,
    source: Box<dyn StdError + Send + Sync>,
}

impl fmt::Display for InEffect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}

impl StdError for InEffect {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        Some(&*self.source)
    }
}

/// The store's error: where the effect itself is at fault, no retry can help.
fn refused(name: &EffectName, error: Error) -> TaskError {
    let permanent = error.kind() == ErrorKind::Invalid;
    let error = error.at(format_args!("effect `{name}`"));
    if permanent { TaskError::permanent(error) } else { TaskError::retry(error) }
}

/// A key that no other effect of any store has: 128 bits that the system drew, and for people whose
/// it is.
fn fresh_key(Lease { job, token }: &Lease) -> Result<Key> {
    let (high, low) = (drawn(), drawn());
    Key::new(format!("quell-{job}-{}-{high:016x}{low:016x}", token.starts()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use quell_core::{JobId, LeaseToken};

    #[test]
    fn r23_keys_are_never_the_same() {
        let lease = Lease { job: JobId::new(7), token: LeaseToken::of(2, quell_core::Draw::MIN) };
        let keys: std::collections::BTreeSet<Key> =
            (0..1_000).map(|_| fresh_key(&lease).unwrap()).collect();
        assert_eq!(keys.len(), 1_000);
        assert!(keys.iter().all(|key| key.as_str().starts_with("quell-7-2-")));
    }
}
