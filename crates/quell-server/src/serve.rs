//! `quell serve`: one process with a store, a worker and the HTTP API.
//!
//! The address is bound first, so that a second server stops before it touches the store. A shutdown
//! claims no job; attempts may finish within the grace time, then commands get SIGTERM, and the jobs
//! of attempts that still run are released. Requests are answered until all attempts have ended.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use hyper::Request;
use hyper::body::Incoming;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use quell::history::Sink;
use quell::schedule::Schedule;
use quell::worker::pull::PullTasks;
use quell::{Ctx, Payload, Quell, QueueName, TaskName};
use quell_core::attempt::AttemptOutcome;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::actions::Actions;
use crate::alerts::{DeclaredAlert, Ended, Tally, Watch};
use crate::config::{Config, DeclaredQueue, DeclaredTask, world};
use crate::handlers::{GRACE, Handler, Invocation};
use crate::history::FileSink;
use crate::http::{self, Api, Completions, Peer, Pull, Sources};

/// Connections at once; more wait to be accepted.
const MAX_CONNECTIONS: usize = 1_024;
/// Headers of one request.
const MAX_HEADERS: usize = 64;
/// The bytes of a request's head, and of a body that is read ahead.
const MAX_HEAD_BYTES: usize = 64 << 10;
/// How long a request's head may take to arrive.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// How long open requests may go on after the shutdown began.
const DRAIN: Duration = Duration::from_secs(5);

/// `quell serve`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The configuration file.
    #[arg(long, value_name = "FILE", default_value = "quell.toml")]
    config: PathBuf,
    /// Only check the configuration.
    #[arg(long)]
    check: bool,
    /// Append the event history to this file, one JSON line per event.
    #[arg(long, value_name = "FILE")]
    history: Option<PathBuf>,
}

/// Serves until a signal ends it.
///
/// # Errors
/// What is wrong with the configuration, the store or the address.
pub fn run(args: Args, out: &mut dyn std::io::Write) -> anyhow::Result<()> {
    if args.check {
        return check(&args.config, out);
    }
    let config = Config::load(&args.config)?;
    let file = match args.history {
        Some(path) => Some(Arc::new(FileSink::append(&path)?)),
        None => None,
    };
    let history = file.clone().map(|file| -> Sink { file });
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let served = runtime.block_on(serve(config, history, out));
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
    if world::is_in_use(&config) {
        let listen = config.listen;
        writeln!(out, "note: server.listen: {listen} is in use, as by a server that runs")?;
    }
    Ok(())
}

async fn serve(
    config: Config,
    history: Option<Sink>,
    out: &mut dyn std::io::Write,
) -> anyhow::Result<()> {
    let signal = crate::signal::shutdown()?;
    let mut server = Server::start(config, history).await?;
    writeln!(out, "listening on http://{}", server.address())?;
    out.flush()?;
    tokio::select! {
        () = signal => {}
        error = server.failed() => return Err(error),
    }
    info!("shutting down, a second signal ends running attempts");
    let again = crate::signal::shutdown()?;
    tokio::select! {
        stopped = server.stop() => stopped,
        () = again => anyhow::bail!("stopped by a second signal before all attempts had ended"),
    }
}

/// A server that runs.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    quell: Quell,
    pull: PullTasks,
    stop_listening: CancellationToken,
    stop_working: CancellationToken,
    side: JoinSet<()>,
    worker: JoinSet<quell::Result<()>>,
}

/// The state that attempts share.
#[derive(Debug)]
struct Work {
    tasks: Arc<BTreeMap<TaskName, DeclaredTask>>,
    /// Counts their outcomes, for alerts.
    tally: Arc<Tally>,
    /// Where others reach this server.
    base_url: Arc<str>,
    /// Attempts that go on at their targets.
    completions: Completions,
    /// Fires when the shutdown's grace time is over.
    stopping: CancellationToken,
}

impl Server {
    /// Listens, opens the store and starts the worker.
    ///
    /// # Errors
    /// What is wrong with the store or the address.
    pub async fn start(config: Config, history: Option<Sink>) -> anyhow::Result<Self> {
        // Before the worker, which looks its counters up once.
        let metrics = crate::http::metrics::recorder()?;
        let listener = bind(config.listen).await?;
        let address = listener.local_addr()?;
        let quell = open(&config, history).await?;
        warn_of_faults(&config);
        write_settings(&quell, &config.queues, config.schedules).await?;
        let tasks: Arc<BTreeMap<TaskName, DeclaredTask>> = Arc::new(config.tasks);
        let (stop_listening, stop_working) = (CancellationToken::new(), CancellationToken::new());
        let (mut side, mut worker) = (JoinSet::new(), JoinSet::new());
        let (alerts, tally) = (Arc::<[DeclaredAlert]>::from(config.alerts), Arc::default());
        let pull = elsewhere(&quell, &tasks, |handler| handler.is_none())?;
        let is_completed =
            |handler: Option<&Handler>| handler.and_then(Handler::completion).is_some();
        let completed = elsewhere(&quell, &tasks, is_completed)?;
        let completions = Completions::new(completed, Arc::clone(&tally));
        side.spawn(completions.clone().watch(stop_listening.clone()));
        let base_url = config.url.unwrap_or_else(|| format!("http://{address}")).into();
        if !tasks.is_empty() {
            let stopping = CancellationToken::new();
            let end_grace = end_grace(stop_working.clone(), config.grace, stopping.clone());
            let mut builder = quell
                .worker(Work {
                    tasks: Arc::clone(&tasks),
                    tally: Arc::clone(&tally),
                    base_url,
                    completions: completions.clone(),
                    stopping,
                })
                .concurrency(config.concurrency)
                .grace(config.grace.saturating_add(GRACE))
                .lease(config.lease)
                .watch(pull.queues())
                // The process is the server's own.
                .with_panic_hook();
            for (name, task) in tasks.iter() {
                if task.handler.is_some() {
                    builder = builder.register_raw(name.clone(), &task.policy, attempt);
                }
            }
            let stop = stop_working.clone().cancelled_owned();
            worker.spawn(async move {
                tokio::select! {
                    ended = builder.run_until(stop) => ended,
                    never = end_grace => match never {},
                }
            });
        }
        side.spawn(crate::http::metrics::upkeep(metrics.clone(), stop_listening.clone()));
        if !alerts.is_empty() {
            let watch = Watch::new(quell.clone(), Arc::clone(&alerts), Arc::clone(&tally));
            side.spawn(watch.run(config.alert_interval, stop_listening.clone()));
        }
        let api = Api {
            quell: quell.clone(),
            actions: Actions::start(quell.clone(), stop_working.clone(), &mut side),
            tasks,
            pull: Pull::new(pull.clone(), Arc::clone(&tally), config.lease),
            completions,
            sources: Arc::new(Sources::new(config.sources)),
            alerts,
            metrics,
            token: config.token,
            hosts: http::hosts(address, config.allowed_hosts),
            max_body: config.max_body,
            stopping: stop_working.clone(),
        };
        side.spawn(listen(listener, http::router(api), stop_listening.clone()));
        info!(%address, "listening");
        Ok(Server { address, quell, pull, stop_listening, stop_working, side, worker })
    }

    /// The address on which it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The client and store behind it.
    #[must_use]
    pub fn quell(&self) -> &Quell {
        &self.quell
    }

    /// Completes only if the worker ends without a stop. Dropping the future loses nothing.
    pub async fn failed(&mut self) -> anyhow::Error {
        match self.worker.join_next().await {
            Some(Ok(Ok(()))) => anyhow::anyhow!("the worker ended without a stop"),
            Some(Ok(Err(error))) => anyhow::Error::new(error).context("the worker ended"),
            Some(Err(error)) => anyhow::Error::new(error).context("the worker ended"),
            // Without tasks there is no worker.
            None => std::future::pending().await,
        }
    }

    /// Claims no more jobs, lets attempts finish within the grace time, and releases the other jobs
    /// (R29). Requests are answered until then: workers elsewhere renew and settle.
    ///
    /// # Errors
    /// The error that ended the worker.
    pub async fn stop(mut self) -> anyhow::Result<()> {
        self.stop_working.cancel();
        self.pull.close();
        // Workers elsewhere renew and settle meanwhile.
        while let Some(ended) = self.worker.join_next().await {
            ended??;
        }
        self.stop_listening.cancel();
        while let Some(ended) = self.side.join_next().await {
            ended?;
        }
        self.pull.drained(DRAIN).await;
        Ok(())
    }
}

async fn bind(listen: SocketAddr) -> anyhow::Result<TcpListener> {
    TcpListener::bind(listen).await.with_context(|| {
        format!("server.listen: cannot listen on {listen}: choose another address or port")
    })
}

/// Writes the live settings of a configuration into the store.
async fn write_settings(
    quell: &Quell,
    queues: &BTreeMap<QueueName, DeclaredQueue>,
    schedules: Vec<Schedule>,
) -> anyhow::Result<()> {
    for (queue, declared) in queues {
        let known = quell.queue(queue.as_str()).settings().await?;
        let settings = declared.over(known.as_ref());
        if settings.paused {
            info!(%queue, "the queue is paused");
        }
        quell.queue(queue.as_str()).set(&settings).await?;
    }
    for schedule in schedules {
        quell.set_schedule(schedule).await?;
    }
    Ok(())
}

/// The tasks whose attempts end elsewhere, as their handlers show.
fn elsewhere(
    quell: &Quell,
    tasks: &BTreeMap<TaskName, DeclaredTask>,
    is_elsewhere: impl Fn(Option<&Handler>) -> bool,
) -> anyhow::Result<PullTasks> {
    let of_them = tasks.iter().filter(|(_, task)| is_elsewhere(task.handler.as_ref()));
    let mut pull = PullTasks::new(quell.clone());
    for (name, task) in of_them {
        pull = pull.task(name.clone(), &task.policy)?;
    }
    Ok(pull)
}

/// Makes commands end once the grace time after the shutdown is over.
async fn end_grace(
    stop: CancellationToken,
    grace: Duration,
    stopping: CancellationToken,
) -> Infallible {
    stop.cancelled().await;
    tokio::time::sleep(grace).await;
    stopping.cancel();
    std::future::pending().await
}

/// Opens the store, with the history where one is wanted.
async fn open(config: &Config, history: Option<Sink>) -> anyhow::Result<Quell> {
    let url = &config.store;
    let open = || format!("store.url: cannot open {}", without_password(url));
    let builder = match history {
        None => Quell::builder(url).await.with_context(open)?,
        Some(history) => Quell::recorded(url, history).await.with_context(open)?,
    };
    Ok(builder.dedup_fallback(config.dedup_fallback).build()?)
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

/// One attempt of a declared task.
async fn attempt(payload: Payload, ctx: Ctx<Work>) -> Result<Option<Payload>, quell::TaskError> {
    let Work { tasks, tally, base_url, completions, stopping } = ctx.state();
    let declared = tasks.get(ctx.task());
    let Some((task, handler)) = declared.and_then(|task| Some((task, task.handler.as_ref()?)))
    else {
        return Err(quell::TaskError::retry("the task has no handler in this server"));
    };
    let queue = task.checked.queue().clone();
    let call = Invocation::new(&ctx, queue, payload, Arc::clone(base_url), stopping.clone());
    let outcome = Ended::begin(tally, task.checked.queue(), ctx.task());
    let ended = handler.run(&call).await;
    outcome.record(&ended);
    if let Some(pause) = handler.away_for() {
        ctx.hold_off(pause);
    }
    let goes_on = |error: &quell::TaskError| error.outcome() == AttemptOutcome::Released;
    if let Some(within) = handler.completion().filter(|_| ended.as_ref().is_err_and(goes_on)) {
        completions.expect(ctx.lease(), within);
    }
    ended
}

fn warn_of_faults(config: &Config) {
    for (field, fault) in world::of_handlers(config) {
        warn!(field, fault, "attempts fail until this is fixed");
    }
}

/// Accepts connections until `stop`, then lets open requests end.
async fn listen(listener: TcpListener, app: axum::Router, stop: CancellationToken) {
    let open = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let graceful = GracefulShutdown::new();
    let mut connections = JoinSet::new();
    loop {
        let place = tokio::select! {
            () = stop.cancelled() => break,
            place = Arc::clone(&open).acquire_owned() => match place {
                Ok(place) => place,
                Err(_) => return,
            },
        };
        let (stream, peer) = tokio::select! {
            () = stop.cancelled() => break,
            accepted = listener.accept() => match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    warn!(%error, "cannot accept a connection, retrying");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    continue;
                }
            },
        };
        let app = TowerToHyperService::new(app.clone());
        let service = service_fn(move |mut request: Request<Incoming>| {
            request.extensions_mut().insert(Peer(peer));
            app.call(request)
        });
        let connection = hyper::server::conn::http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD_TIMEOUT)
            .max_headers(MAX_HEADERS)
            .max_buf_size(MAX_HEAD_BYTES)
            .serve_connection(TokioIo::new(stream), service);
        let connection = graceful.watch(connection);
        connections.spawn(async move {
            // A caller that goes away ends its connection, and no one else waits for it.
            let _gone = connection.await;
            drop(place);
        });
        while connections.try_join_next().is_some() {}
    }
    drop(listener);
    let _in_time = tokio::time::timeout(DRAIN, graceful.shutdown()).await;
    connections.shutdown().await;
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
