//! Queues as operators set them, live (R31–R33).

use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::{Extension, Json};
use quell::QueueName;
use quell::queue::{QueueInfo, QueueSettings};
use serde::Deserialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::Api;
use super::auth::Access;
use super::body::{JsonBody, malformed, parse};
use super::error::{ApiError, Refused};
use super::etag::{self, Tagged, tagged};
use super::jobs::Pairs;
use super::names::Names;
use super::objects;
use crate::config::queues::{QueueText, patched};
use crate::view;

/// Who pauses a queue or a task.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Pause {
    /// A name of at most 255 bytes, which lists and explanations show.
    pub(super) by: Option<String>,
}

impl Pause {
    pub(super) fn read(body: JsonBody) -> Result<Self, ApiError> {
        let body = body.read_if_any()?;
        Ok(body.as_deref().map(parse::<Pause>).transpose()?.unwrap_or_default())
    }
}

/// `GET /v1/queues`.
#[utoipa::path(
    get,
    path = "/v1/queues",
    tag = "queues",
    operation_id = "queues_list",
    summary = "List the queues that were set or had a trigger.",
    description = "In the order of their names.",
    params(
        ("name" = Option<String>, Query, description = "Only those with this text in their name."),
        ("after" = Option<String>, Query, description = "Only names after this one: `next_after` of the page before."),
        ("limit" = Option<u32>, Query, description = "At most this many, up to 200; all without it."),
    ),
    responses((status = 200, body = view::Queues, description = "Done."), Refused),
)]
pub(super) async fn list(
    State(api): State<Api>,
    Extension(access): Extension<Access>,
    query: Result<Query<Pairs>, QueryRejection>,
) -> Result<Json<view::Queues>, ApiError> {
    let names = Names::read(query)?;
    let mut queues = api.quell.queues().await?;
    queues.retain(|info| objects::queue(access.grant(), info));
    queues.sort_by(|a, b| a.name.cmp(&b.name));
    let (page, next_after) = names.page(&queues, |info| info.name.as_str());
    Ok(Json(view::Queues { queues: page.into_iter().map(view::Queue::from).collect(), next_after }))
}

/// `GET /v1/queues/{name}`.
#[utoipa::path(
    get,
    path = "/v1/queues/{name}",
    tag = "queues",
    operation_id = "queues_show",
    summary = "Show the settings of a queue.",
    description = "",
    params(
        ("name" = String, Path, description = "The queue."),
    ),
    responses(
        (status = 200, body = view::Queue, description = "Done.",
            headers(("etag" = String, description = "For `If-Match`."))),
        Refused,
    ),
)]
pub(super) async fn show(
    State(api): State<Api>,
    Path(name): Path<String>,
) -> Result<Tagged<view::Queue>, ApiError> {
    let name = QueueName::new(name)?;
    let settings = known(&api, &name).await?;
    Ok(tagged(shown(&name, settings)))
}

/// `GET /v1/queues/{name}/partitions`.
#[utoipa::path(
    get,
    path = "/v1/queues/{name}/partitions",
    tag = "queues",
    operation_id = "queues_partitions",
    summary = "List the partitions of a queue with the most waiting jobs.",
    description = "At most 50 partitions, from at most 10,000 waiting jobs: of a longer backlog those that \
                   are due first, of each task and priority. `whole` is false then.",
    params(
        ("name" = String, Path, description = "The queue."),
    ),
    responses((status = 200, body = view::Partitions, description = "Done."), Refused),
)]
pub(super) async fn partitions(
    State(api): State<Api>,
    Extension(access): Extension<Access>,
    Path(name): Path<String>,
) -> Result<Json<view::Partitions>, ApiError> {
    let name = QueueName::new(name)?;
    // Partitions are of all tasks of the queue.
    if !access.grant().limits().tasks.is_empty() {
        let message =
            "the token is limited to some tasks, and the queue's partitions have others, too";
        return Err(ApiError::new(StatusCode::FORBIDDEN, "authorization", message));
    }
    known(&api, &name).await?;
    let backlog = api.quell.queue(name.as_str()).backlog().await?;
    Ok(Json(view::Partitions::from(&backlog)))
}

/// `PUT /v1/queues/{name}`: these settings and no others.
#[utoipa::path(
    put,
    path = "/v1/queues/{name}",
    tag = "queues",
    operation_id = "queues_put",
    summary = "Replace all settings of a queue; a missing one is made.",
    description = "",
    params(
        ("name" = String, Path, description = "The queue."),
        ("if-match" = Option<String>, Header, description = "The tag of the settings to change."),
    ),
    request_body = QueueText,
    responses(
        (status = 200, body = view::Queue, description = "Done.",
            headers(("etag" = String, description = "For `If-Match`."))),
        Refused,
    ),
)]
pub(super) async fn put(
    State(api): State<Api>,
    Path(name): Path<String>,
    headers: HeaderMap,
    body: JsonBody,
) -> Result<Tagged<view::Queue>, ApiError> {
    let body = body.read()?;
    let fields: Map<String, Value> = parse(&body)?;
    let text = patched(&QueueSettings::default(), fields).map_err(|e| malformed(".", &e))?;
    let (name, settings) = (QueueName::new(name)?, text.settings()?);
    let queue = api.quell.queue(name.as_str());
    if etag::is_asked(&headers) {
        let known = queue.settings().await?;
        etag::check(&headers, known.clone().map(|known| shown(&name, known)).as_ref())?;
        if !queue.replace(known.as_ref(), &settings).await? {
            return Err(etag::changed());
        }
    } else {
        queue.set(&settings).await?;
    }
    kept(&api, &name, settings).await
}

/// `PATCH /v1/queues/{name}`: the fields that are given; null takes one away.
#[utoipa::path(
    patch,
    path = "/v1/queues/{name}",
    tag = "queues",
    operation_id = "queues_patch",
    summary = "Change the settings that are given; null removes one.",
    description = "",
    params(
        ("name" = String, Path, description = "The queue."),
        ("if-match" = Option<String>, Header, description = "The tag of the settings to change."),
    ),
    request_body = QueueText,
    responses(
        (status = 200, body = view::Queue, description = "Done.",
            headers(("etag" = String, description = "For `If-Match`."))),
        Refused,
    ),
)]
pub(super) async fn patch(
    State(api): State<Api>,
    Path(name): Path<String>,
    headers: HeaderMap,
    body: JsonBody,
) -> Result<Tagged<view::Queue>, ApiError> {
    let body = body.read()?;
    let patch: Map<String, Value> = parse(&body)?;
    change(&api, &QueueName::new(name)?, &headers, |settings| {
        let text = patched(&settings, patch.clone()).map_err(|e| malformed(".", &e))?;
        Ok(text.settings()?)
    })
    .await
}

/// `DELETE /v1/queues/{name}`: nothing starts until it is set again (R32).
#[utoipa::path(
    delete,
    path = "/v1/queues/{name}",
    tag = "queues",
    operation_id = "queues_delete",
    summary = "Remove the settings of a queue: nothing of it starts until it is set again.",
    description = "",
    params(
        ("name" = String, Path, description = "The queue."),
        ("if-match" = Option<String>, Header, description = "The tag of the settings to change."),
    ),
    responses((status = 200, body = view::DeletedQueue, description = "Done."), Refused),
)]
pub(super) async fn delete(
    State(api): State<Api>,
    Path(name): Path<String>,
    headers: HeaderMap,
) -> Result<Json<view::DeletedQueue>, ApiError> {
    let name = QueueName::new(name)?;
    etag::check(&headers, Some(&shown(&name, known(&api, &name).await?)))?;
    if api.quell.store().delete_queue(None, &name).await? {
        Ok(Json(view::DeletedQueue { queue: name, deleted: true }))
    } else {
        Err(no_queue())
    }
}

/// `POST /v1/queues/{name}/pause` (R33).
#[utoipa::path(
    post,
    path = "/v1/queues/{name}/pause",
    tag = "queues",
    operation_id = "queues_pause",
    summary = "Let nothing of a queue start.",
    description = "",
    params(
        ("name" = String, Path, description = "The queue."),
    ),
    request_body(content = Option<Pause>, description = "Who pauses it. No body names no one."),
    responses(
        (status = 200, body = view::Queue, description = "Done.",
            headers(("etag" = String, description = "For `If-Match`."))),
        Refused,
    ),
)]
pub(super) async fn pause(
    State(api): State<Api>,
    Path(name): Path<String>,
    headers: HeaderMap,
    body: JsonBody,
) -> Result<Tagged<view::Queue>, ApiError> {
    set_paused(&api, name, &headers, (true, Pause::read(body)?.by)).await
}

/// `POST /v1/queues/{name}/resume` (R33).
#[utoipa::path(
    post,
    path = "/v1/queues/{name}/resume",
    tag = "queues",
    operation_id = "queues_resume",
    summary = "Let a paused queue go on.",
    description = "",
    params(
        ("name" = String, Path, description = "The queue."),
    ),
    responses(
        (status = 200, body = view::Queue, description = "Done.",
            headers(("etag" = String, description = "For `If-Match`."))),
        Refused,
    ),
)]
pub(super) async fn resume(
    State(api): State<Api>,
    Path(name): Path<String>,
    headers: HeaderMap,
) -> Result<Tagged<view::Queue>, ApiError> {
    set_paused(&api, name, &headers, (false, None)).await
}

async fn set_paused(
    api: &Api,
    name: String,
    headers: &HeaderMap,
    (paused, by): (bool, Option<String>),
) -> Result<Tagged<view::Queue>, ApiError> {
    let name = QueueName::new(name)?;
    let paused = |settings| {
        let paused_by = by.clone();
        Ok(QueueSettings { paused, paused_by, ..settings })
    };
    change(api, &name, headers, paused).await
}

/// Changes the settings that are there, in one step: what others change meanwhile stays, or is
/// refused where the request has a tag.
async fn change(
    api: &Api,
    name: &QueueName,
    headers: &HeaderMap,
    change: impl Fn(QueueSettings) -> Result<QueueSettings, ApiError>,
) -> Result<Tagged<view::Queue>, ApiError> {
    known(api, name).await?;
    let checked = |settings: QueueSettings| {
        etag::check(headers, Some(&shown(name, settings.clone())))?;
        change(settings)
    };
    let settings = api.quell.queue(name.as_str()).change(checked).await?;
    kept(api, name, settings).await
}

/// What a change answers: of a paused queue, what the store has on record of the pause, too.
async fn kept(
    api: &Api,
    name: &QueueName,
    settings: QueueSettings,
) -> Result<Tagged<view::Queue>, ApiError> {
    let settings = if settings.paused { known(api, name).await? } else { settings };
    Ok(tagged(shown(name, settings)))
}

async fn known(api: &Api, name: &QueueName) -> Result<QueueSettings, ApiError> {
    api.quell.queue(name.as_str()).settings().await?.ok_or_else(no_queue)
}

fn no_queue() -> ApiError {
    ApiError::not_found("queue", "no such queue: set it first")
}

fn shown(name: &QueueName, settings: QueueSettings) -> view::Queue {
    view::Queue::from(&QueueInfo::new(name.clone(), settings))
}
