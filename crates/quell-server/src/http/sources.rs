//! `POST /in/{source}`: a webhook's delivery, verified by its source's secret.
//!
//! A source needs no token and no known host: its secret is the proof. So anyone may call it, and what a caller
//! without the secret can cost is bounded: the bytes of all bodies that are being read, and the time of each.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::extract::{Path, RawQuery, Request, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Json, Router};
use futures_util::StreamExt;
use metrics::counter;
use quell::trigger::NewTrigger;
use quell::{Batch, TaskName, Timestamp};
use serde_json::json;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tracing::{debug, warn};

use super::Api;
use super::error::ApiError;
use super::triggers::trace_headers;
use crate::sources::{self, Reading, Refusal, Source};
use crate::view;

/// The bytes of all bodies that are being read or verified at once.
const ROOM: usize = 64 << 20;
/// What a place in that room stands for, in bytes.
const PLACE: usize = 1 << 10;
/// A body of more bytes than this is verified and parsed aside: it would hold up other requests.
const LARGE: usize = 256 << 10;

/// The declared sources, and the room for their bodies.
#[derive(Debug)]
pub struct Sources {
    by_name: BTreeMap<String, Arc<Source>>,
    room: Arc<Semaphore>,
}

impl Sources {
    /// Sources by their names.
    #[must_use]
    pub fn new(sources: BTreeMap<String, Source>) -> Self {
        let by_name = sources.into_iter().map(|(name, source)| (name, Arc::new(source)));
        Sources { by_name: by_name.collect(), room: Arc::new(Semaphore::new(ROOM / PLACE)) }
    }
}

pub(super) fn routes() -> Router<Api> {
    Router::new().route("/in/{source}", post(deliver))
}

async fn deliver(
    State(api): State<Api>,
    Path(name): Path<String>,
    RawQuery(query): RawQuery,
    request: Request,
) -> Response {
    let Some(source) = api.sources.by_name.get(&name) else {
        return ApiError::not_found("source", "no such source is declared").into_response();
    };
    let (head, body) = request.into_parts();
    let delivery = Delivery { headers: head.headers, query: query.unwrap_or_default() };
    match accept(&api, source, delivery, body).await {
        Ok((outcome, response)) => {
            counted(&name, outcome);
            response
        }
        Err(error) => {
            counted(&name, "refused");
            debug!(source = name, error = error.message(), "delivery refused");
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
    source: &Arc<Source>,
    delivery: Delivery,
    body: Body,
) -> Result<(&'static str, Response), ApiError> {
    source
        .claims(&delivery.headers, &delivery.query)
        .map_err(|refusal| refused(source, refusal))?;
    let (body, place) = read(api, source, &delivery.headers, body).await?;
    let traced = trace_headers(&delivery.headers);
    let read = verified(api, source, delivery, body).await?;
    drop(place);
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
            let trigger = derived(api, &task, trigger)?;
            let receipts =
                api.quell.enqueue(Batch { triggers: vec![trigger], dedup: None }).await?;
            let Some(receipt) = receipts.first() else {
                let status = StatusCode::INTERNAL_SERVER_ERROR;
                return Err(ApiError::internal(status, "internal", &"a batch without a receipt"));
            };
            // Slack shows the body of an answer to its user.
            let response = if source.is_slack() {
                StatusCode::OK.into_response()
            } else {
                (StatusCode::ACCEPTED, Json(view::Receipt::new(&task, receipt))).into_response()
            };
            Ok((receipt.outcome(), response))
        }
    }
}

/// The trigger with the idempotency key that its task derives.
fn derived(api: &Api, task: &TaskName, trigger: NewTrigger) -> Result<NewTrigger, ApiError> {
    let Some(declared) = api.tasks.get(task) else { return Ok(trigger) };
    Ok(declared.checked.with_derived_key(trigger, api.quell.clock().now())?)
}

/// Reads a body within its own bound and the room of all.
async fn read(
    api: &Api,
    source: &Source,
    headers: &HeaderMap,
    body: Body,
) -> Result<(Bytes, Option<OwnedSemaphorePermit>), ApiError> {
    let most = source.max_body();
    let too_large = |bytes: usize| {
        let message = format!(
            "the body has {bytes} bytes or more, the limit is {most}: raise sources.{}.max_body",
            source.name()
        );
        ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "body", message)
    };
    let told = headers.get("content-length").and_then(|length| length.to_str().ok());
    let told: usize = told.and_then(|length| length.parse().ok()).unwrap_or_default();
    if told > most {
        return Err(too_large(told));
    }
    let mut place: Option<OwnedSemaphorePermit> = None;
    let mut bytes = Vec::new();
    let mut chunks = body.into_data_stream();
    while let Some(chunk) = chunks.next().await {
        let broken = |error| {
            let message = format!("the body ended early: {error}");
            ApiError::new(StatusCode::BAD_REQUEST, "body", message)
        };
        let chunk = chunk.map_err(broken)?;
        if bytes.len() + chunk.len() > most {
            return Err(too_large(bytes.len() + chunk.len()));
        }
        let places = u32::try_from(chunk.len().div_ceil(PLACE)).unwrap_or(u32::MAX);
        let Ok(more) = Arc::clone(&api.sources.room).try_acquire_many_owned(places) else {
            let message = "the server is reading too many bodies: send it again";
            return Err(ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "body", message));
        };
        match &mut place {
            Some(place) => place.merge(more),
            None => place = Some(more),
        }
        bytes.extend_from_slice(&chunk);
    }
    Ok((Bytes::from(bytes), place))
}

/// Verifies a delivery and reads it, aside if it is large.
async fn verified(
    api: &Api,
    source: &Arc<Source>,
    delivery: Delivery,
    body: Bytes,
) -> Result<Reading, ApiError> {
    let at = jiff::Timestamp::now().as_microsecond();
    let large = body.len() > LARGE;
    let (source, tasks) = (Arc::clone(source), Arc::clone(&api.tasks));
    let work = move || {
        let request = sources::Request {
            headers: &delivery.headers,
            query: &delivery.query,
            body: &body,
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
