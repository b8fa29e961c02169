//! Quell on PostgreSQL, measured by the same code as the peers it stands beside.

use std::time::Duration;

use anyhow::Result;
use pg_common::{Peer, SILENCE, Settings, Starts};
use quell::{Ctx, Policy, Quell, Task, TaskError};
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;
use tokio::task::JoinSet;

#[derive(Debug, Deserialize, Serialize)]
struct Noop {
    n: usize,
}

impl Task for Noop {
    const NAME: &'static str = "noop";
    type Output = ();
}

#[derive(Debug, Deserialize, Serialize)]
struct Meter {
    key: usize,
}

impl Task for Meter {
    const NAME: &'static str = "meter";
    type Output = ();

    fn policy() -> Policy {
        let hour = Duration::from_secs(3_600);
        Policy::default().debounce(hour..=2 * hour)
    }

    fn debounce_key(&self) -> Option<String> {
        Some(format!("customer-{}", self.key))
    }
}

async fn noop(_: Noop, ctx: Ctx<Starts>) -> Result<(), TaskError> {
    ctx.state().report().await;
    Ok(())
}

#[derive(Clone, Debug)]
struct Measured {
    quell: Quell,
    settings: Settings,
}

impl Peer for Measured {
    const NAME: &'static str = "quell";
    const DEBOUNCED: &'static str = "a trigger joins the key's window: its due time moves";
    const UNFINISHED: &'static str = "select count(*) from quell.job where $1 > 0";
    type Worker = (oneshot::Sender<()>, JoinSet<quell::Result<()>>);

    fn version() -> String {
        "as checked out".to_owned()
    }

    fn tuned(settings: Settings) -> &'static str {
        match settings {
            Settings::Defaults => "8 connections, concurrency 32",
            Settings::Best => "8 connections, concurrency 256",
            Settings::Failover => "as best, leases of 6 s",
        }
    }

    async fn open(url: &str, settings: Settings) -> Result<Self> {
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
        let (stop, stopped) = oneshot::channel::<()>();
        let worker = self.quell.worker(starts).register(noop);
        let worker = match self.settings {
            Settings::Defaults => worker,
            Settings::Best => worker.concurrency(256),
            Settings::Failover => worker.concurrency(256).lease(SILENCE),
        };
        let mut task = JoinSet::new();
        task.spawn(worker.run_until(async { drop(stopped.await) }));
        Ok((stop, task))
    }

    async fn stop((stop, mut task): Self::Worker) -> Result<()> {
        drop(stop);
        while let Some(ended) = task.join_next().await {
            ended??;
        }
        Ok(())
    }

    async fn close(self) -> Result<()> {
        Ok(())
    }
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> Result<()> {
    pg_common::main::<Measured>().await
}
