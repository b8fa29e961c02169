//! The job and the worker that apalis has on every store: `apalis-postgres` and `apalis-redis` add a
//! storage each.

use std::time::Duration;

use anyhow::{Context, Result};
use apalis::prelude::*;
use peer_common::{Starts, join};
use serde::{Deserialize, Serialize};
use tokio::task::JoinSet;

/// A job that does nothing.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Noop {
    n: usize,
}

/// The handler.
///
/// # Errors
///
/// None.
pub async fn noop(_: Noop, starts: Data<Starts>) -> Result<(), BoxDynError> {
    starts.report().await;
    Ok(())
}

/// The job of this number.
#[must_use]
pub fn job(n: usize) -> Noop {
    Noop { n }
}

/// Jobs of one batch.
#[must_use]
pub fn jobs(first: usize, count: usize) -> Vec<Noop> {
    (first..first + count).map(job).collect()
}

/// A job that runs in an hour; a storage keeps one for each key.
#[must_use]
pub fn keyed(key: usize) -> Task<Noop> {
    TaskBuilder::new(job(key))
        .idempotency_key(format!("customer-{key}"))
        .run_after(Duration::from_secs(3_600))
        .build()
}

/// A running worker.
#[derive(Debug)]
pub struct Running {
    context: WorkerContext,
    task: JoinSet<Result<()>>,
}

impl Running {
    /// Runs the worker of this context in a task of its own.
    pub fn start(
        context: &WorkerContext,
        run: impl Future<Output = Result<(), WorkerError>> + Send + 'static,
    ) -> Self {
        let mut task = JoinSet::new();
        task.spawn(async move { run.await.context("the worker") });
        Running { context: context.clone(), task }
    }

    /// Stops it, and returns when it has ended.
    ///
    /// # Errors
    ///
    /// Fails when the worker did.
    pub async fn stop(self) -> Result<()> {
        // It may have ended by itself; its task has the reason.
        let _ended = self.context.stop();
        join(self.task).await
    }
}
