//! Commands of operators through the client: find jobs, explain, cancel, run schedules, check the
//! store.
//!
//! No method takes a time: the store's own clock counts, so that no caller can move it (R38).

pub(crate) mod causes;
pub(crate) mod dead;
pub(crate) mod queues;
mod rates;
pub(crate) mod schedule;
pub(crate) mod search;
mod ticks;
mod unreadable;
pub(crate) mod waiting;
mod workers;

use quell_core::checkup::Checkup;
use quell_core::job::{Adjusted, Adjustment};
use quell_core::schedule::{RecordedTick, ScheduleInfo, ScheduleState};
use quell_core::{
    Attempt, Counts, ExplainTarget, Explanation, Job, JobFilter, JobId, Receipt, Result,
    ScheduleName, Timestamp,
};

use crate::Quell;

/// Reads and commands for operators.
impl Quell {
    /// One job; none where its id is unknown or its row was removed (R37).
    ///
    /// # Errors
    /// What the store answers.
    pub async fn job(&self, id: JobId) -> Result<Option<Job>> {
        self.store().job(id).await
    }

    /// The jobs that match, newest first, one page.
    ///
    /// # Errors
    /// What the store answers.
    pub async fn jobs(&self, filter: &JobFilter) -> Result<Vec<Job>> {
        self.store().jobs(filter).await
    }

    /// The number of jobs by queue, task and state.
    ///
    /// # Errors
    /// What the store answers.
    pub async fn counts(&self) -> Result<Vec<Counts>> {
        self.store().counts().await
    }

    /// The attempts of a job, oldest first (R25).
    ///
    /// # Errors
    /// What the store answers.
    pub async fn attempts(&self, id: JobId) -> Result<Vec<Attempt>> {
        self.store().attempts(id).await
    }

    /// What happened to a trigger, job or key, and why (R15); none where nothing is known of it.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`](crate::ErrorKind::NotFound), with what is known, where a dedup or
    /// idempotency key is taken but its job's row was removed.
    pub async fn explain(&self, target: &ExplainTarget) -> Result<Option<Explanation>> {
        self.store().explain(self.clock().store_time(), target).await
    }

    /// Cancels a job that waits or runs.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`](crate::ErrorKind::NotFound) for an unknown job,
    /// [`ErrorKind::IllegalMove`](crate::ErrorKind::IllegalMove) for one that has ended.
    pub async fn cancel(&self, id: JobId, reason: &str) -> Result<()> {
        self.store().cancel(self.clock().store_time(), id, reason).await
    }

    /// Changes a job that waits: makes it due now, or changes its priority (R15).
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> quell::Result<()> {
    /// use quell::job::Adjustment;
    /// # use quell::{Batch, Payload, Policy, TaskName};
    ///
    /// let quell = quell::Quell::open("memory:").await?;
    /// # let trigger = Policy::default().trigger(TaskName::new("mail")?, Payload::encode(&1)?, None)?;
    /// # let receipts = quell.enqueue(Batch::one(trigger)).await?;
    /// # let id = receipts[0].job().unwrap();
    /// let adjusted = quell.adjust(id, Adjustment::default().run_now(true).priority(5)).await?;
    /// assert_eq!(adjusted.priority, 5);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`](crate::ErrorKind::NotFound) for an unknown job,
    /// [`ErrorKind::IllegalMove`](crate::ErrorKind::IllegalMove) for one that does not wait,
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) where nothing is asked for.
    pub async fn adjust(&self, id: JobId, adjustment: Adjustment) -> Result<Adjusted> {
        self.store().adjust(self.clock().store_time(), id, adjustment).await
    }

    /// The schedules, by name, with their last and next ticks (R36).
    ///
    /// # Errors
    /// What the store answers.
    pub async fn schedules(&self) -> Result<Vec<ScheduleInfo>> {
        self.store().schedules().await
    }

    /// The newest ticks of a schedule that fired by plan or backfill, at most `limit` (1 to 200); the newest first
    /// (R36). Runs by hand are no ticks. A store that keeps when ticks fired and no more, as Redis does, leaves out
    /// why and by which job.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> quell::Result<()> {
    /// # let quell = quell::Quell::open("memory:").await?;
    /// let nightly = quell::schedule::ScheduleName::new("nightly")?;
    /// assert!(quell.fired(&nightly, 20).await.is_err(), "it was not set");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`](crate::ErrorKind::NotFound) for an unknown schedule.
    pub async fn fired(&self, name: &ScheduleName, limit: usize) -> Result<Vec<RecordedTick>> {
        ticks::newest(self.store().as_ref(), self.clock().now(), name, limit.clamp(1, 200)).await
    }

    /// Pauses a schedule: ticks that pass meanwhile do not fire (R36).
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`](crate::ErrorKind::NotFound) for an unknown schedule.
    pub async fn pause_schedule(&self, name: &ScheduleName) -> Result<()> {
        let now = self.clock().store_time();
        self.store().set_schedule_state(now, name, ScheduleState::Paused).await
    }

    /// Resumes a paused schedule with its next tick (R36).
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`](crate::ErrorKind::NotFound) for an unknown schedule.
    pub async fn resume_schedule(&self, name: &ScheduleName) -> Result<()> {
        let now = self.clock().store_time();
        self.store().set_schedule_state(now, name, ScheduleState::Active).await
    }

    /// Fires the trigger of a schedule now, outside its plan (R36).
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`](crate::ErrorKind::NotFound) for an unknown schedule.
    pub async fn run_schedule(&self, name: &ScheduleName) -> Result<Receipt> {
        self.store().run_schedule(self.clock().store_time(), name).await
    }

    /// Fires the ticks from `from` to `to`, both included, that have not fired (R36); returns their
    /// number.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`](crate::ErrorKind::NotFound) for an unknown schedule,
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) for a range that
    /// [`ScheduleInfo::backfill`] refuses.
    pub async fn backfill(
        &self,
        name: &ScheduleName,
        from: Timestamp,
        to: Timestamp,
    ) -> Result<u64> {
        self.store().backfill(self.clock().store_time(), name, from, to).await
    }

    /// Removes a schedule and the record of its ticks; its jobs stay (R36).
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`](crate::ErrorKind::NotFound) for an unknown schedule.
    pub async fn delete_schedule(&self, name: &ScheduleName) -> Result<()> {
        self.store().delete_schedule(self.clock().store_time(), name).await
    }

    /// Checks the store: how far its clock is ahead of the clock below, and what else is wrong
    /// (R38).
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) in memory; else what the store
    /// answers.
    pub async fn checkup(&self) -> Result<Checkup> {
        self.store().checkup().await
    }
}
