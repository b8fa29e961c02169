//! Jobs whose rows cannot be decoded, over HTTP (R25): listed and restored. They are discarded as dead
//! jobs are.

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use quell::JobId;
use quell::dead::UnreadablePage;

use super::Api;
use super::error::{ApiError, Refused};
use super::jobs::{Pairs, Parameters};
use crate::view;

/// `GET /v1/dead/unreadable?before=&limit=`: newest first.
#[utoipa::path(
    get,
    path = "/v1/dead/unreadable",
    tag = "dead jobs",
    operation_id = "unreadable_list",
    summary = "List the jobs whose rows cannot be decoded, the newest first.",
    description = "",
    params(
        ("before" = Option<String>, Query, description = "Only jobs older than this one."),
        ("limit" = Option<u32>, Query, description = "At most this many, up to 200."),
    ),
    responses((status = 200, body = view::Unreadable, description = "Done."), Refused),
)]
pub(super) async fn list(
    State(api): State<Api>,
    query: Result<Query<Pairs>, QueryRejection>,
) -> Result<Json<view::Unreadable>, ApiError> {
    let mut query = Parameters::read(query)?;
    let before = query.take("before", |text| text.parse::<JobId>())?;
    let limit = query.take_limit(UnreadablePage::MAX)?;
    query.end()?;
    let page = UnreadablePage { before, limit: limit.unwrap_or_default() };
    let jobs = api.quell.dead().unreadable(&page).await?;
    Ok(Json(view::Unreadable::new(&jobs, &page)))
}

/// `POST /v1/jobs/{id}/restore`: puts a job back whose row this server can decode.
#[utoipa::path(
    post,
    path = "/v1/jobs/{id}/restore",
    tag = "dead jobs",
    operation_id = "unreadable_restore",
    summary = "Put such a job back, if its row can be decoded now.",
    description = "",
    params(
        ("id" = String, Path, description = "The job."),
    ),
    responses((status = 200, body = view::RestoredJob, description = "Done."), Refused),
)]
pub(super) async fn restore(
    State(api): State<Api>,
    Path(id): Path<String>,
) -> Result<Json<view::RestoredJob>, ApiError> {
    let id = id.parse::<JobId>()?;
    api.quell.dead().restore(id).await?;
    Ok(Json(view::RestoredJob { job: id, restored: true }))
}
