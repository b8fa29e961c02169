//! The result of a job, for callers that wait for it (R19).

use std::time::Duration;

use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use axum::{Extension, Json};
use quell::{JobId, JobResult};

use super::Api;
use super::auth::Access;
use super::error::{ApiError, Refused};
use super::jobs::{Pairs, Parameters};
use super::objects;
use crate::access::Right;
use crate::config::duration;
use crate::view;

/// The longest that one request waits: shorter than the bound on requests.
const MAX_WAIT: Duration = Duration::from_secs(20);

/// `GET /v1/jobs/{id}/result?wait=`: responds when the job has ended, or the time is over.
#[utoipa::path(
    get,
    path = "/v1/jobs/{id}/result",
    tag = "jobs",
    operation_id = "results_result",
    summary = "The result of a job: at once, or when it has ended.",
    description = "A token needs the scope `trigger` for the job's task, or `read` and `payload`.",
    params(
        ("id" = String, Path, description = "The job."),
        ("wait" = Option<String>, Query, description = "Wait until it has ended, but no longer than this, such as `10s`; at most 20 s."),
    ),
    responses((status = 200, body = view::ResultOfJob, description = "Done."), Refused),
)]
pub(super) async fn result(
    State(api): State<Api>,
    Extension(access): Extension<Access>,
    Path(id): Path<String>,
    query: Result<Query<Pairs>, QueryRejection>,
) -> Result<Json<view::ResultOfJob>, ApiError> {
    let mut query = Parameters::read(query)?;
    let wait = query.take("wait", |text| wait(&text))?;
    query.end()?;
    let id = id.parse::<JobId>()?;
    objects::result(&api, access.grant(), id).await?;
    let wait = wait.unwrap_or_default();
    let _place = api.pull.place(wait)?;
    let result = api.quell.result(id, wait).await?;
    Ok(Json(view::ResultOfJob::from(&shown(&api, &access, result).await?)))
}

/// A result as its caller may see it: who may trigger the task gets what it returns, others what its rules leave.
async fn shown(api: &Api, access: &Access, mut result: JobResult) -> Result<JobResult, ApiError> {
    if api.rules.is_empty() || access.grant().has(Right::Admin) {
        return Ok(result);
    }
    let Some(mut job) = api.quell.job(result.job).await? else { return Ok(result) };
    if !access.grant().triggers(&job.task) && api.rules.of(&job.task).is_some() {
        api.rules.jobs([&mut job], true);
        (result.output, result.error) = (job.output, job.error);
    }
    Ok(result)
}

fn wait(text: &str) -> quell::Result<Duration> {
    let wait = duration::parse(text).map_err(|message| quell::Error::invalid("wait", message))?;
    if wait > MAX_WAIT {
        let message = format!("wait is longer than {MAX_WAIT:?}, the limit: repeat the request");
        return Err(quell::Error::invalid("wait", message));
    }
    Ok(wait)
}
