//! The HTTP API.
//!
//! Every request passes `auth` (host, origin, token) and `bounds` (time, panics), then a route. The
//! modules of routes have the names of their paths; `results` is `/v1/jobs/{id}/result`. `error`
//! makes a response of each failure.

mod alerts;
mod auth;
mod body;
mod bounds;
mod dead;
mod error;
mod jobs;
pub mod metrics;
mod queues;
mod results;
mod schedules;
mod sources;
mod triggers;
mod unreadable;
mod workers;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{DefaultBodyLimit, State};
use axum::http::StatusCode;
use axum::middleware::{from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post, put};
use axum::{Json, Router};
use metrics_exporter_prometheus::PrometheusHandle;
use quell::{ErrorKind, Quell, TaskName};

use crate::alerts::DeclaredAlert;
use crate::config::DeclaredTask;
use crate::secrets::Secrets;
pub(crate) use body::depth;
pub use dead::EXPORTED;
use error::ApiError;
pub use sources::Sources;

/// How long a request may take, its body included.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// The largest body of an import, unless larger ones are allowed everywhere.
pub(crate) const MAX_IMPORT_BYTES: usize = 8 << 20;

/// The state that routes share.
#[derive(Clone, Debug)]
pub struct Api {
    /// The client.
    pub quell: Quell,
    /// The declared tasks.
    pub tasks: Arc<BTreeMap<TaskName, DeclaredTask>>,
    /// The webhook sources.
    pub sources: Arc<Sources>,
    /// The declared alerts.
    pub alerts: Arc<[DeclaredAlert]>,
    /// The metrics page.
    pub metrics: PrometheusHandle,
    /// The bearer tokens of callers.
    pub token: Option<Secrets>,
    /// Host names that requests may name.
    pub hosts: Arc<[String]>,
    /// The largest body, in bytes.
    pub max_body: usize,
}

/// The host names that stand for this server.
#[must_use]
pub fn hosts(address: SocketAddr, more: Vec<String>) -> Arc<[String]> {
    let own = ["localhost", "127.0.0.1", "[::1]"].map(str::to_owned);
    let ip = match address {
        SocketAddr::V4(address) => address.ip().to_string(),
        SocketAddr::V6(address) => format!("[{}]", address.ip()),
    };
    own.into_iter().chain([ip]).chain(more).collect()
}

/// All routes behind the checks.
pub fn router(api: Api) -> Router {
    let max_body = api.max_body;
    Router::new()
        .route("/v1/tasks/{task}/triggers", post(triggers::trigger))
        .route("/v1/tasks/{task}/windows/flush", post(triggers::flush))
        .route("/v1/tasks/{task}/windows/cancel", post(triggers::cancel))
        .route("/v1/tasks", get(queues::tasks))
        .route("/v1/tasks/{task}/pause", post(queues::pause_task))
        .route("/v1/tasks/{task}/resume", post(queues::resume_task))
        .route("/v1/queues", get(queues::list))
        .route("/v1/queues/{name}", put(queues::put).patch(queues::patch).delete(queues::delete))
        .route("/v1/queues/{name}/pause", post(queues::pause))
        .route("/v1/queues/{name}/resume", post(queues::resume))
        .route("/v1/jobs", get(jobs::list))
        .route("/v1/jobs/{id}", get(jobs::show))
        .route("/v1/jobs/{id}/result", get(results::result))
        .route("/v1/jobs/{id}/cancel", post(jobs::cancel))
        .route("/v1/jobs/{id}/discard", post(dead::discard_one))
        .route("/v1/jobs/{id}/restore", post(unreadable::restore))
        .merge(dead_routes(max_body))
        .route("/v1/schedules", get(schedules::list))
        .route(
            "/v1/schedules/{name}",
            get(schedules::show).put(schedules::set).delete(schedules::delete),
        )
        .route("/v1/schedules/{name}/pause", post(schedules::pause))
        .route("/v1/schedules/{name}/resume", post(schedules::resume))
        .route("/v1/schedules/{name}/run", post(schedules::run))
        .route("/v1/schedules/{name}/backfill", post(schedules::backfill))
        .route("/v1/workers", get(workers::list))
        .route("/v1/alerts", get(alerts::list))
        .route("/v1/alerts/{name}", delete(alerts::forget))
        .route("/v1/explain", get(jobs::explain))
        .route("/v1/healthz", get(health))
        .route("/metrics", get(metrics_page))
        .fallback(|| async { ApiError::not_found("path", "no such path") })
        .method_not_allowed_fallback(|| async {
            ApiError::new(
                StatusCode::METHOD_NOT_ALLOWED,
                "method",
                "the path does not support this method",
            )
        })
        .layer(DefaultBodyLimit::max(max_body))
        .layer(from_fn_with_state(api.clone(), auth::admit))
        // Sources have proofs and bounds of their own.
        .merge(sources::routes())
        .layer(from_fn(bounds::bounds))
        .layer(from_fn(auth::private))
        .with_state(api)
}

/// Imports and edits have bodies of their own size: a dead job may be larger than any trigger.
fn dead_routes(max_body: usize) -> Router<Api> {
    let large = DefaultBodyLimit::max(max_body.max(MAX_IMPORT_BYTES));
    Router::new()
        .route("/v1/dead", get(dead::list))
        .route("/v1/dead/causes", get(dead::causes))
        .route(&format!("/v1/dead/{EXPORTED}"), get(dead::export))
        .route("/v1/dead/redrive", post(dead::redrive))
        .route("/v1/dead/discard", post(dead::discard))
        .route("/v1/dead/unreadable", get(unreadable::list))
        .route("/v1/jobs/{id}/redrive", post(dead::redrive_one).layer(large))
        .route("/v1/dead/import", post(dead::import).layer(large))
}

/// Whether the store answers.
async fn health(State(api): State<Api>) -> Result<Json<serde_json::Value>, ApiError> {
    api.quell.store().queues().await?;
    Ok(Json(serde_json::json!({ "status": "ok" })))
}

async fn metrics_page(State(api): State<Api>) -> Result<Response, ApiError> {
    let counts = api.quell.store().counts().await?;
    let known = api.tasks.iter().map(|(name, task)| (task.checked.queue(), name));
    let text = api.metrics.render() + &metrics::render_jobs(&counts, known);
    // A store without checks has no such metrics.
    let checkup = match api.quell.checkup().await {
        Err(error) if error.kind() == ErrorKind::Unsupported => None,
        checkup => Some(checkup?),
    };
    let text = text + &checkup.as_ref().map(metrics::render_store).unwrap_or_default();
    Ok(([("content-type", "text/plain; version=0.0.4")], text).into_response())
}
