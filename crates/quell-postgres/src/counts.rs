//! The counts of jobs are kept beside the jobs: see `sql/counts.sql`.
//!
//! Statements that most work is made of add their deltas themselves; triggers do it for all others.
//! Writers fold the deltas from time to time, as do upkeep and readers of many.

use std::sync::atomic::{AtomicU64, Ordering};

use quell_core::Result;
use tracing::debug;

use crate::backend::PostgresBackend;
use crate::row::get;
use crate::tx::{first, one_shot};

/// Keeps triggers from counting what a statement counts itself. It lasts until the end of the
/// transaction, so only statements that are their own transaction may say so.
macro_rules! counts_itself {
    () => {
        "set_config('quell_counts.counted', 'yes', true)"
    };
}
pub(crate) use counts_itself;

/// How many deltas a process writes before it folds them.
const FOLD_AT: u64 = 1_000;
/// Fewer are left to a later fold.
const MANY: i64 = 500;
/// How many steps of 10,000 deltas one call folds.
const STEPS: usize = 100;

/// How many deltas this process wrote.
#[derive(Debug, Default)]
pub(crate) struct Deltas(AtomicU64);

impl Deltas {
    /// Whether they are to be folded, with these.
    fn add(&self, deltas: u64) -> bool {
        let before = self.0.fetch_add(deltas, Ordering::Relaxed);
        before / FOLD_AT != before.wrapping_add(deltas) / FOLD_AT
    }
}

impl PostgresBackend {
    /// Counts the deltas that a call is about to write, and folds what there is now and then.
    /// It comes before the call, which a caller may give up: nothing of it is done yet.
    pub(crate) async fn expect_deltas(&self, deltas: u64) {
        if self.deltas.add(deltas) {
            self.fold_many().await;
        }
    }

    /// Folds deltas, where they are many.
    pub(crate) async fn fold_many(&self) {
        self.fold_counts(MANY).await;
    }

    /// Folds deltas, where there are `least`. Counts are right without it, so errors stay here.
    pub(crate) async fn fold_counts(&self, least: i64) {
        for _ in 0..STEPS {
            match self.fold_step(least).await {
                Ok(folded) if folded > 0 => {}
                Ok(_) => return,
                Err(error) => return debug!(%error, "counts were not folded, reading them is slow"),
            }
        }
    }

    async fn fold_step(&self, least: i64) -> Result<i64> {
        let query = self.sql.query("select quell.fold_counts($1)").bind(least);
        get(first(&one_shot(&self.upkeep, &self.sql, query).await?)?, 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_call_in_so_many_folds() {
        let deltas = Deltas::default();
        let folds = (0..2 * FOLD_AT).filter(|_| deltas.add(2)).count();
        assert_eq!(folds, 4);
    }
}
