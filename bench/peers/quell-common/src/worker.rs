//! A worker that runs until it is stopped.

use anyhow::Result;
use peer_common::join;
use quell::WorkerBuilder;
use tokio::sync::oneshot;
use tokio::task::JoinSet;

/// A worker that runs until it is stopped.
#[derive(Debug)]
pub struct Working {
    stop: oneshot::Sender<()>,
    task: JoinSet<quell::Result<()>>,
}

impl Working {
    /// Runs the worker in a task of its own.
    pub fn start<S: Send + Sync + 'static>(worker: WorkerBuilder<S>) -> Self {
        let (stop, stopped) = oneshot::channel::<()>();
        let mut task = JoinSet::new();
        task.spawn(worker.run_until(async { drop(stopped.await) }));
        Working { stop, task }
    }

    /// Stops it, and returns when it has ended.
    ///
    /// # Errors
    ///
    /// Fails when the worker did.
    pub async fn stop(self) -> Result<()> {
        drop(self.stop);
        join(self.task).await
    }
}
