//! What a store can do beyond the operations that every store has, and how it refuses the rest
//! (R18).
//!
//! A refusal names the capability, and comes before anything is written.

use serde::{Deserialize, Serialize};

use crate::{Error, StoreId};

/// The native abilities of a store. A `false` means the fallback in the field's text, or a refusal
/// of kind [`Unsupported`](crate::ErrorKind::Unsupported) that names the field, before anything is
/// written, or the fallback that stands here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[expect(clippy::struct_excessive_bools, reason = "each is one independent promise")]
pub struct Capabilities {
    /// Conditional writes, so dedup and idempotency keys are exact (R18). Else a batch with one is
    /// refused.
    pub dedup: bool,
    /// Triggers inside the caller's own transaction (R4). Else they are refused.
    pub transactions: bool,
    /// Wake-ups and ends are pushed (R19, R34). Else there are no notifications, and polling finds
    /// them.
    pub push: bool,
    /// A due job, an expired lease or a tick wakes a worker when its time comes, whichever process
    /// wrote it (R34). So workers rest. Else they poll.
    pub timed: bool,
    /// Higher priority first (R30). Else due time decides, then id.
    pub priorities: bool,
    /// Limits hold across processes (R31). Else a queue's limits cannot be set: they are refused.
    pub exact_limits: bool,
    /// Jobs can be listed and counted. Else both are refused; one job is found by its id.
    pub listing: bool,
    /// A task's keys are the same in every queue (R7, R11, R16, R19), and a batch may name several
    /// queues (R5). Else a task with keys keeps to the queue in which it first had one: triggers
    /// into another are refused, and so is a batch that is not of one queue.
    pub across_queues: bool,
    /// A batch has as many triggers as a client takes (R5), and a job with its past may be as large
    /// as its payloads. Else what the store cannot write at once is refused, with how much that is;
    /// a batch of ten triggers never is for their number.
    pub large_batches: bool,
}

impl Capabilities {
    /// Every capability.
    ///
    /// ```
    /// use quell_core::Capabilities;
    ///
    /// let capabilities = Capabilities::all().with_timed(false).with_push(false);
    /// assert!(capabilities.dedup && !capabilities.push);
    /// ```
    #[must_use]
    pub const fn all() -> Self {
        Self::every(true)
    }

    /// No capability. Where a capability is added later, a store that starts from here lacks it.
    ///
    /// ```
    /// use quell_core::Capabilities;
    ///
    /// let capabilities = Capabilities::none().with_dedup(true);
    /// assert!(capabilities.dedup && !capabilities.transactions);
    /// ```
    #[must_use]
    pub const fn none() -> Self {
        Self::every(false)
    }

    const fn every(has: bool) -> Self {
        Capabilities {
            dedup: has,
            transactions: has,
            push: has,
            timed: has,
            priorities: has,
            exact_limits: has,
            listing: has,
            across_queues: has,
            large_batches: has,
        }
    }
}

/// Makes a setter for each capability.
macro_rules! capability_setters {
    ($($setter:ident: $field:ident),* $(,)?) => {
        impl Capabilities {
            $(
                #[doc = concat!("Sets [`", stringify!($field), "`](field@Self::", stringify!($field), ").")]
                #[must_use]
                pub const fn $setter(mut self, has: bool) -> Self {
                    self.$field = has;
                    self
                }
            )*
        }
    };
}

capability_setters! {
    with_dedup: dedup,
    with_transactions: transactions,
    with_push: push,
    with_timed: timed,
    with_priorities: priorities,
    with_exact_limits: exact_limits,
    with_listing: listing,
    with_across_queues: across_queues,
    with_large_batches: large_batches,
}

/// Where a caller's own transaction finds the store (R4, R22).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Location {
    /// Which store it is; a transaction on another one is refused.
    pub id: StoreId,
    /// The schema that holds it, in a database that has schemas.
    pub schema: Option<String>,
}

impl Location {
    /// The refusal of a transaction on a database that holds the store `found`, not this one.
    #[must_use]
    pub fn other_store(&self, found: &str) -> Error {
        let message = format!(
            "the transaction is on the database of store {found:?}, the client's store is {}: \
             begin the transaction on the database that holds the client's store",
            self.id
        );
        Error::new(crate::ErrorKind::Unsupported, message)
    }
}

/// The refusal to settle inside a savepoint: rolled back alone, it would undo the fence of R22.
#[must_use]
pub fn in_savepoint() -> Error {
    let message = "the job cannot be settled inside a savepoint, which could be rolled back alone: \
                   settle in the outermost transaction";
    Error::new(crate::ErrorKind::Unsupported, message)
}

/// The refusal of a call that a store cannot serve natively (R18): names the field of
/// [`Capabilities`] and what to do instead.
#[must_use]
pub fn lacks(capability: &str, remedy: &str) -> Error {
    let message = format!("the store lacks the capability `{capability}`: {remedy}");
    Error::new(crate::ErrorKind::Unsupported, message)
}
