//! Tasks as operators set them, live (R14, R33): pauses and thresholds.

use std::collections::BTreeMap;

use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use axum::http::HeaderMap;
use axum::{Extension, Json};
use quell::queue::{TaskInfo, TaskSettings};
use quell::{Edge, TaskName};
use serde_json::{Map, Value};

use super::Api;
use super::auth::Access;
use super::body::{JsonBody, malformed, parse};
use super::error::{ApiError, Refused};
use super::etag::{self, Tagged, tagged};
use super::jobs::Pairs;
use super::names::Names;
use super::objects;
use super::queues::Pause;
use crate::config::task_settings::{TaskText, patched};
use crate::view;

/// `GET /v1/tasks`: those that the store knows or this server declares.
#[utoipa::path(
    get,
    path = "/v1/tasks",
    tag = "tasks",
    operation_id = "queues_tasks",
    summary = "List the tasks with their settings.",
    description = "In the order of their names.",
    params(
        ("name" = Option<String>, Query, description = "Only those with this text in their name."),
        ("after" = Option<String>, Query, description = "Only names after this one: `next_after` of the page before."),
        ("limit" = Option<u32>, Query, description = "At most this many, up to 200; all without it."),
    ),
    responses((status = 200, body = view::Tasks, description = "Done."), Refused),
)]
pub(super) async fn list(
    State(api): State<Api>,
    Extension(access): Extension<Access>,
    query: Result<Query<Pairs>, QueryRejection>,
) -> Result<Json<view::Tasks>, ApiError> {
    let names = Names::read(query)?;
    let mut tasks = all(&api).await?;
    tasks.retain(|name, _| objects::sees_declared(&api, access.grant(), name));
    let (page, next_after) = names.page(&tasks, |(name, _)| name.as_str());
    let shown = page.into_iter().map(|(name, settings)| show_one(name, settings)).collect();
    Ok(Json(view::Tasks { tasks: shown, next_after }))
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

/// `PUT /v1/tasks/{task}`: these settings and no others.
#[utoipa::path(
    put,
    path = "/v1/tasks/{task}",
    tag = "tasks",
    operation_id = "tasks_put",
    summary = "Replace all settings of a task.",
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
    let fields: Map<String, Value> = parse(&body)?;
    let text = patched(&TaskSettings::default(), fields).map_err(|e| malformed(".", &e))?;
    let settings = text.settings()?;
    change(&api, &task, &headers, |_| Ok(settings.clone())).await
}

/// `PATCH /v1/tasks/{task}`: the fields that are given; null takes one away (R14).
#[utoipa::path(
    patch,
    path = "/v1/tasks/{task}",
    tag = "tasks",
    operation_id = "tasks_patch",
    summary = "Change the settings of a task that are given; null removes one.",
    description = "",
    params(
        ("task" = String, Path, description = "The task."),
        ("if-match" = Option<String>, Header, description = "The tag of the settings to change."),
    ),
    request_body = TaskText,
    responses(
        (status = 200, body = view::Task, description = "Done.",
            headers(("etag" = String, description = "For `If-Match`."))),
        Refused,
    ),
)]
pub(super) async fn patch(
    State(api): State<Api>,
    Path(task): Path<String>,
    headers: HeaderMap,
    body: JsonBody,
) -> Result<Tagged<view::Task>, ApiError> {
    let body = body.read()?;
    let patch: Map<String, Value> = parse(&body)?;
    change(&api, &task, &headers, |known| {
        let text = patched(&known, patch.clone()).map_err(|e| malformed(".", &e))?;
        let TaskSettings { paused, debounce, .. } = text.settings()?;
        Ok(TaskSettings { paused, debounce, ..known })
    })
    .await
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
    let pause = |known| {
        let paused_by = by.clone();
        Ok(TaskSettings { paused: true, paused_by, ..known })
    };
    change(&api, &task, &headers, pause).await
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
    change(&api, &task, &headers, |known| Ok(TaskSettings { paused: false, ..known })).await
}

/// Changes the settings that are there, in one step: what others change meanwhile stays, or is refused
/// where the request has a tag.
async fn change(
    api: &Api,
    task: &str,
    headers: &HeaderMap,
    change: impl Fn(TaskSettings) -> Result<TaskSettings, ApiError>,
) -> Result<Tagged<view::Task>, ApiError> {
    let name = TaskName::new(task)?;
    // A typo would pause nothing and look as if it had.
    known(api, &name).await?;
    let checked = |settings: TaskSettings| {
        etag::check(headers, Some(&show_one(&name, &settings)))?;
        let wanted = change(settings.clone())?;
        if wanted.debounce != settings.debounce {
            check_thresholds(api, &name, &wanted)?;
        }
        Ok::<_, ApiError>(wanted)
    };
    api.quell.change_task(&name, checked).await?;
    let known = known(api, &name).await?;
    Ok(tagged(show_one(&name, &known)))
}

/// Refuses thresholds of a task that has a period in their place.
fn check_thresholds(api: &Api, task: &TaskName, wanted: &TaskSettings) -> Result<(), ApiError> {
    let declared = api.tasks.get(task).map(|declared| declared.checked.debounce());
    match declared.filter(|declared| declared.edge == Edge::Throttle) {
        Some(_) if wanted.debounce.is_some() => {
            let message = format!(
                "task {task} is throttled, so min and max have no effect: change `throttle` in its declaration"
            );
            Err(ApiError::invalid("debounce", message))
        }
        Some(_) | None => Ok(()),
    }
}

async fn known(api: &Api, name: &TaskName) -> Result<TaskSettings, ApiError> {
    if api.tasks.contains_key(name) {
        return Ok(api.quell.task_settings(name).await?);
    }
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
