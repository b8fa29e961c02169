//! Triggering over HTTP, one or a batch, and windows by key.

use axum::Json;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use quell::trigger::{Dedup, NewTrigger, Thresholds, TraceContext};
use quell::{Batch, Edge, HoldUntil, Key, Payload, TaskName, Timestamp, When};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;

use super::Api;
use super::body::{JsonBody, parse};
use super::error::ApiError;
use crate::config::DeclaredTask;
use crate::config::duration;
use crate::view;

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

/// A batch with a dedup key of its own (R17).
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct AskedBatch<'a> {
    #[serde(borrow)]
    triggers: Vec<Asked<'a>>,
    dedup: Option<String>,
    dedup_ttl: Option<String>,
    dedup_until: Option<Until>,
}

/// How triggers are written: one, a list, or a batch with a dedup key.
enum Form {
    One,
    List,
    Batch,
}

impl Form {
    /// The form of a body. What is wrong with it, its own parser says.
    fn of(body: &[u8]) -> Form {
        #[derive(Deserialize)]
        struct Peek {
            triggers: Option<IgnoredAny>,
        }
        if body.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'[') {
            return Form::List;
        }
        match serde_json::from_slice(body) {
            Ok(Peek { triggers: Some(_) }) => Form::Batch,
            Ok(Peek { triggers: None }) | Err(_) => Form::One,
        }
    }
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
    let mut of_batch = DedupText::default();
    let (many, mut asked): (bool, Vec<Asked<'_>>) = match Form::of(&body) {
        Form::One => (false, vec![parse(&body)?]),
        Form::List => (true, parse(&body)?),
        Form::Batch => {
            let AskedBatch { triggers, dedup, dedup_ttl, dedup_until } = parse(&body)?;
            of_batch = DedupText { dedup, dedup_ttl, dedup_until };
            (true, triggers)
        }
    };
    let of_batch = of_batch.read()?;
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
    let receipts = api.quell.enqueue(Batch { triggers, dedup: of_batch }).await?;
    let mut shown: Vec<view::Receipt> =
        receipts.iter().map(|receipt| view::Receipt::new(&name, receipt)).collect();
    let response = match shown.pop() {
        Some(one) if !many => Json(one).into_response(),
        last => {
            shown.extend(last);
            Json(shown).into_response()
        }
    };
    Ok((StatusCode::ACCEPTED, response).into_response())
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
pub(super) fn trace_headers(headers: &HeaderMap) -> Option<TraceContext> {
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
    let payload = Payload::from_stored(asked.payload.get());
    let key = if debounced { task.key_of(&payload)? } else { None };
    let partition = match &asked.partition {
        Some(named) => Some(
            Key::new(named).map_err(|error| ApiError::invalid("partition", error.to_string()))?,
        ),
        None => task.partition_of(&payload)?,
    };
    let mut trigger = task.checked.trigger(payload, key);
    trigger.partition = partition;
    trigger.priority = asked.priority.unwrap_or(trigger.priority);
    trigger.when = when(asked)?;
    let dedup = (asked.dedup.clone(), asked.dedup_ttl.clone(), asked.dedup_until);
    let (dedup, dedup_ttl, dedup_until) = dedup;
    trigger.dedup = DedupText { dedup, dedup_ttl, dedup_until }.read()?;
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

fn when(asked: &Asked<'_>) -> Result<When, ApiError> {
    match (&asked.delay, asked.run_at) {
        (Some(_), Some(_)) => Err(ApiError::invalid("delay", "give delay or run_at, not both")),
        (Some(delay), None) => Ok(When::After(length("delay", delay)?)),
        (None, Some(at)) => Ok(When::At(Timestamp::from_micros(at.as_microsecond()))),
        (None, None) => Ok(When::Now),
    }
}

/// A dedup key and how long it holds, as callers write them.
#[derive(Default)]
struct DedupText {
    dedup: Option<String>,
    dedup_ttl: Option<String>,
    dedup_until: Option<Until>,
}

impl DedupText {
    fn read(self) -> Result<Option<Dedup>, ApiError> {
        let lonely = match &self {
            DedupText { dedup: None, dedup_ttl: Some(_), .. } => Some("dedup_ttl"),
            DedupText { dedup: None, dedup_until: Some(_), .. } => Some("dedup_until"),
            DedupText { .. } => None,
        };
        if let Some(field) = lonely {
            return Err(ApiError::invalid(
                field,
                format!("{field} needs `dedup`, the key that it holds"),
            ));
        }
        let until = match (&self.dedup_ttl, self.dedup_until) {
            (Some(_), Some(_)) => {
                let message = "give dedup_ttl or dedup_until, not both";
                return Err(ApiError::invalid("dedup_ttl", message));
            }
            (Some(ttl), None) => HoldUntil::Elapsed(length("dedup_ttl", ttl)?),
            (None, Some(Until::Started)) => HoldUntil::Started,
            (None, Some(Until::Done)) => HoldUntil::Done,
            (None, None) => HoldUntil::default(),
        };
        let key = self.dedup.as_deref().map(Key::new).transpose();
        let key = key.map_err(|error| ApiError::invalid("dedup", error.to_string()))?;
        Ok(key.map(|key| Dedup { key, until }))
    }
}

pub(super) fn length(field: &str, text: &str) -> Result<std::time::Duration, ApiError> {
    duration::parse(text).map_err(|message| ApiError::invalid(field, message))
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
) -> Result<Json<view::FlushedWindow>, ApiError> {
    let (name, key) = window(&api, &task, body)?;
    let job = api.quell.store().flush(None, &name, &key).await?;
    found(job.map(|job| view::FlushedWindow { job, flushed: true }))
}

/// `POST /v1/tasks/{task}/windows/cancel` (R7).
pub(super) async fn cancel(
    State(api): State<Api>,
    Path(task): Path<String>,
    body: JsonBody,
) -> Result<Json<view::CancelledWindow>, ApiError> {
    let (name, key) = window(&api, &task, body)?;
    let job = api.quell.store().cancel_key(None, &name, &key).await?;
    found(job.map(|job| view::CancelledWindow { job, cancelled: true }))
}

fn window(api: &Api, task: &str, body: JsonBody) -> Result<(TaskName, Key), ApiError> {
    let (name, _) = known_task(api, task)?;
    let body = body.read()?;
    let window: Window = parse(&body)?;
    Ok((name, Key::new(window.key)?))
}

fn found<T>(done: Option<T>) -> Result<Json<T>, ApiError> {
    done.map(Json).ok_or_else(|| ApiError::not_found("key", "no window of this key is open"))
}
