//! Waiting for the result of a job (R19).
//!
//! The store notifies of the end where it can push. Notifications are best effort, so the store is
//! polled as well, with growing pauses.

use std::time::Duration;

use quell_core::{JobId, JobResult, Result, no_such_job};

use crate::Quell;

/// The pauses between two questions: doubled from the first to the last.
const PAUSES: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));

impl Quell {
    /// The result of a job: its state and, once it has succeeded, the output of its handler. Waits
    /// until it has ended, but no longer than `wait`; then it returns the job's present state.
    ///
    /// The store notifies waiters of the end, whichever process ends the job: on
    /// PostgreSQL within milliseconds, on SQLite within some 20 ms from another process and at once
    /// from this one. Where nothing is pushed, as behind a transaction pooler, and where a push was
    /// lost, the end is found within a second. The answer is there as long as the job's row, and as
    /// long as the record of an idempotency key (R37). Dropping the future loses nothing.
    ///
    /// ```
    /// # use serde::{Deserialize, Serialize};
    /// # #[derive(Serialize, Deserialize)]
    /// # struct Square { n: u64 }
    /// # impl quell::Task for Square { const NAME: &'static str = "square"; type Output = u64; }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> quell::Result<()> {
    /// use std::time::Duration;
    /// use quell::{Ctx, JobState, Quell, TaskError};
    ///
    /// async fn square(task: Square, _: Ctx<()>) -> Result<u64, TaskError> {
    ///     Ok(task.n * task.n)
    /// }
    ///
    /// let quell = Quell::open("memory:").await?;
    /// let job = quell.trigger(Square { n: 7 }).await?.job().unwrap();
    /// let asked = async {
    ///     let result = quell.result(job, Duration::from_secs(10)).await.unwrap();
    ///     assert_eq!(result.state, JobState::Succeeded);
    ///     assert_eq!(result.output.unwrap().decode::<u64>().unwrap(), 49);
    /// };
    /// quell.worker(()).register(square).run_until(asked).await
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`](quell_core::ErrorKind::NotFound) for a job that is unknown, or not
    /// known any more; else the error of the store.
    pub async fn result(&self, job: JobId, wait: Duration) -> Result<JobResult> {
        let (clock, (mut pause, longest)) = (self.clock(), PAUSES);
        let deadline = clock.now() + wait;
        let mut awaited = job;
        // Before the question, so that no end falls between it and the wait.
        let mut ended = self.store().ended(awaited);
        loop {
            let result = self.store().result(job).await?.ok_or_else(|| no_such_job(job))?;
            let now = clock.now();
            if result.is_ended() || now >= deadline {
                return Ok(result);
            }
            if result.job != awaited {
                // Absorbed: its successor's end is the answer.
                awaited = result.job;
                ended = self.store().ended(awaited);
                continue;
            }
            tokio::select! {
                biased;
                () = &mut ended => ended = self.store().ended(awaited),
                () = clock.sleep_until(deadline.min(now + pause)) => {}
            }
            pause = pause.saturating_mul(2).min(longest);
        }
    }
}
