//! `GET /v1/tasks/{task}/habits`: how long attempts of a task take, and which of its keys are triggered most.

use axum::extract::{Path, State};
use axum::{Extension, Json};
use quell::TaskName;

use super::Api;
use super::auth::Access;
use super::error::{ApiError, Refused};
use super::what_if::remedy_for_single;
use crate::recent::Recent;
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
    let (grant, of) = (access.grant().clone(), task.clone());
    let read = move |recent: &Recent| recent.habits(&of, |queue| grant.sees(queue, &of));
    let habits = api.overviews.read_record(read).await?;
    let (keys, single) = habits.keys;
    let remedies = remedy_for_single(keys, single).into_iter().collect();
    Ok(Json(view::TaskHabits::new(task, habits, remedies)))
}
