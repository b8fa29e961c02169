//! The floor: what plain scripts do through the same driver, with a hash and an entry in a sorted set
//! for each job. It has no retries, keeps no dead jobs and wakes only its own process, so no queue is
//! expected to reach it everywhere.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Result;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Script};
use redis_common::{Peer, RedisPeer, Settings, Starts, version_in};
use tokio::sync::Notify;
use tokio::task::JoinSet;

/// The driver's own half second is less than a disk may take to write a file of a million jobs.
const PATIENCE: Duration = Duration::from_secs(60);
const ADD: &str = include_str!("add.lua");
const CLAIM: &str = include_str!("claim.lua");
const END: &str = include_str!("end.lua");
const DEBOUNCE: &str = include_str!("debounce.lua");

#[derive(Clone)]
struct Scripts {
    add: Script,
    claim: Script,
    end: Script,
    debounce: Script,
}

#[derive(Clone)]
struct Floor {
    connection: MultiplexedConnection,
    scripts: Scripts,
    enqueued: Arc<Notify>,
}

/// Microseconds since 1970.
fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}

fn payload(n: usize) -> String {
    format!("{{\"n\":{n}}}")
}

impl Peer for Floor {
    const NAME: &'static str = "plain scripts, redis";
    const DEBOUNCED: &'static str = "one HSET and one ZADD: the due time of a key moves";
    type Settings = Settings;
    type Worker = JoinSet<Result<()>>;

    fn version() -> String {
        version_in(include_str!("../Cargo.lock"), "redis")
    }

    fn tuned(_: Settings) -> &'static str {
        "one multiplexed connection; drain by 1,000"
    }

    async fn open(url: &str, _: Settings) -> Result<Self> {
        let patient = AsyncConnectionConfig::new().set_response_timeout(Some(PATIENCE));
        let client = redis::Client::open(url)?;
        let connection = client.get_multiplexed_async_connection_with_config(&patient).await?;
        let scripts = Scripts {
            add: Script::new(ADD),
            claim: Script::new(CLAIM),
            end: Script::new(END),
            debounce: Script::new(DEBOUNCE),
        };
        Ok(Floor { connection, scripts, enqueued: Arc::default() })
    }

    async fn enqueue_many(&self, first: usize, count: usize) -> Result<()> {
        let mut call = self.scripts.add.key("due");
        call.key("ids").arg(now());
        for n in first..first + count {
            call.arg(payload(n));
        }
        Ok(call.invoke_async(&mut self.connection.clone()).await?)
    }

    async fn enqueue(&self, n: usize) -> Result<()> {
        self.enqueue_many(n, 1).await?;
        self.enqueued.notify_one();
        Ok(())
    }

    async fn debounce(&self, key: usize) -> Result<()> {
        let mut call = self.scripts.debounce.key("open");
        call.key(format!("window:customer-{key}")).arg(now() + 3_600_000_000).arg(payload(key));
        Ok(call.invoke_async(&mut self.connection.clone()).await?)
    }

    async fn work(&self, starts: Starts) -> Result<Self::Worker> {
        let floor = self.clone();
        let mut worker = JoinSet::new();
        worker.spawn(async move {
            loop {
                if !floor.claim_and_end(&starts).await? {
                    floor.enqueued.notified().await;
                }
            }
        });
        Ok(worker)
    }

    async fn stop(mut worker: Self::Worker) -> Result<()> {
        worker.shutdown().await;
        Ok(())
    }
}

impl RedisPeer for Floor {
    async fn unfinished(&self, _: usize) -> Result<usize> {
        let mut pipe = redis::pipe();
        pipe.zcard("due").zcard("leases");
        let (due, leased): (usize, usize) = pipe.query_async(&mut self.connection.clone()).await?;
        Ok(due + leased)
    }
}

impl Floor {
    /// One batch, in two calls as a queue that survives its worker needs them; false if none is due.
    async fn claim_and_end(&self, starts: &Starts) -> Result<bool> {
        let mut connection = self.connection.clone();
        let mut claim = self.scripts.claim.key("due");
        claim.key("leases").arg(now()).arg(1_000);
        let claimed: Vec<(String, String)> = claim.invoke_async(&mut connection).await?;
        if claimed.is_empty() {
            return Ok(false);
        }
        let mut end = self.scripts.end.key("leases");
        for (id, _) in claimed {
            starts.report().await;
            end.arg(id);
        }
        let () = end.invoke_async(&mut connection).await?;
        Ok(true)
    }
}

fn main() -> Result<()> {
    redis_common::main::<Floor>()
}
