//! The workers that the store knows (R25), and which of them operators drain (R29).

use axum::Json;
use axum::extract::{Path, State};
use quell::worker::WorkerDrain;

use super::Api;
use super::body::JsonBody;
use super::error::{ApiError, Refused};
use super::pull::worker;
use super::queues::Pause;
use crate::view;

/// `GET /v1/workers`.
#[utoipa::path(
    get,
    path = "/v1/workers",
    tag = "workers",
    operation_id = "workers_list",
    summary = "List the workers that were seen within the last day.",
    description = "",
    responses((status = 200, body = view::Workers, description = "Done."), Refused),
)]
pub(super) async fn list(State(api): State<Api>) -> Result<Json<view::Workers>, ApiError> {
    let workers = api.quell.workers().await?;
    Ok(Json(view::Workers::from(&workers)))
}

/// `POST /v1/workers/{worker}/drain` (R29).
#[utoipa::path(
    post,
    path = "/v1/workers/{worker}/drain",
    tag = "workers",
    operation_id = "workers_drain",
    summary = "Let a worker claim nothing more. What it runs goes on to its end.",
    description = "It counts for the processes of that name that are listed, and they learn it with their next heartbeats.",
    params(("worker" = String, Path, description = "The worker's name.")),
    request_body(content = Option<Pause>, description = "Who drains it. No body names no one."),
    responses((status = 200, body = view::Workers, description = "Its processes."), Refused),
)]
pub(super) async fn drain(
    State(api): State<Api>,
    Path(name): Path<String>,
    body: JsonBody,
) -> Result<Json<view::Workers>, ApiError> {
    let by = Pause::read(body)?.by;
    set(&api, &WorkerDrain::new(worker(&name)?, true).by(by)).await
}

/// `POST /v1/workers/{worker}/resume` (R29).
#[utoipa::path(
    post,
    path = "/v1/workers/{worker}/resume",
    tag = "workers",
    operation_id = "workers_resume",
    summary = "Let a drained worker claim again.",
    description = "",
    params(("worker" = String, Path, description = "The worker's name.")),
    responses((status = 200, body = view::Workers, description = "Its processes."), Refused),
)]
pub(super) async fn resume(
    State(api): State<Api>,
    Path(name): Path<String>,
) -> Result<Json<view::Workers>, ApiError> {
    set(&api, &WorkerDrain::new(worker(&name)?, false)).await
}

async fn set(api: &Api, drain: &WorkerDrain) -> Result<Json<view::Workers>, ApiError> {
    if api.quell.drain_worker(drain).await? == 0 {
        let message = "no such worker is listed: one that stopped or rests has nothing to drain";
        return Err(ApiError::not_found("worker", message));
    }
    let mut workers = api.quell.workers().await?;
    workers.rows.retain(|row| row.worker == drain.worker);
    Ok(Json(view::Workers::from(&workers)))
}
