//! Schedules over HTTP: read, set, paused, run, backfilled, removed (R36).

use axum::body::Bytes;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use axum::{Extension, Json};
use quell::schedule::SpecParts;
use quell::schedule::{CatchUp, Schedule, ScheduleInfo, ScheduleName, ScheduleState};
use quell::{ErrorKind, Fold, Payload, TaskName, Timestamp, When};
use quell_core::schedule::no_such_schedule;
use serde::Deserialize;
use serde_json::value::RawValue;
use utoipa::ToSchema;

use super::Api;
use super::auth::Access;
use super::body::{JsonBody, parse};
use super::error::{ApiError, Refused};
use super::jobs::{Pairs, Parameters};
use super::objects;
use super::triggers::{known_task, length};
use crate::view;

/// How many ticks are listed where no number is asked for, and the most.
const TICKS: usize = 20;
const MOST_TICKS: usize = 200;

/// A schedule as callers write it.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = NewSchedule)]
struct Asked<'a> {
    /// What it triggers.
    task: String,
    /// Of its triggers; null by default.
    #[serde(borrow)]
    #[schema(value_type = view::Document, required = false)]
    payload: Option<&'a RawValue>,
    /// Its cron expression, such as `0 6 * * 1-5`; or `every`.
    cron: Option<String>,
    /// The time zone of that; UTC by default.
    zone: Option<String>,
    /// Its interval, such as `5m`.
    every: Option<String>,
    /// Where its intervals begin.
    #[schema(value_type = Option<String>)]
    anchor: Option<jiff::Timestamp>,
    /// What becomes of missed ticks.
    #[serde(default)]
    #[schema(value_type = view::MissedTicks)]
    catch_up: CatchUp,
    /// Of its triggers.
    priority: Option<i16>,
    /// Of its triggers, such as `10s`.
    delay: Option<String>,
}

/// A range of ticks, both ends included.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Range {
    /// The first moment.
    #[schema(value_type = String)]
    from: jiff::Timestamp,
    /// The last moment.
    #[schema(value_type = String)]
    to: jiff::Timestamp,
}

/// `GET /v1/schedules`.
#[utoipa::path(
    get,
    path = "/v1/schedules",
    tag = "schedules",
    operation_id = "schedules_list",
    summary = "List the schedules with their last and next ticks.",
    description = "",
    responses((status = 200, body = view::Schedules, description = "Done."), Refused),
)]
pub(super) async fn list(
    State(api): State<Api>,
    Extension(access): Extension<Access>,
) -> Result<Json<view::Schedules>, ApiError> {
    let mut known = api.quell.store().schedules().await?;
    known.retain(|info| objects::schedule(access.grant(), info));
    api.rules.schedules(&mut known);
    let mut shown = view::Schedules::from(&*known);
    shown.schedules.iter_mut().for_each(|schedule| hide(&access, schedule));
    Ok(Json(shown))
}

/// `GET /v1/schedules/{name}`.
#[utoipa::path(
    get,
    path = "/v1/schedules/{name}",
    tag = "schedules",
    operation_id = "schedules_show",
    summary = "Show a schedule.",
    description = "",
    params(
        ("name" = String, Path, description = "The schedule."),
    ),
    responses((status = 200, body = view::Schedule, description = "Done."), Refused),
)]
pub(super) async fn show(
    State(api): State<Api>,
    Extension(access): Extension<Access>,
    Path(name): Path<String>,
) -> Result<Json<view::Schedule>, ApiError> {
    shown(&api, &access, &ScheduleName::new(name)?).await
}

/// `PUT /v1/schedules/{name}`: makes it, or changes it; it stays paused where it was.
#[utoipa::path(
    put,
    path = "/v1/schedules/{name}",
    tag = "schedules",
    operation_id = "schedules_set",
    summary = "Make a schedule, or change it; it stays paused where it was.",
    description = "",
    params(
        ("name" = String, Path, description = "The schedule."),
    ),
    request_body = Asked<'_>,
    responses((status = 200, body = view::Schedule, description = "Done."), Refused),
)]
pub(super) async fn set(
    State(api): State<Api>,
    Extension(access): Extension<Access>,
    Path(name): Path<String>,
    body: JsonBody,
) -> Result<Json<view::Schedule>, ApiError> {
    let (name, body) = named(name, body)?;
    let asked: Asked<'_> = parse(&body)?;
    let (task_name, task) = known_task(&api, &asked.task)?;
    let parts = SpecParts {
        cron: asked.cron,
        zone: asked.zone,
        every: asked.every.map(|text| length("every", &text)).transpose()?,
        anchor: asked.anchor.map(moment),
    };
    let payload = Payload::from_stored(asked.payload.map_or("null", RawValue::get));
    let mut trigger = task.trigger(unmasked(&api, &name, &task_name, payload).await?)?;
    trigger.priority = asked.priority.unwrap_or(trigger.priority);
    if let Some(delay) = &asked.delay {
        trigger.when = When::After(length("delay", delay)?);
    }
    let schedule =
        Schedule { name, spec: parts.spec()?, catch_up: asked.catch_up, trigger, declared: None };
    let name = schedule.name.clone();
    api.quell.set_schedule(schedule).await?;
    shown(&api, &access, &name).await
}

/// `DELETE /v1/schedules/{name}`.
#[utoipa::path(
    delete,
    path = "/v1/schedules/{name}",
    tag = "schedules",
    operation_id = "schedules_delete",
    summary = "Remove a schedule and the record of its ticks.",
    description = "",
    params(
        ("name" = String, Path, description = "The schedule."),
    ),
    responses((status = 200, body = view::DeletedSchedule, description = "Done."), Refused),
)]
pub(super) async fn delete(
    State(api): State<Api>,
    Path(name): Path<String>,
) -> Result<Json<view::DeletedSchedule>, ApiError> {
    let name = ScheduleName::new(name)?;
    known(api.quell.store().delete_schedule(None, &name).await)?;
    Ok(Json(view::DeletedSchedule { schedule: name, deleted: true }))
}

/// `POST /v1/schedules/{name}/pause`.
#[utoipa::path(
    post,
    path = "/v1/schedules/{name}/pause",
    tag = "schedules",
    operation_id = "schedules_pause",
    summary = "Let the ticks of a schedule pass by.",
    description = "",
    params(
        ("name" = String, Path, description = "The schedule."),
    ),
    responses((status = 200, body = view::Schedule, description = "Done."), Refused),
)]
pub(super) async fn pause(
    State(api): State<Api>,
    Extension(access): Extension<Access>,
    Path(name): Path<String>,
) -> Result<Json<view::Schedule>, ApiError> {
    switch(&api, &access, name, ScheduleState::Paused).await
}

/// `POST /v1/schedules/{name}/resume`.
#[utoipa::path(
    post,
    path = "/v1/schedules/{name}/resume",
    tag = "schedules",
    operation_id = "schedules_resume",
    summary = "Go on with the next tick; what passed by does not fire.",
    description = "",
    params(
        ("name" = String, Path, description = "The schedule."),
    ),
    responses((status = 200, body = view::Schedule, description = "Done."), Refused),
)]
pub(super) async fn resume(
    State(api): State<Api>,
    Extension(access): Extension<Access>,
    Path(name): Path<String>,
) -> Result<Json<view::Schedule>, ApiError> {
    switch(&api, &access, name, ScheduleState::Active).await
}

/// `POST /v1/schedules/{name}/run`: now, once, outside the plan.
#[utoipa::path(
    post,
    path = "/v1/schedules/{name}/run",
    tag = "schedules",
    operation_id = "schedules_run",
    summary = "Trigger what a schedule triggers, now and outside of its plan.",
    description = "",
    params(
        ("name" = String, Path, description = "The schedule."),
    ),
    responses((status = 200, body = view::Receipt, description = "Done."), Refused),
)]
pub(super) async fn run(
    State(api): State<Api>,
    Path(name): Path<String>,
) -> Result<Json<view::Receipt>, ApiError> {
    let name = ScheduleName::new(name)?;
    let info = find(&api, &name).await?;
    let receipt = known(api.quell.store().run_schedule(None, &name).await)?;
    Ok(Json(view::Receipt::new(&info.schedule.trigger.task, &receipt)))
}

/// `POST /v1/schedules/{name}/backfill`: the ticks of a range that have not fired.
#[utoipa::path(
    post,
    path = "/v1/schedules/{name}/backfill",
    tag = "schedules",
    operation_id = "schedules_backfill",
    summary = "Fire the ticks of a range that have not fired.",
    description = "",
    params(
        ("name" = String, Path, description = "The schedule."),
    ),
    request_body = Range,
    responses((status = 200, body = view::Backfilled, description = "Done."), Refused),
)]
pub(super) async fn backfill(
    State(api): State<Api>,
    Path(name): Path<String>,
    body: JsonBody,
) -> Result<Json<view::Backfilled>, ApiError> {
    let (name, body) = named(name, body)?;
    let Range { from, to } = parse(&body)?;
    let fired = api.quell.store().backfill(None, &name, moment(from), moment(to)).await;
    Ok(Json(view::Backfilled { schedule: name, fired: known(fired)? }))
}

/// `GET /v1/schedules/{name}/ticks?limit=`: what fired.
#[utoipa::path(
    get,
    path = "/v1/schedules/{name}/ticks",
    tag = "schedules",
    operation_id = "schedules_ticks",
    summary = "List the newest ticks of a schedule that fired, with their jobs.",
    description = "By plan or by a backfill; what was run by hand is no tick. They are on record for a year.",
    params(
        ("name" = String, Path, description = "The schedule."),
        ("limit" = Option<u32>, Query, description = "At most this many, up to 200; 20 where it is left out."),
    ),
    responses((status = 200, body = view::FiredTicks, description = "Done."), Refused),
)]
pub(super) async fn ticks(
    State(api): State<Api>,
    Path(name): Path<String>,
    query: Result<Query<Pairs>, QueryRejection>,
) -> Result<Json<view::FiredTicks>, ApiError> {
    let name = ScheduleName::new(name)?;
    let mut query = Parameters::read(query)?;
    let limit = query.take_limit(MOST_TICKS)?;
    query.end()?;
    known(view::FiredTicks::read(&api.quell, &name, limit.unwrap_or(TICKS)).await).map(Json)
}

/// The name in a path, and the body for it: a name that cannot be is reported first.
fn named(name: String, body: JsonBody) -> Result<(ScheduleName, Bytes), ApiError> {
    Ok((ScheduleName::new(name)?, body.read()?))
}

async fn switch(
    api: &Api,
    access: &Access,
    name: String,
    state: ScheduleState,
) -> Result<Json<view::Schedule>, ApiError> {
    let name = ScheduleName::new(name)?;
    known(api.quell.store().set_schedule_state(None, &name, state).await)?;
    shown(api, access, &name).await
}

/// A schedule as an answer.
async fn shown(
    api: &Api,
    access: &Access,
    name: &ScheduleName,
) -> Result<Json<view::Schedule>, ApiError> {
    let info = find(api, name).await?;
    let mut shown = view::Schedule::from(&info).with_upcoming(&info);
    hide(access, &mut shown);
    Ok(Json(shown))
}

/// Leaves the payload out for a caller who may not see it.
fn hide(access: &Access, schedule: &mut view::Schedule) {
    if !access.sees_payloads() {
        schedule.payload = None;
    }
}

/// A schedule for people, without what is redacted.
async fn find(api: &Api, name: &ScheduleName) -> Result<ScheduleInfo, ApiError> {
    let mut info = known(stored(api, name).await?.ok_or_else(|| no_such_schedule(name)))?;
    api.rules.schedules([&mut info]);
    Ok(info)
}

async fn stored(api: &Api, name: &ScheduleName) -> Result<Option<ScheduleInfo>, ApiError> {
    let schedules = api.quell.store().schedules().await?;
    Ok(schedules.into_iter().find(|info| info.schedule.name == *name))
}

/// A payload with the values that its editor could not see, where the schedule was there before.
async fn unmasked(
    api: &Api,
    name: &ScheduleName,
    task: &TaskName,
    payload: Payload,
) -> Result<Payload, ApiError> {
    let Some(redact) = api.rules.of(task) else { return Ok(payload) };
    let before = stored(api, name).await?.map(|info| info.schedule.trigger.payload);
    let before = before.unwrap_or_else(|| Payload::from_stored("null"));
    Ok(redact.unmask(&payload, &before, &Fold::Last)?)
}

/// What is not found here is a schedule.
fn known<T>(answer: quell::Result<T>) -> Result<T, ApiError> {
    answer.map_err(|error| match error.kind() {
        ErrorKind::NotFound => ApiError::not_found("schedule", error.to_string()),
        _ => error.into(),
    })
}

fn moment(at: jiff::Timestamp) -> Timestamp {
    Timestamp::from_micros(at.as_microsecond())
}
