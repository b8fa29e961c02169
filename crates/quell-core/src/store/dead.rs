//! The methods of a store for dead jobs and for jobs whose rows cannot be decoded (R25, R26).
//!
//! A store implements both traits beside [`Steps`](crate::Steps), which needs them. What may be
//! asked for, edited and imported is decided by the rules in [`dead`](crate::dead).

use async_trait::async_trait;

use crate::{
    DeadExport, DeadFilter, Imported, Job, JobId, Now, Result, UnreadableJob, UnreadablePage,
};

/// What a store does with dead jobs, beside [`Store::redrive`](crate::Store::redrive).
///
/// Each method is one atomic step, as those of [`Store`](crate::Store) are.
#[async_trait]
pub trait DeadJobs {
    /// Dead jobs that match, the latest death first, one page.
    ///
    /// The caller has validated the filter.
    async fn dead(&self, filter: &DeadFilter) -> Result<Vec<Job>>;

    /// How many dead jobs match, whatever the filter's page.
    ///
    /// The caller has validated the filter.
    async fn count_dead(&self, filter: &DeadFilter) -> Result<u64>;

    /// Everything that is known of those of these jobs that are dead, in the order asked for. At
    /// most [`DeadFilter::MAX_PAGE`] of them are looked for.
    async fn exports(&self, ids: &[JobId]) -> Result<Vec<DeadExport>>;

    /// Removes those of these jobs that are dead, with all that hangs on them, and records the
    /// discards in the history; returns which they were, in the order asked for. All others stay as
    /// they are.
    ///
    /// The caller has validated the reason.
    async fn discard(&self, now: Now, ids: &[JobId], reason: &str) -> Result<Vec<JobId>>;

    /// Puts exported dead jobs into the store with ids of their own, in order. One that is in the
    /// store already, or was imported before, is left as it is there: see [`DeadExport::origin`].
    ///
    /// The caller has validated them.
    async fn import_dead(&self, now: Now, exports: &[DeadExport]) -> Result<Vec<Imported>>;
}

/// What a store does with unreadable jobs, beside what [`DeadJobs`](crate::DeadJobs) does:
/// [`discard`](crate::DeadJobs::discard) removes them, too.
///
/// Each method is one atomic step, as those of [`Store`](crate::Store) are.
#[async_trait]
pub trait UnreadableJobs {
    /// The jobs that are set aside, newest first, one page.
    async fn unreadable(&self, page: &UnreadablePage) -> Result<Vec<UnreadableJob>>;

    /// Puts those of these jobs back whose rows this build can decode: what waited or ran waits
    /// again, into its key's open window where there is one (R12); what had ended has ended.
    /// Returns the ids of those jobs, in the order of `ids`.
    async fn restore(&self, now: Now, ids: &[JobId]) -> Result<Vec<JobId>>;
}
