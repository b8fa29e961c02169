//! `POST /in/{source}`: a webhook's delivery, verified by its source's secret.
//!
//! A source needs no token and no known host: its secret is the proof. So anyone may call it, and what a caller
//! without the secret can cost is bounded: the bytes of all bodies that are being read, and the time of each.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Json;
use axum::body::{Body, Bytes};
use axum::extract::{Path, RawQuery, Request, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use futures_util::StreamExt;
use metrics::counter;
use quell::trigger::NewTrigger;
use quell::{Batch, ErrorKind, TaskName, Timestamp};
use serde_json::json;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tracing::{debug, warn};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::Api;
use super::deliveries::Tally;
use super::error::{ApiError, Refused};
use super::quiet::Quiet;
use super::triggers::trace_headers;
use crate::sources::{self, Reading, Refusal, Source};
use crate::view;

/// The bytes of all bodies that are being read or verified at once.
const ROOM: usize = 64 << 20;
/// What a place in that room stands for, in bytes.
const PLACE: usize = 1 << 10;
/// How long a body waits for room.
const FOR_ROOM: Duration = Duration::from_secs(2);
/// How long a body may stand still.
const FOR_CHUNK: Duration = Duration::from_secs(5);
/// A body of more bytes than this is verified and parsed aside: it would hold up other requests.
const LARGE: usize = 256 << 10;

/// The declared sources, and the room for their bodies.
#[derive(Debug)]
pub struct Sources {
    by_name: BTreeMap<String, Declared>,
    room: Room,
}

/// A source and its own part of the room: one that is flooded leaves the others theirs.
#[derive(Debug)]
struct Declared {
    source: Arc<Source>,
    room: Room,
    /// The log lines of deliveries whose proof is wrong: anyone can cause some.
    unsigned: Quiet,
    tally: Tally,
}

impl Sources {
    /// Sources by their names.
    #[must_use]
    pub fn new(sources: BTreeMap<String, Source>) -> Self {
        let declared = |source| Declared {
            source: Arc::new(source),
            room: Room::of(ROOM / 2),
            unsigned: Quiet::default(),
            tally: Tally::new(),
        };
        let by_name = sources.into_iter().map(|(name, source)| (name, declared(source)));
        Sources { by_name: by_name.collect(), room: Room::of(ROOM) }
    }

    /// The sources by name, and how their deliveries went.
    pub(super) fn tallies(&self) -> impl Iterator<Item = (&Source, &Tally)> {
        self.by_name.values().map(|declared| (&*declared.source, &declared.tally))
    }
}

/// Room for bodies, in places of [`PLACE`] bytes.
#[derive(Clone, Debug)]
struct Room(Arc<Semaphore>);

impl Room {
    fn of(bytes: usize) -> Self {
        Room(Arc::new(Semaphore::new(bytes / PLACE)))
    }
}

/// What a body holds of a room; it grows with the body.
#[derive(Debug)]
struct Held {
    room: Room,
    permit: Option<OwnedSemaphorePermit>,
}

impl Held {
    fn none_of(room: &Room) -> Self {
        Held { room: room.clone(), permit: None }
    }

    /// Holds what this number of bytes needs; false where there is no room for them for a while.
    async fn grow(&mut self, bytes: usize) -> bool {
        let held = self.permit.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
        let more = bytes.div_ceil(PLACE).saturating_sub(held);
        let Ok(more @ 1..) = u32::try_from(more) else { return more == 0 };
        let room = Arc::clone(&self.room.0);
        match tokio::time::timeout(FOR_ROOM, room.acquire_many_owned(more)).await {
            Ok(Ok(more)) => match &mut self.permit {
                Some(permit) => permit.merge(more),
                None => self.permit = Some(more),
            },
            Ok(Err(_)) | Err(_) => return false,
        }
        true
    }
}

pub(super) fn routes() -> OpenApiRouter<Api> {
    OpenApiRouter::new().routes(routes!(deliver))
}

#[utoipa::path(
    post,
    path = "/in/{source}",
    tag = "sources",
    operation_id = "sources_deliver",
    summary = "A delivery of a webhook source, verified by its secret and not by the bearer token.",
    description = "",
    params(
        ("source" = String, Path, description = "The source."),
    ),
    request_body = view::Document,
    responses((status = 202, body = view::Receipt, description = "Done."), Refused),
)]
async fn deliver(
    State(api): State<Api>,
    Path(name): Path<String>,
    RawQuery(query): RawQuery,
    request: Request,
) -> Response {
    let Some(declared) = api.sources.by_name.get(&name) else {
        return ApiError::not_found("source", "no such source is declared").into_response();
    };
    let (head, body) = request.into_parts();
    let delivery = Delivery { headers: head.headers, query: query.unwrap_or_default() };
    match accept(&api, declared, delivery, body).await {
        Ok((outcome, response)) => {
            counted(&name, outcome);
            declared.tally.accepted(outcome);
            response
        }
        Err(error) => {
            counted(&name, "refused");
            declared.tally.refused(error.status());
            let is_unsigned = error.status() == StatusCode::UNAUTHORIZED;
            match is_unsigned.then(|| declared.unsigned.pass(Instant::now())) {
                Some(Some(held_back)) => {
                    let error = error.message();
                    warn!(
                        source = name,
                        error, held_back, "delivery without a valid proof refused"
                    );
                }
                Some(None) => {}
                None => debug!(source = name, error = error.message(), "delivery refused"),
            }
            error.into_response()
        }
    }
}

fn counted(source: &str, outcome: &'static str) {
    counter!("quell_source_deliveries_total", "source" => source.to_owned(), "outcome" => outcome)
        .increment(1);
}

/// A request but for its body.
#[derive(Clone, Debug)]
struct Delivery {
    headers: HeaderMap,
    query: String,
}

async fn accept(
    api: &Api,
    declared: &Declared,
    delivery: Delivery,
    body: Body,
) -> Result<(&'static str, Response), ApiError> {
    let source = &declared.source;
    source
        .claims(&delivery.headers, &delivery.query)
        .map_err(|refusal| refused(source, refusal))?;
    let body = read(api, declared, &delivery.headers, body).await?;
    let traced = trace_headers(&delivery.headers);
    let read = verified(api, source, delivery, body).await?;
    match read {
        Reading::Ignored(why) => {
            let body = json!({ "receipt": "ignored", "because": why });
            Ok(("ignored", (StatusCode::OK, Json(body)).into_response()))
        }
        Reading::Challenge(text) => {
            Ok(("challenge", ([("content-type", "text/plain")], text).into_response()))
        }
        Reading::Trigger(task, trigger) => {
            let mut trigger = *trigger;
            trigger.trace = traced;
            let trigger = api.quell.with_operators_thresholds(derived(api, &task, trigger)?).await;
            let batch = Batch { triggers: vec![trigger], dedup: None };
            let receipts = api.quell.enqueue(batch).await;
            let receipts = receipts.map_err(|error| not_accepted(source, error))?;
            let Some(receipt) = receipts.first() else {
                let status = StatusCode::INTERNAL_SERVER_ERROR;
                return Err(ApiError::internal(status, "internal", &"a batch without a receipt"));
            };
            // Slack shows the body of an answer to its user.
            let response = if source.is_slack() {
                StatusCode::OK.into_response()
            } else {
                // What a handler put out is not for the sender of a webhook.
                let shown = view::Receipt::new(&task, receipt).without_output();
                (StatusCode::ACCEPTED, Json(shown)).into_response()
            };
            Ok((receipt.outcome(), response))
        }
    }
}

/// The error of a trigger. Its payload is the operator's to shorten.
fn not_accepted(source: &Source, error: quell::Error) -> ApiError {
    if error.kind() != ErrorKind::Invalid || error.field() != Some("payload") {
        return ApiError::from(error);
    }
    let name = source.name();
    let remedy = format!("select less of the body with sources.{name}.payload");
    warn!(source = name, %error, remedy, "delivery refused");
    ApiError::from(error).with_message(|message| format!("{message}: {remedy}"))
}

/// The trigger with the idempotency key that its task derives.
fn derived(api: &Api, task: &TaskName, trigger: NewTrigger) -> Result<NewTrigger, ApiError> {
    let Some(declared) = api.tasks.get(task) else { return Ok(trigger) };
    Ok(declared.checked.with_derived_key(trigger, api.quell.clock().now())?)
}

/// A body with its places in the rooms.
#[derive(Debug)]
struct Read {
    bytes: Bytes,
    /// Kept until the body is gone, also where its caller has left.
    _places: [Held; 2],
}

/// Reads a body within its own bound and the room of all.
async fn read(
    api: &Api,
    Declared { source, room, .. }: &Declared,
    headers: &HeaderMap,
    body: Body,
) -> Result<Read, ApiError> {
    let most = source.max_body();
    let too_large = |bytes: usize| {
        let message = format!(
            "the body has {bytes} bytes or more, the limit is {most}: raise sources.{}.max_body",
            source.name()
        );
        ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "body", message)
    };
    let length = headers.get("content-length").and_then(|length| length.to_str().ok());
    let length: usize = length.and_then(|length| length.parse().ok()).unwrap_or_default();
    if length > most {
        return Err(too_large(length));
    }
    let mut places = [Held::none_of(room), Held::none_of(&api.sources.room)];
    let mut bytes = Vec::new();
    let mut chunks = body.into_data_stream();
    loop {
        let next = tokio::time::timeout(FOR_CHUNK, chunks.next()).await;
        let chunk = match next {
            Ok(None) => break,
            Ok(Some(Ok(chunk))) => chunk,
            Ok(Some(Err(error))) => {
                let message = format!("the body ended early: {error}");
                return Err(ApiError::new(StatusCode::BAD_REQUEST, "body", message));
            }
            Err(_) => {
                let message = format!("nothing of the body came for {FOR_CHUNK:?}");
                return Err(ApiError::new(StatusCode::REQUEST_TIMEOUT, "body", message));
            }
        };
        let total = bytes.len() + chunk.len();
        if total > most {
            return Err(too_large(total));
        }
        for place in &mut places {
            if !place.grow(total).await {
                let message = "the server is reading too many bodies: send it again";
                return Err(ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "body", message));
            }
        }
        bytes.extend_from_slice(&chunk);
    }
    Ok(Read { bytes: Bytes::from(bytes), _places: places })
}

/// Verifies a delivery and reads it, aside if it is large.
async fn verified(
    api: &Api,
    source: &Arc<Source>,
    delivery: Delivery,
    body: Read,
) -> Result<Reading, ApiError> {
    let at = jiff::Timestamp::now().as_microsecond();
    let large = body.bytes.len() > LARGE;
    let (source, tasks) = (Arc::clone(source), Arc::clone(&api.tasks));
    let work = move || {
        let request = sources::Request {
            headers: &delivery.headers,
            query: &delivery.query,
            body: &body.bytes,
            at: Timestamp::from_micros(at),
        };
        source.read(request, &tasks).map_err(|refusal| refused(&source, refusal))
    };
    if !large {
        return work();
    }
    tokio::task::spawn_blocking(work).await.map_err(|error| {
        ApiError::internal(StatusCode::INTERNAL_SERVER_ERROR, "internal", &error)
    })?
}

/// A refusal as its sender reads it. Settings that made nothing usable are the operator's to fix, so the log
/// has them, too.
fn refused(source: &Source, refusal: Refusal) -> ApiError {
    match refusal {
        Refusal::Unsigned { header, why } => {
            let message = format!("{header} {why}");
            ApiError::new(StatusCode::UNAUTHORIZED, &header, message)
        }
        Refusal::Unreadable(why) => ApiError::new(StatusCode::BAD_REQUEST, "body", why),
        Refusal::MediaType => {
            let message = "send application/json or application/x-www-form-urlencoded";
            ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "content-type", message)
        }
        Refusal::Unusable { setting, why } => {
            let name = source.name();
            warn!(source = name, setting, why, "delivery refused: a setting made nothing usable");
            ApiError::invalid(setting, format!("sources.{name}.{setting}: {why}"))
        }
    }
}
