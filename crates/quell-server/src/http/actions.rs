//! Bulk actions over HTTP: begin, list, show and stop one.

use axum::extract::{Extension, Path, State};
use axum::http::StatusCode;
use axum::http::header::LOCATION;
use axum::{Json, response::IntoResponse};
use futures_util::{StreamExt, TryStreamExt, stream};
use quell::JobState;
use quell::dead::RedriveRate;
use quell::job::JobSearch;
use serde::Deserialize;
use tracing::warn;
use utoipa::ToSchema;

use super::Api;
use super::auth::Access;
use super::body::{JsonBody, parse};
use super::error::{ApiError, Refused};
use super::objects;
use crate::actions::{MAX_RUNNING, NotTaken, Order, now};
use crate::filter::FilterText;
use crate::view::{self, Action, ActionKind, ActionState, AfterRedrive, Caller};

/// The longest name of an action, in bytes.
const MAX_NAME_BYTES: usize = 100;
/// How many redriven jobs are looked at at once.
const LOOKS: usize = 8;

/// The body of a new action.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct NewAction {
    /// Its name, of `A` to `Z`, `a` to `z`, digits, `-`, `_` and `.`; no kept action has the same.
    name: String,
    /// What it does.
    action: ActionKind,
    /// To which jobs: one member at least.
    filter: FilterText,
    /// At most this many jobs a second; as fast as the store can where it is left out.
    rate: Option<u32>,
    /// Of `reprioritise`, and required there.
    priority: Option<i16>,
    /// Of `discard`, where it is required, and of `cancel`: the job or the history records it.
    reason: Option<String>,
    /// Whether to count the jobs that match, and change none.
    #[serde(default)]
    #[schema(required = false)]
    dry_run: bool,
}

impl NewAction {
    fn order(self, by: Caller) -> Result<Order, ApiError> {
        check_name(&self.name)?;
        if self.filter.is_empty() {
            let message = "the filter matches every job: give a member, such as task or state";
            return Err(ApiError::invalid("filter", message));
        }
        let mut search = self.filter.search().map_err(|error| {
            let member = error.field().unwrap_or_default();
            ApiError::invalid(&format!("filter.{member}"), error.to_string())
        })?;
        let states = self.states(&search)?;
        search.filter.state = None;
        self.check_extras()?;
        let rate = self.rate.map(RedriveRate::new).transpose()?;
        let NewAction { name, action, filter, rate: per_second, priority, reason, dry_run } = self;
        let shown = Action {
            url: format!("/v1/actions/{name}"),
            name,
            action,
            filter,
            rate: per_second,
            priority,
            reason,
            dry_run,
            state: ActionState::Running,
            total: None,
            matched: 0,
            done: 0,
            skipped: 0,
            failed: 0,
            errors: Vec::new(),
            error: None,
            started_at: now(),
            ended_at: None,
            by,
            then: None,
        };
        Ok(Order { search, states, rate, shown })
    }

    /// The states to look in: those that the action applies to and the filter asks for.
    fn states(&self, search: &JobSearch) -> Result<Vec<JobState>, ApiError> {
        let all = self.action.states().iter().copied();
        let wanted = |state: &JobState| {
            search.filter.state.is_none_or(|asked| asked == *state)
                && (search.late.is_none() || *state == JobState::Scheduled)
        };
        let states: Vec<JobState> = all.filter(wanted).collect();
        if !states.is_empty() {
            return Ok(states);
        }
        let field = if search.late.is_some() { "filter.late" } else { "filter.state" };
        let names = self.action.states().iter().map(|state| state.name());
        let (names, action) = (names.collect::<Vec<_>>().join(" or "), self.action.name());
        Err(ApiError::invalid(field, format!("{action} applies to jobs that are {names} only")))
    }

    fn check_extras(&self) -> Result<(), ApiError> {
        let action = self.action.name();
        match (self.action == ActionKind::Reprioritise, self.priority) {
            (true, None) => return Err(ApiError::invalid("priority", "give the new priority")),
            (false, Some(_)) => {
                let message = format!("{action} takes no priority: leave it out");
                return Err(ApiError::invalid("priority", message));
            }
            (true, Some(_)) | (false, None) => {}
        }
        match (self.action, &self.reason) {
            (ActionKind::Discard, None) => {
                let message = "reason is missing: the log and the history record it";
                Err(ApiError::invalid("reason", message))
            }
            (ActionKind::Discard | ActionKind::Cancel, Some(reason)) => {
                Ok(quell_core::dead::validate_reason(reason)?)
            }
            (_, Some(_)) => {
                let message = format!("{action} takes no reason: leave it out");
                Err(ApiError::invalid("reason", message))
            }
            (_, None) => Ok(()),
        }
    }
}

fn check_name(name: &str) -> Result<(), ApiError> {
    let is_fine = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    let has_letter = name.bytes().any(|byte| byte.is_ascii_alphanumeric());
    if has_letter && name.bytes().all(is_fine) && name.len() <= MAX_NAME_BYTES {
        return Ok(());
    }
    let message = format!(
        "a name has A to Z, a to z, digits, -, _ and ., at most {MAX_NAME_BYTES} of them, such as \
         cancel-imports-1"
    );
    Err(ApiError::invalid("name", message))
}

/// `POST /v1/actions`.
#[utoipa::path(
    post,
    path = "/v1/actions",
    tag = "actions",
    operation_id = "actions_begin",
    summary = "Begin an action on all jobs that match a filter.",
    description = "It goes on in this server process, and ends with it. The same request under another \\
                   name goes on with the jobs that still match.",
    request_body = NewAction,
    responses((status = 202, body = view::Action, description = "It has begun."), Refused),
)]
pub(super) async fn begin(
    State(api): State<Api>,
    Extension(caller): Extension<Caller>,
    Extension(access): Extension<Access>,
    body: JsonBody,
) -> Result<impl IntoResponse, ApiError> {
    let body = body.read()?;
    let mut asked: NewAction = parse(&body)?;
    objects::narrow(access.grant(), &mut asked.filter)?;
    let shown = api.actions.begin(asked.order(caller)?).map_err(|why| match why {
        NotTaken::NameTaken => {
            let message = "an action of this name is kept: choose another, or delete that one";
            ApiError::new(StatusCode::CONFLICT, "name", message)
        }
        NotTaken::Busy => {
            let message = format!("{MAX_RUNNING} actions run, the limit: wait for the end of one");
            ApiError::new(StatusCode::TOO_MANY_REQUESTS, "action", message)
        }
        NotTaken::Stopping => {
            ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "server", "the server stops")
        }
    })?;
    Ok((StatusCode::ACCEPTED, [(LOCATION, shown.url.clone())], Json(shown)))
}

/// `GET /v1/actions`.
#[utoipa::path(
    get,
    path = "/v1/actions",
    tag = "actions",
    operation_id = "actions_list",
    summary = "List the actions of this server, the newest first.",
    description = "",
    responses((status = 200, body = view::Actions, description = "Done."), Refused),
)]
pub(super) async fn list(
    State(api): State<Api>,
    Extension(access): Extension<Access>,
) -> Json<view::Actions> {
    let mut actions = api.actions.list();
    actions.retain(|action| objects::action(access.grant(), action));
    Json(view::Actions { actions })
}

/// `GET /v1/actions/{name}`.
#[utoipa::path(
    get,
    path = "/v1/actions/{name}",
    tag = "actions",
    operation_id = "actions_show",
    summary = "Show how far an action has come.",
    description = "",
    params(
        ("name" = String, Path, description = "The action."),
    ),
    responses((status = 200, body = view::Action, description = "Done."), Refused),
)]
pub(super) async fn show(
    State(api): State<Api>,
    Extension(access): Extension<Access>,
    Path(name): Path<String>,
) -> Result<Json<view::Action>, ApiError> {
    let mut shown = seen(&api, &access, &name)?;
    shown.then = match api.actions.looked(&name) {
        Some(then) => Some(then),
        None => after_redrive(&api, &name).await,
    };
    Ok(Json(shown))
}

/// Where the jobs are that an action redrove last; none where it redrove none, or the store does not say it: an
/// action can be watched all the same.
async fn after_redrive(api: &Api, name: &str) -> Option<AfterRedrive> {
    let jobs = api.actions.redriven(name);
    if jobs.is_empty() {
        return None;
    }
    let state = async |job| -> quell::Result<Option<JobState>> {
        Ok(api.quell.store().result(job).await?.map(|result| result.state))
    };
    let states = stream::iter(jobs).map(state).buffered(LOOKS);
    let counted = states.try_fold(AfterRedrive::default(), |mut then, state| {
        then.count(state);
        std::future::ready(Ok(then))
    });
    match counted.await {
        Ok(then) => {
            api.actions.note_look(name, then);
            Some(then)
        }
        Err(error) => {
            warn!(action = name, %error, "its redriven jobs could not be looked at");
            None
        }
    }
}

/// `DELETE /v1/actions/{name}`.
#[utoipa::path(
    delete,
    path = "/v1/actions/{name}",
    tag = "actions",
    operation_id = "actions_stop",
    summary = "Stop an action after the job that it is at; forget one that has ended.",
    description = "",
    params(
        ("name" = String, Path, description = "The action."),
    ),
    responses((status = 200, body = view::Action, description = "As it was."), Refused),
)]
pub(super) async fn stop(
    State(api): State<Api>,
    Extension(access): Extension<Access>,
    Path(name): Path<String>,
) -> Result<Json<view::Action>, ApiError> {
    seen(&api, &access, &name)?;
    api.actions.stop(&name).map(Json).ok_or_else(no_action)
}

/// An action that the caller's token sees.
fn seen(api: &Api, access: &Access, name: &str) -> Result<Action, ApiError> {
    let found = api.actions.show(name);
    found.filter(|action| objects::action(access.grant(), action)).ok_or_else(no_action)
}

fn no_action() -> ApiError {
    ApiError::not_found("name", "this server keeps no action of this name")
}
