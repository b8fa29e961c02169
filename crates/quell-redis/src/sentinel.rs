//! Asking Redis Sentinel which server is the master.

use std::sync::Arc;
use std::time::Duration;

use redis::sentinel::{SentinelClient, SentinelClientBuilder, SentinelServerType};
use redis::{Client, ConnectionAddr, RedisResult, TlsCertificates, TlsMode};
use tokio::time::{sleep, timeout};
use tracing::warn;

use crate::source::tcp_settings;
use crate::wire::{Wire, silent};

/// Between two looks at who is the master.
const LOOK: Duration = Duration::from_secs(5);
/// How long the Sentinels may take to say.
const PATIENCE: Duration = Duration::from_secs(5);

/// Which Sentinels to ask about which master.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Watched {
    pub(crate) sentinels: Vec<(String, u16)>,
    pub(crate) master: String,
    pub(crate) tls: bool,
    pub(crate) database: i64,
    pub(crate) to_master: Login,
    pub(crate) to_sentinels: Login,
}

/// A user and a password, where they are needed.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct Login {
    pub(crate) user: Option<String>,
    pub(crate) password: Option<String>,
}

impl std::fmt::Debug for Login {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Login").field("user", &self.user).finish_non_exhaustive()
    }
}

/// The Sentinels of a master.
pub(crate) struct Sentinels {
    watched: Watched,
    authorities: Option<TlsCertificates>,
    timeout: Duration,
    /// With connections to some of them; none after they failed.
    client: tokio::sync::Mutex<Option<SentinelClient>>,
}

impl std::fmt::Debug for Sentinels {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sentinels").field("watched", &self.watched).finish_non_exhaustive()
    }
}

impl Sentinels {
    pub(crate) fn new(
        watched: Watched,
        authorities: Option<TlsCertificates>,
        timeout: Duration,
    ) -> Self {
        Sentinels { watched, authorities, timeout, client: tokio::sync::Mutex::new(None) }
    }

    fn build(&self) -> RedisResult<SentinelClient> {
        let Watched { sentinels, master, tls, database, to_master, to_sentinels } = &self.watched;
        let address = |(host, port): &(String, u16)| match tls {
            false => ConnectionAddr::Tcp(host.clone(), *port),
            true => ConnectionAddr::TcpTls {
                host: host.clone(),
                port: *port,
                insecure: false,
                tls_params: None,
            },
        };
        let mut addresses: Vec<ConnectionAddr> = sentinels.iter().map(address).collect();
        // One that is silent is not the first each time.
        fastrand::shuffle(&mut addresses);
        let kind = SentinelServerType::Master;
        let settings = tcp_settings(self.timeout);
        let mut client = SentinelClientBuilder::new(addresses, master.clone(), kind)?
            .set_client_to_redis_db(*database)
            .set_client_to_redis_tcp_settings(settings.clone())
            .set_client_to_sentinel_tcp_settings(settings);
        if *tls {
            client = client
                .set_client_to_redis_tls_mode(TlsMode::Secure)
                .set_client_to_sentinel_tls_mode(TlsMode::Secure);
        }
        if let Some(authorities) = &self.authorities {
            client = client
                .set_client_to_redis_certificates(authorities.clone())
                .set_client_to_sentinel_certificates(authorities.clone());
        }
        if let Some(user) = &to_master.user {
            client = client.set_client_to_redis_username(user);
        }
        if let Some(password) = &to_master.password {
            client = client.set_client_to_redis_password(password);
        }
        if let Some(user) = &to_sentinels.user {
            client = client.set_client_to_sentinel_username(user);
        }
        if let Some(password) = &to_sentinels.password {
            client = client.set_client_to_sentinel_password(password);
        }
        client.build()
    }

    /// A server that a Sentinel says is the master, and that says so itself.
    pub(crate) async fn master(&self) -> RedisResult<Client> {
        let mut kept = self.client.lock().await;
        // Where the future is dropped half-way, connections are made again.
        let mut client = match kept.take() {
            Some(client) => client,
            None => self.build()?,
        };
        let asked = timeout(PATIENCE, client.async_get_client()).await;
        let asked = asked.unwrap_or_else(|_| Err(silent()));
        if asked.is_ok() {
            *kept = Some(client);
        }
        asked
    }
}

/// Leaves a master whose place another has taken, until the task that runs this is dropped. A master
/// that was cut off from the Sentinels goes on answering and does not know of the other.
pub(crate) async fn follow(sentinels: Arc<Sentinels>, wire: Wire) {
    loop {
        sleep(LOOK.min(sentinels.timeout)).await;
        match sentinels.master().await {
            Ok(client) => {
                let master = address(client.get_connection_info().addr());
                wire.lead_to(|known| address(known) == master);
            }
            Err(error) => warn!(%error, "Sentinels cannot say who is the master"),
        }
    }
}

fn address(address: &ConnectionAddr) -> (String, u16) {
    match address {
        ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => {
            (host.clone(), *port)
        }
        other => (other.to_string(), 0),
    }
}
