//! `riverqueue`, measured the way `bench` measures Quell. A crate of its own, because what it
//! depends on is no part of Quell's tree.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use anyhow::Result;
use pg_common::{Peer, PostgresPeer, Settings, Starts, version_in};
use riverqueue::jiff::Timestamp;
use riverqueue::migrate::PostgresMigrator;
use riverqueue::{
    BoxError, Client, InsertOpts, Job, JobArgs, MaintenanceConfig, QueueConfig, RunHandle,
    UniqueOpts, WorkContext, WorkOutcome, Workers,
};
use serde::{Deserialize, Serialize};
use sqlx::postgres::{PgPool, PgPoolOptions};

const HOUR: Duration = Duration::from_secs(3_600);
const SECOND: Duration = Duration::from_secs(1);

#[derive(Clone, Debug, Deserialize, JobArgs, Serialize)]
#[river(kind = "noop")]
struct Noop {
    n: usize,
}

#[derive(Clone)]
struct River {
    pool: PgPool,
    client: Client,
    starts: Arc<OnceLock<Starts>>,
}

impl Peer for River {
    const NAME: &'static str = "riverqueue";
    const DEBOUNCED: &'static str =
        "a job unique by its arguments: a second one is skipped, and scheduled_at stays";
    type Settings = Settings;
    type Worker = RunHandle;

    fn version() -> String {
        version_in(include_str!("../Cargo.lock"), "riverqueue")
    }

    fn tuned(settings: Settings) -> &'static str {
        match settings {
            Settings::Defaults => {
                "pool of 10, 10 workers, fetches 100 ms apart, polls every second"
            }
            Settings::Best => "pool of 32, 1,000 workers, fetches 1 ms apart, polls every 50 ms",
            Settings::Failover => {
                "as best, jobs are rescued a minute after their start, which is their timeout: it has \
                 no sign of life; leader, rescuer and scheduler look every second"
            }
        }
    }

    async fn open(url: &str, settings: Settings) -> Result<Self> {
        let (least, size) = match settings {
            Settings::Defaults => (0, 10),
            Settings::Best | Settings::Failover => (32, 32),
        };
        let pool =
            PgPoolOptions::new().min_connections(least).max_connections(size).connect(url).await?;
        PostgresMigrator::new(pool.clone()).migrate_up().await?;
        let starts = Arc::new(OnceLock::<Starts>::new());
        let listener = Arc::clone(&starts);
        let mut workers = Workers::new();
        workers.add_fn(move |_: WorkContext, _: Job<Noop>| {
            let starts = listener.get().cloned();
            async move {
                if let Some(starts) = starts {
                    starts.report().await;
                }
                Ok::<_, BoxError>(WorkOutcome::Complete)
            }
        })?;
        let client = Client::builder(pool.clone()).workers(workers);
        let client = match settings {
            Settings::Defaults => client.queue("default", QueueConfig::new(10)),
            Settings::Best | Settings::Failover => {
                let queue =
                    QueueConfig::new(1_000).with_fetch_poll_interval(Duration::from_millis(50));
                client.queue("default", queue).fetch_cooldown(Duration::from_millis(1))
            }
        };
        let client = match settings {
            Settings::Defaults | Settings::Best => client,
            Settings::Failover => client.maintenance(
                MaintenanceConfig::default()
                    .with_rescue_after(60 * SECOND)
                    .with_rescuer_interval(SECOND)
                    .with_elect_interval(SECOND)
                    .with_scheduler_interval(SECOND),
            ),
        };
        Ok(River { pool, client: client.build()?, starts })
    }

    async fn enqueue_many(&self, first: usize, count: usize) -> Result<()> {
        self.client.insert_many((first..first + count).map(|n| Noop { n })).await?;
        Ok(())
    }

    async fn enqueue(&self, n: usize) -> Result<()> {
        self.client.insert(Noop { n }).await?;
        Ok(())
    }

    async fn debounce(&self, key: usize) -> Result<()> {
        let options = InsertOpts::default()
            .with_scheduled_at(Timestamp::now() + HOUR)
            .with_unique(UniqueOpts::new().with_by_args(true));
        self.client.insert(Noop { n: key }).opts(options).await?;
        Ok(())
    }

    async fn work(&self, starts: Starts) -> Result<Self::Worker> {
        let _first_time = self.starts.set(starts);
        let mut run = self.client.start()?;
        run.wait_ready().await?;
        Ok(run)
    }

    async fn stop(mut run: Self::Worker) -> Result<()> {
        Ok(run.stop().await?)
    }
}

impl PostgresPeer for River {
    const UNFINISHED: &'static str =
        "select count(*) from river_job where state <> 'completed' and $1 > 0";

    async fn close(self) -> Result<()> {
        self.pool.close().await;
        Ok(())
    }
}

fn main() -> Result<()> {
    pg_common::main::<River>()
}
