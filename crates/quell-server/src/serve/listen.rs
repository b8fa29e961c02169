//! Accepts connections, and hands each request to the routes that hold then.
//!
//! A handshake, a request's head and a response have a bounded time each, and none of them delays the next
//! connection: all of it happens in the connection's own task.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use hyper::Request;
use hyper::body::Incoming;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use hyper_util::service::TowerToHyperService;
use rustix::io::Errno;
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use super::bind::Listener;
use super::connections::{Connection, Connections, Open};
use super::stream::Stream;
use crate::http::Peer;

/// Headers of one request.
const MAX_HEADERS: usize = 64;
/// The bytes of a request's head, and of a body that is read ahead.
const MAX_HEAD_BYTES: usize = 64 << 10;
/// How long a handshake may take, a request's head to arrive, and a connection to wait for its next request.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// How long open requests may go on after the shutdown began.
pub(super) const DRAIN: Duration = Duration::from_secs(5);
/// How long accepting pauses after a failure.
const PAUSE: Duration = Duration::from_millis(50);
/// How often the log has such failures.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

/// What all places of a server share.
#[derive(Clone)]
pub(super) struct Shared {
    pub(super) app: watch::Receiver<Router>,
    pub(super) connections: Arc<Connections>,
    /// For the addresses.
    pub(super) tls: Option<TlsAcceptor>,
    pub(super) stop: CancellationToken,
}

/// Accepts connections until the stop, then lets open requests end.
pub(super) async fn listen(listener: Listener, shared: Shared) {
    let graceful = GracefulShutdown::new();
    let mut tasks = JoinSet::new();
    let mut refused = Refused::default();
    loop {
        let accepted = tokio::select! {
            () = shared.stop.cancelled() => break,
            accepted = accept(&listener) => accepted,
        };
        let (socket, peer) = match accepted {
            Ok(accepted) => accepted,
            // The caller is gone already.
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => continue,
            Err(error) => {
                refused.note(&error);
                let files = [Errno::MFILE, Errno::NFILE].map(Errno::raw_os_error);
                if error.raw_os_error().is_some_and(|code| files.contains(&code)) {
                    // Each connection is an open file.
                    shared.connections.close_one();
                }
                tokio::select! {
                    () = shared.stop.cancelled() => break,
                    () = tokio::time::sleep(PAUSE) => continue,
                }
            }
        };
        let open = tokio::select! {
            () = shared.stop.cancelled() => break,
            open = shared.connections.place() => open,
        };
        let Some(open) = open else { break };
        tasks.spawn(serve(socket, peer, open, shared.clone(), graceful.watcher()));
        while tasks.try_join_next().is_some() {}
    }
    drop(listener);
    let _in_time = tokio::time::timeout(DRAIN, graceful.shutdown()).await;
    tasks.shutdown().await;
}

/// Failures to accept, which the log has now and then.
#[derive(Default)]
struct Refused {
    count: u64,
    logged: Option<Instant>,
}

impl Refused {
    fn note(&mut self, error: &io::Error) {
        self.count += 1;
        if self.logged.is_none_or(|at| at.elapsed() >= LOG_INTERVAL) {
            let count = std::mem::take(&mut self.count);
            warn!(%error, count, "cannot accept connections, retrying: raise the limit of open files");
            self.logged = Some(Instant::now());
        }
    }
}

/// A connection as it is accepted.
enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

async fn accept(listener: &Listener) -> io::Result<(Socket, Peer)> {
    match listener {
        Listener::Tcp(listener, _) => {
            let (stream, address) = listener.accept().await?;
            Ok((Socket::Tcp(stream), Peer::of_address(address.ip())))
        }
        Listener::Unix(socket) => {
            let (stream, _) = socket.listener.accept().await?;
            let user = stream.peer_cred().map(|user| user.uid()).ok();
            Ok((Socket::Unix(stream), Peer::of_user(user)))
        }
    }
}

/// Serves one connection, until it ends or its place goes to another.
async fn serve(socket: Socket, peer: Peer, open: Open, shared: Shared, watcher: Watcher) {
    let connection = &open.connection;
    let served = async {
        let (stream, peer) = match (socket, &shared.tls) {
            (Socket::Tcp(stream), Some(tls)) => {
                let handshake = tokio::time::timeout(HEAD_TIMEOUT, tls.accept(stream));
                let stream = tokio::select! {
                    () = shared.stop.cancelled() => return,
                    shaken = handshake => match shaken {
                        Ok(Ok(stream)) => stream,
                        // It is the caller's business, and any caller can do this at will.
                        Ok(Err(error)) => return debug!(%error, "handshake failed"),
                        Err(_) => return debug!("handshake took too long"),
                    },
                };
                (Stream::new(stream), peer.by_tls())
            }
            (Socket::Tcp(stream), None) => (Stream::new(stream), peer),
            (Socket::Unix(stream), _) => (Stream::new(stream), peer),
        };
        answer(stream, peer, connection, shared.app, watcher).await;
    };
    tokio::select! {
        biased;
        () = connection.closed() => {}
        () = served => {}
    }
}

/// Answers the requests of a connection.
async fn answer(
    stream: Stream,
    peer: Peer,
    connection: &Arc<Connection>,
    app: watch::Receiver<Router>,
    watcher: Watcher,
) {
    let service = service_fn(|request: Request<Incoming>| {
        let (parts, body) = request.into_parts();
        let body = connection.arrives(body);
        // Each request meets the routes of the newest configuration.
        let app = TowerToHyperService::new(app.borrow().clone());
        let peer = peer.clone();
        async move {
            let mut request = Request::from_parts(parts, body?);
            request.extensions_mut().insert(peer);
            let answer = app.call(request).await;
            connection.answered();
            answer.map_err(|never| -> io::Error { match never {} })
        }
    });
    let served = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_headers(MAX_HEADERS)
        .max_buf_size(MAX_HEAD_BYTES)
        .serve_connection(TokioIo::new(stream), service);
    // A caller that goes away ends its connection, and no one else waits for it.
    let _gone = watcher.watch(served).await;
}
