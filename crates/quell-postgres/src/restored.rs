//! What a schema needs that was restored, or lost its newest writes in a failover.

use quell_core::checkup::SKIPPED_IDS;
use quell_core::{Error, Result};

use crate::PostgresOptions;
use crate::error::explain;
use crate::row::signed;

impl PostgresOptions {
    /// Leaves the next [`SKIPPED_IDS`] ids out: those that were given and then lost may be known
    /// elsewhere. Other processes may run meanwhile.
    ///
    /// # Errors
    /// As for [`PostgresOptions::open`].
    pub async fn skip_ids(self) -> Result<()> {
        const SKIP: &str = "select setval('quell.job_id', nextval('quell.job_id') + $1)";
        let failed = |e: sqlx::Error| -> Error { explain("skip ids", e) };
        let (sql, mut db) = self.connect().await?;
        db.execute(sql.query(SKIP).bind(signed(SKIPPED_IDS))).await.map_err(failed)?;
        db.close().await;
        Ok(())
    }
}
