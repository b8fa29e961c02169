//! A worker that runs until it is stopped, and what its handlers report.

use anyhow::Context;
use quell::{Quell, WorkerBuilder};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;
use tokio::task::JoinSet;

/// A worker that runs until it is stopped, and the starts of jobs that its handlers report.
pub(crate) struct Working<S> {
    starts: UnboundedReceiver<S>,
    stop: oneshot::Sender<()>,
    task: JoinSet<quell::Result<()>>,
}

type Builder<S> = WorkerBuilder<UnboundedSender<S>>;

impl<S: Send + 'static> Working<S> {
    /// Starts a worker with these handlers, at its defaults.
    pub(crate) fn start(quell: &Quell, register: fn(Builder<S>) -> Builder<S>) -> Self {
        let (sender, starts) = unbounded_channel();
        let (stop, stopped) = oneshot::channel::<()>();
        let worker = register(quell.worker(sender));
        let mut task = JoinSet::new();
        task.spawn(worker.run_until(async { drop(stopped.await) }));
        Working { starts, stop, task }
    }

    /// Waits for the next start.
    pub(crate) async fn started(&mut self) -> anyhow::Result<S> {
        self.starts.recv().await.context("the worker ended")
    }

    /// Stops the worker; returns the starts that were not waited for.
    pub(crate) async fn stop(mut self) -> anyhow::Result<Vec<S>> {
        drop(self.stop);
        while let Some(ended) = self.task.join_next().await {
            ended??;
        }
        let mut starts = Vec::new();
        while let Ok(started) = self.starts.try_recv() {
            starts.push(started);
        }
        Ok(starts)
    }
}
