//! Schedules over HTTP: read, set, paused, run, backfilled, removed (R36).

use axum::Json;
use axum::body::Bytes;
use axum::extract::{Path, State};
use quell::schedule::SpecParts;
use quell::schedule::{CatchUp, Schedule, ScheduleInfo, ScheduleName, ScheduleState};
use quell::{ErrorKind, Payload, Timestamp, When};
use quell_core::schedule::no_such_schedule;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::Api;
use super::body::{JsonBody, parse};
use super::error::ApiError;
use super::triggers::{known_task, length};
use crate::view;

/// A schedule as callers write it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Asked<'a> {
    task: String,
    #[serde(borrow)]
    payload: Option<&'a RawValue>,
    cron: Option<String>,
    zone: Option<String>,
    every: Option<String>,
    anchor: Option<jiff::Timestamp>,
    #[serde(default)]
    catch_up: CatchUp,
    priority: Option<i16>,
    delay: Option<String>,
}

/// A range of ticks, both ends included.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Range {
    from: jiff::Timestamp,
    to: jiff::Timestamp,
}

/// `GET /v1/schedules`.
pub(super) async fn list(State(api): State<Api>) -> Result<Json<view::Schedules>, ApiError> {
    let known = api.quell.store().schedules().await?;
    Ok(Json(view::Schedules::from(&*known)))
}

/// `GET /v1/schedules/{name}`.
pub(super) async fn show(
    State(api): State<Api>,
    Path(name): Path<String>,
) -> Result<Json<view::Schedule>, ApiError> {
    let info = find(&api, &ScheduleName::new(name)?).await?;
    Ok(Json(view::Schedule::from(&info)))
}

/// `PUT /v1/schedules/{name}`: makes it, or changes it; it stays paused where it was.
pub(super) async fn set(
    State(api): State<Api>,
    Path(name): Path<String>,
    body: JsonBody,
) -> Result<Json<view::Schedule>, ApiError> {
    let (name, body) = named(name, body)?;
    let asked: Asked<'_> = parse(&body)?;
    let (_, task) = known_task(&api, &asked.task)?;
    let parts = SpecParts {
        cron: asked.cron,
        zone: asked.zone,
        every: asked.every.map(|text| length("every", &text)).transpose()?,
        anchor: asked.anchor.map(moment),
    };
    let payload = asked.payload.map_or("null", RawValue::get);
    let mut trigger = task.trigger(Payload::from_stored(payload))?;
    trigger.priority = asked.priority.unwrap_or(trigger.priority);
    if let Some(delay) = &asked.delay {
        trigger.when = When::After(length("delay", delay)?);
    }
    let schedule = Schedule { name, spec: parts.spec()?, catch_up: asked.catch_up, trigger };
    let name = schedule.name.clone();
    api.quell.set_schedule(schedule).await?;
    Ok(Json(view::Schedule::from(&find(&api, &name).await?)))
}

/// `DELETE /v1/schedules/{name}`.
pub(super) async fn delete(
    State(api): State<Api>,
    Path(name): Path<String>,
) -> Result<Json<view::DeletedSchedule>, ApiError> {
    let name = ScheduleName::new(name)?;
    known(api.quell.store().delete_schedule(None, &name).await)?;
    Ok(Json(view::DeletedSchedule { schedule: name, deleted: true }))
}

/// `POST /v1/schedules/{name}/pause`.
pub(super) async fn pause(
    State(api): State<Api>,
    Path(name): Path<String>,
) -> Result<Json<view::Schedule>, ApiError> {
    switch(&api, name, ScheduleState::Paused).await
}

/// `POST /v1/schedules/{name}/resume`.
pub(super) async fn resume(
    State(api): State<Api>,
    Path(name): Path<String>,
) -> Result<Json<view::Schedule>, ApiError> {
    switch(&api, name, ScheduleState::Active).await
}

/// `POST /v1/schedules/{name}/run`: now, once, outside the plan.
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

/// The name in a path, and the body for it: a name that cannot be is reported first.
fn named(name: String, body: JsonBody) -> Result<(ScheduleName, Bytes), ApiError> {
    Ok((ScheduleName::new(name)?, body.read()?))
}

async fn switch(
    api: &Api,
    name: String,
    state: ScheduleState,
) -> Result<Json<view::Schedule>, ApiError> {
    let name = ScheduleName::new(name)?;
    known(api.quell.store().set_schedule_state(None, &name, state).await)?;
    Ok(Json(view::Schedule::from(&find(api, &name).await?)))
}

async fn find(api: &Api, name: &ScheduleName) -> Result<ScheduleInfo, ApiError> {
    let schedules = api.quell.store().schedules().await?;
    let found = schedules.into_iter().find(|info| info.schedule.name == *name);
    known(found.ok_or_else(|| no_such_schedule(name)))
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
