//! The handle that an application holds: it triggers tasks and makes workers.

#[cfg(any(feature = "sqlite", feature = "postgres"))]
pub(crate) mod after_commit;
mod batcher;
pub(crate) mod call;
mod guard;
pub(crate) mod observer;
pub(crate) mod open;
mod result;
mod thresholds;
#[cfg(any(feature = "sqlite", feature = "postgres"))]
pub(crate) mod transaction;

use std::any::TypeId;
use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use quell_core::edge::Edge;
use quell_core::history::{Event, Sink};
use quell_core::schedule::Schedule;
use quell_core::window::Thresholds;
use quell_core::{
    Batch, JobId, Key, Limits, NewTrigger, Payload, Receipt, Result, Store, TaskName, lacks,
};
use tracing::Instrument;

use crate::client::batcher::Batcher;
use crate::client::call::{Trigger, TriggerMany, own_key};
use crate::client::guard::Guarded;
use crate::client::observer::Observer;
use crate::client::open::open_store;
use crate::client::thresholds::TaskThresholds;
use crate::clock::{Clock, SystemClock};
use crate::encryption::{Cipher, Encrypted, Seal, WithoutPayloads};
use crate::schedule::ScheduleTask;
use crate::trigger::TaskPolicy;
use crate::{Task, WorkerBuilder, spans};

/// Triggers tasks and makes workers. Clones are cheap and share one batcher.
///
/// ```
/// # #[derive(serde::Serialize, serde::Deserialize)]
/// # struct Hello { name: String }
/// # impl quell::Task for Hello { const NAME: &'static str = "hello"; type Output = (); }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> quell::Result<()> {
/// use quell::{Quell, Receipt};
///
/// let quell = Quell::open("memory:").await?;
/// let receipt = quell.trigger(Hello { name: "you".into() }).await?;
/// assert!(matches!(receipt, Receipt::Accepted { .. }));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Quell {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
    batcher: Batcher,
    limits: Limits,
    thresholds: Thresholds,
    dedup_fallback: DedupFallback,
    history: Option<Sink>,
    /// The encryption that `store` passes, where there is one.
    encrypted: Option<Arc<Encrypted>>,
    next_op: AtomicU64,
    policies: RwLock<HashMap<TypeId, Arc<TaskPolicy>>>,
    /// What operators set for tasks (R14).
    set: TaskThresholds,
}

/// What becomes of dedup keys on a store that cannot keep them (R18).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DedupFallback {
    /// The triggers are accepted without them, so a duplicate runs again.
    Open,
    /// The call is refused before anything is written, with an error that names the capability.
    #[default]
    Closed,
}

/// Settings of a [`Quell`] that few need to change.
#[derive(Debug)]
#[must_use]
pub struct QuellBuilder {
    store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
    limits: Limits,
    thresholds: Option<RangeInclusive<Duration>>,
    dedup_fallback: DedupFallback,
    history: Option<Sink>,
    observer: Option<Arc<dyn Observer>>,
    seal: Option<Seal>,
}

impl QuellBuilder {
    /// Time, for tests; the machine's by default.
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    /// Bounds on what callers may send.
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// The thresholds of debounced tasks that name none, unless their queue does (R14).
    pub fn debounce(mut self, min_to_max: RangeInclusive<Duration>) -> Self {
        self.thresholds = Some(min_to_max);
        self
    }

    /// What becomes of dedup keys on a store that cannot keep them; refused by default (R18).
    pub fn dedup_fallback(mut self, fallback: DedupFallback) -> Self {
        self.dedup_fallback = fallback;
        self
    }

    /// Where the event history goes. Set it on the store too for the events that only it sees.
    pub fn history(mut self, sink: Sink) -> Self {
        self.history = Some(sink);
        self
    }

    /// Who sees the calls of the store, with plain payloads also where the store has encrypted ones.
    pub fn observer(mut self, observer: Arc<dyn Observer>) -> Self {
        self.observer = Some(observer);
        self
    }

    /// Encrypts payloads, outputs and results of effects before they reach the store (R43). A history
    /// gets no payloads then.
    pub fn encryption(mut self, cipher: Arc<dyn Cipher>) -> Self {
        self.seal = Some(Seal::new(cipher));
        self
    }

    /// Makes the handle; call it inside a tokio runtime, on which its batcher will run.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](quell_core::ErrorKind::Invalid) when the default thresholds cannot be
    /// meant.
    pub fn build(self) -> Result<Quell> {
        let thresholds = match self.thresholds {
            Some(range) => Thresholds::new(*range.start(), *range.end())?,
            None => Thresholds::DEFAULT,
        };
        let (mut store, mut history) = (self.store, self.history);
        let encrypted = self.seal.map(|seal| Arc::new(Encrypted::new(Arc::clone(&store), seal)));
        if let Some(encrypted) = &encrypted {
            store = Arc::<Encrypted>::clone(encrypted);
            history = history.map(|sink| -> Sink { Arc::new(WithoutPayloads(sink)) });
        }
        let guarded = Guarded::new(store, Arc::clone(&self.clock), history.clone());
        let store: Arc<dyn Store> = Arc::new(guarded.observed(self.observer));
        let batcher = Batcher::start(Arc::clone(&store), Arc::clone(&self.clock));
        Ok(Quell {
            shared: Arc::new(Shared {
                store,
                clock: self.clock,
                batcher,
                limits: self.limits,
                thresholds,
                dedup_fallback: self.dedup_fallback,
                history,
                encrypted,
                next_op: AtomicU64::new(1),
                policies: RwLock::default(),
                set: TaskThresholds::default(),
            }),
        })
    }
}

impl Quell {
    /// Opens the store behind a URL: `sqlite://FILE` (made when missing),
    /// `postgres://USER:PASSWORD@HOST/DATABASE` (its schema is made when missing),
    /// `redis://USER:PASSWORD@HOST`, `redis-cluster://HOST,HOST`,
    /// `redis+sentinel://HOST,HOST/MASTER`, `azure://ACCOUNT/TABLE` (made when missing; its secrets
    /// are in the environment) or `memory:`, each where the feature of its name is on; `memory:`
    /// always is.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](quell_core::ErrorKind::Invalid) for a URL no feature of this build
    /// knows, else the error of the store.
    pub async fn open(url: &str) -> Result<Quell> {
        Quell::builder(url).await?.build()
    }

    /// Opens the store behind a URL as [`open`](Self::open) does, to set further options.
    ///
    /// # Errors
    /// As for [`open`](Self::open).
    pub async fn builder(url: &str) -> Result<QuellBuilder> {
        open_store(url, None).await
    }

    /// As [`builder`](Self::builder), with an event history, of the client as of the store.
    ///
    /// # Errors
    /// As for [`open`](Self::open).
    pub async fn recorded(url: &str, history: Sink) -> Result<QuellBuilder> {
        Ok(open_store(url, Some(Arc::clone(&history))).await?.history(history))
    }

    /// Starts from a store that is already open.
    pub fn with_store(store: Arc<dyn Store>) -> QuellBuilder {
        QuellBuilder {
            store,
            clock: Arc::new(SystemClock::new()),
            limits: Limits::default(),
            thresholds: None,
            dedup_fallback: DedupFallback::default(),
            history: None,
            observer: None,
            seal: None,
        }
    }

    /// Triggers a task; `.await` the answer, after options if any.
    ///
    /// Returns once the trigger is durable (R1). If the future is dropped before that, the trigger
    /// may or may not have been accepted.
    pub fn trigger<T: Task>(&self, task: T) -> Trigger<'_, T> {
        Trigger::new(self, task)
    }

    /// Triggers a task once per item, all or none, in order (R5).
    pub fn trigger_many<T: Task>(&self, tasks: impl IntoIterator<Item = T>) -> TriggerMany<'_> {
        TriggerMany::new(self, tasks)
    }

    /// Triggers a task by the clock (R36); `.await` after saying when.
    ///
    /// Each tick fires once, whatever number of workers there is; which of them asks makes no
    /// difference, even if it does not know the task.
    pub fn schedule<T: Task>(&self, name: impl AsRef<str>, task: T) -> ScheduleTask<'_, T> {
        ScheduleTask::new(self, name.as_ref(), task)
    }

    /// Sets a schedule without types: for servers whose tasks are declared at run time.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](quell_core::ErrorKind::Invalid) names the field (R40); else the error
    /// of the store
    ///.
    pub async fn set_schedule(&self, schedule: Schedule) -> Result<()> {
        schedule.validate(&self.shared.limits)?;
        let batch = self.keep_dedup(Batch::one(schedule.trigger.clone()))?;
        let trigger = batch.triggers.into_iter().next().unwrap_or(schedule.trigger);
        let schedule = Schedule { trigger, ..schedule };
        self.shared.store.set_schedule(self.shared.clock.store_time(), &schedule).await
    }

    /// Makes a worker whose handlers share `state`.
    pub fn worker<S: Send + Sync + 'static>(&self, state: S) -> WorkerBuilder<S> {
        WorkerBuilder::new(self.clone(), state)
    }

    /// Triggers without types: for servers and bridges whose tasks are declared at run time. Rides
    /// in the same store calls as all other triggers.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](quell_core::ErrorKind::Invalid) names the member and field (R40);
    /// else the error of the store.
    pub async fn enqueue(&self, batch: Batch) -> Result<Vec<Receipt>> {
        batch.validate(&self.shared.limits)?;
        if batch.triggers.is_empty() {
            return Ok(Vec::new());
        }
        let mut batch = self.sealed(self.keep_dedup(batch)?)?;
        let span = spans::trigger(&mut batch);
        let ops = self.record_calls(&batch);
        let answer = self.shared.batcher.enqueue(batch).instrument(span.clone()).await;
        spans::triggered(&span, &answer);
        self.record_answers(ops, answer.as_deref());
        answer
    }

    /// The batch as the store and the history get it (R43).
    pub(crate) fn sealed(&self, batch: Batch) -> Result<Batch> {
        match self.encrypted() {
            Some(encrypted) => encrypted.seal().batch(batch),
            None => Ok(batch),
        }
    }

    /// The encryption, where there is one.
    pub(crate) fn encrypted(&self) -> Option<&Encrypted> {
        self.shared.encrypted.as_deref()
    }

    /// Records the calls of a batch before they are made, and returns their numbers.
    pub(crate) fn record_calls(&self, batch: &Batch) -> std::ops::Range<u64> {
        let Some(history) = &self.shared.history else { return 0..0 };
        let count = u64::try_from(batch.triggers.len()).unwrap_or(u64::MAX);
        let first = self.shared.next_op.fetch_add(count, Ordering::Relaxed);
        let wants_payloads = history.wants_payloads();
        for (op, trigger) in (first..).zip(&batch.triggers) {
            history.record(&Event::invoked(op, trigger, wants_payloads));
        }
        first..first.saturating_add(count)
    }

    /// Records the answers to the calls of a batch.
    pub(crate) fn record_answers(
        &self,
        ops: std::ops::Range<u64>,
        answer: std::result::Result<&[Receipt], &quell_core::Error>,
    ) {
        let Some(history) = &self.shared.history else { return };
        match answer {
            Ok(receipts) => ops.zip(receipts).for_each(|(op, receipt)| {
                history.record(&Event::TriggerOk { op, receipt: receipt.clone() });
            }),
            Err(error) => ops.for_each(|op| history.record(&Event::failed(op, error))),
        }
    }

    /// Makes the open window of a key due now (R7); none where no window is open.
    ///
    /// # Errors
    /// What the store says.
    pub async fn flush<T: Task>(&self, key: &Key) -> Result<Option<JobId>> {
        let task = TaskName::new(T::NAME)?;
        self.shared.store.flush(self.shared.clock.store_time(), &task, key).await
    }

    /// Cancels the open window of a key (R7); none where no window is open.
    ///
    /// # Errors
    /// What the store says.
    pub async fn cancel_key<T: Task>(&self, key: &Key) -> Result<Option<JobId>> {
        let task = TaskName::new(T::NAME)?;
        self.shared.store.cancel_key(self.shared.clock.store_time(), &task, key).await
    }

    /// The store, for tests and tools. Its methods take a time, which only tests may pass: a time
    /// that is ahead moves the store's clock for good (R38). The client's own methods take none.
    #[doc(hidden)]
    #[must_use]
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.shared.store
    }

    /// Leaves the store as one whole at the end of the process, after the last call: SQLite moves its
    /// journal into the file, so that a copy of the file alone is one of the store. Without it nothing
    /// is lost. Other stores have nothing to do.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> quell::Result<()> {
    /// let quell = quell::Quell::open("memory:").await?;
    /// // The workers have ended, and no more calls come.
    /// quell.close().await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// What the store says. What is durable stays so.
    pub async fn close(&self) -> Result<()> {
        self.shared.store.close().await
    }

    /// The clock.
    #[must_use]
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.shared.clock
    }

    /// The thresholds of debounced tasks that name none (R14).
    #[must_use]
    pub fn default_thresholds(&self) -> Thresholds {
        self.shared.thresholds
    }

    /// Gives a debounced trigger the thresholds that an operator set for its task, if any, in place of
    /// its policy's (R14): for servers that make triggers by a [`TaskPolicy`]. A trigger that brings its
    /// own thresholds gets them afterwards. [`trigger`](Self::trigger) and
    /// [`trigger_many`](Self::trigger_many) do this themselves, and [`enqueue`](Self::enqueue) does not.
    ///
    /// What was read of the store counts for 5 s. While the store cannot be read, what was known before
    /// goes on.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> quell::Result<()> {
    /// use quell::{Batch, Key, Payload, Policy, Quell, TaskName};
    ///
    /// let quell = Quell::open("memory:").await?;
    /// let (task, key) = (TaskName::new("mail")?, Key::new("customer-7")?);
    /// let trigger = Policy::default().trigger(task, Payload::encode("hello")?, Some(key))?;
    /// let trigger = quell.with_operators_thresholds(trigger).await;
    /// quell.enqueue(Batch { triggers: vec![trigger], dedup: None }).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn with_operators_thresholds(&self, mut trigger: NewTrigger) -> NewTrigger {
        self.take_operators_thresholds(&mut trigger).await;
        trigger
    }

    /// The same, in place: a trigger has some hundred bytes, and calls of many have as many of them.
    pub(crate) async fn take_operators_thresholds(&self, trigger: &mut NewTrigger) {
        if let Some(keyed) = &mut trigger.keyed
            && keyed.debounce.edge != Edge::Throttle
        {
            let set = self.thresholds_set_for(&trigger.task).await;
            keyed.debounce = keyed.debounce.with_operators(set);
        }
    }

    /// The thresholds that an operator set for a task, for many triggers of it, as
    /// [`with_operators_thresholds`](Self::with_operators_thresholds) has them for one:
    /// [`Debounce::with_operators`](crate::trigger::Debounce::with_operators) takes them.
    pub async fn operators_thresholds(&self, task: &TaskPolicy) -> Option<Thresholds> {
        if task.debounce().edge == Edge::Throttle {
            return None;
        }
        self.thresholds_set_for(task.name()).await
    }

    async fn thresholds_set_for(&self, task: &TaskName) -> Option<Thresholds> {
        self.shared.set.of(&*self.shared.store, self.shared.clock.now(), task).await
    }

    /// The task was set by this process: its next trigger reads its thresholds.
    pub(crate) fn forget_thresholds(&self, task: &TaskName) {
        self.shared.set.forget(task);
    }

    pub(crate) fn history(&self) -> Option<&Sink> {
        self.shared.history.as_ref()
    }

    pub(crate) fn limits(&self) -> &Limits {
        &self.shared.limits
    }

    /// A call of `task` under its policy, with the idempotency key that the policy derives (R20).
    pub(crate) fn prepare_call<T: Task>(&self, task: &T) -> Result<NewTrigger> {
        let policy = self.task_policy::<T>()?;
        let mut trigger = prepared(&policy, task)?;
        policy.derive_key(&mut trigger, self.shared.clock.now())?;
        Ok(trigger)
    }

    /// A trigger for `task` under its policy.
    pub(crate) fn prepare<T: Task>(&self, task: &T) -> Result<NewTrigger> {
        prepared(&*self.task_policy::<T>()?, task)
    }

    /// The task's policy, checked once per process.
    pub(crate) fn task_policy<T: Task>(&self) -> Result<Arc<TaskPolicy>> {
        let id = TypeId::of::<T>();
        let policies = &self.shared.policies;
        if let Some(known) = policies.read().unwrap_or_else(PoisonError::into_inner).get(&id) {
            return Ok(Arc::clone(known));
        }
        let name = TaskName::new(T::NAME)?;
        let policy = Arc::new(TaskPolicy::new(name, &T::policy(), self.shared.thresholds)?);
        let mut known = policies.write().unwrap_or_else(PoisonError::into_inner);
        Ok(Arc::clone(known.entry(id).or_insert(policy)))
    }

    /// R18: a dedup key that the store cannot keep is left out, or refused before anything is
    /// written. An idempotency key is always refused there: its caller relies on it.
    pub(crate) fn keep_dedup(&self, batch: Batch) -> Result<Batch> {
        if self.shared.store.capabilities().dedup {
            return Ok(batch);
        }
        if batch.asks_idempotency() {
            return Err(lacks("dedup", "leave the idempotency key out, or change stores"));
        }
        if !batch.asks_dedup() {
            return Ok(batch);
        }
        match self.shared.dedup_fallback {
            DedupFallback::Open => {
                let triggers = batch.triggers.len();
                tracing::debug!(triggers, "the store keeps no dedup keys, accepting without");
                Ok(batch.without_dedup())
            }
            DedupFallback::Closed => Err(lacks(
                "dedup",
                "leave the dedup key out, set `dedup_fallback` to `open`, or change stores",
            )),
        }
    }
}

fn prepared<T: Task>(policy: &TaskPolicy, task: &T) -> Result<NewTrigger> {
    let key = own_key("debounce_key", task.debounce_key())?;
    if key.is_none() {
        policy.warn_unkeyed();
    }
    let partition = own_key("partition", task.partition())?;
    let mut trigger = policy.trigger(Payload::encode(task)?, key);
    trigger.partition = partition;
    Ok(trigger)
}
