//! Private servers for Quell's own tests and chores: installed, started, hurt and stopped.
//!
//! Each server lives on a free port of the loopback address with everything in a temporary folder,
//! and ends with the value that stands for it. `cargo xtask` shares one of each among all tests
//! that only need one ([`url_for_tests`], [`redis_url_for_tests`], [`redis_cluster_for_tests`],
//! [`azurite_for_tests`]); tests that hurt a server start their own.
//!
//! Invariant: nothing here knows Quell.

mod axe;
pub mod azurite;
mod chromium;
pub mod cluster;
mod languages;
mod nginx;
mod packages;
mod packaging;
pub mod pgbouncer;
pub mod postgres;
mod process;
mod promtool;
pub mod proxy;
pub mod redis;
mod releases;
mod schemathesis;
pub mod sentinel;
pub mod servicebus;
mod tls;

pub use axe::axe;
pub use azurite::Azurite;
pub use chromium::{Chromium, ensure_chromium};
pub use cluster::RedisCluster;
pub use languages::{node, node_with_webhooks, npm, python_3, python_with_webhooks};
pub use nginx::Nginx;
pub use packages::{install, is_root};
pub use packaging::{
    hadolint, podman_compose, python_with_compose, python_with_helm, python_with_kubernetes,
    zigbuild,
};
pub use pgbouncer::{PgBouncer, Pooling, python_with_psycopg};
pub use postgres::{Postgres, psql};
pub use process::await_that;
pub use promtool::promtool;
pub use proxy::Proxy;
pub use redis::Redis;
pub use releases::Release;
pub use schemathesis::schemathesis;
pub use sentinel::RedisSentinels;
pub use servicebus::ServiceBus;
pub use tls::{Papers, Website};

/// Where the tests find the PostgreSQL server that they share.
pub const POSTGRES_URL: &str = "QUELL_TEST_POSTGRES";
/// Where the tests find the Redis server that they share.
pub const REDIS_URL: &str = "QUELL_TEST_REDIS";
/// Where the tests find the Redis cluster that they share: `host:port` of each node, with commas.
pub const REDIS_CLUSTER: &str = "QUELL_TEST_REDIS_CLUSTER";
/// Where the tests find the Azurite that they share: its connection string.
pub const AZURITE: &str = "QUELL_TEST_AZURITE";
/// Where some tests find a queue of the real Service Bus, in place of a stand-in of their own: its
/// connection string, with `EntityPath`.
pub const SERVICE_BUS: &str = "QUELL_TEST_SERVICE_BUS";

/// The URL of a new schema on the PostgreSQL server that tests share.
///
/// # Panics
/// Where there is no such server: a missing service fails a test and skips none.
#[must_use]
#[expect(clippy::expect_used, reason = "only tests call it, and they must fail")]
pub fn url_for_tests() -> String {
    let server = std::env::var(POSTGRES_URL)
        .expect("no PostgreSQL for tests: run `cargo xtask test`, or `cargo xtask with-services`");
    format!("{server}?schema={}", prefix())
}

/// The URL of the Redis server that tests share, and a prefix that no other test's keys have.
///
/// # Panics
/// Where there is no such server: a missing service fails a test and skips none.
#[must_use]
#[expect(clippy::expect_used, reason = "only tests call it, and they must fail")]
pub fn redis_url_for_tests() -> (String, String) {
    let server = std::env::var(REDIS_URL)
        .expect("no Redis for tests: run `cargo xtask test`, or `cargo xtask with-services`");
    (server, prefix())
}

/// The nodes of the Redis cluster that tests share, as `host:port` with commas, and a prefix that no
/// other test's keys have.
///
/// # Panics
/// Where there is no such cluster: a missing service fails a test and skips none.
#[must_use]
#[expect(clippy::expect_used, reason = "only tests call it, and they must fail")]
pub fn redis_cluster_for_tests() -> (String, String) {
    let nodes = std::env::var(REDIS_CLUSTER).expect(
        "no Redis cluster for tests: run `cargo xtask test`, or `cargo xtask with-services`",
    );
    (nodes, prefix())
}

/// The connection string of the Azurite that tests share, and a name for a table or a queue that no
/// other test has.
///
/// # Panics
/// Where there is no such server: a missing service fails a test and skips none.
#[must_use]
#[expect(clippy::expect_used, reason = "only tests call it, and they must fail")]
pub fn azurite_for_tests() -> (String, String) {
    let server = std::env::var(AZURITE)
        .expect("no Azurite for tests: run `cargo xtask test`, or `cargo xtask with-services`");
    (server, prefix())
}

fn prefix() -> String {
    format!("t{:016x}", fastrand::u64(..))
}
