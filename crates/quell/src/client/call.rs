//! One call with its options: what `quell.trigger(…)` and `quell.trigger_many(…)` return.
//!
//! An option that cannot be meant is refused when the call is awaited, before anything is written.

use std::future::IntoFuture;
use std::marker::PhantomData;
use std::ops::RangeInclusive;
#[cfg(any(feature = "sqlite", feature = "postgres"))]
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use quell_core::dedup::{Dedup, HoldUntil};
use quell_core::trace::TraceContext;
use quell_core::window::Thresholds;
use quell_core::{
    Batch, Error, ErrorKind, Key, NewTrigger, Priority, Receipt, Result, Timestamp, When,
};

#[cfg(any(feature = "sqlite", feature = "postgres"))]
use tracing::Instrument;

#[cfg(any(feature = "sqlite", feature = "postgres"))]
use crate::client::after_commit::AfterCommit;
#[cfg(any(feature = "sqlite", feature = "postgres"))]
use crate::client::transaction::Wakes;
#[cfg(any(feature = "sqlite", feature = "postgres"))]
use crate::spans;
use crate::{Quell, Task};

/// A trigger that is sent when awaited.
///
/// ```
/// # #[derive(serde::Serialize, serde::Deserialize)]
/// # struct Invoice { number: u32 }
/// # impl quell::Task for Invoice { const NAME: &'static str = "invoice"; type Output = (); }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> quell::Result<()> {
/// # let quell = quell::Quell::open("memory:").await?;
/// use std::time::Duration;
/// use quell::Receipt;
///
/// let first = quell.trigger(Invoice { number: 7 }).dedup("invoice-7").await?;
/// let again = quell.trigger(Invoice { number: 7 }).dedup("invoice-7").await?;
/// assert_eq!(again, Receipt::Duplicate { job: first.job().unwrap() });
///
/// let tomorrow = Duration::from_secs(24 * 3600);
/// quell.trigger(Invoice { number: 8 }).delay(tomorrow).priority(5).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "a trigger is sent when it is awaited"]
pub struct Trigger<'a, T> {
    quell: &'a Quell,
    /// Boxed, as each option of the call moves it.
    trigger: Result<Box<NewTrigger>>,
    /// Whether it brings thresholds of its own (R7).
    has_thresholds: bool,
    task: PhantomData<fn() -> T>,
}

impl<'a, T: Task> Trigger<'a, T> {
    pub(crate) fn new(quell: &'a Quell, task: T) -> Self {
        let trigger = quell.prepare_call(&task).map(Box::new);
        Trigger { quell, trigger, has_thresholds: false, task: PhantomData }
    }

    /// At most one trigger of the task with this key is accepted for an hour, or as
    /// [`Trigger::dedup_until`] says (R16).
    pub fn dedup(self, key: impl AsRef<str>) -> Self {
        let key = dedup_key(key.as_ref());
        self.change(|trigger| {
            let until = trigger.dedup.as_ref().map_or_else(HoldUntil::default, |d| d.until);
            trigger.dedup = Some(Dedup { key: key?, until });
            Ok(())
        })
    }

    /// How long the dedup key is taken; give the key first.
    pub fn dedup_until(self, until: HoldUntil) -> Self {
        self.change(|trigger| match &mut trigger.dedup {
            Some(dedup) => {
                dedup.until = until;
                Ok(())
            }
            None => Err(Error::invalid("dedup", "dedup_until without a dedup key: give it first")),
        })
    }

    /// The first trigger of the task with this key wins; a later one with the same payload gets its
    /// job, state and output as [`Receipt::Existing`], for as long as the task's policy says (R19).
    /// It takes the place of the key that the policy may derive.
    ///
    /// Awaiting it fails with [`ErrorKind::IdempotencyConflict`] where the key came with another
    /// payload.
    pub fn idempotency_key(self, key: impl AsRef<str>) -> Self {
        let key = named_key("idempotency_key", key.as_ref());
        let policy = self.quell.task_policy::<T>();
        self.change(|trigger| {
            trigger.idempotency = Some(policy?.idempotency(key?));
            Ok(())
        })
    }

    /// No earlier than this long after acceptance. With a key, a delay beyond max is refused, and the
    /// bound of a window that is open already still holds (R7).
    pub fn delay(self, delay: Duration) -> Self {
        self.change(|trigger| {
            trigger.when = When::After(delay);
            Ok(())
        })
    }

    /// No earlier than this moment of store time. With a key, a moment beyond max is refused, and the
    /// bound of a window that is open already still holds (R7).
    pub fn run_at(self, at: Timestamp) -> Self {
        self.change(|trigger| {
            trigger.when = When::At(at);
            Ok(())
        })
    }

    /// The trace context of what triggers (R42): the handler gets it by
    /// [`Ctx::traces`](crate::Ctx::traces). With the feature `opentelemetry`, a trigger without one gets
    /// that of its span `quell.trigger`.
    ///
    /// ```
    /// # #[derive(serde::Serialize, serde::Deserialize)]
    /// # struct Index;
    /// # impl quell::Task for Index { const NAME: &'static str = "index"; type Output = (); }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> quell::Result<()> {
    /// # let quell = quell::Quell::open("memory:").await?;
    /// use quell::trigger::TraceContext;
    ///
    /// let header = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    /// quell.trigger(Index).trace(TraceContext::new(header, None)?).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn trace(self, context: TraceContext) -> Self {
        self.change(|trigger| {
            trigger.trace = Some(context);
            Ok(())
        })
    }

    /// Its priority, in place of the policy's (R30).
    pub fn priority(self, priority: Priority) -> Self {
        self.change(|trigger| {
            trigger.priority = priority;
            Ok(())
        })
    }

    /// The partition of the queue that it belongs to, in place of the task's (R31).
    pub fn partition(self, partition: impl AsRef<str>) -> Self {
        let partition = named_key("partition", partition.as_ref());
        self.change(|trigger| {
            trigger.partition = Some(partition?);
            Ok(())
        })
    }

    /// Its own job, ready at once, whatever its key says. It joins no window and keeps no other
    /// attempt of the key from running.
    pub fn no_debounce(self) -> Self {
        self.change(|trigger| {
            trigger.keyed = None;
            Ok(())
        })
    }

    /// Its own thresholds: `min` counts for its own step, `max` from the window's first (R7).
    pub fn debounce(mut self, min_to_max: RangeInclusive<Duration>) -> Self {
        self.has_thresholds = true;
        self.change(|trigger| {
            let Some(keyed) = &mut trigger.keyed else {
                return Err(Error::invalid("debounce", "debounce of a trigger without a key"));
            };
            keyed.debounce.thresholds = Thresholds::new(*min_to_max.start(), *min_to_max.end())?;
            keyed.debounce.from_default = false;
            Ok(())
        })
    }

    /// Sends it inside the caller's own transaction (R4): it counts from the commit and vanishes
    /// with a rollback. The receipt is [`Receipt::Pending`]: what the trigger joined is decided
    /// after the commit.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] when the transaction's database does not hold the store; else
    /// what the database says.
    #[cfg(any(feature = "sqlite", feature = "postgres"))]
    pub async fn within<DB: crate::trigger::Database>(
        self,
        tx: &mut sqlx::Transaction<'_, DB>,
    ) -> Result<Receipt> {
        let quell = self.quell;
        within(quell, Batch::one(*self.resolved().await?), tx, Wakes::AtCommit).await?;
        Ok(Receipt::Pending)
    }

    /// As [`Trigger::within`], and the transaction does not notify workers: on PostgreSQL commits that
    /// do go through one by one, on the whole server (R34). Wake them after the commit by what this
    /// returns. Without that they find the trigger by polling, each second, or within some 50 ms where
    /// transactions of the store do not notify
    /// (`quell::postgres::PostgresOptions::notify_in_transactions`).
    ///
    /// ```no_run
    /// # #[cfg(feature = "postgres")]
    /// # mod example {
    /// # #[derive(serde::Serialize, serde::Deserialize)]
    /// # struct Invoice { number: u32 }
    /// # impl quell::Task for Invoice { const NAME: &'static str = "invoice"; type Output = (); }
    /// # async fn order(
    /// #     quell: quell::Quell,
    /// #     mut tx: sqlx::Transaction<'_, sqlx::Postgres>,
    /// # ) -> Result<(), Box<dyn std::error::Error>> {
    /// let after_commit = quell.trigger(Invoice { number: 7 }).within_silently(&mut tx).await?;
    /// tx.commit().await?;
    /// after_commit.wake();
    /// # Ok(())
    /// # }
    /// # }
    /// ```
    ///
    /// # Errors
    /// As for [`Trigger::within`].
    #[cfg(any(feature = "sqlite", feature = "postgres"))]
    pub async fn within_silently<DB: crate::trigger::Database>(
        self,
        tx: &mut sqlx::Transaction<'_, DB>,
    ) -> Result<AfterCommit> {
        let quell = self.quell;
        within(quell, Batch::one(*self.resolved().await?), tx, Wakes::AfterCommit).await?;
        Ok(AfterCommit::new(Arc::clone(quell.store())))
    }

    /// The trigger with the thresholds that count for it (R7, R14).
    async fn resolved(self) -> Result<Box<NewTrigger>> {
        let mut trigger = self.trigger?;
        if !self.has_thresholds {
            self.quell.take_operators_thresholds(&mut trigger).await;
        }
        Ok(trigger)
    }

    fn change(mut self, change: impl FnOnce(&mut NewTrigger) -> Result<()>) -> Self {
        self.trigger = self.trigger.and_then(|mut trigger| {
            change(&mut trigger)?;
            Ok(trigger)
        });
        self
    }
}

impl<'a, T: Task> IntoFuture for Trigger<'a, T> {
    type Output = Result<Receipt>;
    type IntoFuture = BoxFuture<'a, Result<Receipt>>;

    fn into_future(self) -> Self::IntoFuture {
        let quell = self.quell;
        Box::pin(async move {
            let receipts = quell.enqueue(Batch::one(*self.resolved().await?)).await?;
            receipts.into_iter().next().ok_or_else(no_receipt)
        })
    }
}

/// Many triggers of one task that are sent, all or none, when awaited (R5).
///
/// ```
/// # #[derive(serde::Serialize, serde::Deserialize)]
/// # struct Index { page: u32 }
/// # impl quell::Task for Index { const NAME: &'static str = "index"; type Output = (); }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> quell::Result<()> {
/// # let quell = quell::Quell::open("memory:").await?;
/// let receipts = quell.trigger_many((1..=3).map(|page| Index { page })).await?;
/// assert_eq!(receipts.len(), 3);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "triggers are sent when they are awaited"]
pub struct TriggerMany<'a> {
    quell: &'a Quell,
    batch: Result<Batch>,
}

impl<'a> TriggerMany<'a> {
    pub(crate) fn new<T: Task>(quell: &'a Quell, tasks: impl IntoIterator<Item = T>) -> Self {
        let triggers = tasks.into_iter().enumerate().map(|(index, task)| {
            quell.prepare_call(&task).map_err(|error| error.at(format!("triggers[{index}]")))
        });
        let batch = triggers.collect::<Result<Vec<_>>>();
        TriggerMany { quell, batch: batch.map(|triggers| Batch { triggers, dedup: None }) }
    }

    /// One dedup key for the batch as a whole (R17): while it is taken, each member of a later
    /// batch is a duplicate.
    pub fn dedup(mut self, key: impl AsRef<str>, until: HoldUntil) -> Self {
        self.batch = self.batch.and_then(|mut batch| {
            batch.dedup = Some(Dedup { key: dedup_key(key.as_ref())?, until });
            Ok(batch)
        });
        self
    }

    /// The trace context of what triggers, as [`Trigger::trace`] has it, for each of them (R42).
    pub fn trace(mut self, context: TraceContext) -> Self {
        if let Ok(batch) = &mut self.batch {
            batch.triggers.iter_mut().for_each(|trigger| trigger.trace = Some(context.clone()));
        }
        self
    }

    /// Sends them inside the caller's own transaction, as [`Trigger::within`] does; one
    /// [`Receipt::Pending`] each.
    ///
    /// # Errors
    /// As for [`Trigger::within`].
    #[cfg(any(feature = "sqlite", feature = "postgres"))]
    pub async fn within<DB: crate::trigger::Database>(
        self,
        tx: &mut sqlx::Transaction<'_, DB>,
    ) -> Result<Vec<Receipt>> {
        let quell = self.quell;
        let batch = self.resolved().await?;
        let count = batch.triggers.len();
        within(quell, batch, tx, Wakes::AtCommit).await?;
        Ok(vec![Receipt::Pending; count])
    }

    /// Sends them inside the caller's own transaction, which does not notify workers, as
    /// [`Trigger::within_silently`] does.
    ///
    /// # Errors
    /// As for [`Trigger::within`].
    #[cfg(any(feature = "sqlite", feature = "postgres"))]
    pub async fn within_silently<DB: crate::trigger::Database>(
        self,
        tx: &mut sqlx::Transaction<'_, DB>,
    ) -> Result<AfterCommit> {
        let quell = self.quell;
        within(quell, self.resolved().await?, tx, Wakes::AfterCommit).await?;
        Ok(AfterCommit::new(Arc::clone(quell.store())))
    }

    /// The batch with the thresholds that count for its triggers (R14).
    async fn resolved(self) -> Result<Batch> {
        let mut batch = self.batch?;
        for trigger in &mut batch.triggers {
            self.quell.take_operators_thresholds(trigger).await;
        }
        Ok(batch)
    }
}

impl<'a> IntoFuture for TriggerMany<'a> {
    type Output = Result<Vec<Receipt>>;
    type IntoFuture = BoxFuture<'a, Result<Vec<Receipt>>>;

    fn into_future(self) -> Self::IntoFuture {
        let quell = self.quell;
        Box::pin(async move { quell.enqueue(self.resolved().await?).await })
    }
}

#[cfg(any(feature = "sqlite", feature = "postgres"))]
async fn within<DB: crate::trigger::Database>(
    quell: &Quell,
    batch: Batch,
    tx: &mut sqlx::Transaction<'_, DB>,
    wakes: Wakes,
) -> Result<()> {
    batch.validate(quell.limits())?;
    if !quell.store().capabilities().transactions {
        return Err(quell_core::lacks("transactions", "trigger outside the transaction"));
    }
    let mut batch = quell.sealed(quell.keep_dedup(batch)?)?;
    let span = spans::trigger(&mut batch);
    let ops = quell.record_calls(&batch);
    let sent = DB::trigger(tx, &**quell.store(), &batch, wakes).instrument(span.clone()).await;
    let answer = sent.map(|()| vec![Receipt::Pending; batch.triggers.len()]);
    spans::triggered(&span, &answer);
    quell.record_answers(ops, answer.as_deref());
    answer.map(drop)
}

fn dedup_key(text: &str) -> Result<Key> {
    named_key("dedup", text)
}

/// The key that a function of the task returned, checked; no key stays no key (R9, R40).
pub(crate) fn own_key(option: &'static str, text: Option<String>) -> Result<Option<Key>> {
    text.map(|text| named_key(option, &text)).transpose()
}

/// Names the option at fault, where a bad key of the store names `key`.
fn named_key(option: &'static str, text: &str) -> Result<Key> {
    Key::new(text).map_err(|error| Error::invalid(option, format!("{option}: {error}")))
}

fn no_receipt() -> Error {
    Error::new(ErrorKind::Internal, "the store answered a trigger without a receipt")
}
