//! Which servers, and how.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicI64;
use std::time::Duration;

use quell_core::history::Sink;
use quell_core::{Error, QueueName, Result, WakeHub};
use quell_engine::EndWaiters;
use quell_shards::{Layout, Spread, check_spread};
use redis::{ConnectionInfo, IntoConnectionInfo, TlsCertificates};
use tokio::task::JoinSet;

use crate::RedisStore;
use crate::check::check_settings;
use crate::cluster::Cluster;
use crate::directory::Prefix;
use crate::ends::ask;
use crate::error::explain;
use crate::link::{Link, Scripts, Wait};
use crate::push::Listener;
use crate::recorded::Recorded;
use crate::sentinel::{Login, Sentinels, Watched, follow};
use crate::shard::Way;
use crate::source::{Source, tcp_settings};
use crate::trust::{authorities, trusting};
use crate::wire::Wire;

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
    nodes: Vec<ConnectionInfo>,
    is_cluster: bool,
    /// The Sentinels to ask for the master, in place of nodes.
    watched: Option<Watched>,
    pub(crate) prefix: String,
    pub(crate) layout: Layout,
    pub(crate) spread: Spread,
    wait_replicas: u32,
    timeout: Duration,
    pub(crate) ca_file: Option<PathBuf>,
    history: Option<Sink>,
    steps_only: bool,
}

impl RedisOptions {
    /// Reads `redis://[USER[:PASSWORD]@]HOST[:PORT][/DATABASE]`, or `rediss://` for TLS; for a
    /// Cluster `redis-cluster://[USER[:PASSWORD]@]HOST:PORT[,HOST:PORT…]`, or `rediss-cluster://`;
    /// for a master that Sentinels watch
    /// `redis+sentinel://[USER[:PASSWORD]@]HOST:PORT[,HOST:PORT…]/MASTER[/DATABASE]`, or
    /// `rediss+sentinel://`, where hosts are the Sentinels, and user and password the master's.
    ///
    /// After a `?` come, divided by `&`: `prefix=NAME`, `layout=one|queues`, `shards.QUEUE=COUNT`,
    /// `wait_replicas=COUNT`, `timeout_ms=MILLISECONDS` and `ca_file=PATH`, which mean what the methods of these
    /// names say, and `sentinel_user=NAME` and `sentinel_password=PASSWORD` for the Sentinels.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](quell_core::ErrorKind::Invalid) for anything else.
    pub fn from_url(url: &str) -> Result<Self> {
        let (server, query) = url.split_once('?').unwrap_or((url, ""));
        let watched = watched(server)?;
        let (nodes, is_cluster) = match watched {
            Some(_) => (Vec::new(), false),
            None => nodes(server)?,
        };
        let layout = if is_cluster { Layout::Queues } else { Layout::One };
        let mut options = RedisOptions {
            nodes,
            is_cluster,
            watched,
            prefix: DEFAULT_PREFIX.to_owned(),
            layout,
            spread: BTreeMap::new(),
            wait_replicas: 0,
            timeout: Duration::from_secs(10),
            ca_file: None,
            history: None,
            steps_only: false,
        };
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            options = options.with(pair)?;
        }
        Ok(options)
    }

    fn with(mut self, pair: &str) -> Result<Self> {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let count = || {
            let wrong = || refuse(&format!("{pair:?}: give a whole number"));
            value.parse::<u32>().map_err(|_| wrong())
        };
        match (name, value) {
            ("prefix", prefix) => self.prefix(prefix),
            ("layout", "one") => self.layout(Layout::One),
            ("layout", "queues") => self.layout(Layout::Queues),
            ("wait_replicas", _) => Ok(self.wait_replicas(count()?)),
            ("ca_file", "") => Err(refuse("`ca_file`: give a file")),
            ("ca_file", file) => Ok(self.ca_file(file)),
            ("sentinel_user", user) if let Some(watched) = &mut self.watched => {
                watched.to_sentinels.user = Some(decoded(user));
                Ok(self)
            }
            ("sentinel_password", password) if let Some(watched) = &mut self.watched => {
                watched.to_sentinels.password = Some(decoded(password));
                Ok(self)
            }
            ("timeout_ms", _) => Ok(self.timeout(Duration::from_millis(count()?.into()))),
            _ => match name.strip_prefix("shards.") {
                Some(queue) => self.shards(&QueueName::new(queue)?, count()?),
                None => Err(refuse(&format!(
                    "{pair:?} is not known: prefix=…, layout=one|queues, shards.QUEUE=…, \
                     wait_replicas=…, timeout_ms=…, ca_file=…; with Sentinels sentinel_user=…, \
                     sentinel_password=…"
                ))),
            },
        }
    }

    /// What the store's keys begin with: several stores may share a server. `quell` by default.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](quell_core::ErrorKind::Invalid) for an empty or long one, and for one
    /// with other characters than `A-Z`, `a-z`, `0-9` and `_ - . : /`.
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

    /// How the keys are spread; it cannot change once there are any. [`Layout::One`] by default on one
    /// node: all keys share a hash tag. A Cluster has [`Layout::Queues`] alone: each shard has a tag of
    /// its own.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](quell_core::ErrorKind::Invalid) for [`Layout::One`] on a Cluster.
    pub fn layout(mut self, layout: Layout) -> Result<Self> {
        if self.is_cluster && layout == Layout::One {
            let message = "layout `one` keeps all keys on one node: a Cluster takes `queues`";
            return Err(Error::invalid("layout", message));
        }
        self.layout = layout;
        Ok(self)
    }

    /// Spreads one queue over `shards` shards by the hash of its triggers' keys; a key is always on
    /// the same one. Such a queue has no limits, its order of priorities holds within each shard,
    /// and its number of shards cannot change while it holds jobs.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](quell_core::ErrorKind::Invalid) for none or more than 64, and where
    /// the layout is not [`Layout::Queues`].
    pub fn shards(mut self, queue: &QueueName, shards: u32) -> Result<Self> {
        check_spread(self.layout, &Spread::from([(queue.clone(), shards)]))?;
        self.spread.insert(queue.clone(), shards);
        Ok(self)
    }

    /// Lets each write wait until this number of replicas have it, so that a failover to one of them
    /// loses nothing that was accepted (R1). None by default: a master that dies takes with it the
    /// writes that its replicas have not received yet.
    pub fn wait_replicas(mut self, replicas: u32) -> Self {
        self.wait_replicas = replicas;
        self
    }

    /// How long a call may take. It may spend up to three quarters of this to wait for replicas, and
    /// up to half to connect. A connection that is silent for so long is replaced. 10 s by default.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// The certificate authorities, in PEM. One of them must vouch for each server behind `rediss://`.
    /// By default, those that the system trusts.
    pub fn ca_file(mut self, file: impl Into<PathBuf>) -> Self {
        self.ca_file = Some(file.into());
        self
    }

    /// Where the events go that only the store sees.
    pub fn history(mut self, sink: Sink) -> Self {
        self.history = Some(sink);
        self
    }

    /// Has common calls, too, made by the steps that know all cases: a test of what both leave.
    #[doc(hidden)]
    pub fn steps_only(mut self) -> Self {
        self.steps_only = true;
        self
    }

    /// Opens the store; call it inside a tokio runtime, on which its listener will run.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`](quell_core::ErrorKind::Unavailable) where the server cannot be
    /// reached or refuses, with what to do; [`ErrorKind::Invalid`](quell_core::ErrorKind::Invalid)
    /// where the store was made with another layout or other shards.
    pub async fn open(self) -> Result<RedisStore> {
        // Boxed, as it is deep: callers' own futures hold it, and the compiler bounds their depth.
        Box::pin(self.opened()).await
    }

    async fn opened(mut self) -> Result<RedisStore> {
        let authorities = authorities(self.ca_file.as_deref())?;
        self.trust(authorities.as_ref())?;
        let (link, sources) = self.link(authorities).await?;
        let syncs = check_settings(&link).await;
        let channel = self.channel();
        let origin = format!("{:016x}", fastrand::u64(..));
        let hub = Arc::new(WakeHub::new());
        let listens = Listener {
            sources: sources.clone(),
            channel: channel.clone(),
            origin: origin.clone(),
            timeout: self.timeout,
            link: link.clone(),
        };
        let received = listens.listen().await;
        let received = received.map_err(|error| explain("listen for hints", error))?;
        let mut listener = JoinSet::new();
        let ends = Arc::new(EndWaiters::default());
        listener.spawn(listens.receive(received, (Arc::clone(&hub), Arc::clone(&ends))));
        if let (Some(wire), Some(Source::Sentinels(sentinels))) = (link.wire(), sources.first()) {
            listener.spawn(follow(Arc::clone(sentinels), wire.clone()));
        }
        let seen = Arc::new(AtomicI64::new(i64::MIN));
        let (scripts, steps) = (Scripts::new(), Arc::default());
        let way =
            Way { link, scripts, channel, origin, seen, steps, syncs, steps_only: self.steps_only };
        let recorded = self.history.map(Recorded::new);
        let history = recorded.clone().map(|recorded| recorded as Sink);
        let shards = Prefix::open(
            (self.prefix, self.layout, self.spread),
            way,
            (history, Arc::clone(&hub), Arc::clone(&ends)),
        )
        .await?;
        let shards = Arc::new(shards);
        listener.spawn(ask(Arc::clone(&ends), Arc::clone(&shards)));
        Ok(RedisStore::new(shards, (hub, ends), (listener, recorded)))
    }

    /// Has connections made as the options say: by TLS with these authorities, and with settings by
    /// which a peer that is gone is noticed.
    pub(crate) fn trust(&mut self, authorities: Option<&TlsCertificates>) -> Result<()> {
        let settings = tcp_settings(self.timeout);
        let nodes = trusting(&self.nodes, authorities)?;
        let nodes = nodes.into_iter().map(|node| node.set_tcp_settings(settings.clone()));
        self.nodes = nodes.collect();
        Ok(())
    }

    /// Where wake-ups go: each process of the store listens there.
    pub(crate) fn channel(&self) -> String {
        format!("{}:wake", self.prefix)
    }

    /// The way for calls, and where to listen.
    pub(crate) async fn link(
        &self,
        authorities: Option<TlsCertificates>,
    ) -> Result<(Link, Vec<Source>)> {
        let failed = |error| explain("open the store", error);
        let (replicas, timeout) = (self.wait_replicas, self.timeout);
        // The answer to `WAIT` must arrive before the client's timeout.
        let wait = (replicas > 0).then_some(Wait { replicas, longest: timeout * 3 / 4 });
        if self.is_cluster {
            let connected = Cluster::connect(&self.nodes, timeout).await.map_err(failed)?;
            let sources = self.nodes.iter().cloned().map(Box::new).map(Source::Address).collect();
            return Ok((Link::to_cluster(connected, wait, timeout), sources));
        }
        let source = match (&self.watched, self.nodes.first()) {
            (Some(watched), _) => {
                let sentinels = Sentinels::new(watched.clone(), authorities, timeout);
                Source::Sentinels(Arc::new(sentinels))
            }
            (None, Some(node)) => Source::Address(Box::new(node.clone())),
            (None, None) => return Err(refuse("it names no server")),
        };
        let wire = Wire::new(source.clone(), timeout);
        wire.open().await.map_err(failed)?;
        Ok((Link::to_one(wire, wait, timeout), vec![source]))
    }
}

/// The Sentinels that a URL names, and the master that they watch.
fn watched(server: &str) -> Result<Option<Watched>> {
    let Some((scheme, rest)) = server.split_once("://") else { return Ok(None) };
    let tls = match scheme {
        "redis+sentinel" => false,
        "rediss+sentinel" => true,
        _ => return Ok(None),
    };
    let (user, rest) =
        rest.rsplit_once('@').map_or((None, rest), |(user, rest)| (Some(user), rest));
    let mut parts = rest.trim_end_matches('/').split('/');
    let (hosts, master) = (parts.next().unwrap_or(""), parts.next().unwrap_or(""));
    if master.is_empty() {
        return Err(refuse("give the name of the master after the Sentinels: …HOST:PORT/MASTER"));
    }
    let database = parts.next().map_or(Ok(0), str::parse::<u16>);
    let database = database.map_err(|_| refuse("the database is a whole number"))?.into();
    let host = |host: &str| {
        let (host, port) = host.rsplit_once(':').unwrap_or((host, "26379"));
        let port = port.parse().map_err(|_| refuse("a Sentinel is HOST:PORT"))?;
        match host {
            "" => Err(refuse("a Sentinel is HOST:PORT")),
            host => Ok((host.trim_matches(['[', ']']).to_owned(), port)),
        }
    };
    let sentinels = hosts.split(',').map(host).collect::<Result<Vec<_>>>()?;
    let to_master = user.map_or_else(Login::default, |user| {
        let (user, password) = user.split_once(':').unwrap_or((user, ""));
        let given = |text: &str| (!text.is_empty()).then(|| decoded(text));
        Login { user: given(user), password: given(password) }
    });
    let (master, to_sentinels) = (decoded(master), Login::default());
    Ok(Some(Watched { sentinels, master, tls, database, to_master, to_sentinels }))
}

/// A part of a URL in which `%` and two digits stand for a byte.
fn decoded(text: &str) -> String {
    let (mut bytes, mut rest) = (Vec::new(), text.as_bytes());
    while let Some((first, more)) = rest.split_first() {
        let digits = more.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
        let byte = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        match byte {
            Some(byte) if *first == b'%' => {
                bytes.push(byte);
                rest = more.get(2..).unwrap_or_default();
            }
            Some(_) | None => {
                bytes.push(*first);
                rest = more;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The nodes that a URL names, and whether they are of a Cluster.
fn nodes(server: &str) -> Result<(Vec<ConnectionInfo>, bool)> {
    let parse = |url: &str| {
        url.into_connection_info().map_err(|error| refuse("it names no server").with_source(error))
    };
    let (scheme, rest) = server.split_once("://").ok_or_else(|| refuse("it names no server"))?;
    let Some(scheme) = scheme.strip_suffix("-cluster") else {
        return Ok((vec![parse(server)?], false));
    };
    let (user, hosts) = match rest.rsplit_once('@') {
        Some((user, hosts)) => (format!("{user}@"), hosts),
        None => (String::new(), rest),
    };
    let hosts = hosts.trim_end_matches('/').split(',');
    let nodes = hosts.map(|host| parse(&format!("{scheme}://{user}{host}")));
    Ok((nodes.collect::<Result<Vec<_>>>()?, true))
}

fn refuse(why: &str) -> Error {
    // The URL may hold a password, so it is not repeated.
    Error::invalid("url", format!("store url: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r40_urls_are_read_or_refused_by_what_is_wrong() {
        let read = |url: &str| RedisOptions::from_url(url);
        let one = read("redis://127.0.0.1:6379/3?prefix=a:b&timeout_ms=250").unwrap();
        assert_eq!((one.prefix.as_str(), one.nodes.len(), one.layout), ("a:b", 1, Layout::One));
        assert_eq!(one.timeout, Duration::from_millis(250));
        let many = read("redis-cluster://u:p@h1:1,h2:2,h3:3?shards.billing=4&wait_replicas=1");
        let many = many.unwrap();
        assert_eq!((many.nodes.len(), many.layout, many.wait_replicas), (3, Layout::Queues, 1));
        assert_eq!(many.spread.values().copied().collect::<Vec<_>>(), [4]);
        let watched = read("rediss+sentinel://u:p%40@h1,h2:2/main/3?sentinel_password=s").unwrap();
        let watched = watched.watched.unwrap();
        assert_eq!(watched.sentinels, [("h1".to_owned(), 26_379), ("h2".to_owned(), 2)]);
        assert_eq!((watched.master.as_str(), watched.tls, watched.database), ("main", true, 3));
        assert_eq!(watched.to_master.user.as_deref(), Some("u"));
        assert_eq!(watched.to_master.password.as_deref(), Some("p@"));
        assert_eq!(watched.to_sentinels.password.as_deref(), Some("s"));
        for (url, field) in [
            ("redis+sentinel://h:1", "url"),
            ("redis+sentinel://:1/main", "url"),
            ("redis+sentinel://h:x/main", "url"),
            ("redis+sentinel://h:1/main/x", "url"),
            ("redis://h/?sentinel_user=u", "url"),
            ("127.0.0.1:6379", "url"),
            ("http://127.0.0.1/", "url"),
            ("redis://h/?prefix=a b", "prefix"),
            ("redis://h/?prefix=", "prefix"),
            ("redis://h/?shards.q=2", "shards"),
            ("redis-cluster://h:1?shards.q=0", "shards"),
            ("redis-cluster://h:1?shards.q=x", "url"),
            ("redis-cluster://h:1?layout=one", "layout"),
            ("redis://h/?layout=two", "url"),
            ("redis://h/?durable", "url"),
        ] {
            assert_eq!(read(url).unwrap_err().field(), Some(field), "{url}");
        }
    }
}
