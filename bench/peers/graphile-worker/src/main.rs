//! `graphile_worker`, measured the way `bench` measures Quell. A crate of its own, because what it
//! depends on is no part of Quell's tree.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use anyhow::Result;
use graphile_worker::{
    IntoTaskHandlerResult, JobKeyMode, JobSpec, LocalQueueConfig, TaskHandler, Worker,
    WorkerContext, WorkerOptions, WorkerRecoveryConfig, WorkerUtils,
};
use pg_common::{Peer, PostgresPeer, SILENCE, Settings, Starts, join, version_in};
use serde::{Deserialize, Serialize};
use sqlx::postgres::{PgPool, PgPoolOptions};
use tokio::task::JoinSet;

#[derive(Clone, Debug, Deserialize, Serialize)]
struct Noop {
    n: usize,
}

/// Where handlers report to, once a worker runs.
#[derive(Clone, Debug, Default)]
struct Listener(Arc<OnceLock<Starts>>);

impl TaskHandler for Noop {
    const IDENTIFIER: &'static str = "noop";

    async fn run(self, ctx: WorkerContext) -> impl IntoTaskHandlerResult {
        let listener = ctx.get_ext::<Listener>();
        if let Some(starts) = listener.as_ref().and_then(|listener| listener.0.get()) {
            starts.report().await;
        }
        Ok::<(), String>(())
    }
}

#[derive(Clone)]
struct Graphile {
    pool: PgPool,
    utils: WorkerUtils,
    worker: Arc<Worker>,
    listener: Listener,
}

impl Peer for Graphile {
    const NAME: &'static str = "graphile_worker";
    const DEBOUNCED: &'static str = "job_key with mode replace: run_at moves, as in Quell";
    type Settings = Settings;
    type Worker = (Arc<Worker>, JoinSet<Result<()>>);

    fn version() -> String {
        version_in(include_str!("../Cargo.lock"), "graphile_worker")
    }

    fn tuned(settings: Settings) -> &'static str {
        match settings {
            Settings::Defaults => "pool of 20, concurrency: CPUs, no local queue, no batching",
            Settings::Best => {
                "pool of 32, concurrency 256, local queue of 4,000, completions batched for 1 ms"
            }
            Settings::Failover => {
                "as best, worker recovery: heartbeats every 2 s, sweeps every second, threshold 6 s, no delay"
            }
        }
    }

    async fn open(url: &str, settings: Settings) -> Result<Self> {
        let (least, size) = match settings {
            // What the crate gives a pool of its own.
            Settings::Defaults => (0, 20),
            Settings::Best | Settings::Failover => (32, 32),
        };
        let pool =
            PgPoolOptions::new().min_connections(least).max_connections(size).connect(url).await?;
        let listener = Listener::default();
        let options = WorkerOptions::default()
            .pg_pool(pool.clone())
            .define_job::<Noop>()
            // A signal must end the program, not the worker under a waiting measurement.
            .listen_os_shutdown_signals(false)
            .add_extension(listener.clone());
        let options = match settings {
            Settings::Defaults => options,
            Settings::Best | Settings::Failover => options
                .concurrency(256)
                .local_queue(LocalQueueConfig::default().with_size(4_000))
                .complete_job_batch_delay(Duration::from_millis(1))
                .fail_job_batch_delay(Duration::from_millis(1)),
        };
        let options = match settings {
            Settings::Defaults | Settings::Best => options,
            Settings::Failover => options.worker_recovery(
                WorkerRecoveryConfig::default()
                    .heartbeat_interval(SILENCE / 3)
                    .sweep_interval(Duration::from_secs(1))
                    .sweep_threshold(SILENCE)
                    .recovery_delay(Duration::ZERO),
            ),
        };
        let worker = Arc::new(options.init().await?);
        Ok(Graphile { pool, utils: worker.create_utils(), worker, listener })
    }

    async fn enqueue_many(&self, first: usize, count: usize) -> Result<()> {
        let spec = JobSpec::default();
        let jobs: Vec<_> = (first..first + count).map(|n| (Noop { n }, &spec)).collect();
        self.utils.add_jobs(&jobs).await?;
        Ok(())
    }

    async fn enqueue(&self, n: usize) -> Result<()> {
        self.utils.add_job(Noop { n }, JobSpec::default()).await?;
        Ok(())
    }

    async fn debounce(&self, key: usize) -> Result<()> {
        let spec = JobSpec::builder()
            .job_key(format!("customer-{key}"))
            .job_key_mode(JobKeyMode::Replace)
            .run_at(std::time::SystemTime::now() + Duration::from_secs(3_600))
            .build();
        self.utils.add_job(Noop { n: key }, spec).await?;
        Ok(())
    }

    async fn work(&self, starts: Starts) -> Result<Self::Worker> {
        let _first_time = self.listener.0.set(starts);
        let worker = Arc::clone(&self.worker);
        let mut task = JoinSet::new();
        task.spawn(async move { Ok(worker.run().await?) });
        Ok((Arc::clone(&self.worker), task))
    }

    async fn stop((worker, task): Self::Worker) -> Result<()> {
        worker.request_shutdown();
        join(task).await
    }
}

impl PostgresPeer for Graphile {
    const UNFINISHED: &'static str =
        "select count(*) from graphile_worker._private_jobs where $1 > 0";

    async fn close(self) -> Result<()> {
        self.pool.close().await;
        Ok(())
    }
}

fn main() -> Result<()> {
    pg_common::main::<Graphile>()
}
