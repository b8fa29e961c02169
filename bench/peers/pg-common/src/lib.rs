//! What the peers and the floor on PostgreSQL share: the workloads, the counters beside their
//! times, and the command line. A program implements [`Peer`] and calls [`main`], so all of them
//! are measured by the same code; none of it knows Quell. The rest is for measurements of one's own.

mod command;
mod counters;
mod database;
mod failover;
mod process;
mod report;
mod starts;
mod workload;

use std::time::Duration;

pub use command::main;
pub use counters::Counters;
pub use database::{Database, version_in};
pub use report::{median, quantile};
pub use starts::Starts;

/// Which set-up of a peer is measured.
#[derive(Clone, Copy, Debug, Eq, PartialEq, clap::ValueEnum)]
pub enum Settings {
    /// What its documentation starts with.
    Defaults,
    /// The fastest that its documentation and source offer, with nothing less durable.
    Best,
    /// `Best`, and a worker that is silent for [`SILENCE`] counts as dead: for the workload that
    /// kills one, where it stands in the place of `Best`.
    Failover,
}

/// After how long a silent worker counts as dead with [`Settings::Failover`]. Its signs of life
/// come three times as often.
pub const SILENCE: Duration = Duration::from_secs(6);

/// One queue on PostgreSQL, with one task that does nothing.
///
/// Opening it creates its tables where they are missing; the caller gives it a database of its own.
pub trait Peer: Clone + Send + Sync + Sized + 'static {
    /// Its name on crates.io.
    const NAME: &'static str;
    /// What [`debounce`](Peer::debounce) does, and how it differs from moving a due time.
    const DEBOUNCED: &'static str;
    /// Of `$1` jobs, how many are not durably completed: SQL that answers one `bigint`.
    const UNFINISHED: &'static str;
    /// A running worker.
    type Worker: Send;

    /// Its version, as the lock file says.
    fn version() -> String;

    /// The settings in words.
    fn tuned(settings: Settings) -> &'static str;

    /// Connects. Not `Send`, because a peer's migrations need not be.
    fn open(url: &str, settings: Settings) -> impl Future<Output = anyhow::Result<Self>>;

    /// Enqueues `count` jobs in one commit.
    fn enqueue_many(
        &self,
        first: usize,
        count: usize,
    ) -> impl Future<Output = anyhow::Result<()>> + Send;

    /// Enqueues one job, and returns when it is committed.
    fn enqueue(&self, n: usize) -> impl Future<Output = anyhow::Result<()>> + Send;

    /// Asks for one later run of `key`, whether or not there is one already.
    fn debounce(&self, key: usize) -> impl Future<Output = anyhow::Result<()>> + Send;

    /// Starts a worker, and returns when it is ready for jobs.
    fn work(&self, starts: Starts) -> impl Future<Output = anyhow::Result<Self::Worker>> + Send;

    /// Stops a worker, and returns when it has ended.
    fn stop(worker: Self::Worker) -> impl Future<Output = anyhow::Result<()>> + Send;

    /// Closes every connection.
    fn close(self) -> impl Future<Output = anyhow::Result<()>> + Send;
}
