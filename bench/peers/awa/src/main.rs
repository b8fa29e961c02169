//! `awa`, measured the way `bench` measures Quell. A crate of its own, because it takes an older
//! `sqlx` than Quell's tree holds.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use anyhow::Result;
use awa::model::{insert::params_with, migrations};
use awa::{
    AwaError, Client, InsertOpts, InsertParams, JobArgs, JobResult, QueueConfig, QueueStorage,
    QueueStorageConfig, UniqueOpts, insert_many, insert_with,
};
use pg_common::{Peer, PostgresPeer, SILENCE, Settings, Starts, version_in};
use serde::{Deserialize, Serialize};
use sqlx::postgres::{PgPool, PgPoolOptions};

const QUEUE: &str = "default";

#[derive(Debug, Deserialize, JobArgs, Serialize)]
struct Noop {
    n: usize,
}

#[derive(Clone)]
struct Awa {
    pool: PgPool,
    settings: Settings,
    store: Arc<QueueStorage>,
    client: Arc<Client>,
    starts: Arc<OnceLock<Starts>>,
}

impl Peer for Awa {
    const NAME: &'static str = "awa";
    const DEBOUNCED: &'static str =
        "a unique job a key: a second one is refused with an error, and run_at stays";
    type Settings = Settings;
    type Worker = Arc<Client>;

    fn version() -> String {
        version_in(include_str!("../Cargo.lock"), "awa")
    }

    fn tuned(settings: Settings) -> &'static str {
        match settings {
            Settings::Defaults => "pool of 10, QueueConfig::default(), insert_many",
            Settings::Best => {
                "pool of 32, 256 workers, no deadline (compact receipts), polls every 50 ms, COPY for batches"
            }
            Settings::Failover => {
                "as best, heartbeats every 2 s, stale after 6 s, leader and rescues every second"
            }
        }
    }

    async fn open(url: &str, settings: Settings) -> Result<Self> {
        let (least, size, config) = match settings {
            Settings::Defaults => (0, 10, QueueConfig::default()),
            Settings::Best | Settings::Failover => {
                let config = QueueConfig {
                    max_workers: 256,
                    poll_interval: Duration::from_millis(50),
                    deadline_duration: Duration::ZERO,
                    ..QueueConfig::default()
                };
                (32, 32, config)
            }
        };
        let pool =
            PgPoolOptions::new().min_connections(least).max_connections(size).connect(url).await?;
        migrations::run(&pool).await?;
        // The first worker of a new installation does this; jobs enqueued before it would go to the
        // tables of older versions, and be worked off there.
        sqlx::query("select awa.storage_auto_finalize_if_fresh('awa')").execute(&pool).await?;
        let starts = Arc::new(OnceLock::<Starts>::new());
        let listener = Arc::clone(&starts);
        let client = Client::builder(pool.clone()).queue(QUEUE, config).register::<Noop, _, _>(
            move |_, _| {
                let starts = listener.get().cloned();
                async move {
                    if let Some(starts) = starts {
                        starts.report().await;
                    }
                    Ok(JobResult::Completed)
                }
            },
        );
        let client = match settings {
            Settings::Defaults | Settings::Best => client,
            Settings::Failover => client
                .heartbeat_interval(SILENCE / 3)
                .heartbeat_staleness(SILENCE)
                .heartbeat_rescue_interval(Duration::from_secs(1))
                .leader_election_interval(Duration::from_secs(1)),
        };
        let client = client.build()?;
        let store = Arc::new(QueueStorage::new(QueueStorageConfig::default())?);
        Ok(Awa { pool, settings, store, client: Arc::new(client), starts })
    }

    async fn enqueue_many(&self, first: usize, count: usize) -> Result<()> {
        let jobs = (first..first + count)
            .map(|n| params_with(&Noop { n }, InsertOpts::default()))
            .collect::<Result<Vec<InsertParams>, AwaError>>()?;
        match self.settings {
            Settings::Defaults => drop(insert_many(&self.pool, &jobs).await?),
            Settings::Best | Settings::Failover => {
                drop(self.store.enqueue_params_copy(&self.pool, &jobs).await?)
            }
        }
        Ok(())
    }

    async fn enqueue(&self, n: usize) -> Result<()> {
        insert_with(&self.pool, &Noop { n }, InsertOpts::default()).await?;
        Ok(())
    }

    async fn debounce(&self, key: usize) -> Result<()> {
        let options = InsertOpts {
            run_at: Some((std::time::SystemTime::now() + Duration::from_secs(3_600)).into()),
            unique: Some(UniqueOpts::default()),
            ..InsertOpts::default()
        };
        match insert_with(&self.pool, &Noop { n: key }, options).await {
            Ok(_) | Err(AwaError::UniqueConflict { .. }) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    async fn work(&self, starts: Starts) -> Result<Self::Worker> {
        let _first_time = self.starts.set(starts);
        self.client.start().await?;
        Ok(Arc::clone(&self.client))
    }

    async fn stop(client: Self::Worker) -> Result<()> {
        client.shutdown(Duration::from_secs(20)).await;
        Ok(())
    }
}

impl PostgresPeer for Awa {
    // What it keeps of a completed job: a row, or its number in a batch, or in a sum once pruned.
    const UNFINISHED: &'static str = "
        select ($1 - (select count(*) from awa.done_entries where state = 'completed')
                   - (select coalesce(sum(completed_count), 0) from awa.receipt_completion_batches)
                   - (select coalesce(sum(pruned_completed_count), 0)
                        from awa.queue_terminal_rollups))::bigint";

    async fn close(self) -> Result<()> {
        self.pool.close().await;
        Ok(())
    }
}

fn main() -> Result<()> {
    pg_common::main::<Awa>()
}
