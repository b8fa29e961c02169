//! `quell serve`: one process with a store, a worker and the HTTP API.
//!
//! The pieces start in order (store, worker, listener) and end in the opposite one: no request is
//! taken any more, then the worker gives back what it does not finish within its grace time.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context as _;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use quell::history::Sink;
use quell::{Ctx, Payload, Quell, Store, TaskName};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::api::{self, Api};
use crate::config::{Config, DeclaredTask};
use crate::handler::{Handler, Invocation};

/// Connections at once; more wait to be taken.
const MAX_CONNECTIONS: usize = 1_024;
/// How long a request's head may take to arrive.
const HEAD_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(10);
/// How long open requests may go on after the shutdown began.
const DRAIN: std::time::Duration = std::time::Duration::from_secs(5);

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
    let config = Config::load(&args.config)?;
    if args.check {
        writeln!(out, "{}: fine, {} tasks", args.config.display(), config.tasks.len())?;
        return Ok(());
    }
    let history: Option<Sink> = match args.history {
        Some(path) => Some(Arc::new(crate::history::FileSink::append(&path)?)),
        None => None,
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let signal = crate::signal::shutdown()?;
        let server = Server::start(config, history).await?;
        writeln!(out, "listening on http://{}", server.address())?;
        out.flush()?;
        signal.await;
        info!("shutting down");
        server.stop().await
    })
}

/// A server that runs.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    quell: Quell,
    stop_listening: CancellationToken,
    stop_working: CancellationToken,
    listener: JoinSet<()>,
    worker: JoinSet<quell::Result<()>>,
}

impl Server {
    /// Opens the store, starts the worker and listens.
    ///
    /// # Errors
    /// What is wrong with the store or the address.
    pub async fn start(config: Config, history: Option<Sink>) -> anyhow::Result<Self> {
        // Before the worker, which looks its counters up once.
        let metrics = crate::metrics::recorder()?;
        let quell = open(&config.store, history).await?;
        for (queue, settings) in &config.queues {
            quell.store().set_queue(queue, settings).await?;
        }
        let listener = TcpListener::bind(config.listen).await.with_context(|| {
            let listen = config.listen;
            format!("server.listen: cannot listen on {listen}: choose another address or port")
        })?;
        let address = listener.local_addr()?;
        let tasks: Arc<BTreeMap<TaskName, DeclaredTask>> = Arc::new(config.tasks);
        let (stop_listening, stop_working) = (CancellationToken::new(), CancellationToken::new());
        let mut worker = JoinSet::new();
        if !tasks.is_empty() {
            let mut builder = quell
                .worker(Arc::clone(&tasks))
                .concurrency(config.concurrency)
                .grace(config.grace)
                .lease(config.lease);
            for (name, task) in tasks.iter() {
                warn_of_missing_program(name, &task.handler);
                builder = builder.register_raw(name.clone(), &task.policy, attempt);
            }
            worker.spawn(builder.run_until(stop_working.clone().cancelled_owned()));
        }
        let api = Api {
            quell: quell.clone(),
            tasks,
            metrics,
            token: config.token,
            hosts: api::hosts(address, config.allowed_hosts),
            max_body: config.max_body,
        };
        let mut listening = JoinSet::new();
        listening.spawn(listen(listener, api::router(api), stop_listening.clone()));
        info!(%address, "listening");
        Ok(Server { address, quell, stop_listening, stop_working, listener: listening, worker })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The client and store behind it.
    #[must_use]
    pub fn quell(&self) -> &Quell {
        &self.quell
    }

    /// Takes no more requests, lets attempts finish within the grace time, gives the rest back.
    ///
    /// # Errors
    /// What the worker ended with.
    pub async fn stop(mut self) -> anyhow::Result<()> {
        self.stop_listening.cancel();
        while self.listener.join_next().await.is_some() {}
        self.stop_working.cancel();
        while let Some(ended) = self.worker.join_next().await {
            ended??;
        }
        Ok(())
    }
}

/// Opens a store with the history where one is wanted.
async fn open(url: &str, history: Option<Sink>) -> anyhow::Result<Quell> {
    let open = || format!("store.url: cannot open {url}");
    let Some(history) = history else { return Quell::open(url).await.with_context(open) };
    let options = quell::sqlite::SqliteOptions::from_url(url)?.history(Arc::clone(&history));
    let store: Arc<dyn Store> = Arc::new(options.open().await.with_context(open)?);
    Ok(Quell::with_store(store).history(history).build()?)
}

/// One attempt of a declared task.
async fn attempt(
    payload: Payload,
    ctx: Ctx<Arc<BTreeMap<TaskName, DeclaredTask>>>,
) -> Result<(), quell::TaskError> {
    let Some(task) = ctx.state().get(ctx.task()) else {
        return Err(quell::TaskError::retry("the task is no longer declared"));
    };
    let call = Invocation::new(&ctx, task.checked.queue().clone(), payload);
    task.handler.run(&call).await
}

fn warn_of_missing_program(task: &TaskName, handler: &Handler) {
    let Handler::Exec(exec) = handler else { return };
    let Some(program) = exec.command.first() else { return };
    let found = if program.contains('/') {
        std::path::Path::new(program).exists()
    } else {
        let path = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&path).any(|folder| folder.join(program).exists())
    };
    if !found {
        warn!(%task, program, "the task's command is not there: its attempts will fail until it is");
    }
}

/// Takes connections until told to stop, then lets open requests end.
async fn listen(listener: TcpListener, app: axum::Router, stop: CancellationToken) {
    let open = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let graceful = GracefulShutdown::new();
    let mut connections = JoinSet::new();
    loop {
        let Ok(place) = Arc::clone(&open).acquire_owned().await else { return };
        let stream = tokio::select! {
            () = stop.cancelled() => break,
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => stream,
                Err(error) => {
                    warn!(%error, "a connection could not be taken");
                    tokio::time::sleep(std::time::Duration::from_millis(50)).await;
                    continue;
                }
            },
        };
        let service = TowerToHyperService::new(app.clone());
        let connection = hyper::server::conn::http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD_TIMEOUT)
            .max_headers(64)
            .serve_connection(TokioIo::new(stream), service);
        let connection = graceful.watch(connection);
        connections.spawn(async move {
            // A caller that goes away ends its connection; there is nobody to tell.
            let _gone = connection.await;
            drop(place);
        });
        while connections.try_join_next().is_some() {}
    }
    drop(listener);
    let _in_time = tokio::time::timeout(DRAIN, graceful.shutdown()).await;
    connections.shutdown().await;
}
