//! Accepting triggers: in one statement where that does, else in a transaction of several, after what
//! waits in the inbox.

use quell_core::touched::Needs;
use quell_core::{Batch, NewTrigger, Now, Receipt, Result};

use crate::backend::PostgresBackend;
use crate::hot::opening::opening;
use crate::row::get;
use crate::tx::{Unnamed, first, read};

impl PostgresBackend {
    /// Accepts triggers.
    pub(crate) async fn enqueue(
        &self,
        now: Now,
        batches: &[Batch],
    ) -> Result<Vec<Result<Vec<Receipt>>>> {
        self.expect_deltas(1).await;
        let triggers = || batches.iter().flat_map(|batch| &batch.triggers);
        let lanes = triggers().map(|t| (t.queue.clone(), t.task.clone(), t.priority));
        if Self::is_plain(batches) {
            let partitions = triggers().filter_map(|t| t.partition.clone()).collect();
            self.intern(Unnamed { lanes: lanes.collect(), partitions }).await?;
            return self.enqueue_plain(now, batches).await;
        }
        self.names.look_up(&self.pool, &self.sql, lanes).await?;
        self.gather_or_enqueue(now, batches).await
    }

    /// Takes in all that callers' committed transactions have left in the inbox, before a call that
    /// includes it.
    pub(crate) async fn fold_first(&self, now: Now) -> Result<()> {
        const WAITS: &str = "select exists (select from quell.inbox where refused is null)";
        let rows = read(&self.pool, &self.sql, "look at the inbox", self.sql.query(WAITS)).await?;
        if !get::<bool, _>(first(&rows)?, 0)? {
            return Ok(());
        }
        writing!(self, now, |tx| tx.fold_inbox_first().await?)
    }

    /// Accepts triggers in a transaction of several statements. The names that exist are known.
    pub(crate) async fn enqueue_whole(
        &self,
        now: Now,
        batches: &[Batch],
    ) -> Result<Vec<Result<Vec<Receipt>>>> {
        let (sql, names, needs) = (&*self.sql, &*self.names, Needs::of(batches));
        writing!(self, now, |asked| opening(sql, names, asked, &needs), |tx| {
            tx.fold_inbox_first().await?;
            tx.accept(batches, &needs).await?
        })
    }

    /// Whether triggers touch no row but their own.
    fn is_plain(batches: &[Batch]) -> bool {
        batches.iter().all(|batch| {
            let plain = |trigger: &NewTrigger| {
                trigger.is_bare() && trigger.dedup.is_none() && trigger.idempotency.is_none()
            };
            batch.dedup.is_none() && batch.triggers.iter().all(plain)
        })
    }
}
