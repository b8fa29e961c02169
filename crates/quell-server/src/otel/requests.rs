//! The spans of HTTP requests, with the names of OpenTelemetry's conventions.
//!
//! Invariant: they have the route and not the path, as a path has keys; and no header and no query.

use axum::extract::{MatchedPath, Request};
use axum::middleware::Next;
use axum::response::Response;
use opentelemetry::Context;
use opentelemetry::propagation::{Extractor, TextMapPropagator};
use opentelemetry_sdk::propagation::TraceContextPropagator;
use tracing::field::Empty;
use tracing::{Instrument, trace_span};
use tracing_opentelemetry::OpenTelemetrySpanExt;

/// The target of these spans. Their level is `trace`, so that log lines do not begin with them.
pub(super) const TARGET: &str = "quell_server::request";

/// Routes that supervisors and scrapers ask all the time.
const UNTRACED: [&str; 3] = ["/v1/healthz", "/v1/readyz", "/metrics"];

/// Answers a request within its span, which belongs to the trace of the caller.
pub(crate) async fn request_span(request: Request, next: Next) -> Response {
    if !super::is_tracing() {
        return next.run(request).await;
    }
    let route = request.extensions().get::<MatchedPath>().map(|path| path.as_str().to_owned());
    if route.as_ref().is_some_and(|route| UNTRACED.contains(&route.as_str())) {
        return next.run(request).await;
    }
    let method = known(request.method().as_str());
    let name =
        route.as_ref().map_or_else(|| method.to_owned(), |route| format!("{method} {route}"));
    let span = trace_span!(
        target: TARGET,
        "http.request",
        otel.name = name,
        otel.kind = "server",
        otel.status_code = Empty,
        http.request.method = method,
        http.route = route,
        http.response.status_code = Empty,
        error.type = Empty,
    );
    let headers = Headers(request.headers());
    let caller = TraceContextPropagator::new().extract_with_context(&Context::new(), &headers);
    // An error means that no layer makes this span.
    let _unmade = span.set_parent(caller);
    let answer = next.run(request).instrument(span.clone()).await;
    let status = answer.status();
    span.record("http.response.status_code", status.as_u16());
    if status.is_server_error() {
        span.record("error.type", status.as_str());
        span.record("otel.status_code", "ERROR");
    }
    answer
}

/// A method of HTTP; any other text has one name, as callers choose it.
fn known(method: &str) -> &'static str {
    const METHODS: [&str; 7] = ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"];
    METHODS.into_iter().find(|known| *known == method).unwrap_or("_OTHER")
}

/// The headers of a request, only those of the trace are read.
struct Headers<'h>(&'h axum::http::HeaderMap);

impl Extractor for Headers<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key)?.to_str().ok()
    }

    fn keys(&self) -> Vec<&str> {
        self.0.keys().map(|name| name.as_str()).collect()
    }
}
