//! The workers that a store knows, for operators (R25).

use quell_core::Result;
use quell_core::heartbeat::{WorkerDrain, Workers};

use crate::Quell;

impl Quell {
    /// The workers that were seen within the last day, by name. A worker that stops in order removes
    /// its row; one that was killed stays and is unseen.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> quell::Result<()> {
    /// let quell = quell::Quell::open("memory:").await?;
    /// let workers = quell.workers().await?;
    /// let unseen = workers.rows.iter().filter(|row| row.is_unseen(workers.now)).count();
    /// assert_eq!((workers.rows.len(), unseen), (0, 0));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// What the store says.
    pub async fn workers(&self) -> Result<Workers> {
        self.store().workers(self.clock().store_time()).await
    }
    /// Drains a worker, or resumes it: each process of that name that is listed now (R29). They learn it
    /// with their next heartbeats, claim nothing more, and let their attempts end. Returns the number
    /// of processes; none where no such worker is listed, as one that rests (R34).
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> quell::Result<()> {
    /// use quell::worker::WorkerDrain;
    ///
    /// let quell = quell::Quell::open("memory:").await?;
    /// let drain = WorkerDrain::new("mail-1".parse()?, true).by("ann".to_owned());
    /// assert_eq!(quell.drain_worker(&drain).await?, 0, "there is no such worker");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) for a longer name of the caller than 255 bytes;
    /// else the error of the store.
    pub async fn drain_worker(&self, drain: &WorkerDrain) -> Result<u64> {
        self.store().drain_worker(self.clock().store_time(), drain).await
    }
}
