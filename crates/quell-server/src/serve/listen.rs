//! Accepts connections, and hands each request to the routes that hold then.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::Request;
use hyper::body::Incoming;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::http::Peer;

/// Connections at once; more wait to be accepted.
const MAX_CONNECTIONS: usize = 1_024;
/// Headers of one request.
const MAX_HEADERS: usize = 64;
/// The bytes of a request's head, and of a body that is read ahead.
const MAX_HEAD_BYTES: usize = 64 << 10;
/// How long a request's head may take to arrive.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// How long open requests may go on after the shutdown began.
pub(super) const DRAIN: Duration = Duration::from_secs(5);

/// Accepts connections until `stop`, then lets open requests end.
pub(super) async fn listen(
    listener: TcpListener,
    app: watch::Receiver<Router>,
    stop: CancellationToken,
) {
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
        let app = app.clone();
        let service = service_fn(move |mut request: Request<Incoming>| {
            request.extensions_mut().insert(Peer(peer));
            // Each request meets the routes of the newest configuration.
            let app = app.borrow().clone();
            TowerToHyperService::new(app).call(request)
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
