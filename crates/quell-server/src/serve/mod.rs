//! `quell serve`: one process with a store, a worker and the HTTP API.
//!
//! The address is bound first, so that a second server stops before it touches the store. A shutdown
//! claims no job; attempts may finish within the grace time, then commands get SIGTERM, and the jobs
//! of attempts that still run are released. Requests are answered until all attempts have ended.
//!
//! A reload (SIGHUP) reads the file again and starts the next `generation`; one that is broken changes nothing.

mod bind;
mod connections;
mod generation;
mod listen;
mod reload;
mod stream;

use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context as _;
use axum::Router;
use quell::Quell;
use quell::history::Sink;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::access::{Attempts, Sessions};
use crate::actions::Actions;
use crate::alerts::Tally;
use crate::audit::Audit;
use crate::config::{Config, Place, world};
use crate::declare::{self, Apply};
use crate::encryption::{self, FileKeys};
use crate::history::FileSink;
use crate::http::{Health, Metrics, Overviews, Proofs};
use crate::log;
use crate::otel::Telemetry;
use crate::recent::Recent;
use crate::tls::Certificate;
pub(crate) use connections::most as most_connections;
use generation::Generation;

/// `quell serve`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The configuration file.
    #[arg(long, value_name = "FILE", default_value = "quell.toml")]
    config: PathBuf,
    /// Only check the configuration.
    #[arg(long)]
    check: bool,
    /// Apply all declared queues and schedules, over what operators changed by hand. Without it, one is
    /// applied when its declaration has changed.
    #[arg(long)]
    apply_declared: bool,
    /// Append the event history to this file, one JSON line per event.
    #[arg(long, value_name = "FILE")]
    history: Option<PathBuf>,
}

/// Serves until a signal ends it, with a log of these settings.
///
/// # Errors
/// What is wrong with the configuration, the store or the address.
pub fn run(
    args: Args,
    log: Option<log::Settings>,
    out: &mut dyn std::io::Write,
) -> anyhow::Result<()> {
    if args.check {
        return check(&args.config, out);
    }
    let mut config = Config::load(&args.config)?;
    let (telemetry, layer) = Telemetry::new(config.otel.as_ref())?;
    let _log = log.map(|log| log.start(layer));
    if args.apply_declared {
        config.apply = Apply::All;
    }
    let file = match args.history {
        Some(path) => Some(Arc::new(FileSink::append(&path)?)),
        None => None,
    };
    let history = file.clone();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let served = runtime.block_on(serve(config, &args.config, history, telemetry, out));
    // What was in flight is cancelled by now.
    drop(runtime);
    if let Some(file) = file.filter(|_| served.is_ok()) {
        file.end();
    }
    served
}

fn check(path: &Path, out: &mut dyn std::io::Write) -> anyhow::Result<()> {
    let config = Config::load_and_check(path)?;
    writeln!(out, "{}: fine, {} tasks", path.display(), config.tasks.len())?;
    for place in world::in_use(&config) {
        writeln!(out, "note: server.listen: {place} is in use, as by a server that runs")?;
    }
    Ok(())
}

async fn serve(
    config: Config,
    file: &Path,
    history: Option<Arc<FileSink>>,
    telemetry: Telemetry,
    out: &mut dyn std::io::Write,
) -> anyhow::Result<()> {
    let signal = crate::signal::shutdown()?;
    let mut hangups = crate::signal::hangups()?;
    let mut signal = std::pin::pin!(signal);
    let proofs = history.as_ref().map(|file| Proofs::of(file.path().to_owned()));
    let history = history.map(|file| -> Sink { file });
    let mut server = Server::start_with(config, history, proofs.unwrap_or_default()).await?;
    let telemetry = telemetry.start(&server.common.metrics)?;
    // In one write: a reader may go away after the first line.
    let lines: String = server.urls().map(|url| format!("listening on {url}\n")).collect();
    out.write_all(lines.as_bytes())?;
    out.flush()?;
    crate::signal::ready();
    loop {
        tokio::select! {
            () = &mut signal => break,
            error = server.failed() => return Err(error),
            _ = hangups.recv() => {
                crate::signal::reloading();
                server.reload_file(file).await;
                crate::signal::ready();
            }
        }
    }
    crate::signal::stopping();
    info!("shutting down, a second signal ends running attempts");
    let again = crate::signal::shutdown()?;
    tokio::select! {
        stopped = async {
            let stopped = server.stop().await;
            telemetry.end().await;
            stopped
        } => stopped,
        () = again => anyhow::bail!("stopped by a second signal before all attempts had ended"),
    }
}

/// What all generations share.
#[derive(Debug)]
struct Common {
    /// The places, with the ports that they got.
    places: Vec<Place>,
    /// The certificate of its addresses.
    tls: Option<Arc<Certificate>>,
    /// Sessions go on over a reload.
    sessions: Sessions,
    /// So do failed logins.
    attempts: Attempts,
    quell: Quell,
    /// One for good: a reload changes its file.
    audit: Audit,
    actions: Actions,
    metrics: Metrics,
    overviews: Overviews,
    proofs: Proofs,
    health: Health,
    /// The keys that the store below the client was opened with.
    keys: Option<FileKeys>,
    /// How attempts ended, for alerts.
    tally: Arc<Tally>,
    stop_listening: CancellationToken,
    stop_working: CancellationToken,
}

impl Common {
    fn addresses(&self) -> impl Iterator<Item = SocketAddr> {
        self.places.iter().filter_map(|place| match place {
            Place::Tcp(address) => Some(*address),
            Place::Unix(_) => None,
        })
    }

    /// Where others on this machine reach it, at least.
    fn own_url(&self) -> String {
        match self.addresses().next() {
            Some(address) => format!("{}://{address}", self.scheme()),
            None => "http://localhost".to_owned(),
        }
    }

    /// Whether browsers are to use TLS only. One that got this on loopback would refuse other servers there.
    fn is_strict(&self) -> bool {
        self.tls.is_some() && self.addresses().any(|address| !address.ip().is_loopback())
    }

    /// How its addresses are spoken to.
    fn scheme(&self) -> &'static str {
        if self.tls.is_some() { "https" } else { "http" }
    }
}

/// A server that runs.
#[derive(Debug)]
pub struct Server {
    common: Common,
    /// What cannot change while it runs.
    fixed: reload::Fixed,
    /// Whether it asks callers for tokens.
    asks_for_tokens: bool,
    /// The text of the configuration, as it was applied last.
    text: String,
    /// Where the audit goes.
    audit_path: Option<PathBuf>,
    routes: watch::Sender<Router>,
    now: Generation,
    /// Generations whose attempts go on.
    retired: JoinSet<anyhow::Result<()>>,
    side: JoinSet<()>,
}

impl Server {
    /// Listens, opens the store and starts the worker.
    ///
    /// # Errors
    /// What is wrong with the store or the address.
    pub async fn start(config: Config, history: Option<Sink>) -> anyhow::Result<Self> {
        Server::start_with(config, history, Proofs::default()).await
    }

    /// The same where the history is in a file, which can be judged.
    async fn start_with(
        mut config: Config,
        history: Option<Sink>,
        proofs: Proofs,
    ) -> anyhow::Result<Self> {
        let asks_for_tokens = config.asks_for_tokens();
        let listeners = bind::bind(&config).await?;
        let places: Vec<Place> = listeners.iter().map(bind::Listener::place).collect();
        let fixed = reload::Fixed::of(&config);
        let tls = config.tls.take().map(Certificate::new);
        let acceptor = tls.as_ref().map(Certificate::acceptor).transpose()?;
        let audit = Audit::default();
        if let Some(file) = open_audit(&config)? {
            audit.go_on_in(file);
        }
        let recent = Recent::default();
        let quell = open(&config, history, recent.clone()).await?;
        let overviews = Overviews::new(quell.clone(), recent);
        // Before the worker, which looks its counters up once.
        let metrics = Metrics::new(quell.clone())?;
        warn_of_faults(&config);
        let keys = config.keys.as_ref();
        declare::apply(&quell, &config.queues, &config.schedules, keys, config.apply).await?;
        let (stop_listening, stop_working) = (CancellationToken::new(), CancellationToken::new());
        let mut side = JoinSet::new();
        side.spawn(metrics.clone().upkeep(stop_listening.clone()));
        if config.keys.is_some() {
            side.spawn(encryption::renew(quell.clone(), stop_listening.clone()));
        }
        let actions = Actions::start(quell.clone(), audit.clone(), stop_working.clone(), &mut side);
        let (tally, health) = (Arc::default(), Health::new(quell.clone()));
        if let Some(certificate) = &tls {
            side.spawn(Arc::clone(certificate).watch(stop_listening.clone()));
        }
        let common = Common {
            places,
            tls,
            sessions: Sessions::default(),
            attempts: Attempts::default(),
            quell,
            audit,
            actions,
            metrics,
            overviews,
            proofs,
            health,
            keys: config.keys.clone(),
            tally,
            stop_listening,
            stop_working,
        };
        let (text, audit_path) = (config.text.clone(), config.audit.clone());
        let (now, routes) = Generation::start(&common, config, None)?;
        let (routes, app) = watch::channel(routes);
        let shared = listen::Shared {
            app,
            connections: connections::Connections::new(),
            tls: acceptor,
            stop: common.stop_listening.clone(),
        };
        for listener in listeners {
            info!(place = %listener.place(), "listening");
            side.spawn(listen::listen(listener, shared.clone()));
        }
        let retired = JoinSet::new();
        Ok(Server { common, fixed, asks_for_tokens, text, audit_path, routes, now, retired, side })
    }

    /// The first address on which it listens; port 0 where it listens on Unix sockets only.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.common.addresses().next().unwrap_or((Ipv4Addr::UNSPECIFIED, 0).into())
    }

    /// Where it listens, as `--server` names each place.
    pub fn urls(&self) -> impl Iterator<Item = String> {
        let scheme = self.common.scheme();
        self.common.places.iter().map(move |place| match place {
            Place::Tcp(address) => format!("{scheme}://{address}"),
            Place::Unix(_) => place.to_string(),
        })
    }

    /// The client and store behind it.
    #[must_use]
    pub fn quell(&self) -> &Quell {
        &self.common.quell
    }

    /// Completes only if the worker ends without a stop, or the store is lost: a file that was deleted
    /// or replaced. Dropping the future loses nothing.
    pub async fn failed(&mut self) -> anyhow::Error {
        tokio::select! {
            error = self.now.failed() => error,
            error = crate::http::lost(&self.common.quell) => error,
        }
    }

    /// Claims no more jobs, lets attempts finish within the grace time, and releases the other jobs
    /// (R29). Requests are answered until then: workers elsewhere renew and settle.
    ///
    /// # Errors
    /// The error that ended the worker.
    pub async fn stop(mut self) -> anyhow::Result<()> {
        self.common.stop_working.cancel();
        self.now.pull().close();
        // Workers elsewhere renew and settle meanwhile.
        self.now.work_ended().await?;
        self.common.stop_listening.cancel();
        while let Some(ended) = self.retired.join_next().await {
            ended??;
        }
        self.now.side_ended().await?;
        while let Some(ended) = self.side.join_next().await {
            ended?;
        }
        self.now.pull().drained(listen::DRAIN).await;
        if let Err(error) = self.common.quell.close().await {
            // Nothing is lost: the next process that opens the store does it.
            warn!(%error, "the store's journal stays beside its file");
        }
        Ok(())
    }
}

/// Opens the audit's file of a configuration, where that names one.
fn open_audit(config: &Config) -> anyhow::Result<Option<File>> {
    let Some(path) = &config.audit else { return Ok(None) };
    let cannot = || format!("server.audit_file: cannot open {}", path.display());
    Audit::open(path).with_context(cannot).map(Some)
}

/// Opens the store, with the history where one is wanted.
async fn open(config: &Config, history: Option<Sink>, recent: Recent) -> anyhow::Result<Quell> {
    let url = &config.store;
    let open = || format!("store.url: cannot open {}", without_password(url));
    let builder = match history {
        None => Quell::builder(url).await.with_context(open)?,
        Some(history) => Quell::recorded(url, history).await.with_context(open)?,
    };
    let builder = builder.dedup_fallback(config.dedup_fallback).observer(Arc::new(recent));
    Ok(match config.keys.clone() {
        Some(keys) => builder.encryption(Arc::new(keys)).build()?,
        None => builder.build()?,
    })
}

/// A store's URL for display: without the password, and without parameters, as one may be a secret.
pub(crate) fn without_password(url: &str) -> String {
    let plain = |text: &str| text.split('?').next().unwrap_or_default().to_owned();
    let Some((scheme, rest)) = url.split_once("://") else { return plain(url) };
    match rest.rsplit_once('@') {
        Some((user, place)) => {
            let user = plain(user.split(':').next().unwrap_or_default());
            format!("{scheme}://{user}@{}", plain(place))
        }
        None => format!("{scheme}://{}", plain(rest)),
    }
}

fn warn_of_faults(config: &Config) {
    for (field, fault) in world::of_handlers(config) {
        warn!(field, fault, "attempts fail until this is fixed");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_shown_without_its_secrets() {
        for (url, shown) in [
            ("memory:", "memory:"),
            ("sqlite://q.db?synchronous=full", "sqlite://q.db"),
            ("postgres://me:CANARY@db/app?password=CANARY", "postgres://me@db/app"),
            ("postgres://me:CAN?ARY@db/app", "postgres://me@db/app"),
            ("redis+sentinel://h/m?sentinel_password=CANARY", "redis+sentinel://h/m"),
            ("azure://account/table?sig=CANARY", "azure://account/table"),
            ("azure://account/table?sig=CANARY@x", "azure://account/table@x"),
            ("azure://me:CANARY@account/table", "azure://me@account/table"),
        ] {
            assert_eq!(without_password(url), shown);
        }
    }
}
