//! Reading jobs, and what an operator does to one.

use super::Api;
use super::auth::Access;
use super::body::{JsonBody, parse};
use super::error::{ApiError, Refused};
use super::explain::explanation;
use super::objects;
use super::triggers::known_task;
use crate::access::Right;
use crate::filter::FilterText;
use crate::view;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use axum::{Extension, Json};
use quell::job::{Adjusted, Adjustment, ExplainTarget, JobFilter, JobSearch};
use quell::{JobId, JobState};
use serde::Deserialize;
use utoipa::ToSchema;

/// `GET /v1/jobs?task=&queue=&state=&key=&partition=&error=&age=&late=&before=&limit=&payload=`.
#[utoipa::path(
    get,
    path = "/v1/jobs",
    tag = "jobs",
    operation_id = "jobs_list",
    summary = "List jobs, the newest first.",
    description = "A request reads at most 10,000 jobs: a page with few of them, or none, may lead to \
                   a next one.",
    params(
        FilterText,
        ("before" = Option<String>, Query, description = "Only jobs older than this one."),
        ("limit" = Option<u32>, Query, description = "At most this many, up to 200."),
        ("payload" = Option<bool>, Query, description = "Whether payloads and outputs are wanted."),
    ),
    responses((status = 200, body = view::Jobs, description = "Done."), Refused),
)]
pub(super) async fn list(
    State(api): State<Api>,
    Extension(access): Extension<Access>,
    query: Result<Query<Pairs>, QueryRejection>,
) -> Result<Json<view::Jobs>, ApiError> {
    let mut query = Parameters::read(query)?;
    let mut filter = query.take_filter()?;
    objects::narrow(access.grant(), &mut filter)?;
    let mut search = filter.search()?;
    search.filter.before = query.take("before", |text| text.parse::<JobId>())?;
    search.filter.limit = query.take_limit(JobFilter::MAX_PAGE)?.unwrap_or_default();
    let whole = query.take_payload(&access)?;
    query.end()?;
    let mut page = api.quell.search(&search).await?;
    api.rules.jobs(&mut page.jobs, whole);
    Ok(Json(view::Jobs::new(&page, whole)))
}

/// `GET /v1/counts`.
#[utoipa::path(
    get,
    path = "/v1/counts",
    tag = "jobs",
    operation_id = "jobs_counts",
    summary = "Count the jobs by queue, task and state.",
    description = "",
    responses((status = 200, body = view::Counts, description = "Done."), Refused),
)]
pub(super) async fn counts(
    State(api): State<Api>,
    Extension(access): Extension<Access>,
) -> Result<Json<view::Counts>, ApiError> {
    let mut counts = api.quell.counts().await?;
    counts.retain(|count| access.grant().sees(&count.queue, &count.task));
    Ok(Json(view::Counts { counts: counts.iter().map(view::Count::from).collect() }))
}

/// `GET /v1/tasks/{task}/windows?before=&limit=&payload=`.
#[utoipa::path(
    get,
    path = "/v1/tasks/{task}/windows",
    tag = "windows",
    operation_id = "jobs_windows",
    summary = "List the windows of a task that wait, the newest first.",
    description = "",
    params(
        ("task" = String, Path, description = "The task."),
        ("before" = Option<String>, Query, description = "Only windows older than this job."),
        ("limit" = Option<u32>, Query, description = "At most this many, up to 200."),
        ("payload" = Option<bool>, Query, description = "Whether payloads are wanted."),
    ),
    responses((status = 200, body = view::Jobs, description = "Done."), Refused),
)]
pub(super) async fn windows(
    State(api): State<Api>,
    Extension(access): Extension<Access>,
    Path(task): Path<String>,
    query: Result<Query<Pairs>, QueryRejection>,
) -> Result<Json<view::Jobs>, ApiError> {
    let (task, _) = known_task(&api, &task)?;
    let mut query = Parameters::read(query)?;
    let filter = JobFilter {
        task: Some(task),
        state: Some(JobState::Scheduled),
        before: query.take("before", |text| text.parse::<JobId>())?,
        limit: query.take_limit(JobFilter::MAX_PAGE)?.unwrap_or_default(),
        ..JobFilter::default()
    };
    let whole = query.take_payload(&access)?;
    query.end()?;
    let mut page = api.quell.search(&JobSearch { filter, ..JobSearch::default() }).await?;
    api.rules.jobs(&mut page.jobs, whole);
    let mut shown = view::Jobs::new(&page, whole);
    // Jobs without a key are no windows. The page may be shorter for it, and leads to the next all
    // the same.
    shown.jobs.retain(|job| job.key.is_some() && access.grant().sees(&job.queue, &job.task));
    Ok(Json(shown))
}

/// A query string as it came: names may repeat.
pub(super) type Pairs = Vec<(String, String)>;

/// A query string whose parameters must all be taken, once.
pub(super) struct Parameters(Pairs);

impl Parameters {
    pub(super) fn read(query: Result<Query<Pairs>, QueryRejection>) -> Result<Self, ApiError> {
        let Query(pairs) =
            query.map_err(|rejection| ApiError::invalid("query", rejection.body_text()))?;
        Ok(Parameters(pairs))
    }

    pub(super) fn take<T>(
        &mut self,
        name: &str,
        read: impl FnOnce(String) -> quell::Result<T>,
    ) -> Result<Option<T>, ApiError> {
        let Some(at) = self.0.iter().position(|(given, _)| given == name) else { return Ok(None) };
        let (_, text) = self.0.remove(at);
        let value = read(text).map_err(|error| ApiError::invalid(name, error.to_string()))?;
        Ok(Some(value))
    }

    /// How many rows a page has at most: `limit`, from 1 to `max`.
    pub(super) fn take_limit(&mut self, max: usize) -> Result<Option<usize>, ApiError> {
        self.take_number("limit", max)
    }

    /// A number from 1 to `max`.
    pub(super) fn take_number(
        &mut self,
        name: &'static str,
        max: usize,
    ) -> Result<Option<usize>, ApiError> {
        self.take(name, |text| {
            let number = text.parse().ok().filter(|number| (1..=max).contains(number));
            number.ok_or_else(|| {
                quell::Error::invalid(name, format!("{name} must be a number from 1 to {max}"))
            })
        })
    }

    /// The members of a filter of jobs.
    pub(super) fn take_filter(&mut self) -> Result<FilterText, ApiError> {
        let mut filter = FilterText::default();
        for name in FilterText::NAMES {
            let given = self.take(name, Ok)?;
            filter.member(name).into_iter().for_each(|member| member.clone_from(&given));
        }
        Ok(filter)
    }

    /// Whether payloads and outputs are wanted: `payload=true`, which needs the right to see them.
    pub(super) fn take_payload(&mut self, access: &Access) -> Result<bool, ApiError> {
        let wrong = |_| quell::Error::invalid("payload", "payload is true or false");
        let wanted = self.take("payload", |text| text.parse::<bool>().map_err(wrong))?;
        if wanted == Some(true) {
            access.require(Right::Payload, "payload")?;
        }
        Ok(wanted.unwrap_or_default())
    }

    /// Refuses unknown parameters: a filter with a typo would show everything.
    pub(super) fn end(self) -> Result<(), ApiError> {
        match self.0.into_iter().next() {
            None => Ok(()),
            Some((name, _)) => {
                let message = "unknown parameter, or given twice";
                Err(ApiError::invalid(&name, message))
            }
        }
    }
}

/// `GET /v1/jobs/{id}`.
#[utoipa::path(
    get,
    path = "/v1/jobs/{id}",
    tag = "jobs",
    operation_id = "jobs_show",
    summary = "Show a job, its attempts, and why it ran when it did.",
    description = "",
    params(
        ("id" = String, Path, description = "The job."),
    ),
    responses((status = 200, body = view::Explanation, description = "Done."), Refused),
)]
pub(super) async fn show(
    State(api): State<Api>,
    Extension(access): Extension<Access>,
    Path(id): Path<String>,
) -> Result<Json<view::Explanation>, ApiError> {
    explanation(&api, &access, &ExplainTarget::Job(id.parse::<JobId>()?)).await
}

/// `POST /v1/jobs/{id}/cancel`.
#[utoipa::path(
    post,
    path = "/v1/jobs/{id}/cancel",
    tag = "jobs",
    operation_id = "jobs_cancel",
    summary = "Cancel a job that waits or runs.",
    description = "",
    params(
        ("id" = String, Path, description = "The job."),
    ),
    responses((status = 200, body = view::CancelledJob, description = "Done."), Refused),
)]
pub(super) async fn cancel(
    State(api): State<Api>,
    Path(id): Path<String>,
) -> Result<Json<view::CancelledJob>, ApiError> {
    let id = id.parse::<JobId>()?;
    api.quell.store().cancel(None, id, "cancelled over HTTP").await?;
    Ok(Json(view::CancelledJob { job: id, state: JobState::Cancelled }))
}

/// The body of a change of a job.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = JobChange)]
struct Change {
    /// Its priority from now on, from -32768 to 32767; higher runs first.
    priority: i16,
}

/// `POST /v1/jobs/{id}/run` (R15).
#[utoipa::path(
    post,
    path = "/v1/jobs/{id}/run",
    tag = "jobs",
    operation_id = "jobs_run",
    summary = "Make a job that waits due now.",
    description = "It ends a quiet period, a delay, a backoff or a snooze. A running attempt of its key \
                   and a throttle's period still hold it.",
    params(
        ("id" = String, Path, description = "The job."),
    ),
    responses((status = 200, body = view::AdjustedJob, description = "Done."), Refused),
)]
pub(super) async fn run(
    State(api): State<Api>,
    Path(id): Path<String>,
) -> Result<Json<view::AdjustedJob>, ApiError> {
    adjust(&api, &id, Adjustment::default().run_now(true)).await
}

/// `PATCH /v1/jobs/{id}`: another priority (R15, R30).
#[utoipa::path(
    patch,
    path = "/v1/jobs/{id}",
    tag = "jobs",
    operation_id = "jobs_patch",
    summary = "Change the priority of a job that waits.",
    description = "",
    params(
        ("id" = String, Path, description = "The job."),
    ),
    request_body = Change,
    responses((status = 200, body = view::AdjustedJob, description = "Done."), Refused),
)]
pub(super) async fn patch(
    State(api): State<Api>,
    Path(id): Path<String>,
    body: JsonBody,
) -> Result<Json<view::AdjustedJob>, ApiError> {
    let body = body.read()?;
    let Change { priority } = parse(&body)?;
    adjust(&api, &id, Adjustment::default().priority(priority)).await
}

async fn adjust(
    api: &Api,
    id: &str,
    adjustment: Adjustment,
) -> Result<Json<view::AdjustedJob>, ApiError> {
    let id = id.parse::<JobId>()?;
    let adjusted: Adjusted = api.quell.adjust(id, adjustment).await?;
    Ok(Json(view::AdjustedJob::new(id, &adjusted)))
}
