//! Requests to the API, and its answers.

use axum::body::{Body, Bytes, to_bytes};
use axum::http::header::{
    ACCEPT, ACCEPT_ENCODING, ACCEPT_LANGUAGE, CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, EXPECT,
    IF_MATCH, IF_MODIFIED_SINCE, IF_NONE_MATCH, RANGE, TE, TRANSFER_ENCODING, UPGRADE,
};
use axum::http::{Extensions, HeaderMap, HeaderName, HeaderValue, Method, Request, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tower::ServiceExt;

use crate::site::Api;

/// The largest answer that is read.
const MAX_ANSWER: usize = 64 << 20;
/// Headers that are about the body, the connection or the copy that a browser has.
const OWN: [HeaderName; 14] = [
    ACCEPT,
    ACCEPT_ENCODING,
    ACCEPT_LANGUAGE,
    CONNECTION,
    CONTENT_LENGTH,
    CONTENT_TYPE,
    EXPECT,
    IF_MATCH,
    IF_MODIFIED_SINCE,
    IF_NONE_MATCH,
    RANGE,
    TE,
    TRANSFER_ENCODING,
    UPGRADE,
];

/// A request to the API.
#[derive(Debug)]
pub(crate) struct Call<'a> {
    pub(crate) method: Method,
    pub(crate) path: &'a str,
    /// JSON.
    pub(crate) body: Option<String>,
    /// The tag of the settings that are to be changed.
    pub(crate) tag: Option<&'a str>,
}

impl<'a> Call<'a> {
    pub(crate) fn get(path: &'a str) -> Self {
        Call { method: Method::GET, path, body: None, tag: None }
    }
}

/// What the API answered.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    body: Bytes,
}

/// Why the API refused a request.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Problem {
    pub(crate) field: Option<String>,
    pub(crate) message: String,
    pub(crate) id: Option<String>,
}

impl Reply {
    /// The answer as JSON.
    pub(crate) fn json<T: DeserializeOwned>(&self) -> Result<T, serde_json::Error> {
        serde_json::from_slice(&self.body)
    }

    /// The reason of a refusal.
    pub(crate) fn problem(&self) -> Problem {
        #[derive(Default, Deserialize)]
        #[serde(default)]
        struct Answer {
            error: Problem,
        }
        let mut problem = self.json::<Answer>().unwrap_or_default().error;
        if problem.message.is_empty() {
            problem.message = format!("the API answered {}", self.status);
        }
        problem
    }

    /// The header of a name.
    pub(crate) fn header(&self, name: &HeaderName) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }
}

/// The headers of a caller that go on to the API.
pub(crate) fn of_caller(headers: &HeaderMap, replaced: HeaderMap) -> HeaderMap {
    let mut kept = headers.clone();
    for name in OWN {
        kept.remove(name);
    }
    for name in replaced.keys() {
        kept.remove(name);
    }
    kept.extend(replaced);
    kept
}

/// A request of a caller without a body; none where the path is no address.
fn request(path: &str, headers: &HeaderMap, extensions: &Extensions) -> Option<Request<Body>> {
    let mut request = Request::new(Body::empty());
    *request.uri_mut() = path.parse().ok()?;
    *request.headers_mut() = headers.clone();
    *request.extensions_mut() = extensions.clone();
    Some(request)
}

async fn send(api: Api, request: Request<Body>) -> Response {
    match api.oneshot(request).await {
        Ok(response) => response,
        Err(never) => match never {},
    }
}

/// What the API has at a path, as it comes.
pub(crate) async fn stream(
    api: Api,
    headers: &HeaderMap,
    extensions: &Extensions,
    path: &str,
) -> Response {
    match request(path, headers, extensions) {
        Some(request) => send(api, request).await,
        None => StatusCode::BAD_REQUEST.into_response(),
    }
}

/// Asks the API. An answer that cannot be read is 502.
pub(crate) async fn ask(
    api: Api,
    headers: &HeaderMap,
    extensions: &Extensions,
    call: Call<'_>,
) -> Reply {
    let failed =
        |status: StatusCode| Reply { status, headers: HeaderMap::new(), body: Bytes::new() };
    let Some(mut request) = request(call.path, headers, extensions) else {
        return failed(StatusCode::BAD_REQUEST);
    };
    *request.method_mut() = call.method;
    let headers = request.headers_mut();
    headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
    if let Some(tag) = call.tag {
        let Ok(tag) = HeaderValue::from_str(tag) else { return failed(StatusCode::BAD_REQUEST) };
        headers.insert(IF_MATCH, tag);
    }
    if let Some(body) = call.body {
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(CONTENT_LENGTH, HeaderValue::from(body.len()));
        *request.body_mut() = Body::from(body);
    }
    let (head, body) = send(api, request).await.into_parts();
    match to_bytes(body, MAX_ANSWER).await {
        Ok(body) => Reply { status: head.status, headers: head.headers, body },
        Err(_) => failed(StatusCode::BAD_GATEWAY),
    }
}

impl IntoResponse for Reply {
    /// The answer as it was.
    fn into_response(self) -> Response {
        (self.status, self.headers, self.body).into_response()
    }
}
