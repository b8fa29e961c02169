//! `apalis-redis`, measured the way `bench` measures Quell. A crate of its own, because what it
//! depends on is no part of Quell's tree.

use std::time::Duration;

use anyhow::Result;
use apalis::prelude::*;
use apalis_common::{Noop, Running, job, jobs, keyed, noop};
use apalis_redis::{Config, ConnectionManager, RedisStorage};
use redis::AsyncCommands;
use redis::aio::ConnectionManagerConfig;
use redis_common::{Peer, RedisPeer, Settings, Starts, version_in};

/// The driver's own half second is less than a disk may take to write a file of a million jobs.
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Clone)]
struct Apalis {
    connection: ConnectionManager,
    settings: Settings,
    storage: RedisStorage<Noop>,
}

impl Peer for Apalis {
    const NAME: &'static str = "apalis-redis";
    const DEBOUNCED: &'static str =
        "an idempotency key: a second job is dropped, and its time stays";
    type Settings = Settings;
    type Worker = Running;

    fn version() -> String {
        version_in(include_str!("../Cargo.lock"), "apalis-redis")
    }

    fn tuned(settings: Settings) -> &'static str {
        match settings {
            Settings::Defaults => "Config::default(), no poll strategy",
            Settings::Best => {
                "polls every 5 ms, batches of 1,000, no lock and no other events, waits a minute for \
                 the server"
            }
        }
    }

    async fn open(url: &str, settings: Settings) -> Result<Self> {
        let connection = match settings {
            Settings::Defaults => apalis_redis::connect(url).await?,
            Settings::Best => {
                let patient = ConnectionManagerConfig::new().set_response_timeout(Some(PATIENCE));
                ConnectionManager::new_with_config(redis::Client::open(url)?, patient).await?
            }
        };
        let config = match settings {
            Settings::Defaults => Config::default(),
            Settings::Best => {
                Config::default().batch_size(1_000).lock_tasks(false).emit_events(false)
            }
        };
        // Without a time to live a key is forgotten at once.
        let config = config.idempotency_ttl(Some(Duration::from_secs(3_600)));
        let storage = RedisStorage::new(connection.clone()).with_config(config);
        Ok(Apalis { connection, settings, storage })
    }

    async fn enqueue_many(&self, first: usize, count: usize) -> Result<()> {
        Ok(self.storage.clone().push_bulk(jobs(first, count)).await?)
    }

    async fn enqueue(&self, n: usize) -> Result<()> {
        Ok(self.storage.clone().push(job(n)).await?)
    }

    async fn debounce(&self, key: usize) -> Result<()> {
        Ok(self.storage.clone().push_task(keyed(key)).await?)
    }

    async fn work(&self, starts: Starts) -> Result<Self::Worker> {
        let context = WorkerContext::new("bench");
        let builder = WorkerBuilder::new(&context);
        Ok(match self.settings {
            Settings::Defaults => {
                let worker = builder.backend(self.storage.clone()).data(starts).build(noop);
                Running::start(&context, worker.run())
            }
            Settings::Best => {
                let backend = self.storage.clone().poll_with_interval(Duration::from_millis(5));
                let worker = builder.backend(backend).data(starts).build(noop);
                Running::start(&context, worker.run())
            }
        })
    }

    async fn stop(running: Self::Worker) -> Result<()> {
        running.stop().await
    }
}

impl RedisPeer for Apalis {
    async fn unfinished(&self, count: usize) -> Result<usize> {
        let done = self.storage.get_config().done_jobs_set();
        let done: usize = self.connection.clone().scard(done).await?;
        Ok(count.saturating_sub(done))
    }
}

fn main() -> Result<()> {
    redis_common::main::<Apalis>()
}
