//! `GET /v1/tasks/{task}/habits`: how long attempts of a task take, and which of its keys are triggered most.

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::{Extension, Json};
use quell::TaskName;
use tokio::task::JoinError;

use super::Api;
use super::auth::Access;
use super::error::{ApiError, Refused};
use super::what_if::remedy_for_single;
use crate::view;

/// `GET /v1/tasks/{task}/habits`.
#[utoipa::path(
    get,
    path = "/v1/tasks/{task}/habits",
    tag = "tasks",
    operation_id = "tasks_habits",
    summary = "Show what is typical of a task: how long its attempts take, and its busiest keys.",
    description = "By all that this server has in its record: what other processes accepted or ran is not in it.",
    params(
        ("task" = String, Path, description = "The task."),
    ),
    responses((status = 200, body = view::TaskHabits, description = "Done."), Refused),
)]
pub(super) async fn show(
    State(api): State<Api>,
    Extension(access): Extension<Access>,
    Path(task): Path<String>,
) -> Result<Json<view::TaskHabits>, ApiError> {
    let task = TaskName::new(task)?;
    let (recent, grant) = (api.overviews.recent().clone(), access.grant().clone());
    let of = task.clone();
    let permit = api.overviews.permit().await?;
    let reading = tokio::task::spawn_blocking(move || {
        let _permit = permit;
        recent.habits(&of, |queue| grant.sees(queue, &of))
    });
    let failed = |error: JoinError| {
        ApiError::internal(StatusCode::INTERNAL_SERVER_ERROR, "internal", &error)
    };
    let habits = reading.await.map_err(failed)?;
    let (keys, single) = habits.keys;
    let remedies = remedy_for_single(keys, single).into_iter().collect();
    Ok(Json(view::TaskHabits::new(task, habits, remedies)))
}
