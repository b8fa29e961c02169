//! Where a test's store is: a server, shared or its own, and a prefix.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use quell_conformance::Rig;
use quell_conformance::rig::plain;
use quell_core::schedule::{CatchUp, Schedule, Spec};
use quell_core::{Result, ScheduleName, Store};
use quell_redis::{RedisOptions, RedisStore};
use quell_services::Redis;
use redis::aio::MultiplexedConnection;

/// Nothing takes longer on a machine that works.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// A server's URL and a prefix that no other test uses there.
pub(crate) struct Place {
    pub(crate) url: String,
    pub(crate) prefix: String,
}

impl Place {
    /// On the server that all tests share.
    pub(crate) fn shared() -> Place {
        let (url, prefix) = quell_services::redis_url_for_tests();
        Place { url, prefix }
    }

    /// On a server of the test's own.
    pub(crate) fn on(server: &Redis) -> Place {
        Place { url: server.url(), prefix: "quell".to_owned() }
    }

    pub(crate) fn options(&self) -> RedisOptions {
        RedisOptions::from_url(&self.url).unwrap().prefix(&self.prefix).unwrap()
    }

    pub(crate) async fn open(&self) -> RedisStore {
        self.options().open().await.unwrap()
    }

    /// What an operator's client would be.
    pub(crate) async fn connect(&self) -> MultiplexedConnection {
        let client = redis::Client::open(self.url.as_str()).unwrap();
        client.get_multiplexed_async_connection().await.unwrap()
    }
}

/// Gives the tests' queue its shard and writes nothing else: a schedule comes and goes.
pub(crate) async fn make_shard(store: &dyn Store) {
    let (name, now) = (ScheduleName::new("none").unwrap(), Some(Rig::START));
    let spec = Spec::every(Duration::from_secs(60), Rig::START).unwrap();
    let (catch_up, trigger) = (CatchUp::None, plain("1"));
    let schedule = Schedule { name: name.clone(), spec, catch_up, trigger, declared: None };
    store.set_schedule(now, &schedule).await.unwrap();
    store.delete_schedule(now, &name).await.unwrap();
}

/// A server of the test's own.
pub(crate) fn server(settings: &[&str]) -> Redis {
    Redis::start(settings).unwrap()
}

/// Calls until it is done, or for so long as a machine that works may take.
pub(crate) async fn at_last<T>(what: &str, call: impl AsyncFn() -> Result<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match call().await {
            Ok(answer) => return answer,
            Err(error) => assert!(Instant::now() < deadline, "{what}: {error:?}"),
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Waits until the store answers again.
pub(crate) async fn answers(store: &dyn Store) {
    at_last("the store does not go on", async || store.counts().await.map(drop)).await;
}

/// Every key with what it holds, in the order of names, and whether it expires.
const DUMP: &str = "
local keys, dump = redis.call('KEYS', '*'), {}
table.sort(keys)
for _, key in ipairs(keys) do
  local kind = redis.call('TYPE', key).ok
  local held
  if kind == 'string' then held = { redis.call('GET', key) }
  elseif kind == 'hash' then
    local all, pairs = redis.call('HGETALL', key), {}
    for at = 1, #all, 2 do pairs[#pairs + 1] = all[at] .. '=' .. all[at + 1] end
    table.sort(pairs)
    held = pairs
  elseif kind == 'zset' then held = redis.call('ZRANGE', key, 0, -1, 'WITHSCORES')
  elseif kind == 'set' then held = redis.call('SMEMBERS', key); table.sort(held)
  else held = redis.call('LRANGE', key, 0, -1) end
  local expires = redis.call('TTL', key) >= 0 and ' expires' or ''
  dump[#dump + 1] = key .. expires .. ' ' .. table.concat(held, ' ')
end
return dump";

/// All that a server holds.
pub(crate) async fn dump(redis: &mut MultiplexedConnection) -> Vec<String> {
    let rows: Vec<Vec<u8>> = redis::cmd("EVAL").arg(DUMP).arg(0).query_async(redis).await.unwrap();
    rows.iter().map(|row| String::from_utf8_lossy(row).into_owned()).collect()
}

/// How often each command was called, in scripts too, but for looks at these counts.
pub(crate) fn commands(redis: &Redis) -> BTreeMap<String, u64> {
    let stats = redis.command(&["INFO", "commandstats"]).unwrap();
    let counts = stats.lines().filter_map(|line| {
        let (name, rest) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
        Some((name.to_owned(), rest.split(',').next()?.parse().unwrap()))
    });
    counts.filter(|(name, _): &(String, u64)| name != "info").collect()
}

/// The commands that were called since these counts.
pub(crate) fn since(
    before: &BTreeMap<String, u64>,
    counts: BTreeMap<String, u64>,
) -> BTreeMap<String, u64> {
    let more = |(name, count): (String, u64)| {
        let count = count - before.get(&name).copied().unwrap_or(0);
        (count > 0).then_some((name, count))
    };
    counts.into_iter().filter_map(more).collect()
}

/// How often commands were called, without those that probe the subscription and connections that were quiet:
/// they fall into any call now and then. Notifications are published by the same command.
pub(crate) fn without_probes(mut counts: BTreeMap<String, u64>) -> BTreeMap<String, u64> {
    counts.retain(|name, _| !["publish", "ping"].contains(&name.as_str()));
    counts
}
