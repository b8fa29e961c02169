//! Triggering over HTTP, one or a batch, and windows by key.

use axum::Json;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use quell::trigger::{Dedup, NewTrigger, Thresholds, TraceContext};
use quell::{Batch, Edge, HoldUntil, Key, Payload, Receipt, TaskName, Timestamp, When};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::Api;
use super::body::{JsonBody, malformed, parse};
use super::error::ApiError;
use crate::config::DeclaredTask;
use crate::config::duration;
use crate::config::key_template::KeyTemplate;
use crate::view::document;

/// One trigger as callers write it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Asked<'a> {
    #[serde(borrow)]
    payload: &'a RawValue,
    delay: Option<String>,
    run_at: Option<jiff::Timestamp>,
    priority: Option<i16>,
    dedup: Option<String>,
    dedup_ttl: Option<String>,
    dedup_until: Option<Until>,
    debounce: Option<AskedDebounce>,
    partition: Option<String>,
    idempotency_key: Option<String>,
    trace: Option<AskedTrace>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct AskedTrace {
    traceparent: String,
    tracestate: Option<String>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Until {
    Started,
    Done,
}

/// `false`, or thresholds of its own.
#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "expected false, or an object with min and max")]
enum AskedDebounce {
    /// `true` is the task's own debounce, as if nothing was said.
    On(bool),
    Own(OwnThresholds),
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct OwnThresholds {
    min: String,
    max: String,
}

/// `POST /v1/tasks/{task}/triggers`: one object, or an array that is accepted whole or not at all.
pub(super) async fn trigger(
    State(api): State<Api>,
    Path(task): Path<String>,
    headers: HeaderMap,
    body: JsonBody,
) -> Result<Response, ApiError> {
    let (name, declared) = known_task(&api, &task)?;
    let body = body.read()?;
    let many = body.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'[');
    let mut asked: Vec<Asked<'_>> = if many { parse(&body)? } else { vec![parse(&body)?] };
    if let Some(key) = key_header(&headers)? {
        let [one] = asked.as_mut_slice() else {
            let message = "the header is for one trigger: give each member a key of its own";
            return Err(ApiError::invalid("idempotency-key", message));
        };
        if one.idempotency_key.as_ref().is_some_and(|own| *own != key) {
            let message = "the header and the body name different keys: give one";
            return Err(ApiError::invalid("idempotency_key", message));
        }
        one.idempotency_key = Some(key);
    }
    let now = api.quell.clock().now();
    let of_request = trace_headers(&headers);
    let triggers = asked
        .iter()
        .enumerate()
        .map(|(index, asked)| {
            let made = make(declared, asked, now).map(|mut trigger| {
                trigger.trace = trigger.trace.or_else(|| of_request.clone());
                trigger
            });
            if many { made.map_err(|error| error.at(index)) } else { made }
        })
        .collect::<Result<Vec<_>, _>>()?;
    let receipts = api.quell.enqueue(Batch { triggers, dedup: None }).await?;
    let shown: Vec<Value> = receipts.iter().map(|receipt| show(&name, receipt)).collect();
    let body =
        if many { Value::Array(shown) } else { shown.into_iter().next().unwrap_or_default() };
    Ok((StatusCode::ACCEPTED, Json(body)).into_response())
}

/// The key of the header `Idempotency-Key`: a quoted string as the IETF's draft has it, or bare.
fn key_header(headers: &HeaderMap) -> Result<Option<String>, ApiError> {
    let mut values = headers.get_all("idempotency-key").iter();
    let Some(value) = values.next() else { return Ok(None) };
    let text = value.to_str().ok().map(str::trim).filter(|_| values.next().is_none());
    let refused = || ApiError::invalid("idempotency-key", "give one key, in ASCII");
    let text = text.ok_or_else(refused)?;
    let quoted = text.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
    Ok(Some(quoted.unwrap_or(text).to_owned()))
}

/// The context of the headers `traceparent` and `tracestate`; none where they are malformed, as W3C Trace
/// Context has it.
fn trace_headers(headers: &HeaderMap) -> Option<TraceContext> {
    let mut parents = headers.get_all("traceparent").iter();
    let parent = parents.next().filter(|_| parents.next().is_none())?.to_str().ok()?;
    // Several lines are one list, which counts as a whole or not at all.
    let states = headers.get_all("tracestate").iter().map(|state| state.to_str().ok());
    let states: Option<Vec<&str>> = states.collect();
    TraceContext::new(parent, states.map(|states| states.join(",")).as_deref()).ok()
}

pub(super) fn known_task<'a>(
    api: &'a Api,
    task: &str,
) -> Result<(TaskName, &'a DeclaredTask), ApiError> {
    let known = TaskName::new(task).ok().and_then(|name| {
        let declared = api.tasks.get(&name)?;
        Some((name, declared))
    });
    known.ok_or_else(|| {
        ApiError::not_found("task", "no such task is declared in this server's configuration")
    })
}

/// A trigger of the task, as its caller asked for it.
fn make(task: &DeclaredTask, asked: &Asked<'_>, now: Timestamp) -> Result<NewTrigger, ApiError> {
    let debounced = !matches!(asked.debounce, Some(AskedDebounce::On(false)));
    let key = made("key", task.key.as_ref().filter(|_| debounced), asked)?;
    let mut trigger = task.checked.trigger(Payload::from_stored(asked.payload.get()), key);
    trigger.priority = asked.priority.unwrap_or(trigger.priority);
    trigger.when = when(asked)?;
    trigger.dedup = dedup(asked)?;
    if let Some(AskedTrace { traceparent, tracestate }) = &asked.trace {
        let refused = |error: quell::Error| ApiError::invalid("trace", error.to_string());
        let context = TraceContext::new(traceparent, tracestate.as_deref());
        trigger.trace = Some(context.map_err(refused)?);
    }
    match &asked.idempotency_key {
        Some(text) => {
            let refused =
                |error: quell::Error| ApiError::invalid("idempotency_key", error.to_string());
            trigger.idempotency = Some(task.checked.idempotency(Key::new(text).map_err(refused)?));
        }
        None => trigger = task.checked.with_derived_key(trigger, now)?,
    }
    trigger.partition = match &asked.partition {
        Some(named) => Some(
            Key::new(named).map_err(|error| ApiError::invalid("partition", error.to_string()))?,
        ),
        None => made("partition", task.partition.as_ref(), asked)?,
    };
    if let Some(AskedDebounce::Own(OwnThresholds { min, max })) = &asked.debounce {
        let Some(keyed) = &mut trigger.keyed else {
            return Err(ApiError::invalid("debounce", "the task has no key to debounce by"));
        };
        if keyed.debounce.edge == Edge::Throttle {
            return Err(ApiError::invalid("debounce", "the task is throttled, not debounced"));
        }
        keyed.debounce.thresholds =
            Thresholds::new(length("debounce.min", min)?, length("debounce.max", max)?)?;
        keyed.debounce.from_default = false;
    }
    Ok(trigger)
}

/// What a template of the task makes of the payload.
fn made(
    field: &str,
    template: Option<&KeyTemplate>,
    asked: &Asked<'_>,
) -> Result<Option<Key>, ApiError> {
    let Some(template) = template else { return Ok(None) };
    let payload: Value =
        serde_json::from_str(asked.payload.get()).map_err(|e| malformed("payload", &e))?;
    let made = template.key(&payload);
    made.map_err(|error| ApiError::invalid(field, format!("the task's {field}: {error}")))
}

fn when(asked: &Asked<'_>) -> Result<When, ApiError> {
    match (&asked.delay, asked.run_at) {
        (Some(_), Some(_)) => Err(ApiError::invalid("delay", "give delay or run_at, not both")),
        (Some(delay), None) => Ok(When::After(length("delay", delay)?)),
        (None, Some(at)) => Ok(When::At(Timestamp::from_micros(at.as_microsecond()))),
        (None, None) => Ok(When::Now),
    }
}

fn dedup(asked: &Asked<'_>) -> Result<Option<Dedup>, ApiError> {
    let lonely = match asked {
        Asked { dedup: None, dedup_ttl: Some(_), .. } => Some("dedup_ttl"),
        Asked { dedup: None, dedup_until: Some(_), .. } => Some("dedup_until"),
        Asked { .. } => None,
    };
    if let Some(field) = lonely {
        return Err(ApiError::invalid(
            field,
            format!("{field} needs `dedup`, the key that it holds"),
        ));
    }
    let until = match (&asked.dedup_ttl, asked.dedup_until) {
        (Some(_), Some(_)) => {
            return Err(ApiError::invalid("dedup_ttl", "give dedup_ttl or dedup_until, not both"));
        }
        (Some(ttl), None) => HoldUntil::Elapsed(length("dedup_ttl", ttl)?),
        (None, Some(Until::Started)) => HoldUntil::Started,
        (None, Some(Until::Done)) => HoldUntil::Done,
        (None, None) => HoldUntil::default(),
    };
    let key = asked.dedup.as_deref().map(Key::new).transpose();
    let key = key.map_err(|error| ApiError::invalid("dedup", error.to_string()))?;
    Ok(key.map(|key| Dedup { key, until }))
}

pub(super) fn length(field: &str, text: &str) -> Result<std::time::Duration, ApiError> {
    duration::parse(text).map_err(|message| ApiError::invalid(field, message))
}

/// A receipt as callers read it.
pub(super) fn show(task: &TaskName, receipt: &Receipt) -> Value {
    let mut shown = json!({
        "receipt": receipt.outcome(),
        "task": task,
        "job": receipt.job(),
        "trigger": receipt.trigger(),
    });
    match receipt {
        Receipt::Accepted { due, .. } => shown["due"] = json!(due.to_string()),
        Receipt::Debounced { due, triggers, .. } => {
            shown["due"] = json!(due.to_string());
            shown["triggers"] = json!(triggers);
        }
        Receipt::Existing { state, output, .. } => {
            shown["state"] = json!(state);
            shown["output"] = json!(output.as_ref().map(document));
        }
        _ => {}
    }
    shown
}

/// A window by its key.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Window {
    key: String,
}

/// `POST /v1/tasks/{task}/windows/flush`: due now (R7).
pub(super) async fn flush(
    State(api): State<Api>,
    Path(task): Path<String>,
    body: JsonBody,
) -> Result<Json<Value>, ApiError> {
    let (name, key) = window(&api, &task, body)?;
    let job = api.quell.store().flush(None, &name, &key).await?;
    found(job.map(|job| json!({ "job": job, "flushed": true })))
}

/// `POST /v1/tasks/{task}/windows/cancel` (R7).
pub(super) async fn cancel(
    State(api): State<Api>,
    Path(task): Path<String>,
    body: JsonBody,
) -> Result<Json<Value>, ApiError> {
    let (name, key) = window(&api, &task, body)?;
    let job = api.quell.store().cancel_key(None, &name, &key).await?;
    found(job.map(|job| json!({ "job": job, "cancelled": true })))
}

fn window(api: &Api, task: &str, body: JsonBody) -> Result<(TaskName, Key), ApiError> {
    let (name, _) = known_task(api, task)?;
    let body = body.read()?;
    let window: Window = parse(&body)?;
    Ok((name, Key::new(window.key)?))
}

fn found(done: Option<Value>) -> Result<Json<Value>, ApiError> {
    done.map(Json).ok_or_else(|| ApiError::not_found("key", "no window of this key is open"))
}
