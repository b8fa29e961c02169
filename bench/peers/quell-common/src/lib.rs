//! Quell as a queue beside its peers, the same on every store: a program enables the feature of its
//! store. The tasks and the worker serve the programs, too, that measure how Quell alone scales.

#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "redis")]
mod redis;
mod task;
mod worker;

use std::fmt::Debug;

use anyhow::Result;
use peer_common::{Peer, Starts};
use quell::{Quell, WorkerBuilder};

pub use task::{Meter, Noop};
pub use worker::Working;

/// What the settings of a store mean for Quell.
pub trait Tuning: Clone + Copy + Debug + Send + Sync + 'static {
    /// The settings in words.
    fn words(self) -> &'static str;

    /// A worker with these settings.
    fn applied_to(self, worker: WorkerBuilder<Starts>) -> WorkerBuilder<Starts>;
}

/// Quell with the settings of its store.
#[derive(Clone, Debug)]
pub struct Measured<T> {
    quell: Quell,
    settings: T,
}

impl<T: Tuning> Peer for Measured<T> {
    const NAME: &'static str = "quell";
    const DEBOUNCED: &'static str = "a trigger joins the key's window: its due time moves";
    type Settings = T;
    type Worker = Working;

    fn version() -> String {
        "as checked out".to_owned()
    }

    fn tuned(settings: T) -> &'static str {
        settings.words()
    }

    async fn open(url: &str, settings: T) -> Result<Self> {
        Ok(Measured { quell: Quell::open(url).await?, settings })
    }

    async fn enqueue_many(&self, first: usize, count: usize) -> Result<()> {
        self.quell.trigger_many((first..first + count).map(|n| Noop { n })).await?;
        Ok(())
    }

    async fn enqueue(&self, n: usize) -> Result<()> {
        self.quell.trigger(Noop { n }).await?;
        Ok(())
    }

    async fn debounce(&self, key: usize) -> Result<()> {
        self.quell.trigger(Meter { key }).await?;
        Ok(())
    }

    async fn work(&self, starts: Starts) -> Result<Self::Worker> {
        let worker = self.quell.worker(starts).register(task::noop);
        Ok(Working::start(self.settings.applied_to(worker)))
    }

    async fn stop(worker: Self::Worker) -> Result<()> {
        worker.stop().await
    }
}
