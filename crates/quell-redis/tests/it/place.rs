//! Where a test's store is: a server, shared or its own, and a prefix.

use std::time::{Duration, Instant};

use quell_core::{Result, Store};
use quell_redis::{RedisOptions, RedisStore};
use quell_services::Redis;
use redis::aio::MultiplexedConnection;

/// Nothing takes longer on a machine that works.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// A server's URL and a prefix that nobody else has.
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
