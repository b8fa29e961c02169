//! `GET /v1/sources`: the webhook sources, and how their deliveries went since this server read its configuration.
//!
//! Invariant: nothing of a secret, of a header or of a body is kept or shown.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use axum::extract::State;
use axum::http::StatusCode;
use axum::{Extension, Json};
use quell::TaskName;

use super::Api;
use super::auth::Access;
use super::error::{ApiError, Refused};
use super::objects;
use crate::access::Grant;
use crate::actions::now;
use crate::sources::Source;
use crate::view;

/// How the deliveries of one source went. Names are from this program, so there are few.
#[derive(Debug)]
pub(super) struct Tally {
    since: String,
    counts: Mutex<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    accepted: BTreeMap<&'static str, u64>,
    refused: BTreeMap<&'static str, u64>,
    last_accepted: Option<String>,
    last_refused: Option<String>,
}

impl Tally {
    /// No deliveries yet.
    pub(super) fn new() -> Self {
        Tally { since: now(), counts: Mutex::default() }
    }

    /// Counts a delivery that was taken, by its receipt.
    pub(super) fn accepted(&self, outcome: &'static str) {
        let mut counts = self.counts();
        add(&mut counts.accepted, outcome);
        counts.last_accepted = Some(now());
    }

    /// Counts a delivery that was refused, by the status of the response.
    pub(super) fn refused(&self, status: StatusCode) {
        let mut counts = self.counts();
        add(&mut counts.refused, reason(status));
        counts.last_refused = Some(now());
    }

    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn shown(&self, source: &Source) -> view::WebhookSource {
        let counts = self.counts();
        let named = |counts: &BTreeMap<&str, u64>| {
            counts.iter().map(|(name, count)| ((*name).to_owned(), *count)).collect()
        };
        view::WebhookSource {
            name: source.name().to_owned(),
            provider: source.provider().to_owned(),
            task: source.task_text().to_owned(),
            path: format!("/in/{}", source.name()),
            accepted: named(&counts.accepted),
            refused: named(&counts.refused),
            last_accepted_at: counts.last_accepted.clone(),
            last_refused_at: counts.last_refused.clone(),
            since: self.since.clone(),
        }
    }
}

fn add(counts: &mut BTreeMap<&'static str, u64>, name: &'static str) {
    let count = counts.entry(name).or_default();
    *count = count.saturating_add(1);
}

/// Why a delivery was refused, by the status that its sender got.
fn reason(status: StatusCode) -> &'static str {
    match status {
        StatusCode::UNAUTHORIZED => "unsigned",
        StatusCode::BAD_REQUEST => "unreadable",
        StatusCode::UNSUPPORTED_MEDIA_TYPE => "media_type",
        StatusCode::PAYLOAD_TOO_LARGE => "too_large",
        StatusCode::REQUEST_TIMEOUT => "timeout",
        StatusCode::SERVICE_UNAVAILABLE => "unavailable",
        StatusCode::GATEWAY_TIMEOUT => "unknown_outcome",
        status if status.is_client_error() => "unusable",
        _ => "failed",
    }
}

/// Whether a grant sees a source: one for a task that it sees. A template may name any task.
fn sees(api: &Api, grant: &Grant, source: &Source) -> bool {
    let sees_task = |task: &TaskName| objects::sees_declared(api, grant, task);
    !grant.is_limited() || source.fixed_task().as_ref().is_some_and(sees_task)
}

/// `GET /v1/sources`.
#[utoipa::path(
    get,
    path = "/v1/sources",
    tag = "sources",
    operation_id = "sources_list",
    summary = "List the webhook sources with the numbers of their deliveries.",
    description = "The numbers are of this server since it read its configuration. A token that is limited to \
                   tasks sees the sources that name one of its tasks, and none whose task is a template.",
    responses((status = 200, body = view::WebhookSources, description = "Done."), Refused),
)]
pub(super) async fn list(
    State(api): State<Api>,
    Extension(access): Extension<Access>,
) -> Result<Json<view::WebhookSources>, ApiError> {
    let all = api.sources.tallies();
    let seen = all.filter(|(source, _)| sees(&api, access.grant(), source));
    Ok(Json(view::WebhookSources {
        sources: seen.map(|(source, tally)| tally.shown(source)).collect(),
    }))
}
