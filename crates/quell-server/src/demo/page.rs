//! The web page: the same picture as in the terminal, fed by server-sent events.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderValue, StatusCode};
use axum::middleware::{Next, from_fn};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use futures_util::Stream;
use futures_util::stream::unfold;
use tokio::net::TcpListener;
use tokio::sync::broadcast::error::RecvError;
use tokio::task::JoinSet;

use super::feed::Feed;

const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
                      img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
                      require-trusted-types-for 'script'";
const ICON: &str = include_str!("../http/icon.svg");

/// A page on loopback that lives as long as the demo.
pub(super) struct Page {
    address: SocketAddr,
    task: JoinSet<()>,
}

impl Page {
    pub(super) async fn start(feed: Arc<Feed>) -> anyhow::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let address = listener.local_addr()?;
        let app = Router::new()
            .route("/", get(async || file("text/html; charset=utf-8", include_str!("page.html"))))
            .route("/page.js", get(async || file("text/javascript", include_str!("page.js"))))
            .route("/page.css", get(async || file("text/css", include_str!("page.css"))))
            .route("/favicon.ico", get(async || file("image/svg+xml", ICON)))
            .route("/events", get(events))
            .layer(from_fn(guard))
            .with_state(feed);
        let mut task = JoinSet::new();
        task.spawn(async move {
            if let Err(error) = axum::serve(listener, app).await {
                tracing::warn!(%error, "demo page stopped");
            }
        });
        Ok(Page { address, task })
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(super) async fn stop(mut self) {
        self.task.shutdown().await;
    }
}

fn file(kind: &'static str, text: &'static str) -> Response {
    ([("content-type", kind)], text).into_response()
}

/// Only loopback names reach the page, and it loads nothing but its own files.
async fn guard(request: Request, next: Next) -> Response {
    let host =
        request.headers().get("host").and_then(|host| host.to_str().ok()).unwrap_or_default();
    let name = host.rsplit_once(':').map_or(host, |(name, _)| name);
    if !matches!(name, "127.0.0.1" | "localhost") {
        return StatusCode::MISDIRECTED_REQUEST.into_response();
    }
    let mut answer = next.run(request).await;
    let headers = answer.headers_mut();
    headers.insert("content-security-policy", HeaderValue::from_static(POLICY));
    headers.insert("x-content-type-options", HeaderValue::from_static("nosniff"));
    headers.insert("referrer-policy", HeaderValue::from_static("no-referrer"));
    headers.insert("cache-control", HeaderValue::from_static("no-store"));
    answer
}

async fn events(
    State(feed): State<Arc<Feed>>,
) -> Sse<impl Stream<Item = Result<Event, Infallible>>> {
    let now = serde_json::json!({ "kind": "now", "at": feed.now() });
    let first = Event::default().data(now.to_string());
    let marks = unfold((Some(first), feed.subscribe()), |(first, mut marks)| async move {
        if let Some(first) = first {
            return Some((Ok(first), (None, marks)));
        }
        loop {
            match marks.recv().await {
                Ok(mark) => {
                    let Ok(text) = serde_json::to_string(&mark) else { continue };
                    return Some((Ok(Event::default().data(text)), (None, marks)));
                }
                Err(RecvError::Lagged(_)) => {}
                Err(RecvError::Closed) => return None,
            }
        }
    });
    Sse::new(marks).keep_alive(KeepAlive::default())
}
