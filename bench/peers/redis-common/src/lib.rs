//! What the programs in Rust on Redis share: the workloads and the command line. A program
//! implements [`Peer`] and calls [`main`]; none of it knows Quell.
//!
//! Each call is one round on a server that the caller made for it: rounds, medians and the server's
//! counters are the business of `bench/src/redis.rs`. Programs in other languages take the same
//! arguments and print the same line.

mod command;
mod workload;

use std::time::Instant;

use tokio::sync::mpsc::UnboundedSender;

pub use command::{main, version_in};

/// Which set-up of a peer is measured.
#[derive(Clone, Copy, Debug, Eq, PartialEq, clap::ValueEnum)]
pub enum Settings {
    /// What its documentation starts with.
    Defaults,
    /// The fastest that its documentation and source offer, with nothing less durable.
    Best,
}

/// Where a handler says that it started.
pub type Starts = UnboundedSender<Instant>;

/// One queue on Redis, with one task that does nothing.
pub trait Peer: Clone + Send + Sync + Sized + 'static {
    /// Its name on crates.io.
    const NAME: &'static str;
    /// What [`debounce`](Peer::debounce) does, and how it differs from moving a due time.
    const DEBOUNCED: &'static str;
    /// A running worker.
    type Worker: Send;

    /// Its version, as the lock file says.
    fn version() -> String;

    /// The settings in words.
    fn tuned(settings: Settings) -> &'static str;

    /// Connects.
    fn open(url: &str, settings: Settings) -> impl Future<Output = anyhow::Result<Self>>;

    /// Enqueues `count` jobs in one call.
    fn enqueue_many(
        &self,
        first: usize,
        count: usize,
    ) -> impl Future<Output = anyhow::Result<()>> + Send;

    /// Enqueues one job, and returns when the server has it.
    fn enqueue(&self, n: usize) -> impl Future<Output = anyhow::Result<()>> + Send;

    /// Asks for one run of `key` in an hour, whether or not there is one already.
    fn debounce(&self, key: usize) -> impl Future<Output = anyhow::Result<()>> + Send;

    /// Of `count` jobs, how many are not completed by what the server says.
    fn unfinished(&self, count: usize) -> impl Future<Output = anyhow::Result<usize>> + Send;

    /// Starts a worker, and returns when it is ready for jobs.
    fn work(&self, starts: Starts) -> impl Future<Output = anyhow::Result<Self::Worker>> + Send;

    /// Stops a worker, and returns when it has ended.
    fn stop(worker: Self::Worker) -> impl Future<Output = anyhow::Result<()>> + Send;
}
