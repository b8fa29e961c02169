//! `apalis-postgres`, measured the way `bench` measures Quell. A crate of its own, because what it
//! depends on is no part of Quell's tree.

use std::time::Duration;

use anyhow::Result;
use apalis::prelude::*;
use apalis_common::{Noop, Running, job, jobs, keyed, noop};
use apalis_postgres::{Config, PostgresStorage};
use pg_common::{Peer, PostgresPeer, SILENCE, Settings, Starts, version_in};
use sqlx::postgres::{PgPool, PgPoolOptions};

/// SQLSTATE of a row whose key is there already.
const UNIQUE_VIOLATION: &str = "23505";

#[derive(Clone)]
struct Apalis {
    pool: PgPool,
    settings: Settings,
    storage: PostgresStorage<Noop>,
}

impl Peer for Apalis {
    const NAME: &'static str = "apalis-postgres";
    const DEBOUNCED: &'static str =
        "an idempotency key: a second job is refused with an error, and run_at stays";
    type Settings = Settings;
    type Worker = Running;

    fn version() -> String {
        version_in(include_str!("../Cargo.lock"), "apalis-postgres")
    }

    fn tuned(settings: Settings) -> &'static str {
        match settings {
            Settings::Defaults => "pool of 10, Config::default(), no poll strategy, no listener",
            Settings::Best => {
                "pool of 32, listener and polls every 100 ms, batches of 4,000, no lock events"
            }
            Settings::Failover => {
                "as best, heartbeats every 2 s, a worker is dead after 3 missed ones"
            }
        }
    }

    async fn open(url: &str, settings: Settings) -> Result<Self> {
        let best = Config::default().batch_size(4_000).lock_tasks(false);
        let (least, size, config) = match settings {
            Settings::Defaults => (0, 10, Config::default()),
            Settings::Best => (32, 32, best),
            Settings::Failover => {
                (32, 32, best.heartbeat_interval(SILENCE / 3).missed_heartbeats(3))
            }
        };
        let pool =
            PgPoolOptions::new().min_connections(least).max_connections(size).connect(url).await?;
        PostgresStorage::setup(&pool).await?;
        let storage = PostgresStorage::new(&pool).with_config(config);
        Ok(Apalis { pool, settings, storage })
    }

    async fn enqueue_many(&self, first: usize, count: usize) -> Result<()> {
        Ok(self.storage.clone().push_bulk(jobs(first, count)).await?)
    }

    async fn enqueue(&self, n: usize) -> Result<()> {
        Ok(self.storage.clone().push(job(n)).await?)
    }

    async fn debounce(&self, key: usize) -> Result<()> {
        match self.storage.clone().push_task(keyed(key)).await {
            Err(TaskSinkError::PushError(apalis_postgres::Error::Database(
                sqlx::Error::Database(refused),
            ))) if refused.code().as_deref() == Some(UNIQUE_VIOLATION) => Ok(()),
            answer => Ok(answer?),
        }
    }

    async fn work(&self, starts: Starts) -> Result<Self::Worker> {
        // Two workers of one name cannot be registered.
        let context = WorkerContext::new(&format!("bench-{}", std::process::id()));
        let builder = WorkerBuilder::new(&context);
        Ok(match self.settings {
            Settings::Defaults => {
                let worker = builder.backend(self.storage.clone()).data(starts).build(noop);
                Running::start(&context, worker.run())
            }
            Settings::Best | Settings::Failover => {
                let polls = Strategy::new().interval(Duration::from_millis(100));
                let backend = self.storage.clone().with_pubsub().poll_with_strategy(polls);
                let worker = builder.backend(backend).data(starts).build(noop);
                Running::start(&context, worker.run())
            }
        })
    }

    async fn stop(running: Self::Worker) -> Result<()> {
        running.stop().await
    }
}

impl PostgresPeer for Apalis {
    const UNFINISHED: &'static str =
        "select count(*) from apalis.jobs where status <> 'Done' and $1 > 0";

    async fn close(self) -> Result<()> {
        self.pool.close().await;
        Ok(())
    }
}

fn main() -> Result<()> {
    pg_common::main::<Apalis>()
}
