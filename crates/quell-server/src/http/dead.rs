//! Dead jobs over HTTP (R25, R26): list, redrive, discard, export, import.
//!
//! A request handles one page, and its response has the place of the next: the server keeps no
//! state, and the caller sets the rate.

use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::{Extension, Json};
use quell::dead::{DeadCauses, DeadExport, DeadFilter, DeadPlace, Redrive};
use quell::{JobId, Payload, QueueName, TaskName, Timestamp};
use serde::Deserialize;
use serde_json::value::RawValue;
use utoipa::{IntoParams, ToSchema};

use super::Api;
use super::audit::Count;
use super::auth::Access;
use super::body::{JsonBody, parse};
use super::error::{ApiError, Refused};
use super::jobs::{Pairs, Parameters};
use super::objects;
use super::timeline::moment;
use crate::access::Right;
use crate::redact::MASK;
use crate::view;

/// The name of exported dead jobs in paths and bodies.
pub const EXPORTED: &str = "exports";
/// The most dead jobs in one request.
const MAX_EXPORTS: usize = 200;

/// A filter, as callers write it.
#[derive(Debug, Default, Deserialize, IntoParams, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = DeadFilter)]
#[into_params(parameter_in = Query)]
struct Asked {
    /// Only of this task.
    task: Option<String>,
    /// Only of this queue.
    queue: Option<String>,
    /// Only with this text in their last error, in capitals or not.
    error: Option<String>,
    /// Only those that died at this time or later, such as `2026-03-01T00:00:00Z`.
    #[schema(value_type = Option<String>)]
    #[param(value_type = Option<String>)]
    died_after: Option<jiff::Timestamp>,
    /// Only those that died before this time.
    #[schema(value_type = Option<String>)]
    #[param(value_type = Option<String>)]
    died_before: Option<jiff::Timestamp>,
    /// The place where the page before ended: its `next_before`.
    before: Option<String>,
    /// At most this many, up to 200.
    #[param(value_type = Option<u32>)]
    limit: Option<usize>,
    /// Of a discard, and required there: the log and the history record it.
    #[param(ignore)]
    reason: Option<String>,
}

/// The body of an import.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Import {
    /// Jobs as an export has them, at most 200 and 8 MiB.
    #[schema(value_type = Vec<Object>)]
    exports: Vec<DeadExport>,
}

/// The body of the redrive of one job.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Redrive)]
struct Edited<'a> {
    /// The payload from now on, in place of the job's own.
    #[serde(borrow)]
    #[schema(value_type = view::Document, required = false)]
    payload: Option<&'a RawValue>,
}

/// The body of the discard of one job.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Discard)]
struct Why {
    /// Required: the log and the history record it.
    reason: Option<String>,
}

impl Asked {
    /// What it means, held to the tasks and queues that the caller's token is limited to.
    fn filter(self, access: &Access) -> Result<DeadFilter, ApiError> {
        let stored = |at: jiff::Timestamp| Timestamp::from_micros(at.as_microsecond());
        let mut filter = DeadFilter {
            task: self.task.map(TaskName::new).transpose()?,
            queue: self.queue.map(QueueName::new).transpose()?,
            error: self.error,
            died_after: self.died_after.map(stored),
            died_before: self.died_before.map(stored),
            before: self.before.map(|text| text.parse::<DeadPlace>()).transpose()?,
            limit: self.limit.map(limit).transpose()?.unwrap_or_default(),
        };
        filter.validate()?;
        objects::narrow_dead(access.grant(), &mut filter)?;
        Ok(filter)
    }

    /// The filter of a query, and whether payloads are wanted.
    fn of_query(
        access: &Access,
        query: Result<Query<Pairs>, QueryRejection>,
    ) -> Result<(DeadFilter, bool), ApiError> {
        Self::of_parameters(access, Parameters::read(query)?)
    }

    fn of_parameters(
        access: &Access,
        mut query: Parameters,
    ) -> Result<(DeadFilter, bool), ApiError> {
        let whole = query.take_payload(access)?;
        let time = |name: &'static str| move |text: String| moment(name, &text);
        let asked = Asked {
            task: query.take("task", Ok)?,
            queue: query.take("queue", Ok)?,
            error: query.take("error", Ok)?,
            died_after: query.take("died_after", time("died_after"))?,
            died_before: query.take("died_before", time("died_before"))?,
            before: query.take("before", Ok)?,
            limit: query.take("limit", |text| {
                let wrong = |_| quell::Error::invalid("limit", "limit must be a number");
                text.parse().map_err(wrong)
            })?,
            reason: None,
        };
        query.end()?;
        Ok((asked.filter(access)?, whole))
    }
}

fn limit(limit: usize) -> Result<usize, ApiError> {
    let max = DeadFilter::MAX_PAGE;
    if (1..=max).contains(&limit) {
        return Ok(limit);
    }
    Err(ApiError::invalid("limit", format!("limit must be a number from 1 to {max}")))
}

/// `GET /v1/dead?task=&queue=&error=&died_after=&died_before=&before=&limit=`: the latest death
/// first, and how many match.
#[utoipa::path(
    get,
    path = "/v1/dead",
    tag = "dead jobs",
    operation_id = "dead_list",
    summary = "List dead jobs, the latest death first.",
    description = "",
    params(
        Asked,
        ("payload" = Option<bool>, Query, description = "Whether payloads and outputs are wanted."),
    ),
    responses((status = 200, body = view::DeadJobs, description = "Done."), Refused),
)]
pub(super) async fn list(
    State(api): State<Api>,
    Extension(access): Extension<Access>,
    query: Result<Query<Pairs>, QueryRejection>,
) -> Result<Json<view::DeadJobs>, ApiError> {
    let (filter, whole) = Asked::of_query(&access, query)?;
    let mut jobs = api.quell.dead().list(&filter).await?;
    api.rules.jobs(&mut jobs, whole);
    let matching = api.quell.dead().count(&filter).await?;
    Ok(Json(view::DeadJobs::new(&jobs, &filter, matching, whole)))
}

/// `GET /v1/dead/causes?…`: the causes of death with their numbers, the most frequent `limit` first.
#[utoipa::path(
    get,
    path = "/v1/dead/causes",
    tag = "dead jobs",
    operation_id = "dead_causes",
    summary = "Count dead jobs by cause, the most frequent first.",
    description = "",
    params(
        Asked,
        ("among" = Option<u32>, Query, description = "Only of this many that died last, up to 10,000, or a page more."),
    ),
    responses((status = 200, body = view::Causes, description = "Done."), Refused),
)]
pub(super) async fn causes(
    State(api): State<Api>,
    Extension(access): Extension<Access>,
    query: Result<Query<Pairs>, QueryRejection>,
) -> Result<Json<view::Causes>, ApiError> {
    let mut query = Parameters::read(query)?;
    let among = query.take_number("among", DeadCauses::MAX_JOBS)?;
    let (filter, _) = Asked::of_parameters(&access, query)?;
    let among = among.unwrap_or(DeadCauses::MAX_JOBS);
    let found = api.quell.dead().causes_among(&filter, among).await?;
    let mut shown = view::Causes::new(&found, filter.page());
    for cause in &mut shown.causes {
        let Some(redact) = api.rules.of(&cause.task) else { continue };
        // The example has the values that errors of this cause repeat; without it nothing is shown.
        cause.cause = match api.quell.job(cause.example).await? {
            Some(job) => redact.texts(&job.payload).hide(cause.cause.clone()),
            None => MASK.to_owned(),
        };
    }
    Ok(Json(shown))
}

/// `GET /v1/dead/exports?…`: the same with every detail, as an export has it.
#[utoipa::path(
    get,
    path = "/v1/dead/exports",
    tag = "dead jobs",
    operation_id = "dead_export",
    summary = "Export dead jobs, each with its whole record.",
    description = "",
    params(
        Asked,
    ),
    responses((status = 200, body = view::Exports, description = "Done."), Refused),
)]
pub(super) async fn export(
    State(api): State<Api>,
    Extension(access): Extension<Access>,
    query: Result<Query<Pairs>, QueryRejection>,
) -> Result<Json<view::Exports>, ApiError> {
    let (filter, _) = Asked::of_query(&access, query)?;
    let (exports, next) = api.quell.dead().exports(&filter).await?;
    if let Some(job) = api.rules.first_of(&exports).filter(|_| !access.grant().has(Right::Admin)) {
        let (id, task) = (job.id, &job.task);
        let message = format!(
            "job {id} of task {task} has redacted members, which an export shows: it needs the scope \
             admin, or a filter without this task"
        );
        return Err(ApiError::new(StatusCode::FORBIDDEN, "authorization", message));
    }
    Ok(Json(view::Exports { exports, next_before: next.map(|place| place.to_string()) }))
}

/// `POST /v1/dead/redrive`: one page of those that match.
#[utoipa::path(
    post,
    path = "/v1/dead/redrive",
    tag = "dead jobs",
    operation_id = "dead_redrive",
    summary = "Redrive one page of the dead jobs that match.",
    description = "",
    request_body = Asked,
    responses((status = 200, body = view::Swept, description = "Done."), Refused),
)]
pub(super) async fn redrive(
    State(api): State<Api>,
    Extension(access): Extension<Access>,
    body: JsonBody,
) -> Result<(Extension<Count>, Json<view::Swept>), ApiError> {
    let body = body.read()?;
    let asked: Asked = parse(&body)?;
    if asked.reason.is_some() {
        return Err(ApiError::invalid("reason", "a redrive takes no reason: leave it out"));
    }
    let swept = api.quell.dead().redrive_page(&asked.filter(&access)?).await?;
    Ok(counted(view::Swept::redriven(&swept)))
}

/// `POST /v1/dead/discard`: one page of those that match, for good, with a reason.
#[utoipa::path(
    post,
    path = "/v1/dead/discard",
    tag = "dead jobs",
    operation_id = "dead_discard",
    summary = "Discard one page of the dead jobs that match, for good.",
    description = "",
    request_body = Asked,
    responses((status = 200, body = view::Swept, description = "Done."), Refused),
)]
pub(super) async fn discard(
    State(api): State<Api>,
    Extension(access): Extension<Access>,
    body: JsonBody,
) -> Result<(Extension<Count>, Json<view::Swept>), ApiError> {
    let body = body.read()?;
    let mut asked: Asked = parse(&body)?;
    let reason = reason(asked.reason.take())?;
    let swept = api.quell.dead().discard_page(&asked.filter(&access)?, &reason).await?;
    Ok(counted(view::Swept::discarded(&swept)))
}

/// What was done to a page, with the number for the audit.
fn counted(swept: view::Swept) -> (Extension<Count>, Json<view::Swept>) {
    (Extension(Count(swept.count())), Json(swept))
}

fn reason(reason: Option<String>) -> Result<String, ApiError> {
    reason.ok_or_else(|| {
        ApiError::invalid("reason", "reason is missing: the log and the history record it")
    })
}

/// `POST /v1/dead/import`: exported dead jobs become dead jobs here.
#[utoipa::path(
    post,
    path = "/v1/dead/import",
    tag = "dead jobs",
    operation_id = "dead_import",
    summary = "Import exported dead jobs. Those that are here already stay as they are.",
    description = "",
    request_body = Import,
    responses((status = 200, body = view::Imported, description = "Done."), Refused),
)]
pub(super) async fn import(
    State(api): State<Api>,
    body: JsonBody,
) -> Result<Json<view::Imported>, ApiError> {
    let body = body.read()?;
    let Import { exports } = parse(&body)?;
    if exports.len() > MAX_EXPORTS {
        let count = exports.len();
        let message = format!("{count} dead jobs in one request, the limit is {MAX_EXPORTS}");
        return Err(ApiError::invalid(EXPORTED, message));
    }
    let imported = api.quell.dead().import(&exports).await?;
    Ok(Json(view::Imported::new(imported)))
}

/// `POST /v1/jobs/{id}/redrive`, with another payload where the body brings one (R26).
#[utoipa::path(
    post,
    path = "/v1/jobs/{id}/redrive",
    tag = "dead jobs",
    operation_id = "dead_redrive_one",
    summary = "Redrive a dead job, with another payload where the body has one.",
    description = "",
    params(
        ("id" = String, Path, description = "The job."),
    ),
    request_body = Option<Edited<'_>>,
    responses((status = 200, body = view::Redriven, description = "Done."), Refused),
)]
pub(super) async fn redrive_one(
    State(api): State<Api>,
    Extension(access): Extension<Access>,
    Path(id): Path<String>,
    body: JsonBody,
) -> Result<Json<view::Redriven>, ApiError> {
    let id = id.parse::<JobId>()?;
    let body = body.read_if_any()?;
    let edited = body.as_deref().map(parse::<Edited<'_>>).transpose()?;
    let payload =
        edited.and_then(|edited| edited.payload).map(|payload| Payload::from_stored(payload.get()));
    let payload = match payload {
        Some(edited) => {
            access.require(Right::Payload, "payload")?;
            Some(unmasked(&api, id, edited).await?)
        }
        None => None,
    };
    let became = api.quell.dead().redrive(Redrive { id, payload }).await?;
    Ok(Json(view::Redriven { job: id, became }))
}

/// An edited payload with the values that its editor could not see.
async fn unmasked(api: &Api, id: JobId, edited: Payload) -> Result<Payload, ApiError> {
    let Some(job) = api.quell.job(id).await? else { return Ok(edited) };
    let Some(redact) = api.rules.of(&job.task) else { return Ok(edited) };
    Ok(redact.unmask(&edited, &job.payload, &job.shape.fold)?)
}

/// `POST /v1/jobs/{id}/discard`, with a reason.
#[utoipa::path(
    post,
    path = "/v1/jobs/{id}/discard",
    tag = "dead jobs",
    operation_id = "dead_discard_one",
    summary = "Discard a dead job, for good.",
    description = "",
    params(
        ("id" = String, Path, description = "The job."),
    ),
    request_body = Why,
    responses((status = 200, body = view::DiscardedJob, description = "Done."), Refused),
)]
pub(super) async fn discard_one(
    State(api): State<Api>,
    Path(id): Path<String>,
    body: JsonBody,
) -> Result<Json<view::DiscardedJob>, ApiError> {
    let id = id.parse::<JobId>()?;
    let body = body.read()?;
    let Why { reason: why } = parse(&body)?;
    api.quell.dead().discard(id, &reason(why)?).await?;
    Ok(Json(view::DiscardedJob { job: id, discarded: true }))
}
