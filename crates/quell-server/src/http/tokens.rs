//! Tokens over HTTP: list, make, replace, revoke.

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use jiff::Timestamp;
use quell::ErrorKind;
use serde::Deserialize;
use utoipa::ToSchema;

use super::Api;
use super::body::{JsonBody, parse};
use super::error::{ApiError, Refused};
use super::pull::time;
use crate::access::{Limits, NewToken, Pattern, Scope, Tokens};
use crate::view;

/// A token to make.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = NewToken)]
struct Asked {
    /// Its name in the log and the audit.
    name: String,
    /// Its scopes: `trigger`, `work`, `read`, `payload`, `operate`, `admin`; `trigger:TASK` and
    /// `work:QUEUE` are for one task or queue, or for those that begin so, as in `trigger:mail*`.
    #[schema(value_type = Vec<String>)]
    scopes: Vec<Scope>,
    /// The tasks that it is limited to, by name or by beginning and `*`.
    #[serde(default)]
    #[schema(value_type = Vec<String>, required = false)]
    tasks: Vec<Pattern>,
    /// The queues that it is limited to, likewise.
    #[serde(default)]
    #[schema(value_type = Vec<String>, required = false)]
    queues: Vec<Pattern>,
    /// Until when it counts, such as `2027-01-01T00:00:00Z`.
    #[schema(value_type = Option<String>)]
    expires_at: Option<Timestamp>,
}

/// How a token is replaced.
#[derive(Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = TokenRotation)]
struct Rotation {
    /// How long the old token counts yet, up to `168h`; it ends at once where it is left out.
    keep: Option<String>,
}

/// `GET /v1/tokens`.
#[utoipa::path(
    get,
    path = "/v1/tokens",
    tag = "tokens",
    operation_id = "tokens_list",
    summary = "List the tokens with their scopes, without what they are.",
    description = "",
    responses((status = 200, body = view::Tokens, description = "Done."), Refused),
)]
pub(super) async fn list(State(api): State<Api>) -> Result<Json<view::Tokens>, ApiError> {
    let tokens = tokens(&api)?;
    let listed = aside(move || Ok(tokens.list())).await?;
    Ok(Json(view::Tokens { tokens: listed.into_iter().map(view::Token::from).collect() }))
}

/// `POST /v1/tokens`.
#[utoipa::path(
    post,
    path = "/v1/tokens",
    tag = "tokens",
    operation_id = "tokens_add",
    summary = "Make a token. The answer is the only one that has it.",
    description = "",
    request_body = Asked,
    responses((status = 201, body = view::MadeToken, description = "Made."), Refused),
)]
pub(super) async fn add(
    State(api): State<Api>,
    body: JsonBody,
) -> Result<(StatusCode, Json<view::MadeToken>), ApiError> {
    let body = body.read()?;
    let Asked { name, scopes, tasks, queues, expires_at } = parse(&body)?;
    let new = NewToken { name, scopes, limits: Limits { tasks, queues }, expires_at };
    let tokens = tokens(&api)?;
    let made = aside(move || tokens.add(new)).await?;
    Ok((StatusCode::CREATED, Json(made.into())))
}

/// `POST /v1/tokens/{name}/rotate`.
#[utoipa::path(
    post,
    path = "/v1/tokens/{name}/rotate",
    tag = "tokens",
    operation_id = "tokens_rotate",
    summary = "Make a new token in place of one, with the same scopes.",
    description = "",
    params(("name" = String, Path, description = "The token.")),
    request_body = Option<Rotation>,
    responses((status = 200, body = view::MadeToken, description = "Replaced."), Refused),
)]
pub(super) async fn rotate(
    State(api): State<Api>,
    Path(name): Path<String>,
    body: JsonBody,
) -> Result<Json<view::MadeToken>, ApiError> {
    let body = body.read_if_any()?;
    let Rotation { keep } = body.as_deref().map(parse).transpose()?.unwrap_or_default();
    let keep = time("keep", keep.as_deref().unwrap_or("0s"))?;
    let tokens = tokens(&api)?;
    Ok(Json(aside(move || tokens.rotate(&name, keep)).await?.into()))
}

/// `DELETE /v1/tokens/{name}`.
#[utoipa::path(
    delete,
    path = "/v1/tokens/{name}",
    tag = "tokens",
    operation_id = "tokens_revoke",
    summary = "End a token: at once here, within a second at other servers with the same file.",
    description = "",
    params(("name" = String, Path, description = "The token.")),
    responses((status = 200, body = view::RevokedToken, description = "Done."), Refused),
)]
pub(super) async fn revoke(
    State(api): State<Api>,
    Path(name): Path<String>,
) -> Result<Json<view::RevokedToken>, ApiError> {
    let (tokens, of) = (tokens(&api)?, name.clone());
    aside(move || tokens.revoke(&of)).await?;
    Ok(Json(view::RevokedToken { name, revoked: true }))
}

fn tokens(api: &Api) -> Result<Tokens, ApiError> {
    api.tokens.clone().ok_or_else(|| {
        let message = "this server has no file of tokens: name one in server.tokens";
        ApiError::not_found("server.tokens", message)
    })
}

/// Does what waits for a disk.
async fn aside<T: Send + 'static>(
    work: impl FnOnce() -> quell::Result<T> + Send + 'static,
) -> Result<T, ApiError> {
    let done = tokio::task::spawn_blocking(work).await;
    let done = done.map_err(|error| {
        ApiError::internal(StatusCode::INTERNAL_SERVER_ERROR, "internal", &error)
    })?;
    done.map_err(|error| match error.kind() {
        ErrorKind::NotFound => ApiError::not_found("name", error.to_string()),
        _ => error.into(),
    })
}
