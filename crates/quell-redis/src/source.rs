//! How a server is found: at an address, or by asking Sentinels.

use std::sync::Arc;
use std::time::Duration;

use redis::io::tcp::TcpSettings;
use redis::io::tcp::socket2::TcpKeepalive;
use redis::{Client, ConnectionInfo, RedisResult};

use crate::sentinel::Sentinels;

/// A connection without traffic is probed after this time, and this often until it is given up.
const KEEPALIVE: Duration = Duration::from_secs(5);
const KEEPALIVE_PROBES: u32 = 2;

/// How a server is found, each time that a connection to it is made.
#[derive(Clone, Debug)]
pub(crate) enum Source {
    Address(Box<ConnectionInfo>),
    Sentinels(Arc<Sentinels>),
}

impl Source {
    pub(crate) async fn client(&self) -> RedisResult<Client> {
        match self {
            Source::Address(node) => Client::open((**node).clone()),
            Source::Sentinels(sentinels) => sentinels.master().await,
        }
    }
}

/// Small calls are sent at once, and a peer that is gone is noticed by the kernel, too.
pub(crate) fn tcp_settings(timeout: Duration) -> TcpSettings {
    let keepalive = TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE);
    #[cfg(not(any(target_os = "openbsd", target_os = "redox", target_os = "solaris")))]
    let keepalive = keepalive.with_retries(KEEPALIVE_PROBES);
    let settings = TcpSettings::default().set_nodelay(true).set_keepalive(keepalive);
    #[cfg(any(target_os = "android", target_os = "fuchsia", target_os = "linux"))]
    let settings = settings.set_user_timeout(timeout);
    settings
}
