//! Triggers and batches, which callers send, and receipts, which the store returns (R1–R5, R40).

pub mod accept;
mod debounce;
pub mod dedup;
pub mod edge;
pub mod envelope;
pub mod idempotency;
pub mod payload;
#[cfg(test)]
mod steps;
pub mod touched;
pub mod trace;
pub mod window;

use std::time::Duration;

use serde::{Deserialize, Serialize, Serializer};

use crate::dedup::Dedup;
use crate::idempotency::Idempotency;
use crate::payload::{Fold, MAX_PAYLOAD_BYTES};
use crate::setters::setters;
use crate::trace::TraceContext;
use crate::window::{Debounce, Step};
use crate::{
    Error, JobId, JobState, Key, Payload, QueueName, Result, TaskName, Timestamp, TriggerId,
};

/// Higher runs first (R30). 0 unless asked for.
pub type Priority = i16;

/// When a trigger asks to run, before any debounce.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum When {
    /// As soon as the rules allow.
    #[default]
    Now,
    /// No earlier than this long after acceptance.
    After(Duration),
    /// No earlier than this moment of store time.
    At(Timestamp),
}

impl When {
    /// The earliest moment for a trigger accepted at `now`; [`Timestamp::MIN`] for [`When::Now`].
    #[must_use]
    pub fn earliest(self, now: Timestamp) -> Timestamp {
        match self {
            When::Now => Timestamp::MIN,
            When::After(delay) => now + delay,
            When::At(at) => at,
        }
    }
}

/// The debounce of a keyed trigger.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Keyed {
    /// Triggers of one task with one key share a window.
    pub key: Key,
    /// The window's rule.
    pub debounce: Debounce,
}

/// One request to run a task, as a store takes it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct NewTrigger {
    /// The task to run.
    pub task: TaskName,
    /// The queue its job waits in.
    pub queue: QueueName,
    /// The task's arguments.
    pub payload: Payload,
    /// Higher runs first.
    pub priority: Priority,
    /// When to run at the earliest.
    pub when: When,
    /// The debounce; none makes the trigger its own job (R9).
    pub keyed: Option<Keyed>,
    /// How payloads become one (R10). It counts without a key, too: a task that collects gets an
    /// array of one.
    #[serde(default, skip_serializing_if = "Fold::is_last")]
    pub fold: Fold,
    /// The dedup key, if any (R16).
    pub dedup: Option<Dedup>,
    /// The partition of the queue that it belongs to, if any (R31).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partition: Option<Key>,
    /// The idempotency key, if any (R19).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idempotency: Option<Idempotency>,
    /// The trace context of the span that triggered, if any (R42).
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "trace::lenient")]
    pub trace: Option<TraceContext>,
}

setters!(NewTrigger {
    task: TaskName,
    queue: QueueName,
    payload: Payload,
    priority: Priority,
    when: When,
    keyed? Keyed,
    fold: Fold,
    dedup? Dedup,
    partition? Key,
    idempotency? Idempotency,
    trace? TraceContext,
});

impl NewTrigger {
    /// A trigger without options.
    #[must_use]
    pub fn new(task: TaskName, queue: QueueName, payload: Payload) -> Self {
        let (priority, when) = (0, When::Now);
        let (keyed, dedup, partition, idempotency, trace) = (None, None, None, None, None);
        let fold = Fold::Last;
        NewTrigger {
            task,
            queue,
            payload,
            priority,
            when,
            keyed,
            fold,
            dedup,
            partition,
            idempotency,
            trace,
        }
    }

    /// Whether its job keeps the payload as it is, and nothing of its fold: it has no debounce key,
    /// and its task does not collect.
    #[must_use]
    pub fn is_bare(&self) -> bool {
        self.keyed.is_none() && !matches!(self.fold, Fold::Collect { .. })
    }

    /// Whether it has a key that its task's other triggers may have too: debounce, dedup or
    /// idempotency.
    #[must_use]
    pub fn has_key(&self) -> bool {
        self.keyed.is_some() || self.dedup.is_some() || self.idempotency.is_some()
    }

    /// The trigger as its window sees it, accepted at `now`.
    #[must_use]
    pub fn step(&self, debounce: &Debounce, now: Timestamp) -> Step {
        let collect_cap = match self.fold {
            Fold::Collect { cap } => Some(cap),
            Fold::Last | Fold::First | Fold::Merge | Fold::Accumulate { .. } => None,
        };
        Step {
            at: now,
            asked: self.when.earliest(now),
            thresholds: debounce.thresholds,
            max_triggers: debounce.max_triggers,
            collect_cap,
        }
    }

    /// Refuses what no store may be given (R40).
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) that names the field.
    pub fn validate(&self, limits: &Limits) -> Result<()> {
        let bytes = self.payload.as_str().len();
        if bytes > limits.payload_bytes {
            return Err(Error::invalid(
                "payload",
                format!(
                    "payload has {bytes} bytes, the limit is {}: send a reference instead",
                    limits.payload_bytes
                ),
            ));
        }
        if matches!(self.when, When::After(delay) if delay.is_zero()) {
            return Err(Error::invalid("delay", "delay is zero: leave it out to run at once"));
        }
        if let Some(keyed) = &self.keyed {
            keyed.debounce.check_bounds()?;
            keyed.debounce.check_delay(self.when)?;
        }
        if matches!(self.fold, Fold::Collect { cap: 0 }) {
            return Err(Error::invalid("collect", "the cap of collect is 0: give 1 or more"));
        }
        if let Some(idempotency) = &self.idempotency {
            idempotency.validate()?;
        }
        self.dedup.as_ref().map_or(Ok(()), Dedup::validate)
    }
}

/// Triggers that are accepted together or not at all (R5).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Batch {
    /// In order; receipts come back in the same order.
    pub triggers: Vec<NewTrigger>,
    /// A dedup key for the batch as a whole (R17); it belongs to the first trigger's task.
    pub dedup: Option<Dedup>,
}

impl Batch {
    /// A batch of one.
    #[must_use]
    pub fn one(trigger: NewTrigger) -> Self {
        Batch { triggers: vec![trigger], dedup: None }
    }

    /// Reads a batch that a transaction left in a store's inbox: the triggers and the dedup key, as
    /// JSON. Anyone who may trigger may have written it, so it is validated again (R40). The limits
    /// on sizes were its client's own and are unknown here; only [`MAX_BATCH_BYTES`] holds.
    ///
    /// # Errors
    /// The reason for which the store sets it aside, in words for an operator.
    pub fn from_inbox(text: &str) -> Result<Self, String> {
        let (triggers, dedup) = serde_json::from_str(text)
            .map_err(|error| format!("it is not Quell's writing: {error}"))?;
        let batch = Batch { triggers, dedup };
        let limits = Limits { payload_bytes: MAX_BATCH_BYTES, batch: usize::MAX };
        batch.validate(&limits).map_err(|error| error.to_string())?;
        Ok(batch)
    }

    /// Whether it or a member has a dedup key, which not every store can keep (R18).
    #[must_use]
    pub fn asks_dedup(&self) -> bool {
        self.dedup.is_some() || self.triggers.iter().any(|trigger| trigger.dedup.is_some())
    }

    /// Whether a member has an idempotency key, which a store keeps exactly or not at all.
    #[must_use]
    pub fn asks_idempotency(&self) -> bool {
        self.triggers.iter().any(|trigger| trigger.idempotency.is_some())
    }

    /// The same batch without any dedup key.
    #[must_use]
    pub fn without_dedup(mut self) -> Self {
        self.dedup = None;
        self.triggers.iter_mut().for_each(|trigger| trigger.dedup = None);
        self
    }

    /// Refuses the whole batch for one bad member, naming its index (R5).
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) that names the member and the field.
    pub fn validate(&self, limits: &Limits) -> Result<()> {
        let count = self.triggers.len();
        if count > limits.batch {
            return Err(Error::invalid(
                "triggers",
                format!("batch has {count} triggers, the limit is {}: split it", limits.batch),
            ));
        }
        let bytes = |trigger: &NewTrigger| trigger.payload.as_str().len();
        let total = self.triggers.iter().map(bytes).fold(0, usize::saturating_add);
        if total > MAX_BATCH_BYTES {
            return Err(Error::invalid(
                "triggers",
                format!(
                    "batch has {total} bytes of payloads, the limit is {MAX_BATCH_BYTES}: split it"
                ),
            ));
        }
        for (index, trigger) in self.triggers.iter().enumerate() {
            let checked = trigger.validate(limits);
            checked.map_err(|e| if count > 1 { e.at(format!("triggers[{index}]")) } else { e })?;
        }
        self.dedup.as_ref().map_or(Ok(()), Dedup::validate)
    }
}

/// The most bytes of payloads in one batch: what one transaction writes in reasonable time.
pub const MAX_BATCH_BYTES: usize = 64 << 20;

/// Bounds on what a caller may send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The largest payload, in bytes.
    pub payload_bytes: usize,
    /// The most triggers in one batch.
    pub batch: usize,
}

setters!(Limits { payload_bytes: usize, batch: usize });

impl Default for Limits {
    /// 1 MiB and 10,000 triggers.
    fn default() -> Self {
        Limits { payload_bytes: MAX_PAYLOAD_BYTES, batch: 10_000 }
    }
}

/// What became of a trigger (R3). The first two say that it was accepted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "receipt")]
#[non_exhaustive]
pub enum Receipt {
    /// It made a job of its own, or opened a window.
    Accepted {
        /// The job.
        job: JobId,
        /// The trigger's own id.
        trigger: TriggerId,
        /// When the job is due.
        due: Timestamp,
    },
    /// It joined an open window, or was debounced away by a leading edge.
    Debounced {
        /// The job that took it.
        job: JobId,
        /// The trigger's own id.
        trigger: TriggerId,
        /// How many triggers that job has gathered.
        triggers: u64,
        /// When the job is due.
        due: Timestamp,
    },
    /// Its dedup key is taken (R16): nothing was written.
    Duplicate {
        /// The job that holds the key.
        job: JobId,
    },
    /// Its idempotency key is taken by a trigger with the same payload (R19): nothing was written.
    Existing {
        /// The job of the first trigger, or its successor (R12).
        job: JobId,
        /// How that job stands.
        state: JobState,
        /// What it returned, once it has. Serialized as a string of JSON: serde keeps no JSON text
        /// as it is inside an enum with a tag. An [`Event`](crate::history::Event) leaves it out.
        #[serde(
            default,
            skip_serializing_if = "Option::is_none",
            with = "crate::payload::as_text"
        )]
        output: Option<Payload>,
    },
    /// It waits in the caller's transaction and counts from the commit (R4), or in a queue that
    /// keeps its dedup key and does not return whether that was taken (R18).
    Pending,
}

impl Receipt {
    /// The receipt without what the job returned: an event history keeps no output.
    pub(crate) fn without_output<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut receipt = self.clone();
        if let Receipt::Existing { output, .. } = &mut receipt {
            *output = None;
        }
        receipt.serialize(to)
    }

    /// The job that took the trigger; none while it is [`Receipt::Pending`].
    #[must_use]
    pub fn job(&self) -> Option<JobId> {
        match self {
            Receipt::Accepted { job, .. }
            | Receipt::Debounced { job, .. }
            | Receipt::Duplicate { job }
            | Receipt::Existing { job, .. } => Some(*job),
            Receipt::Pending => None,
        }
    }

    /// The trigger's own id, where it was accepted.
    #[must_use]
    pub fn trigger(&self) -> Option<TriggerId> {
        match self {
            Receipt::Accepted { trigger, .. } | Receipt::Debounced { trigger, .. } => {
                Some(*trigger)
            }
            Receipt::Duplicate { .. } | Receipt::Existing { .. } | Receipt::Pending => None,
        }
    }

    /// The word for metrics and logs.
    #[must_use]
    pub fn outcome(&self) -> &'static str {
        match self {
            Receipt::Accepted { .. } => "accepted",
            Receipt::Debounced { .. } => "debounced",
            Receipt::Duplicate { .. } => "duplicate",
            Receipt::Existing { .. } => "existing",
            Receipt::Pending => "pending",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::window::Thresholds;

    fn trigger() -> NewTrigger {
        NewTrigger::new(
            TaskName::new("t").unwrap(),
            QueueName::new("q").unwrap(),
            Payload::from_stored("1"),
        )
    }

    /// A call moves its trigger a dozen times, and more than 256 bytes take twice as long to copy: 52 for 29
    /// instructions with AVX2.
    #[test]
    fn a_trigger_is_quick_to_move() {
        assert!(size_of::<NewTrigger>() <= 256, "{}", size_of::<NewTrigger>());
    }

    #[test]
    fn r40_a_batch_is_bounded_in_bytes() {
        let large = format!("\"{}\"", "x".repeat(MAX_PAYLOAD_BYTES - 2));
        let of = |count| {
            let one = NewTrigger { payload: Payload::from_stored(&*large), ..trigger() };
            Batch { triggers: vec![one; count], dedup: None }
        };
        let most = MAX_BATCH_BYTES / MAX_PAYLOAD_BYTES;
        assert!(of(most).validate(&Limits::default()).is_ok());
        let error = of(most + 1).validate(&Limits::default()).unwrap_err();
        assert_eq!(error.field(), Some("triggers"), "{error}");
    }

    #[test]
    fn r05_an_invalid_member_refuses_the_batch_by_index() {
        let bad = NewTrigger { when: When::After(Duration::ZERO), ..trigger() };
        let batch = Batch { triggers: vec![trigger(), bad], dedup: None };
        let error = batch.validate(&Limits::default()).unwrap_err();
        assert_eq!(error.field(), Some("delay"));
        assert!(error.to_string().starts_with("triggers[1]: "), "{error}");
        let alone = NewTrigger { when: When::After(Duration::ZERO), ..trigger() };
        let error = Batch::one(alone).validate(&Limits::default()).unwrap_err();
        assert!(error.to_string().starts_with("delay "), "one has no index: {error}");
    }

    #[test]
    fn r18_without_its_dedup_keys_a_batch_keeps_its_triggers() {
        let dedup = Some(Dedup::new(Key::new("d").unwrap()));
        let keyed = NewTrigger { dedup: dedup.clone(), ..trigger() };
        let batch = Batch { triggers: vec![keyed, trigger()], dedup };
        assert!(batch.asks_dedup());
        let plain = batch.without_dedup();
        assert!(!plain.asks_dedup());
        assert_eq!(plain.triggers, [trigger(), trigger()]);
    }

    #[test]
    fn r40_each_bound_holds_at_n_and_fails_at_n_plus_one() {
        let limits = Limits { payload_bytes: 3, batch: 2 };
        let sized =
            |n: usize| NewTrigger { payload: Payload::from_stored("9".repeat(n)), ..trigger() };
        assert!(sized(3).validate(&limits).is_ok());
        assert_eq!(sized(4).validate(&limits).unwrap_err().field(), Some("payload"));
        let batch = |n| Batch { triggers: vec![trigger(); n], dedup: None };
        assert!(batch(2).validate(&limits).is_ok());
        assert_eq!(batch(3).validate(&limits).unwrap_err().field(), Some("triggers"));
    }

    #[test]
    fn r40_zero_counts_are_refused_by_field() {
        let debounce = Debounce::new(Thresholds::DEFAULT);
        let keyed = |debounce, fold| {
            let key = Key::new("k").unwrap();
            NewTrigger { keyed: Some(Keyed { key, debounce }), fold, ..trigger() }
        };
        let none = keyed(Debounce { max_triggers: Some(0), ..debounce }, Fold::Last);
        let capless = keyed(debounce, Fold::Collect { cap: 0 });
        let limits = Limits::default();
        assert_eq!(none.validate(&limits).unwrap_err().field(), Some("max_triggers"));
        assert_eq!(capless.validate(&limits).unwrap_err().field(), Some("collect"));
    }
}
