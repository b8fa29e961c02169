//! Tasks as operators set them, live (R33).

use std::collections::BTreeMap;

use axum::extract::{Path, State};
use axum::http::HeaderMap;
use axum::{Extension, Json};
use quell::TaskName;
use quell::queue::{TaskInfo, TaskSettings};
use serde::Deserialize;
use utoipa::ToSchema;

use super::Api;
use super::auth::Access;
use super::body::{JsonBody, parse};
use super::error::{ApiError, Refused};
use super::etag::{self, Tagged, tagged};
use super::objects;
use super::queues::Pause;
use crate::view;

/// Settings of a task.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = TaskSettings)]
struct TaskText {
    /// Whether nothing of it starts.
    paused: bool,
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
pub(super) async fn list(
    State(api): State<Api>,
    Extension(access): Extension<Access>,
) -> Result<Json<view::Tasks>, ApiError> {
    let mut tasks = all(&api).await?;
    tasks.retain(|name, _| objects::sees_declared(&api, access.grant(), name));
    let shown = tasks.iter().map(|(name, settings)| show_one(name, settings)).collect();
    Ok(Json(view::Tasks { tasks: shown }))
}

/// `GET /v1/tasks/{task}`.
#[utoipa::path(
    get,
    path = "/v1/tasks/{task}",
    tag = "tasks",
    operation_id = "tasks_show",
    summary = "Show the settings of a task.",
    description = "",
    params(
        ("task" = String, Path, description = "The task."),
    ),
    responses(
        (status = 200, body = view::Task, description = "Done.",
            headers(("etag" = String, description = "For `If-Match`."))),
        Refused,
    ),
)]
pub(super) async fn show(
    State(api): State<Api>,
    Path(task): Path<String>,
) -> Result<Tagged<view::Task>, ApiError> {
    let name = TaskName::new(task)?;
    let settings = known(&api, &name).await?;
    Ok(tagged(show_one(&name, &settings)))
}

/// `PUT /v1/tasks/{task}`.
#[utoipa::path(
    put,
    path = "/v1/tasks/{task}",
    tag = "tasks",
    operation_id = "tasks_put",
    summary = "Replace the settings of a task.",
    description = "",
    params(
        ("task" = String, Path, description = "The task."),
        ("if-match" = Option<String>, Header, description = "The tag of the settings to replace."),
    ),
    request_body = TaskText,
    responses(
        (status = 200, body = view::Task, description = "Done.",
            headers(("etag" = String, description = "For `If-Match`."))),
        Refused,
    ),
)]
pub(super) async fn put(
    State(api): State<Api>,
    Path(task): Path<String>,
    headers: HeaderMap,
    body: JsonBody,
) -> Result<Tagged<view::Task>, ApiError> {
    let body = body.read()?;
    let TaskText { paused } = parse(&body)?;
    set(&api, &task, &headers, TaskSettings::default().paused(paused)).await
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
    request_body(content = Option<Pause>, description = "Who pauses it. No body names no one."),
    responses((status = 200, body = view::Task, description = "Done."), Refused),
)]
pub(super) async fn pause(
    State(api): State<Api>,
    Path(task): Path<String>,
    headers: HeaderMap,
    body: JsonBody,
) -> Result<Tagged<view::Task>, ApiError> {
    let by = Pause::read(body)?.by;
    set(&api, &task, &headers, TaskSettings::default().paused(true).paused_by(by)).await
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
pub(super) async fn resume(
    State(api): State<Api>,
    Path(task): Path<String>,
    headers: HeaderMap,
) -> Result<Tagged<view::Task>, ApiError> {
    set(&api, &task, &headers, TaskSettings::default()).await
}

/// Sets a task. A tag is compared before the settings are written, and not in one step: with a single
/// setting, the later caller wins either way.
async fn set(
    api: &Api,
    task: &str,
    headers: &HeaderMap,
    settings: TaskSettings,
) -> Result<Tagged<view::Task>, ApiError> {
    let name = TaskName::new(task)?;
    // A typo would pause nothing and look as if it had.
    let there = known(api, &name).await?;
    etag::check(headers, Some(&show_one(&name, &there)))?;
    api.quell.set_task(&name, &settings).await?;
    let known = known(api, &name).await?;
    Ok(tagged(show_one(&name, &known)))
}

async fn known(api: &Api, name: &TaskName) -> Result<TaskSettings, ApiError> {
    let message = "no such task in the store or in this server's configuration";
    let mut tasks = all(api).await?;
    tasks.remove(name).ok_or_else(|| ApiError::not_found("task", message))
}

async fn all(api: &Api) -> Result<BTreeMap<TaskName, TaskSettings>, ApiError> {
    let known = api.quell.tasks().await?;
    let declared = api.tasks.keys().map(|name| (name.clone(), TaskSettings::default()));
    let mut all: BTreeMap<TaskName, TaskSettings> = declared.collect();
    all.extend(known.into_iter().map(|task| (task.name, task.settings)));
    Ok(all)
}

fn show_one(name: &TaskName, settings: &TaskSettings) -> view::Task {
    view::Task::from(&TaskInfo::new(name.clone(), settings.clone()))
}
