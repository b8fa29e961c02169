//! Waiting for what comes of a job (R19).
//!
//! Ends that this process settles are told at once to those who wait for that very job; the ends
//! that other processes settle are found by asking, with growing pauses.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use quell_core::{JobId, JobResult, Result, Settled, SettledAs, no_such_job};
use tokio::sync::Notify;

use crate::Quell;

/// The pauses between two questions: doubled from the first to the last.
const PAUSES: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));

/// Jobs whose end someone in this process waits for.
#[derive(Debug, Default)]
pub(crate) struct Endings(Mutex<BTreeMap<JobId, Awaited>>);

#[derive(Debug, Default)]
struct Awaited {
    waiters: usize,
    moved: Arc<Notify>,
}

impl Endings {
    /// Tells those who wait for these jobs.
    pub(crate) fn tell(&self, settled: &[Settled]) {
        let awaited = self.locked();
        if awaited.is_empty() {
            return;
        }
        for one in settled.iter().filter(|one| one.became != SettledAs::Refused) {
            if let Some(job) = awaited.get(&one.lease.job) {
                job.moved.notify_waiters();
            }
        }
    }

    fn wait_for(&self, job: JobId) -> Waiting<'_> {
        let mut awaited = self.locked();
        let entry = awaited.entry(job).or_default();
        entry.waiters += 1;
        Waiting { endings: self, job, moved: Arc::clone(&entry.moved) }
    }

    fn locked(&self) -> MutexGuard<'_, BTreeMap<JobId, Awaited>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One who waits; gone with the last, the job is forgotten.
struct Waiting<'e> {
    endings: &'e Endings,
    job: JobId,
    moved: Arc<Notify>,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut awaited = self.endings.locked();
        let Some(entry) = awaited.get_mut(&self.job) else { return };
        entry.waiters = entry.waiters.saturating_sub(1);
        if entry.waiters == 0 {
            awaited.remove(&self.job);
        }
    }
}

impl Quell {
    /// What came of a job: its state and, once it has succeeded, what its handler returned. Waits
    /// until it has ended, but no longer than `wait`; then it tells how the job stands.
    ///
    /// An end in this process is told at once, one in another process within a second. The answer
    /// is there as long as the job's row, and as long as the record of an idempotency key (R37).
    /// Dropping the future loses nothing.
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
    /// [`ErrorKind::NotFound`](quell_core::ErrorKind::NotFound) for a job of which nothing is known
    /// any more; else what the store says.
    pub async fn result(&self, job: JobId, wait: Duration) -> Result<JobResult> {
        let (clock, (mut pause, longest)) = (self.clock(), PAUSES);
        let deadline = clock.now() + wait;
        let mut awaited = job;
        loop {
            // Before the question, so that no end falls between it and the wait.
            let waiting = self.endings().wait_for(awaited);
            let mut moved = std::pin::pin!(waiting.moved.notified());
            moved.as_mut().enable();
            let result = self.store().result(job).await?.ok_or_else(|| no_such_job(job))?;
            let now = clock.now();
            if result.is_ended() || now >= deadline {
                return Ok(result);
            }
            if result.job != awaited {
                // Absorbed: its heir's end is the answer.
                awaited = result.job;
                continue;
            }
            tokio::select! {
                biased;
                () = moved => {}
                () = clock.sleep_until(deadline.min(now + pause)) => {}
            }
            pause = pause.saturating_mul(2).min(longest);
        }
    }
}
