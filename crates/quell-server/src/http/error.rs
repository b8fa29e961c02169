//! The response of a failure: a status, a kind, the field, a message, an id.
//!
//! Errors of the store or of Quell itself are logged under the id; the caller gets the id only.

use std::collections::BTreeMap;

use axum::Json;
use axum::http::header::{CONTENT_TYPE, RETRY_AFTER};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use quell::ErrorKind;
use serde::{Deserialize, Serialize};
use tracing::error;
use utoipa::ToSchema;
use utoipa::openapi::{Content, Ref, RefOr, Response as Documented, ResponseBuilder};

use crate::view;

/// Why a request was refused or failed: problem details (RFC 9457), and the same for programs as `error`.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct Problem {
    /// `about:blank`: the status says the type, `error.kind` more.
    #[serde(rename = "type")]
    about: String,
    /// The name of the status.
    title: String,
    /// The status.
    status: u16,
    /// What is wrong, for people.
    detail: String,
    /// The same for programs.
    error: Cause,
}

/// What is wrong with a request.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[schema(as = Error)]
pub(crate) struct Cause {
    /// `invalid`, `not_found`, `unavailable` and others.
    kind: String,
    /// The field, parameter or header at fault.
    field: Option<String>,
    /// What is wrong, for people.
    message: String,
    /// The id under which the log has an error of the server.
    id: Option<String>,
}

/// What every operation may answer in place of its result.
pub(crate) struct Refused;

impl utoipa::IntoResponses for Refused {
    fn responses() -> BTreeMap<String, RefOr<Documented>> {
        let problem = Content::new(Some(Ref::from_schema_name("Problem")));
        let refused = ResponseBuilder::new()
            .description("The request was refused, or failed.")
            .content(PROBLEM, problem)
            .build();
        BTreeMap::from([("default".to_owned(), RefOr::T(refused))])
    }
}

/// The content type of problem details.
const PROBLEM: &str = "application/problem+json";

/// A failed request.
#[derive(Debug)]
pub(crate) struct ApiError {
    status: StatusCode,
    kind: &'static str,
    field: Option<String>,
    message: String,
    id: Option<String>,
    /// After how many seconds to try again, where it is later than usual.
    retry_after: Option<u64>,
}

impl ApiError {
    pub(crate) fn new(status: StatusCode, field: &str, message: impl Into<String>) -> Self {
        let kind = match status {
            StatusCode::NOT_FOUND => "not_found",
            StatusCode::UNAUTHORIZED => "unauthorized",
            StatusCode::FORBIDDEN | StatusCode::MISDIRECTED_REQUEST => "forbidden",
            StatusCode::PRECONDITION_FAILED => "changed",
            StatusCode::PAYLOAD_TOO_LARGE => "too_large",
            StatusCode::REQUEST_TIMEOUT => "timeout",
            StatusCode::TOO_MANY_REQUESTS => "busy",
            StatusCode::SERVICE_UNAVAILABLE => "unavailable",
            _ => "invalid",
        };
        let (field, message) = (Some(field.to_owned()), message.into());
        ApiError { status, kind, field, message, id: None, retry_after: None }
    }

    pub(crate) fn invalid(field: &str, message: impl Into<String>) -> Self {
        ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, field, message)
    }

    pub(crate) fn not_found(field: &str, message: impl Into<String>) -> Self {
        ApiError::new(StatusCode::NOT_FOUND, field, message)
    }

    /// Its status.
    pub(crate) fn status(&self) -> StatusCode {
        self.status
    }

    /// The same with another message.
    pub(crate) fn with_message(mut self, change: impl FnOnce(String) -> String) -> Self {
        self.message = change(self.message);
        self
    }

    /// The same, to try again after these seconds.
    pub(crate) fn retry_after(self, seconds: u64) -> Self {
        ApiError { retry_after: Some(seconds), ..self }
    }

    /// What is said of it.
    pub(crate) fn message(&self) -> &str {
        &self.message
    }

    /// The same for one member of a batch.
    pub(crate) fn at(mut self, index: usize) -> Self {
        let field = self.field.unwrap_or_default();
        self.field = Some(format!("triggers[{index}].{field}"));
        self
    }

    /// A failure that is not the caller's fault: an id, under which the log has the error.
    pub(crate) fn internal(
        status: StatusCode,
        kind: &'static str,
        why: &dyn std::fmt::Display,
    ) -> Self {
        let id = format!("{:016x}", fastrand::u64(..));
        error!(id, kind, error = %why, "request failed");
        let message = match kind {
            "unavailable" => format!(
                "the store does not answer, and nothing was changed: try again (the log has the \
                 error under {id})"
            ),
            _ => format!("the server failed: its log has the error under {id}"),
        };
        ApiError { status, kind, field: None, message, id: Some(id), retry_after: None }
    }
}

impl From<&ApiError> for view::SettlementError {
    fn from(error: &ApiError) -> Self {
        view::SettlementError {
            kind: error.kind.to_owned(),
            field: error.field.clone(),
            message: error.message.clone(),
            id: error.id.clone(),
        }
    }
}

impl From<quell::Error> for ApiError {
    fn from(error: quell::Error) -> Self {
        let message = error.to_string();
        if error.unreadable_job().is_some() {
            return ApiError {
                kind: "unreadable",
                ..ApiError::new(StatusCode::CONFLICT, "job", message)
            };
        }
        match error.kind() {
            ErrorKind::Invalid => {
                let field = error.field().unwrap_or("request");
                let too_large = field == "payload" && message.contains("limit");
                let status = if too_large {
                    StatusCode::PAYLOAD_TOO_LARGE
                } else {
                    StatusCode::UNPROCESSABLE_ENTITY
                };
                ApiError::new(status, field, message)
            }
            ErrorKind::NotFound => ApiError::not_found("job", message),
            // The status that the IETF's draft on the header has for it.
            ErrorKind::IdempotencyConflict => ApiError {
                kind: "idempotency_conflict",
                ..ApiError::invalid("idempotency_key", message)
            },
            ErrorKind::IllegalMove => ApiError {
                kind: "illegal_move",
                ..ApiError::new(StatusCode::CONFLICT, "job", message)
            },
            // R18: the message names the capability that the store lacks.
            ErrorKind::Unsupported => ApiError {
                kind: "unsupported",
                ..ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, "request", message)
            },
            ErrorKind::Contention | ErrorKind::Unavailable | ErrorKind::Full => {
                ApiError::internal(StatusCode::SERVICE_UNAVAILABLE, "unavailable", &error)
            }
            ErrorKind::UnknownOutcome => {
                ApiError::internal(StatusCode::GATEWAY_TIMEOUT, "unknown_outcome", &error)
            }
            _ => ApiError::internal(StatusCode::INTERNAL_SERVER_ERROR, "internal", &error),
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let ApiError { status, kind, field, message, id, retry_after } = self;
        let problem = Problem {
            about: "about:blank".to_owned(),
            title: status.canonical_reason().unwrap_or_default().to_owned(),
            status: status.as_u16(),
            detail: message.clone(),
            error: Cause { kind: kind.to_owned(), field, message, id },
        };
        let mut response = (status, Json(problem)).into_response();
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(PROBLEM));
        if matches!(status, StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS) {
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(retry_after.unwrap_or(1)));
        }
        response
    }
}
