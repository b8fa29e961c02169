//! How a task wants to be run: queue, debounce, retry, timeout.
//!
//! A [`Policy`] is written by a user; a [`TaskPolicy`] is the same, checked once, with a name.
//! Every trigger is made by one, so the client never checks a policy on its hot path.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use quell_core::edge::Edge;
use quell_core::idempotency::{DEFAULT_RETENTION, DerivedKey, Idempotency};
use quell_core::retry::{Jitter, Retry};
use quell_core::trigger::Keyed;
use quell_core::window::{Debounce, Thresholds};
use quell_core::{
    Error, Fold, Key, NewTrigger, Payload, Priority, QueueName, Result, TaskName, Timestamp,
};

use crate::failure::Classifier;

/// The queue of a task that names none.
pub const DEFAULT_QUEUE: &str = "default";
/// The timeout of a task that names none.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(600);

/// How a task wants to be run. Each setting has a default that is safe to leave alone.
///
/// ```
/// use std::time::Duration;
/// use quell::{Fold, Policy};
///
/// let secs = Duration::from_secs;
/// let policy = Policy::queue("billing")
///     .debounce(secs(10)..=secs(60))
///     .max_triggers(500)
///     .fold(Fold::Merge)
///     .attempts(5)
///     .min_backoff(secs(30))
///     .timeout(secs(120));
/// assert!(policy.validate().is_ok());
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct Policy {
    queue: String,
    priority: Priority,
    thresholds: Option<(Duration, Duration)>,
    throttle: Option<Duration>,
    max_triggers: Option<u32>,
    max_bytes: Option<u32>,
    edge: Edge,
    overlap: bool,
    fold: Fold,
    retry: Retry,
    timeout: Duration,
    classify: Option<Classifier>,
    derived: Option<DerivedKey>,
    retention: Duration,
}

impl Default for Policy {
    fn default() -> Self {
        Policy::queue(DEFAULT_QUEUE)
    }
}

impl Policy {
    /// The defaults, in this queue.
    pub fn queue(name: impl Into<String>) -> Self {
        Policy {
            queue: name.into(),
            priority: 0,
            thresholds: None,
            throttle: None,
            max_triggers: None,
            max_bytes: None,
            edge: Edge::Trailing,
            overlap: false,
            fold: Fold::Last,
            retry: Retry::default(),
            timeout: DEFAULT_TIMEOUT,
            classify: None,
            derived: None,
            retention: DEFAULT_RETENTION,
        }
    }

    /// Higher runs first among jobs that are due (R30). 0 by default.
    pub fn priority(mut self, priority: Priority) -> Self {
        self.priority = priority;
        self
    }

    /// Quiet period and longest delay of keyed triggers (R6–R8): `min..=max`.
    pub fn debounce(mut self, min_to_max: RangeInclusive<Duration>) -> Self {
        let (min, max) = min_to_max.into_inner();
        self.thresholds = Some((min, max));
        self
    }

    /// At most one start per key and `period` (R13), in place of a debounce.
    pub fn throttle(mut self, period: Duration) -> Self {
        self.throttle = Some(period);
        self
    }

    /// The number of triggers at which a window is due at once (R7).
    pub fn max_triggers(mut self, triggers: u32) -> Self {
        self.max_triggers = Some(triggers);
        self
    }

    /// The bytes that the gathered payload of a window may have: 1 MiB by default, 16 MiB at most.
    /// The trigger that does not fit closes the window, which is due then, and opens the next one
    /// (R10).
    pub fn max_bytes(mut self, bytes: u32) -> Self {
        self.max_bytes = Some(bytes);
        self
    }

    /// Which end of a burst runs (R13). Trailing by default.
    pub fn edge(mut self, edge: Edge) -> Self {
        self.edge = edge;
        self
    }

    /// Lets attempts of one key run at the same time (turns R11 off).
    pub fn overlap(mut self) -> Self {
        self.overlap = true;
        self
    }

    /// How the payloads of a window become one (R10). The last one by default.
    pub fn fold(mut self, fold: Fold) -> Self {
        self.fold = fold;
        self
    }

    /// Attempts in all, the first among them (R24). 20 by default.
    pub fn attempts(mut self, max_attempts: u32) -> Self {
        self.retry.max_attempts = max_attempts;
        self
    }

    /// The first backoff; it doubles with every failure (R24). 1 s by default.
    pub fn min_backoff(mut self, backoff: Duration) -> Self {
        self.retry.min_backoff = backoff;
        self
    }

    /// No backoff is longer (R24). 1 h by default.
    pub fn max_backoff(mut self, backoff: Duration) -> Self {
        self.retry.max_backoff = backoff;
        self
    }

    /// How backoffs are spread (R24). [`Jitter::Equal`] by default.
    pub fn jitter(mut self, jitter: Jitter) -> Self {
        self.retry.jitter = jitter;
        self
    }

    /// An attempt that takes longer has failed. 10 min by default.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// How often in a row an attempt may end without a word, its worker killed or hung, before the
    /// job is buried (R25). 5 by default; `u32::MAX` for however often.
    pub fn max_crashes(mut self, max_crashes: u32) -> Self {
        self.retry.max_crashes = max_crashes;
        self
    }

    /// What follows an error that the handler did not judge itself (R24, R25): one that came by `?`
    /// or [`TaskError::failed`](crate::TaskError::failed). All are transient by default.
    ///
    /// ```
    /// use quell::Policy;
    /// use quell::failure::{Class, http_class};
    ///
    /// // What comes from HTTP by its status, what does not parse never again, the rest later.
    /// let policy = Policy::default().classify(|error| match error.is::<serde_json::Error>() {
    ///     true => Class::Permanent,
    ///     false => http_class(error),
    /// });
    /// # assert!(policy.validate().is_ok());
    /// ```
    pub fn classify(mut self, classify: Classifier) -> Self {
        self.classify = Some(classify);
        self
    }

    /// Gives each trigger the idempotency key that is made of its payload (R20), unless the call
    /// names one. Equal payloads then collide on purpose; the time that a window is cut from is the
    /// caller's clock.
    pub fn idempotency(mut self, derived: DerivedKey) -> Self {
        self.derived = Some(derived);
        self
    }

    /// How long idempotency keys and the outputs of their jobs are kept, from acceptance (R19). 24
    /// h by default.
    pub fn idempotency_retention(mut self, retention: Duration) -> Self {
        self.retention = retention;
        self
    }

    /// Refuses what cannot be meant (R40).
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) that names the field.
    pub fn validate(&self) -> Result<()> {
        self.derived.as_ref().map_or(Ok(()), DerivedKey::validate)?;
        if self.retention.as_micros() == 0 {
            let message = "idempotency retention is zero: give a duration";
            return Err(Error::invalid("idempotency_retention", message));
        }
        self.keyed_debounce(Thresholds::DEFAULT)?;
        self.retry.validate()?;
        QueueName::new(&self.queue)?;
        if self.timeout.is_zero() {
            return Err(Error::invalid("timeout", "timeout is zero: give a duration"));
        }
        Ok(())
    }

    /// Whether it names a setting that does nothing for a trigger without a key.
    fn wants_keys(&self) -> bool {
        self.thresholds.is_some()
            || self.throttle.is_some()
            || self.max_triggers.is_some()
            || self.max_bytes.is_some()
            || self.edge != Edge::Trailing
            || self.fold != Fold::Last
    }

    /// The debounce of keyed triggers; `default` are the process's thresholds (R14).
    fn keyed_debounce(&self, default: Thresholds) -> Result<Debounce> {
        let base = match (self.throttle, self.thresholds) {
            (Some(_), Some(_)) => {
                return Err(Error::invalid(
                    "throttle",
                    "throttle and debounce exclude each other: choose one",
                ));
            }
            (Some(_), None) if self.edge != Edge::Trailing => {
                return Err(Error::invalid("edge", "throttle has no edges: leave edge out"));
            }
            (Some(period), None) => Debounce::throttle(period)?,
            (None, Some((min, max))) => {
                Debounce { edge: self.edge, ..Debounce::new(Thresholds::new(min, max)?) }
            }
            (None, None) => Debounce { edge: self.edge, ..Debounce::with_default(default) },
        };
        if matches!(self.fold, Fold::Collect { cap: 0 }) {
            return Err(Error::invalid("collect", "the cap of collect is 0: give 1 or more"));
        }
        let (max_triggers, max_bytes) = (self.max_triggers, self.max_bytes);
        let debounce = Debounce { max_triggers, max_bytes, overlap: self.overlap, ..base };
        debounce.check_bounds()?;
        Ok(debounce)
    }

    /// A trigger of `task` under this policy; with `key` it is debounced.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) as for [`Policy::validate`].
    pub fn trigger(
        &self,
        task: TaskName,
        payload: Payload,
        key: Option<Key>,
    ) -> Result<NewTrigger> {
        Ok(TaskPolicy::new(task, self, Thresholds::DEFAULT)?.trigger(payload, key))
    }
}

/// A task's name with its policy, checked.
///
/// ```
/// use quell::{Payload, Policy, TaskName};
/// use quell::trigger::{TaskPolicy, Thresholds};
///
/// let task = TaskPolicy::new(TaskName::new("mail")?, &Policy::default(), Thresholds::DEFAULT)?;
/// let trigger = task.trigger(Payload::encode("hello")?, None);
/// assert_eq!(trigger.queue.as_str(), "default");
/// # Ok::<(), quell::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct TaskPolicy {
    name: TaskName,
    queue: QueueName,
    debounce: Debounce,
    /// The other settings, which a check leaves as they are.
    policy: Policy,
    /// Whether the warning about triggers without a key was logged.
    warned: Arc<AtomicBool>,
}

impl TaskPolicy {
    /// Checks `policy`; `default` are the thresholds of a policy that names none (R14).
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) as for [`Policy::validate`].
    pub fn new(name: TaskName, policy: &Policy, default: Thresholds) -> Result<Self> {
        policy.validate().map_err(|error| error.at(format!("task {name}")))?;
        Ok(TaskPolicy {
            queue: QueueName::new(&policy.queue)?,
            debounce: policy.keyed_debounce(default)?,
            policy: policy.clone(),
            warned: Arc::default(),
            name,
        })
    }

    /// Warns, once, that a trigger without a debounce key leaves the policy's debounce without
    /// effect (R9, R15). Returns whether it warned.
    pub(crate) fn warn_unkeyed(&self) -> bool {
        let warns = self.policy.wants_keys() && !self.warned.swap(true, Ordering::Relaxed);
        if warns {
            tracing::warn!(
                task = %self.name,
                "the policy debounces, but a trigger has no debounce key and runs on its own: \
                 implement debounce_key, or call no_debounce where that is meant"
            );
        }
        warns
    }

    /// The task's name.
    #[must_use]
    pub fn name(&self) -> &TaskName {
        &self.name
    }

    /// The task's queue.
    #[must_use]
    pub fn queue(&self) -> &QueueName {
        &self.queue
    }

    /// The task's retry rule.
    #[must_use]
    pub fn retry(&self) -> &Retry {
        &self.policy.retry
    }

    /// What judges the errors that handlers did not.
    pub(crate) fn classify(&self) -> Option<Classifier> {
        self.policy.classify
    }

    /// How long one attempt may take.
    #[must_use]
    pub fn timeout(&self) -> Duration {
        self.policy.timeout
    }

    /// The debounce of keyed triggers.
    #[must_use]
    pub fn debounce(&self) -> &Debounce {
        &self.debounce
    }

    /// How payloads are folded.
    #[must_use]
    pub fn fold(&self) -> &Fold {
        &self.policy.fold
    }

    /// An idempotency key, kept for as long as the task says (R19).
    #[must_use]
    pub fn idempotency(&self, key: Key) -> Idempotency {
        Idempotency { key, retention: self.policy.retention }
    }

    /// Gives a trigger of the task the idempotency key that the policy derives (R20); `now` is the
    /// caller's time.
    ///
    /// # Errors
    /// As for [`DerivedKey::key`].
    pub fn with_derived_key(&self, mut trigger: NewTrigger, now: Timestamp) -> Result<NewTrigger> {
        self.derive_key(&mut trigger, now)?;
        Ok(trigger)
    }

    /// The same, in place.
    pub(crate) fn derive_key(&self, trigger: &mut NewTrigger, now: Timestamp) -> Result<()> {
        if let Some(derived) = &self.policy.derived {
            let key = derived.key(&trigger.task, &trigger.payload, now)?;
            trigger.idempotency = Some(self.idempotency(key));
        }
        Ok(())
    }

    /// A trigger of the task; with `key` it is debounced.
    #[must_use]
    pub fn trigger(&self, payload: Payload, key: Option<Key>) -> NewTrigger {
        let mut trigger = NewTrigger::new(self.name.clone(), self.queue.clone(), payload);
        trigger.priority = self.policy.priority;
        trigger.keyed = key.map(|key| Keyed { key, debounce: self.debounce });
        trigger.fold = self.policy.fold.clone();
        trigger
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r09_r15_a_policy_that_debounces_warns_once_of_a_trigger_without_a_key() {
        let secs = Duration::from_secs;
        let table = [
            (Policy::default().attempts(3), false),
            (Policy::default().debounce(secs(1)..=secs(2)), true),
            (Policy::default().throttle(secs(1)), true),
            (Policy::default().max_triggers(3), true),
            (Policy::default().max_bytes(3), true),
            (Policy::default().edge(Edge::Leading), true),
            (Policy::default().fold(Fold::Merge), true),
        ];
        for (policy, warns) in table {
            let name = TaskName::new("t").unwrap();
            let checked = TaskPolicy::new(name, &policy, Thresholds::DEFAULT).unwrap();
            assert_eq!(checked.warn_unkeyed(), warns, "{policy:?}");
            assert!(!checked.clone().warn_unkeyed(), "only once: {policy:?}");
        }
    }
}
