//! What a handler can ask about its attempt.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use quell_core::trace::Traces;
use quell_core::{ClaimedJob, EffectName, JobId, Key, Lease, LeaseToken, TaskName, Timestamp};
#[cfg(any(feature = "sqlite", feature = "postgres"))]
use quell_core::{Payload, history::Event, idempotency::encoded_output};
#[cfg(any(feature = "sqlite", feature = "postgres"))]
use serde::Serialize;
use tokio_util::sync::CancellationToken;

use crate::Quell;
#[cfg(any(feature = "sqlite", feature = "postgres"))]
use crate::client::transaction::Success;
#[cfg(any(feature = "sqlite", feature = "postgres"))]
use crate::encryption::Place;
use crate::handler::effects::{EffectCall, OnceCall};
use crate::worker::hold_off::HoldOff;
use crate::worker::pull::PullLease;

/// The context of one attempt: shared state, the job, and the signal to stop.
///
/// ```
/// use quell::{Ctx, TaskError};
/// # #[derive(serde::Serialize, serde::Deserialize)]
/// # struct Report;
/// # impl quell::Task for Report { const NAME: &'static str = "report"; type Output = (); }
///
/// struct App { pages: u32 }
///
/// async fn build(_: Report, ctx: Ctx<App>) -> Result<(), TaskError> {
///     for page in 0..ctx.state().pages {
///         if ctx.cancelled().is_cancelled() {
///             return Err(TaskError::retry(format!("stopped at page {page}")));
///         }
///     }
///     Ok(())
/// }
/// ```
#[derive(Debug)]
pub struct Ctx<S> {
    state: Arc<S>,
    job: Arc<Attempted>,
}

impl<S> Clone for Ctx<S> {
    fn clone(&self) -> Self {
        Ctx { state: Arc::clone(&self.state), job: Arc::clone(&self.job) }
    }
}

/// The attempt that a context speaks of.
#[derive(Debug)]
pub(crate) struct Attempted {
    pub(crate) quell: Quell,
    pub(crate) job: ClaimedJob,
    pub(crate) started_at: Timestamp,
    pub(crate) cancelled: CancellationToken,
    /// Whether the handler settled the job in a transaction of its own.
    pub(crate) settled: Arc<AtomicBool>,
    /// How many sleeps on the worker's clock the handler waits for; a virtual clock moves on only
    /// when all handlers sleep.
    pub(crate) asleep: Arc<AtomicUsize>,
    /// The effects that this attempt has begun.
    pub(crate) effects: Mutex<BTreeSet<EffectName>>,
    pub(crate) hold_off: Arc<HoldOff>,
}

impl Attempted {
    pub(crate) fn lease(&self) -> Lease {
        Lease { job: self.job.id, token: self.job.token }
    }

    pub(crate) async fn sleep(&self, time: Duration) {
        let clock = self.quell.clock();
        let _asleep = Asleep::new(&self.asleep);
        clock.sleep_until(clock.now() + time).await;
    }
}

impl<S> Ctx<S> {
    pub(crate) fn new(state: Arc<S>, job: Attempted) -> Self {
        Ctx { state, job: Arc::new(job) }
    }

    /// What the worker's handlers share.
    #[must_use]
    pub fn state(&self) -> &S {
        &self.state
    }

    /// The job.
    #[must_use]
    pub fn job(&self) -> JobId {
        self.job.job.id
    }

    /// The task's name.
    #[must_use]
    pub fn task(&self) -> &TaskName {
        &self.job.job.task
    }

    /// The job's debounce key, if any.
    #[must_use]
    pub fn key(&self) -> Option<&Key> {
        self.job.job.key.as_ref()
    }

    /// Which attempt this is, from 1; it is 1 again when a new trigger joined after a failure.
    #[must_use]
    pub fn attempt(&self) -> u32 {
        self.job.job.attempt
    }

    /// How often the job has started, this attempt included. It counts starts that spent no attempt, such as
    /// those whose lease expired, and never goes back.
    #[must_use]
    pub fn starts(&self) -> u64 {
        self.job.job.token.starts()
    }

    /// The attempt's fencing token (R21), for services that refuse what an older attempt of the job still sends:
    /// no other attempt has it, and its number of starts is the first part of its text, `3-5f2c`.
    #[must_use]
    pub fn fencing_token(&self) -> LeaseToken {
        self.job.job.token
    }

    /// The attempt's lease, for an attempt that goes on elsewhere
    /// ([`TaskError::hand_over`](crate::TaskError::hand_over)).
    #[must_use]
    pub fn lease(&self) -> PullLease {
        PullLease::of(&self.job.job, self.job.started_at)
    }

    /// Makes the worker claim no jobs of this task for so long: what the handler needs is away. Jobs
    /// that it holds already still start, and may be snoozed; other workers are not affected.
    pub fn hold_off(&self, time: Duration) {
        self.job.hold_off.add(self.task(), self.job.quell.clock().now() + time);
    }

    /// How many triggers the job covers.
    #[must_use]
    pub fn triggers(&self) -> u64 {
        self.job.job.triggers
    }

    /// The trace contexts of the job's first 16 triggers that have one (R42). With the feature
    /// `opentelemetry`, the attempt's span has links to them.
    #[must_use]
    pub fn traces(&self) -> &Traces {
        &self.job.job.traces
    }

    /// The first of the job's triggers, in store time.
    #[must_use]
    pub fn first_at(&self) -> Timestamp {
        self.job.job.first_at
    }

    /// When the job was due, in store time.
    #[must_use]
    pub fn due_at(&self) -> Timestamp {
        self.job.job.due_at
    }

    /// When a worker took the job, in store time.
    #[must_use]
    pub fn started_at(&self) -> Timestamp {
        self.job.started_at
    }

    /// Fires when the attempt should stop: its lease is lost, it timed out, or the worker's grace
    /// time is over. Nothing it reports afterwards counts (R21).
    #[must_use]
    pub fn cancelled(&self) -> &CancellationToken {
        &self.job.cancelled
    }

    /// Sleeps on the worker's clock, which a test can move.
    pub async fn sleep(&self, time: Duration) {
        self.job.sleep(time).await;
    }

    /// Ends the job well inside the handler's own transaction (R22): its effects and the end of the
    /// job commit together, or neither does. Return well after the commit; where the transaction
    /// did not commit, the attempt failed. What the handler returns is not kept as the job's
    /// output, for the job has ended by then.
    ///
    /// The job ends without an output: what the handler then returns comes after the end and is not
    /// kept. [`settle_in_with`](Ctx::settle_in_with) keeps one.
    ///
    /// # Errors
    /// [`ErrorKind::IllegalMove`](quell_core::ErrorKind::IllegalMove) where the lease was lost: the
    /// transaction cannot commit. [`ErrorKind::Unsupported`](quell_core::ErrorKind::Unsupported)
    /// when its database does not hold the store, or inside a savepoint, which could be rolled back
    /// alone and would undo this; SQLite detects only nested transactions. Else the error of
    /// the database.
    #[cfg(any(feature = "sqlite", feature = "postgres"))]
    pub async fn settle_in<DB: crate::trigger::SettlingDatabase>(
        &self,
        tx: &mut sqlx::Transaction<'_, DB>,
    ) -> quell_core::Result<()> {
        self.end_in(tx, None).await
    }

    /// As [`settle_in`](Ctx::settle_in), and the job's output (R19) commits with its end. What the
    /// handler returns after the commit is not kept, so let it be the same.
    ///
    /// ```
    /// # #[cfg(feature = "sqlite")] mod example {
    /// use quell::{Ctx, TaskError};
    /// use sqlx::SqlitePool;
    /// # #[derive(serde::Serialize, serde::Deserialize)]
    /// # struct Book { cents: i64 }
    /// # impl quell::Task for Book { const NAME: &'static str = "book"; type Output = i64; }
    ///
    /// async fn book(task: Book, ctx: Ctx<SqlitePool>) -> Result<i64, TaskError> {
    ///     let mut tx = ctx.state().begin_with("begin immediate").await?;
    ///     let entered = sqlx::query("insert into ledger (cents) values ($1)").bind(task.cents);
    ///     let row = entered.execute(&mut *tx).await?.last_insert_rowid();
    ///     ctx.settle_in_with(&mut tx, &row).await?;
    ///     tx.commit().await?;
    ///     Ok(row)
    /// }
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`settle_in`](Ctx::settle_in), and [`ErrorKind::Invalid`](quell_core::ErrorKind::Invalid)
    /// for an output that is no JSON or has more than
    /// [`MAX_OUTPUT_BYTES`](crate::JobResult::MAX_OUTPUT_BYTES): the transaction is as it was, and
    /// the job not settled.
    #[cfg(any(feature = "sqlite", feature = "postgres"))]
    pub async fn settle_in_with<DB: crate::trigger::SettlingDatabase>(
        &self,
        tx: &mut sqlx::Transaction<'_, DB>,
        output: &(impl Serialize + Sync + ?Sized),
    ) -> quell_core::Result<()> {
        let output = encoded_output(output)?;
        self.end_in(tx, output.as_ref()).await
    }

    #[cfg(any(feature = "sqlite", feature = "postgres"))]
    async fn end_in<DB: crate::trigger::SettlingDatabase>(
        &self,
        tx: &mut sqlx::Transaction<'_, DB>,
        output: Option<&Payload>,
    ) -> quell_core::Result<()> {
        let (quell, lease) = (self.quell(), self.job.lease());
        if let Some(history) = quell.history() {
            history.record(&Event::SettleIn { job: lease.job, token: lease.token });
        }
        // R43: the transaction does not pass the client's store.
        let sealed = match (quell.encrypted(), output) {
            (Some(encrypted), Some(output)) => {
                Some(encrypted.seal().document(output, Place::Output(lease.job))?)
            }
            _ => None,
        };
        let output = sealed.as_ref().or(output);
        let success = Success { lease, now: quell.clock().store_time(), output };
        DB::settle(tx, &**quell.store(), success).await?;
        self.job.settled.store(true, Ordering::SeqCst);
        Ok(())
    }

    /// An effect on the outside, such as a charge, that no attempt of the job repeats (R23).
    ///
    /// The intent is on record before the call, with an idempotency key that stays the same through
    /// every attempt, and the result after it. A later attempt is given a recorded result and
    /// performs nothing; one that finds the intent alone verifies first. So it goes for retries,
    /// expired leases, snoozes and a redrive of the job.
    ///
    /// A name is ASCII alphanumerics and `_-.:/`, 128 bytes at most, and used once in an attempt; a
    /// result takes 256 KiB of JSON at most.
    ///
    /// ```
    /// use quell::{Ctx, TaskError};
    /// # #[derive(serde::Serialize, serde::Deserialize)]
    /// # struct Order { id: u32, cents: u64 }
    /// # impl quell::Task for Order { const NAME: &'static str = "order"; type Output = (); }
    /// # struct Api;
    /// # impl Api {
    /// #     async fn charge(&self, _: u64, _: &str) -> std::io::Result<String> { Ok("ch_1".into()) }
    /// #     async fn find(&self, _: &str) -> std::io::Result<Option<String>> { Ok(None) }
    /// # }
    ///
    /// async fn order(order: Order, ctx: Ctx<Api>) -> Result<(), TaskError> {
    ///     let api = ctx.state();
    ///     let charge: String = ctx
    ///         .effect("charge")
    ///         .verify(|key| async move { Ok(api.find(key.as_str()).await?) })
    ///         .run(|key| async move { Ok(api.charge(order.cents, key.as_str()).await?) })
    ///         .await?;
    ///     println!("order {} was charged as {charge}", order.id);
    ///     Ok(())
    /// }
    /// ```
    ///
    /// # Errors
    /// Running it fails for good where the name is malformed or used twice, the result cannot be
    /// recorded, or a recorded one does not fit the type; and for now where the store cannot be
    /// reached, or the lease was lost: then nothing is recorded, and another attempt has the job.
    pub fn effect(&self, name: impl AsRef<str>) -> EffectCall {
        EffectCall::new(Arc::clone(&self.job), name.as_ref())
    }

    /// An effect that is made once at most, however often the job runs: the short form of
    /// [`effect`](Ctx::effect), for an outside that knows no keys and cannot be asked.
    ///
    /// Where an attempt ended between the intent and the record, by a crash, a lost lease or an
    /// error of the call, it is unknown whether it happened. It is not made again, and the handler
    /// receives [`Once::Unclear`](crate::Once::Unclear).
    ///
    /// ```
    /// use quell::{Ctx, Once, TaskError};
    /// # #[derive(serde::Serialize, serde::Deserialize)]
    /// # struct Welcome { to: String }
    /// # impl quell::Task for Welcome { const NAME: &'static str = "welcome"; type Output = (); }
    /// # async fn send(_: &str) -> std::io::Result<()> { Ok(()) }
    ///
    /// async fn welcome(mail: Welcome, ctx: Ctx<()>) -> Result<(), TaskError> {
    ///     match ctx.once("email").run(|| async { Ok(send(&mail.to).await?) }).await? {
    ///         Once::Done(()) => Ok(()),
    ///         Once::Unclear => Err(TaskError::permanent("the mail may have gone out: look")),
    ///     }
    /// }
    /// ```
    ///
    /// # Errors
    /// As for [`effect`](Ctx::effect).
    pub fn once(&self, name: impl AsRef<str>) -> OnceCall {
        OnceCall::new(Arc::clone(&self.job), name.as_ref())
    }

    /// Triggers further tasks.
    #[must_use]
    pub fn quell(&self) -> &Quell {
        &self.job.quell
    }
}

/// Counts a sleeping handler for as long as it lives.
struct Asleep<'a>(&'a AtomicUsize);

impl<'a> Asleep<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::SeqCst);
        Asleep(count)
    }
}

impl Drop for Asleep<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}
