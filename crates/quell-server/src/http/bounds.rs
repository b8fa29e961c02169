//! Bounds of every request: its head, its time, and a panic of its handler.

use std::panic::AssertUnwindSafe;

use axum::extract::Request;
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use futures_util::FutureExt;

use super::REQUEST_TIMEOUT;
use super::error::ApiError;

/// The bytes of a request's head.
const MAX_HEAD_BYTES: usize = 64 << 10;

/// Ends a request that takes too long or panics with an error response, and refuses one with too long a head.
pub(super) async fn bounds(request: Request, next: Next) -> Response {
    if head_bytes(&request) > MAX_HEAD_BYTES {
        let message = format!("the request's head has more than {MAX_HEAD_BYTES} bytes, the limit");
        let status = StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE;
        return ApiError::new(status, "headers", message).into_response();
    }
    let answer = AssertUnwindSafe(next.run(request)).catch_unwind();
    match tokio::time::timeout(REQUEST_TIMEOUT, answer).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(_)) => {
            let status = StatusCode::INTERNAL_SERVER_ERROR;
            ApiError::internal(status, "internal", &"a handler panicked").into_response()
        }
        Err(_) => {
            let message = "the request took too long";
            ApiError::new(StatusCode::REQUEST_TIMEOUT, "request", message).into_response()
        }
    }
}

/// The bytes of a request's head as it was sent, but for white space that says nothing.
fn head_bytes(request: &Request) -> usize {
    let path = request.uri().path_and_query().map_or(0, |path| path.as_str().len());
    let line = request.method().as_str().len() + path + "  HTTP/1.1\r\n".len();
    let of_header = |(name, value): (&HeaderName, &HeaderValue)| {
        name.as_str().len() + value.len() + ": \r\n".len()
    };
    line + request.headers().iter().map(of_header).sum::<usize>() + "\r\n".len()
}

#[cfg(test)]
mod tests {
    use axum::Router;
    use axum::body::Body;
    use axum::middleware::from_fn;
    use axum::routing::get;
    use tower::ServiceExt;

    use super::*;

    async fn panicking() -> &'static str {
        panic!("words-of-the-panic")
    }

    #[tokio::test]
    async fn a_panic_is_one_answer_with_an_id_and_no_more() {
        let app = Router::new()
            .route("/panic", get(panicking))
            .route("/fine", get(async || "fine"))
            .layer(from_fn(bounds));
        let ask = |path: &str| {
            let request = Request::builder().uri(path).body(Body::empty()).unwrap();
            app.clone().oneshot(request)
        };
        let answer = ask("/panic").await.unwrap();
        assert_eq!(answer.status(), StatusCode::INTERNAL_SERVER_ERROR);
        let body = axum::body::to_bytes(answer.into_body(), 4096).await.unwrap();
        let reply: serde_json::Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(reply["error"]["id"].as_str().unwrap().len(), 16, "{reply}");
        assert!(!reply.to_string().contains("words-of-the-panic"), "{reply}");
        assert_eq!(ask("/fine").await.unwrap().status(), StatusCode::OK);
    }
}
