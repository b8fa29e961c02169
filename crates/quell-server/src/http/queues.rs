//! Queues and tasks as operators set them, live (R31–R33).

use axum::Json;
use axum::extract::{Path, State};
use quell::queue::{QueueInfo, QueueSettings, TaskSettings};
use quell::{QueueName, TaskName};
use serde_json::{Map, Value};

use super::Api;
use super::body::{JsonBody, malformed, parse};
use super::error::{ApiError, Refused};
use crate::config::queues::{QueueText, patched};
use crate::view;

/// `GET /v1/queues`.
#[utoipa::path(
    get,
    path = "/v1/queues",
    tag = "queues",
    operation_id = "queues_list",
    summary = "List the queues that were set or had a trigger.",
    description = "",
    responses((status = 200, body = view::Queues, description = "Done."), Refused),
)]
pub(super) async fn list(State(api): State<Api>) -> Result<Json<view::Queues>, ApiError> {
    let queues = api.quell.queues().await?;
    Ok(Json(view::Queues { queues: queues.iter().map(view::Queue::from).collect() }))
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
    responses((status = 200, body = view::Queue, description = "Done."), Refused),
)]
pub(super) async fn show(
    State(api): State<Api>,
    Path(name): Path<String>,
) -> Result<Json<view::Queue>, ApiError> {
    let name = QueueName::new(name)?;
    let settings = known(&api, &name).await?;
    Ok(Json(view::Queue::from(&QueueInfo::new(name, settings))))
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
    ),
    request_body = QueueText,
    responses((status = 200, body = view::Queue, description = "Done."), Refused),
)]
pub(super) async fn put(
    State(api): State<Api>,
    Path(name): Path<String>,
    body: JsonBody,
) -> Result<Json<view::Queue>, ApiError> {
    let body = body.read()?;
    let fields: Map<String, Value> = parse(&body)?;
    let text = patched(&QueueSettings::default(), fields).map_err(|e| malformed(".", &e))?;
    set(&api, &QueueName::new(name)?, text.settings()?).await
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
    ),
    request_body = QueueText,
    responses((status = 200, body = view::Queue, description = "Done."), Refused),
)]
pub(super) async fn patch(
    State(api): State<Api>,
    Path(name): Path<String>,
    body: JsonBody,
) -> Result<Json<view::Queue>, ApiError> {
    let body = body.read()?;
    let patch: Map<String, Value> = parse(&body)?;
    let name = QueueName::new(name)?;
    let text = patched(&known(&api, &name).await?, patch).map_err(|e| malformed(".", &e))?;
    set(&api, &name, text.settings()?).await
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
    ),
    responses((status = 200, body = view::DeletedQueue, description = "Done."), Refused),
)]
pub(super) async fn delete(
    State(api): State<Api>,
    Path(name): Path<String>,
) -> Result<Json<view::DeletedQueue>, ApiError> {
    let name = QueueName::new(name)?;
    if api.quell.store().delete_queue(&name).await? {
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
    responses((status = 200, body = view::Queue, description = "Done."), Refused),
)]
pub(super) async fn pause(
    State(api): State<Api>,
    Path(name): Path<String>,
) -> Result<Json<view::Queue>, ApiError> {
    set_paused(&api, name, true).await
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
    responses((status = 200, body = view::Queue, description = "Done."), Refused),
)]
pub(super) async fn resume(
    State(api): State<Api>,
    Path(name): Path<String>,
) -> Result<Json<view::Queue>, ApiError> {
    set_paused(&api, name, false).await
}

async fn set_paused(api: &Api, name: String, paused: bool) -> Result<Json<view::Queue>, ApiError> {
    let name = QueueName::new(name)?;
    let settings = known(api, &name).await?;
    set(api, &name, QueueSettings { paused, ..settings }).await
}

async fn known(api: &Api, name: &QueueName) -> Result<QueueSettings, ApiError> {
    api.quell.queue(name.as_str()).settings().await?.ok_or_else(no_queue)
}

fn no_queue() -> ApiError {
    ApiError::not_found("queue", "no such queue: set it first")
}

async fn set(
    api: &Api,
    name: &QueueName,
    settings: QueueSettings,
) -> Result<Json<view::Queue>, ApiError> {
    api.quell.store().set_queue(name, &settings).await?;
    Ok(Json(view::Queue::from(&quell::queue::QueueInfo { name: name.clone(), settings })))
}

/// `GET /v1/tasks`: those that the store knows or this server declares.
#[utoipa::path(
    get,
    path = "/v1/tasks",
    tag = "tasks",
    operation_id = "queues_tasks",
    summary = "List the tasks and whether they are paused.",
    description = "",
    responses((status = 200, body = view::Tasks, description = "Done."), Refused),
)]
pub(super) async fn tasks(State(api): State<Api>) -> Result<Json<view::Tasks>, ApiError> {
    let known = api.quell.tasks().await?;
    let mut settings: std::collections::BTreeMap<TaskName, TaskSettings> =
        api.tasks.keys().map(|name| (name.clone(), TaskSettings::default())).collect();
    settings.extend(known.into_iter().map(|task| (task.name, task.settings)));
    let shown = settings.iter().map(|(name, set)| show_task(name, set)).collect();
    Ok(Json(view::Tasks { tasks: shown }))
}

/// `POST /v1/tasks/{task}/pause` (R33).
#[utoipa::path(
    post,
    path = "/v1/tasks/{task}/pause",
    tag = "tasks",
    operation_id = "queues_pause_task",
    summary = "Let no attempt of a task start, in any queue.",
    description = "",
    params(
        ("task" = String, Path, description = "The task."),
    ),
    responses((status = 200, body = view::Task, description = "Done."), Refused),
)]
pub(super) async fn pause_task(
    State(api): State<Api>,
    Path(task): Path<String>,
) -> Result<Json<view::Task>, ApiError> {
    set_task(&api, &task, TaskSettings { paused: true }).await
}

/// `POST /v1/tasks/{task}/resume` (R33).
#[utoipa::path(
    post,
    path = "/v1/tasks/{task}/resume",
    tag = "tasks",
    operation_id = "queues_resume_task",
    summary = "Let a paused task go on.",
    description = "",
    params(
        ("task" = String, Path, description = "The task."),
    ),
    responses((status = 200, body = view::Task, description = "Done."), Refused),
)]
pub(super) async fn resume_task(
    State(api): State<Api>,
    Path(task): Path<String>,
) -> Result<Json<view::Task>, ApiError> {
    set_task(&api, &task, TaskSettings { paused: false }).await
}

async fn set_task(
    api: &Api,
    task: &str,
    settings: TaskSettings,
) -> Result<Json<view::Task>, ApiError> {
    let name = TaskName::new(task)?;
    let known = api.tasks.contains_key(&name)
        || api.quell.tasks().await?.iter().any(|known| known.name == name);
    if !known {
        // A typo would pause nothing and look as if it had.
        return Err(ApiError::not_found(
            "task",
            "no such task in the store or in this server's configuration",
        ));
    }
    api.quell.store().set_task(&name, &settings).await?;
    Ok(Json(show_task(&name, &settings)))
}

fn show_task(name: &TaskName, settings: &TaskSettings) -> view::Task {
    view::Task { name: name.clone(), paused: settings.paused }
}
