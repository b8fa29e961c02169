//! What a handler can ask about its attempt.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use quell_core::{ClaimedJob, JobId, Key, TaskName, Timestamp};
use tokio_util::sync::CancellationToken;

use crate::Quell;

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
    #[cfg_attr(not(feature = "postgres"), expect(dead_code, reason = "no other store settles so"))]
    pub(crate) settled: Arc<AtomicBool>,
    /// How many handlers of the worker sleep on its clock; a virtual clock moves on only when all
    /// of them do.
    pub(crate) asleep: Arc<AtomicUsize>,
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

    /// Which attempt this is, from 1; it starts over when a new trigger joined after a failure.
    #[must_use]
    pub fn attempt(&self) -> u32 {
        self.job.job.attempt
    }

    /// How many triggers the job covers.
    #[must_use]
    pub fn triggers(&self) -> u64 {
        self.job.job.triggers
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
        let clock = self.job.quell.clock();
        let _asleep = Asleep::new(&self.job.asleep);
        clock.sleep_until(clock.now() + time).await;
    }

    /// Ends the job well inside the handler's own transaction (R22): its effects and the end of the
    /// job commit together, or neither does. Return well after the commit; where the transaction did
    /// not commit, the attempt failed.
    ///
    /// # Errors
    /// [`ErrorKind::IllegalMove`](quell_core::ErrorKind::IllegalMove) where the lease was lost: the
    /// transaction cannot commit. [`ErrorKind::Unsupported`](quell_core::ErrorKind::Unsupported)
    /// when its database does not hold the store. Else what the database says.
    #[cfg(feature = "postgres")]
    pub async fn settle_in<DB: crate::SettlingDatabase>(
        &self,
        tx: &mut sqlx::Transaction<'_, DB>,
    ) -> quell_core::Result<()> {
        let quell = self.quell();
        let lease = quell_core::Lease { job: self.job.job.id, token: self.job.job.token };
        DB::settle(tx, &**quell.store(), lease, quell.clock().store_time()).await?;
        self.job.settled.store(true, Ordering::SeqCst);
        Ok(())
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
