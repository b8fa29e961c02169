//! Reading jobs, and what an operator does to one.

use super::Api;
use super::auth::Access;
use super::body::{JsonBody, parse};
use super::error::{ApiError, Refused};
use super::objects;
use super::triggers::known_task;
use crate::access::Right;
use crate::filter::FilterText;
use crate::view;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use axum::{Extension, Json};
use quell::job::{Adjusted, Adjustment, ExplainTarget, JobFilter, JobSearch};
use quell::trigger::TriggerId;
use quell::{JobId, JobState, Key, TaskName};
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
    api.rules().jobs(&mut page.jobs, whole);
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
    api.rules().jobs(&mut page.jobs, whole);
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
        self.take("limit", |text| {
            let limit = text.parse().ok().filter(|limit| (1..=max).contains(limit));
            limit.ok_or_else(|| {
                let message = format!("limit must be a number from 1 to {max}");
                quell::Error::invalid("limit", message)
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
    explanation(&api, &access, ExplainTarget::Job(id.parse::<JobId>()?)).await
}

/// `GET /v1/explain?id=` or `?key=&task=` (R15).
#[utoipa::path(
    get,
    path = "/v1/explain",
    tag = "jobs",
    operation_id = "jobs_explain",
    summary = "Explain a key, a job or a trigger.",
    description = "",
    params(
        ("id" = Option<String>, Query, description = "A job, or a trigger such as `42.17`."),
        ("key" = Option<String>, Query, description = "A debounce key, in place of an id."),
        ("task" = Option<String>, Query, description = "The task of the key."),
    ),
    responses((status = 200, body = view::Explanation, description = "Done."), Refused),
)]
pub(super) async fn explain(
    State(api): State<Api>,
    Extension(access): Extension<Access>,
    query: Result<Query<Pairs>, QueryRejection>,
) -> Result<Json<view::Explanation>, ApiError> {
    let mut query = Parameters::read(query)?;
    let id = query.take("id", |text| match text.parse::<TriggerId>() {
        Ok(trigger) => Ok(ExplainTarget::Trigger(trigger)),
        Err(_) => text.parse().map(ExplainTarget::Job),
    })?;
    let key = query.take("key", Key::new)?;
    let task = query.take("task", TaskName::new)?;
    query.end()?;
    match (id, key) {
        (Some(target), None) => explanation(&api, &access, target).await,
        (None, Some(key)) => explanation(&api, &access, ExplainTarget::Key { task, key }).await,
        (Some(_), Some(_)) | (None, None) => {
            Err(ApiError::invalid("id", "give an id or a key, not both"))
        }
    }
}

async fn explanation(
    api: &Api,
    access: &Access,
    target: ExplainTarget,
) -> Result<Json<view::Explanation>, ApiError> {
    let contents =
        if access.sees_payloads() { view::Contents::Shown } else { view::Contents::Hidden };
    let found = view::Explanation::of(&api.quell, &target, contents, api.rules()).await?;
    let found = found.filter(|(shown, _)| access.grant().sees(&shown.job.queue, &shown.job.task));
    let (mut shown, texts) = found.ok_or_else(|| {
        ApiError::not_found(
            "id",
            "nothing is known of it: no such job, or it was removed or discarded",
        )
    })?;
    // A script's lines may have what its payload has.
    if access.sees_payloads() {
        api.pull.add_reports(&mut shown, &texts);
    }
    let (task, queue) = (shown.job.task.clone(), shown.job.queue.clone());
    match api.tasks.get(&task).map(|declared| declared.checked.queue()) {
        None => shown.wait_for("task_undeclared", format!("this server declares no task {task}")),
        Some(own) if *own != queue => {
            let text = format!("this server runs task {task} from queue {own}, not from {queue}");
            shown.wait_for("other_queue", text);
        }
        Some(_) if api.pull.lacks_workers(&task) && !shown.lacks_workers() => {
            let text = format!("no worker that pulls task {task} has called this server of late");
            shown.wait_for("no_worker", text);
        }
        Some(_) => {}
    }
    Ok(Json(shown))
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
