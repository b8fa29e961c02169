//! Queues: which due jobs a worker may start next, and when it looks again (R30–R35).
//!
//! A worker's [`Claim`] names a queue and the tasks that the worker knows. [`line`](mod@line) chooses among the
//! lanes of the queue, [`limit`] counts what the queue's settings leave free, [`turn`] orders the jobs of
//! a partition, and [`poll`] decides how long an idle worker sleeps. [`backlog`] shows people what waits.

pub mod backlog;
mod claim;
pub mod limit;
pub mod line;
pub mod poll;
pub(crate) mod remarks;
mod settings;
pub mod turn;

pub use backlog::{Backlog, BacklogOf, PartitionBacklog};
pub use claim::{Claim, Claimed, ClaimedJob, Lease, NextDue, Renewal};
pub use remarks::Remarks;
pub(crate) use remarks::check_text;
pub use settings::{PartitionOrder, QueueInfo, QueueSettings, Rate, TaskInfo, TaskSettings};
