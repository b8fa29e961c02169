//! Entity tags of settings: a caller that sends the tag which it read changes nothing unseen.
//!
//! A tag is a hash of what is shown, so equal settings have equal tags, on every server.

use axum::Json;
use axum::http::header::{ETAG, IF_MATCH};
use axum::http::{HeaderMap, HeaderName, StatusCode};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Serialize;
use sha2::{Digest as _, Sha256};

use super::error::ApiError;

/// What is shown, with its tag.
pub(super) type Tagged<T> = ([(HeaderName, String); 1], Json<T>);

/// What is shown, with its tag.
pub(super) fn tagged<T: Serialize>(shown: T) -> Tagged<T> {
    ([(ETAG, of(&shown))], Json(shown))
}

fn of(shown: &impl Serialize) -> String {
    let text = serde_json::to_vec(shown).unwrap_or_default();
    let hash = URL_SAFE_NO_PAD.encode(Sha256::digest(&text));
    format!("\"{}\"", hash.get(..22).unwrap_or(&hash))
}

/// Whether the request names tags that it wants to find.
pub(super) fn is_asked(headers: &HeaderMap) -> bool {
    headers.contains_key(IF_MATCH)
}

/// Refuses a request with `If-Match` that names no tag of what is there; none where nothing is.
pub(super) fn check(headers: &HeaderMap, there: Option<&impl Serialize>) -> Result<(), ApiError> {
    let tag = there.map(of);
    let mut given = headers.get_all(IF_MATCH).iter().peekable();
    if given.peek().is_none() {
        return Ok(());
    }
    let texts = given.filter_map(|value| value.to_str().ok());
    let mut tags = texts.flat_map(|text| text.split(',')).map(str::trim);
    // RFC 9110, section 13.1.1: a weak tag never matches.
    if tags.any(|given| tag.as_deref().is_some_and(|tag| given == "*" || given == tag)) {
        return Ok(());
    }
    Err(changed())
}

/// The answer to a caller that has not seen what is there.
pub(super) fn changed() -> ApiError {
    let message = "the settings have changed since they were read: read them again";
    ApiError::new(StatusCode::PRECONDITION_FAILED, "if-match", message)
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    #[test]
    fn r32_a_request_finds_one_of_its_tags_or_is_refused() {
        let tag = of(&1);
        assert_eq!(tag.len(), 24, "{tag}");
        assert_ne!(of(&1), of(&2));
        let table = [
            (None, Some(1), true),
            (None, None, true),
            (Some(tag.clone()), Some(1), true),
            (Some(tag.clone()), Some(2), false),
            (Some(tag.clone()), None, false),
            (Some(format!("\"other\", {tag}")), Some(1), true),
            (Some(format!("W/{tag}")), Some(1), false),
            (Some("*".to_owned()), Some(1), true),
            (Some("*".to_owned()), None, false),
        ];
        for (given, there, expected) in table {
            let mut headers = HeaderMap::new();
            if let Some(given) = &given {
                headers.insert(IF_MATCH, HeaderValue::from_str(given).unwrap());
            }
            assert_eq!(check(&headers, there.as_ref()).is_ok(), expected, "{given:?} {there:?}");
        }
    }
}
