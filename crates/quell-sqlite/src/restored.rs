//! What a file needs that was restored from a backup.

use quell_core::checkup::SKIPPED_IDS;
use quell_core::{Error, Result};
use sqlx::Connection;

use crate::SqliteOptions;
use crate::error::explain;
use crate::row::signed;

/// Leaves `?1` ids out.
pub(crate) const SKIP: &str = "update quell_meta
        set next_id = max(next_id, 1 + coalesce((select max(id) from quell_job), 0)) + ?1";

impl SqliteOptions {
    /// Leaves the next [`SKIPPED_IDS`] ids out: those that were given since the backup from which the
    /// file was restored may be known elsewhere. Other processes may run meanwhile.
    ///
    /// # Errors
    /// As for [`SqliteOptions::open`].
    pub async fn skip_ids(self) -> Result<()> {
        let failed = |e: sqlx::Error| -> Error { explain("skip ids", e) };
        let mut db = self.connect().await?;
        let skipped = sqlx::query(SKIP).bind(signed(SKIPPED_IDS)).execute(&mut db).await;
        skipped.map_err(failed)?;
        db.close().await.map_err(failed)
    }
}
