//! Which servers, and how.

use std::sync::Arc;
use std::time::Duration;

use quell_core::history::Sink;
use quell_core::{Error, Result, WakeHub};
use redis::aio::{ConnectionManager, ConnectionManagerConfig};
use redis::{Client, IntoConnectionInfo};
use tokio::task::JoinSet;

use crate::error::explain;
use crate::keys::Keys;
use crate::link::{Link, Scripts};
use crate::push::{hear, listen};
use crate::shard::Shard;
use crate::store::ShardStore;

/// What keys begin with where nothing else is asked for.
const DEFAULT_PREFIX: &str = "quell";
/// The longest prefix, in bytes.
const MAX_PREFIX_BYTES: usize = 64;

/// How to open a store.
///
/// ```no_run
/// # async fn open() -> quell_core::Result<()> {
/// use quell_redis::RedisOptions;
///
/// let store = RedisOptions::from_url("redis://127.0.0.1:6379/")?.prefix("billing")?.open().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct RedisOptions {
    client: Client,
    prefix: String,
    timeout: Duration,
    history: Option<Sink>,
}

impl RedisOptions {
    /// Reads `redis://[USER[:PASSWORD]@]HOST[:PORT][/DATABASE]`, with `?prefix=…` if wanted.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](quell_core::ErrorKind::Invalid) for anything else.
    pub fn from_url(url: &str) -> Result<Self> {
        let refuse = |why: &str| Error::invalid("url", format!("store url: {why}"));
        let (server, query) = url.split_once('?').unwrap_or((url, ""));
        let info = server.into_connection_info();
        let info = info.map_err(|error| refuse("it names no server").with_source(error))?;
        let client = Client::open(info);
        let client = client.map_err(|error| refuse("it names no server").with_source(error))?;
        let options = RedisOptions {
            client,
            prefix: DEFAULT_PREFIX.to_owned(),
            timeout: Duration::from_secs(10),
            history: None,
        };
        let mut options = options;
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            match pair.split_once('=') {
                Some(("prefix", prefix)) => options = options.prefix(prefix)?,
                _ => return Err(refuse(&format!("{pair:?} is not known: prefix=…"))),
            }
        }
        Ok(options)
    }

    /// What the store's keys begin with: several stores may share a server. `quell` by default.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](quell_core::ErrorKind::Invalid) for an empty or long one, and for one
    /// with other characters than letters, digits and `_ - . : /`.
    pub fn prefix(mut self, prefix: impl Into<String>) -> Result<Self> {
        let prefix = prefix.into();
        let is_fine = |c: char| c.is_ascii_alphanumeric() || "_-.:/".contains(c);
        if prefix.is_empty() || prefix.len() > MAX_PREFIX_BYTES || !prefix.chars().all(is_fine) {
            let message = format!(
                "prefix {prefix:?}: give 1 to {MAX_PREFIX_BYTES} letters, digits and _ - . : /"
            );
            return Err(Error::invalid("prefix", message));
        }
        self.prefix = prefix;
        Ok(self)
    }

    /// How long a call may wait for the server. 10 s by default.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Where the events go that only the store sees.
    pub fn history(mut self, sink: Sink) -> Self {
        self.history = Some(sink);
        self
    }

    /// Opens the store; call it inside a tokio runtime, on which its listener will run.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`](quell_core::ErrorKind::Unavailable) where the server cannot be
    /// reached or refuses, with what to do.
    pub async fn open(self) -> Result<ShardStore> {
        let config = ConnectionManagerConfig::new()
            .set_number_of_retries(1)
            .set_connection_timeout(Some(self.timeout))
            .set_response_timeout(Some(self.timeout));
        let connected = ConnectionManager::new_with_config(self.client.clone(), config).await;
        let link = Link::One(connected.map_err(|error| explain("open the store", error))?);
        let channel = format!("{}:wake", self.prefix);
        let keys = Keys::new(&self.prefix, "all");
        let shard = Shard::new(keys, link, Scripts::new(), channel.clone());
        let heard = listen(&self.client, &channel).await;
        let heard = heard.map_err(|error| explain("listen for hints", error))?;
        let hub = Arc::new(WakeHub::new());
        let mut listener = JoinSet::new();
        let (origin, told) = (shard.origin.clone(), Arc::clone(&hub));
        listener.spawn(hear(heard, vec![self.client], channel, origin, told));
        shard.check_layout().await?;
        shard.learn().await?;
        Ok(ShardStore::new(shard, self.history, hub, listener))
    }
}
