//! The workers that a store knows, for operators (R25).

use quell_core::Result;
use quell_core::heartbeat::Workers;

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
}
