//! Reading jobs, and what an operator does to one.

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use quell::{
    ExplainTarget, Explanation, JobFilter, JobId, JobState, Key, QueueName, TaskName, TriggerId,
};
use serde::Deserialize;
use serde_json::{Value, json};

use super::Api;
use super::error::ApiError;
use crate::view;

/// `GET /v1/jobs?task=&queue=&state=&key=&before=&limit=`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Listing {
    task: Option<TaskName>,
    queue: Option<QueueName>,
    state: Option<JobState>,
    key: Option<Key>,
    before: Option<JobId>,
    limit: Option<usize>,
}

pub(super) async fn list(
    State(api): State<Api>,
    query: Result<Query<Listing>, QueryRejection>,
) -> Result<Json<Value>, ApiError> {
    let Query(query) = query.map_err(bad_query)?;
    if query.limit.is_some_and(|limit| !(1..=JobFilter::MAX_PAGE).contains(&limit)) {
        let message = format!("limit must be from 1 to {}", JobFilter::MAX_PAGE);
        return Err(ApiError::invalid("limit", message));
    }
    let filter = JobFilter {
        task: query.task,
        queue: query.queue,
        state: query.state,
        key: query.key,
        before: query.before,
        limit: query.limit.unwrap_or_default(),
    };
    let jobs = api.quell.store().jobs(&filter).await?;
    let full = jobs.len() == filter.page();
    let next = jobs.last().filter(|_| full).map(|job| job.id);
    let shown: Vec<Value> = jobs.iter().map(view::job).collect();
    Ok(Json(json!({ "jobs": shown, "next_before": next })))
}

fn bad_query(rejection: QueryRejection) -> ApiError {
    ApiError::invalid("query", rejection.body_text())
}

/// `GET /v1/jobs/{id}`.
pub(super) async fn show(
    State(api): State<Api>,
    Path(id): Path<String>,
) -> Result<Json<Value>, ApiError> {
    told(&api, ExplainTarget::Job(id.parse::<JobId>()?)).await
}

/// `GET /v1/explain?id=` or `?key=&task=` (R15).
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Asked {
    id: Option<String>,
    key: Option<Key>,
    task: Option<TaskName>,
}

pub(super) async fn explain(
    State(api): State<Api>,
    query: Result<Query<Asked>, QueryRejection>,
) -> Result<Json<Value>, ApiError> {
    let Query(asked) = query.map_err(bad_query)?;
    let target = match (asked.id, asked.key) {
        (Some(id), None) => match id.parse::<TriggerId>() {
            Ok(trigger) => ExplainTarget::Trigger(trigger),
            Err(_) => ExplainTarget::Job(id.parse()?),
        },
        (None, Some(key)) => ExplainTarget::Key { task: asked.task, key },
        (Some(_), Some(_)) | (None, None) => {
            return Err(ApiError::invalid("id", "give an id or a key"));
        }
    };
    told(&api, target).await
}

async fn told(api: &Api, target: ExplainTarget) -> Result<Json<Value>, ApiError> {
    let told: Option<Explanation> = api.quell.store().explain(&target).await?;
    let told = told.ok_or_else(|| {
        ApiError::not_found("id", "nothing is known of it: it never was, or was removed")
    })?;
    Ok(Json(view::explanation(&told)))
}

/// `POST /v1/jobs/{id}/cancel`.
pub(super) async fn cancel(
    State(api): State<Api>,
    Path(id): Path<String>,
) -> Result<Json<Value>, ApiError> {
    let id = id.parse::<JobId>()?;
    api.quell.store().cancel(None, id, "cancelled over HTTP").await?;
    Ok(Json(json!({ "job": id, "state": "cancelled" })))
}

/// `POST /v1/jobs/{id}/redrive` (R26).
pub(super) async fn redrive(
    State(api): State<Api>,
    Path(id): Path<String>,
) -> Result<Json<Value>, ApiError> {
    let id = id.parse::<JobId>()?;
    let became = api.quell.store().redrive(None, id).await?;
    Ok(Json(json!({ "job": id, "became": became })))
}
