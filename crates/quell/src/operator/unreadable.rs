//! What operators do with jobs whose rows cannot be decoded (R25): find them, try them again.

use quell_core::{Error, ErrorKind, JobId, Result, UnreadableJob, UnreadablePage};

use crate::operator::dead::Dead;

impl Dead<'_> {
    /// The jobs that were set aside because their rows cannot be decoded, newest first, one page.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> quell::Result<()> {
    /// use quell::Quell;
    /// use quell::dead::UnreadablePage;
    ///
    /// let quell = Quell::open("memory:").await?;
    /// assert!(quell.dead().unreadable(&UnreadablePage::default()).await?.is_empty());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// What the store says.
    pub async fn unreadable(&self, page: &UnreadablePage) -> Result<Vec<UnreadableJob>> {
        self.quell().store().unreadable(page).await
    }

    /// Puts a job back that was set aside, if this process can decode its row. Workers try that
    /// by themselves each minute.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] where no such job is set aside, [`ErrorKind::Corrupt`] where its row
    /// still cannot be decoded; else the error of the store.
    pub async fn restore(&self, id: JobId) -> Result<()> {
        let store = self.quell().store();
        if store.restore(self.now(), &[id]).await?.contains(&id) {
            return Ok(());
        }
        let page =
            UnreadablePage { before: Some(JobId::new(id.get().saturating_add(1))), limit: 1 };
        let found = store.unreadable(&page).await?.pop().filter(|job| job.id == id);
        let error = match found {
            Some(job) => Error::unreadable(
                id,
                format_args!("{}; update this program or discard the job", job.reason),
            ),
            None => {
                let message = format!("job {id} is not set aside as unreadable");
                Error::new(ErrorKind::NotFound, message)
            }
        };
        Err(error)
    }
}
