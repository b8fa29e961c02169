//! What the peers and floors share, whatever their store: the queue that each of them implements,
//! the starts that its handlers report, and the workloads that read nothing from the store.
//! `pg-common` and `redis-common` add the rest; none of it knows Quell.

mod args;
mod lock;
mod program;
mod starts;
mod workload;

pub use args::DebouncedCallers;
pub use lock::version_in;
pub use program::{join, run};
pub use starts::Starts;
pub use workload::{
    Call, Sampling, batch, callers, enqueue_to_start, latencies, millis, work_until,
};

/// One queue with one task that does nothing.
pub trait Peer: Clone + Send + Sync + Sized + 'static {
    /// Its name on crates.io.
    const NAME: &'static str;
    /// What [`debounce`](Peer::debounce) does, and how it differs from moving a due time.
    const DEBOUNCED: &'static str;
    /// The set-ups that are measured on its store.
    type Settings: Copy;
    /// A running worker.
    type Worker: Send;

    /// Its version, as the lock file says.
    fn version() -> String;

    /// The settings in words.
    fn tuned(settings: Self::Settings) -> &'static str;

    /// Connects. Not `Send`, because a peer's migrations need not be.
    fn open(url: &str, settings: Self::Settings) -> impl Future<Output = anyhow::Result<Self>>;

    /// Enqueues `count` jobs in one call, which is one commit where the store has commits.
    fn enqueue_many(
        &self,
        first: usize,
        count: usize,
    ) -> impl Future<Output = anyhow::Result<()>> + Send;

    /// Enqueues one job, and returns when the store has it.
    fn enqueue(&self, n: usize) -> impl Future<Output = anyhow::Result<()>> + Send;

    /// Asks for one run of `key` in an hour, whether or not there is one already.
    fn debounce(&self, key: usize) -> impl Future<Output = anyhow::Result<()>> + Send;

    /// Starts a worker, and returns when it is ready for jobs.
    fn work(&self, starts: Starts) -> impl Future<Output = anyhow::Result<Self::Worker>> + Send;

    /// Stops a worker, and returns when it has ended.
    fn stop(worker: Self::Worker) -> impl Future<Output = anyhow::Result<()>> + Send;
}
