//! The response of a failure: a status, a kind, the field, a message, an id.
//!
//! Errors of the store or of Quell itself are logged under the id; the caller gets the id only.

use axum::Json;
use axum::http::header::RETRY_AFTER;
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use quell::ErrorKind;
use serde_json::json;
use tracing::error;

/// A failed request.
#[derive(Debug)]
pub(crate) struct ApiError {
    status: StatusCode,
    kind: &'static str,
    field: Option<String>,
    message: String,
    id: Option<String>,
}

impl ApiError {
    pub(crate) fn new(status: StatusCode, field: &str, message: impl Into<String>) -> Self {
        let kind = match status {
            StatusCode::NOT_FOUND => "not_found",
            StatusCode::UNAUTHORIZED => "unauthorized",
            StatusCode::FORBIDDEN | StatusCode::MISDIRECTED_REQUEST => "forbidden",
            StatusCode::PAYLOAD_TOO_LARGE => "too_large",
            StatusCode::REQUEST_TIMEOUT => "timeout",
            _ => "invalid",
        };
        let (field, message) = (Some(field.to_owned()), message.into());
        ApiError { status, kind, field, message, id: None }
    }

    pub(crate) fn invalid(field: &str, message: impl Into<String>) -> Self {
        ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, field, message)
    }

    pub(crate) fn not_found(field: &str, message: impl Into<String>) -> Self {
        ApiError::new(StatusCode::NOT_FOUND, field, message)
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
        let message = format!("the server failed: its log has the error under {id}");
        ApiError { status, kind, field: None, message, id: Some(id) }
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
        let ApiError { status, kind, field, message, id } = self;
        let body = json!({
            "error": { "kind": kind, "field": field, "message": message, "id": id }
        });
        let mut response = (status, Json(body)).into_response();
        if status == StatusCode::SERVICE_UNAVAILABLE {
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
        }
        response
    }
}
