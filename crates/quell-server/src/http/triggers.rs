//! Triggering over HTTP, one or a batch, and windows by key.

use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use quell::trigger::{Dedup, NewTrigger, Thresholds, TraceContext};
use quell::{Batch, Edge, HoldUntil, Key, Payload, TaskName, Timestamp, When};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;
use utoipa::ToSchema;

use super::Api;
use super::auth::Access;
use super::body::{JsonBody, parse};
use super::error::{ApiError, Refused};
use super::objects;
use crate::config::DeclaredTask;
use crate::config::duration;
use crate::view;

/// The most tasks that an error names.
const MAX_NAMED: usize = 20;
/// The longest delay: ten years.
const MAX_DELAY: std::time::Duration = std::time::Duration::from_secs(10 * 365 * 24 * 3_600);
/// The most of a caller's text that an error repeats, in bytes.
const MAX_SHOWN: usize = 128;

/// One trigger as callers write it.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Trigger)]
struct Asked<'a> {
    /// What the handler gets.
    #[serde(borrow)]
    #[schema(value_type = view::Document)]
    payload: &'a RawValue,
    /// Run no earlier than this long from now, such as `10m`.
    delay: Option<String>,
    /// Run no earlier than this, such as `2026-03-01T00:00:00Z`.
    run_at: Option<String>,
    /// Higher runs first.
    priority: Option<i16>,
    /// A key under which it counts once.
    dedup: Option<String>,
    /// How long that key holds, such as `1h`.
    dedup_ttl: Option<String>,
    /// Or until when.
    dedup_until: Option<Until>,
    /// `false` for none, or thresholds of its own.
    debounce: Option<AskedDebounce>,
    /// The partition of the queue.
    partition: Option<String>,
    /// A repeat with this key gets the first trigger's job and output.
    idempotency_key: Option<String>,
    /// The trace that it belongs to.
    trace: Option<AskedTrace>,
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = TraceHeaders)]
struct AskedTrace {
    /// The header of that name.
    traceparent: String,
    /// The header of that name.
    tracestate: Option<String>,
}

/// Until when a dedup key holds.
#[derive(Clone, Copy, Debug, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = HoldUntil)]
enum Until {
    /// Until the job first started.
    Started,
    /// Until the job ended.
    Done,
}

/// A batch with a dedup key of its own (R17).
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Batch)]
struct AskedBatch<'a> {
    /// Its triggers, in order.
    #[serde(borrow)]
    triggers: Vec<Asked<'a>>,
    /// A key under which the batch counts once.
    dedup: Option<String>,
    /// How long that key holds, such as `1h`.
    dedup_ttl: Option<String>,
    /// Or until when.
    dedup_until: Option<Until>,
}

/// One trigger, a list, or a batch with a dedup key of its own.
#[derive(ToSchema)]
#[serde(untagged)]
#[expect(dead_code, reason = "it describes the body, which `Form` distinguishes")]
enum Triggers<'a> {
    /// One.
    One(Asked<'a>),
    /// A list, accepted whole or not at all.
    List(Vec<Asked<'a>>),
    /// The same, with a dedup key.
    Batch(AskedBatch<'a>),
}

/// The receipt of one trigger, or one for each.
#[derive(ToSchema)]
#[serde(untagged)]
#[expect(dead_code, reason = "it describes the answer")]
enum Receipts {
    /// Of one trigger.
    One(view::Receipt),
    /// Of a list or a batch, in its order.
    Each(Vec<view::Receipt>),
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
#[derive(Debug, Deserialize, ToSchema)]
#[serde(untagged, expecting = "expected false, or an object with min and max")]
#[schema(as = Debounce)]
enum AskedDebounce {
    /// `true` is the task's own debounce, as if nothing was said.
    On(bool),
    /// Thresholds of its own.
    Own(OwnThresholds),
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct OwnThresholds {
    /// The quiet period, such as `10s`.
    min: String,
    /// The longest delay, such as `1m`.
    max: String,
}

/// `POST /v1/tasks/{task}/triggers`: one object, or an array that is accepted whole or not at all.
#[utoipa::path(
    post,
    path = "/v1/tasks/{task}/triggers",
    tag = "triggers",
    operation_id = "triggers_trigger",
    summary = "Trigger a task, once or several times. A batch is accepted whole or not at all.",
    description = "",
    params(
        ("task" = String, Path, description = "The task."),
        ("idempotency-key" = Option<String>, Header, description = "The idempotency key of one trigger."),
        ("traceparent" = Option<String>, Header, description = "The trace that triggers belong to (W3C Trace Context)."),
        ("tracestate" = Option<String>, Header, description = "The state of that trace."),
    ),
    request_body = Triggers<'_>,
    responses((status = 202, body = Receipts, description = "Done."), Refused),
)]
pub(super) async fn trigger(
    State(api): State<Api>,
    Extension(access): Extension<Access>,
    Path(task): Path<String>,
    headers: HeaderMap,
    body: JsonBody,
) -> Result<Response, ApiError> {
    objects::triggers(&api, access.grant(), &task)?;
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
    // Once for all of a batch: they are of one task.
    let set = match declared.key {
        Some(_) => api.quell.operators_thresholds(&declared.checked).await,
        None => None,
    };
    // Where spans are made, a trigger carries its own, which is below that of the request.
    let of_request = trace_headers(&headers).filter(|_| !crate::otel::is_tracing());
    let triggers = asked
        .iter()
        .enumerate()
        .map(|(index, asked)| {
            let made = make(declared, asked, (now, set)).map(|mut trigger| {
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
        let names: Vec<&str> = api.tasks.keys().map(TaskName::as_str).collect();
        let message = "no such task is declared in this server's configuration";
        ApiError::not_found("task", format!("{message}: {}", listed(&names, "")))
    })
}

/// The first of these tasks, for an error; `which` says which they are.
pub(super) fn listed(names: &[&str], which: &str) -> String {
    let which = if which.is_empty() { String::new() } else { format!(" {which}") };
    let more = match names.len().saturating_sub(MAX_NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    match names.get(..MAX_NAMED.min(names.len())).unwrap_or_default() {
        [] => format!("there is none{which}"),
        shown => format!("there is {}{more}{which}", shown.join(", ")),
    }
}

/// The beginning of what a caller wrote, for an error.
pub(super) fn shortened(text: &str) -> &str {
    text.get(..text.floor_char_boundary(MAX_SHOWN)).unwrap_or_default()
}

/// A trigger of the task, as its caller asked for it; `set` is what an operator set for the task (R14).
fn make(
    task: &DeclaredTask,
    asked: &Asked<'_>,
    (now, set): (Timestamp, Option<Thresholds>),
) -> Result<NewTrigger, ApiError> {
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
    if let Some(keyed) = &mut trigger.keyed {
        keyed.debounce = keyed.debounce.with_operators(set);
    }
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
    match (&asked.delay, &asked.run_at) {
        (Some(_), Some(_)) => Err(ApiError::invalid("delay", "give delay or run_at, not both")),
        (Some(text), None) => Ok(When::After(delay("delay", length("delay", text)?)?)),
        (None, Some(at)) => Ok(When::At(moment("run_at", at)?)),
        (None, None) => Ok(When::Now),
    }
}

/// A moment as callers write it.
fn moment(field: &str, text: &str) -> Result<Timestamp, ApiError> {
    let read = text.parse::<jiff::Timestamp>();
    read.map(|at| Timestamp::from_micros(at.as_microsecond())).map_err(|_| {
        let shown = shortened(text);
        let message = format!(
            "{field} {shown:?} is not a time: write it as RFC 3339 with a zone, such as \
             2026-03-01T00:00:00Z or 2026-03-01T01:00:00+01:00"
        );
        ApiError::invalid(field, message)
    })
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

/// A delay within the bound: a time that no store can represent is a mistake.
pub(super) fn delay(
    field: &str,
    asked: std::time::Duration,
) -> Result<std::time::Duration, ApiError> {
    if asked <= MAX_DELAY {
        return Ok(asked);
    }
    let (asked, limit) = (duration::exact(asked), duration::exact(MAX_DELAY));
    let message = format!("{field} of {asked} is too long: the limit is {limit}");
    Err(ApiError::invalid(field, message))
}

/// A window by its key.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Window {
    /// The debounce key.
    key: String,
}

/// `POST /v1/tasks/{task}/windows/flush`: due now (R7).
#[utoipa::path(
    post,
    path = "/v1/tasks/{task}/windows/flush",
    tag = "windows",
    operation_id = "triggers_flush",
    summary = "Make the open window of a key due now.",
    description = "",
    params(
        ("task" = String, Path, description = "The task."),
    ),
    request_body = Window,
    responses((status = 200, body = view::FlushedWindow, description = "Done."), Refused),
)]
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
#[utoipa::path(
    post,
    path = "/v1/tasks/{task}/windows/cancel",
    tag = "windows",
    operation_id = "triggers_cancel",
    summary = "Cancel the open window of a key.",
    description = "",
    params(
        ("task" = String, Path, description = "The task."),
    ),
    request_body = Window,
    responses((status = 200, body = view::CancelledWindow, description = "Done."), Refused),
)]
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
