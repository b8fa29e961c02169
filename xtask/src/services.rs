//! The servers that tests share: one of each, for as long as the tests run.

use std::path::Path;
use std::process::Command;
use std::thread::{self, ScopedJoinHandle};

use anyhow::{Context, anyhow};
use quell_services::{
    AZURITE, Azurite, POSTGRES_URL, Postgres, REDIS_CLUSTER, REDIS_URL, Redis, RedisCluster, axe,
    ensure_chromium, promtool,
};

use crate::earlier::{EARLIER, built};
use crate::run::run;

/// Servers that run, and the variables with their addresses.
#[derive(Debug)]
pub(crate) struct Services {
    postgres: Postgres,
    redis: Redis,
    redis_cluster: RedisCluster,
    azurite: Azurite,
}

impl Services {
    /// Starts them side by side; installs what is missing. What a commit survives is tested on
    /// servers of their own, so these need no disk.
    pub(crate) fn start() -> anyhow::Result<Self> {
        let settings = ["fsync=off", "synchronous_commit=off", "max_connections=400"];
        thread::scope(|scope| {
            let postgres = scope.spawn(|| Postgres::start(&settings).context("start PostgreSQL"));
            let redis = scope.spawn(|| Redis::start(&[]).context("start Redis"));
            let azurite = scope.spawn(|| Azurite::start().context("start Azurite"));
            // A busy machine is no reason to take a node for dead.
            let settings = ["cluster-node-timeout 60000"];
            let cluster = RedisCluster::start(3, 0, &settings).context("start a Redis cluster");
            // What tests run; they would install it otherwise.
            promtool().context("install promtool")?;
            ensure_chromium().context("install Chromium")?;
            axe().context("fetch axe-core")?;
            let (postgres, redis) = (started(postgres), started(redis));
            let azurite = started(azurite);
            Ok(Services {
                postgres: postgres?,
                redis: redis?,
                redis_cluster: cluster?,
                azurite: azurite?,
            })
        })
    }

    /// What PostgreSQL and Redis have logged.
    pub(crate) fn logs(&self) -> [(&'static str, String); 2] {
        [("PostgreSQL", self.postgres.read_log()), ("Redis", self.redis.read_log())]
    }

    /// Sets the variables with their addresses for a command.
    pub(crate) fn tell<'c>(&self, command: &'c mut Command) -> &'c mut Command {
        command
            .env(POSTGRES_URL, self.postgres.url())
            .env(REDIS_URL, self.redis.url())
            .env(REDIS_CLUSTER, self.redis_cluster.nodes())
            .env(AZURITE, self.azurite.connection_string())
    }
}

fn started<T>(thread: ScopedJoinHandle<'_, anyhow::Result<T>>) -> anyhow::Result<T> {
    thread.join().map_err(|_| anyhow!("the thread that starts a server panicked"))?
}

/// Runs a command beside the servers, and sets the variable with the earlier build if that is there:
/// few commands need it.
pub(crate) fn with_services(root: &Path, command: &[String]) -> anyhow::Result<()> {
    let (program, args) = command.split_first().context("name a command")?;
    let services = Services::start()?;
    let mut command = Command::new(program);
    if let Some(earlier) = built(root)? {
        command.env(EARLIER, earlier);
    }
    run(root, services.tell(command.args(args)))
}
