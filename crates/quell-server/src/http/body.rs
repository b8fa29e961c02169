//! The JSON body of a request.
//!
//! Invariant: a body is parsed only if it declares JSON and is within the bounds of size and depth.

use std::convert::Infallible;

use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::{FromRequest, Request};
use axum::http::{HeaderMap, StatusCode};
use serde::Deserialize;

use super::error::ApiError;

/// How deep a body may nest.
pub(crate) const MAX_DEPTH: usize = 64;

/// The body of a request, which a handler reads once it knows what the request is about: an unknown task
/// is reported before an unreadable body.
pub(super) struct JsonBody {
    is_json: bool,
    bytes: Result<Bytes, BytesRejection>,
}

impl<S: Send + Sync> FromRequest<S> for JsonBody {
    type Rejection = Infallible;

    async fn from_request(request: Request, state: &S) -> Result<Self, Infallible> {
        let is_json = is_json(request.headers());
        Ok(JsonBody { is_json, bytes: Bytes::from_request(request, state).await })
    }
}

impl JsonBody {
    /// The body of a request with these headers.
    pub(super) fn of(headers: &HeaderMap, bytes: Result<Bytes, BytesRejection>) -> Self {
        JsonBody { is_json: is_json(headers), bytes }
    }

    /// Its bytes, whatever they are, within the bound of size.
    pub(super) fn bytes(self) -> Result<Bytes, ApiError> {
        self.bytes.map_err(|rejection| {
            let status = rejection.status();
            ApiError::new(status, "body", format!("cannot read the body: {rejection}"))
        })
    }

    /// Its bytes, if they are JSON by the request's `content-type`, within the bound of size. The caller
    /// bounds the depth.
    pub(super) fn read_of_any_depth(self) -> Result<Bytes, ApiError> {
        if !self.is_json {
            let status = StatusCode::UNSUPPORTED_MEDIA_TYPE;
            return Err(ApiError::new(status, "content-type", "send application/json"));
        }
        self.bytes()
    }

    /// The same within the bounds of size and depth.
    pub(super) fn read(self) -> Result<Bytes, ApiError> {
        let body = self.read_of_any_depth()?;
        if depth(&body) > MAX_DEPTH {
            let message = format!("the body has more than {MAX_DEPTH} nested levels, the limit");
            return Err(ApiError::new(StatusCode::BAD_REQUEST, "body", message));
        }
        Ok(body)
    }

    /// The same of a body that may be left out.
    pub(super) fn read_if_any(self) -> Result<Option<Bytes>, ApiError> {
        if self.bytes.as_ref().is_ok_and(Bytes::is_empty) {
            Ok(None)
        } else {
            self.read().map(Some)
        }
    }
}

fn is_json(headers: &HeaderMap) -> bool {
    let kind = headers.get("content-type").and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let name = kind.split(';').next();
    name.is_some_and(|name| name.trim().eq_ignore_ascii_case("application/json"))
}

/// How deep a JSON text nests, without parsing it.
pub(crate) fn depth(text: &[u8]) -> usize {
    let (mut depth, mut deepest) = (0_usize, 0);
    for byte in outside_texts(text) {
        match byte {
            b'[' | b'{' => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    deepest
}

/// The bytes of a JSON text that are in none of its strings.
pub(crate) fn outside_texts(text: &[u8]) -> impl Iterator<Item = u8> {
    let (mut in_text, mut escaped) = (false, false);
    text.iter().copied().filter(move |byte| {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_text => escaped = true,
            b'"' => in_text = !in_text,
            _ => return !in_text,
        }
        false
    })
}

/// Reads what a caller wrote, or says at which field it went wrong.
pub(super) fn parse<'b, T: Deserialize<'b>>(body: &'b [u8]) -> Result<T, ApiError> {
    let mut source = serde_json::Deserializer::from_slice(body);
    let read = serde_path_to_error::deserialize(&mut source).map_err(|error| {
        let path = error.path().to_string();
        malformed(&path, error.inner())
    })?;
    source.end().map_err(|error| malformed(".", &error))?;
    Ok(read)
}

pub(super) fn malformed(path: &str, error: &serde_json::Error) -> ApiError {
    let at = if path == "." { String::new() } else { format!(" at {path}") };
    let message = format!("the body does not fit this path{at}: {error}");
    let status =
        if error.is_data() { StatusCode::UNPROCESSABLE_ENTITY } else { StatusCode::BAD_REQUEST };
    ApiError::new(status, "body", message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn depth_counts_brackets_outside_of_text() {
        let table: [(&str, usize); 6] = [
            ("1", 0),
            ("[]", 1),
            (r#"{"a":[1,{"b":2}]}"#, 3),
            (r#""[[[[""#, 0),
            (r#"["\"[["]"#, 1),
            ("]]]][", 1),
        ];
        for (text, expected) in table {
            assert_eq!(depth(text.as_bytes()), expected, "{text}");
        }
    }
}
