//! Admits requests: the right host, no page of another site, the token. Every response gets headers
//! that keep it out of caches and other pages.

use std::net::SocketAddr;

use axum::extract::{Request, State};
use axum::http::header::{AUTHORIZATION, CACHE_CONTROL, HOST, WWW_AUTHENTICATE};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use tracing::info;

use super::Api;
use super::error::ApiError;
use super::openapi;
use crate::secrets::Secrets;
use crate::view::Caller;

/// The address at the other end of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Peer(pub SocketAddr);

/// Admits a request, or refuses it with the reason.
pub(super) async fn admit(State(api): State<Api>, mut request: Request, next: Next) -> Response {
    if let Err(refusal) = check(&api, &request) {
        return refusal.into_response();
    }
    let peer = request.extensions().get::<Peer>().map(|Peer(address)| address.ip().to_string());
    let token = api.token.as_ref().is_some_and(|token| presents(request.headers(), token));
    request.extensions_mut().insert(Caller { peer, token });
    next.run(request).await
}

/// Logs each request that changes something, with its caller, once it is answered. The path has names
/// and ids; keys and payloads are in bodies.
pub(super) async fn audit(request: Request, next: Next) -> Response {
    if matches!(*request.method(), Method::GET | Method::HEAD) {
        return next.run(request).await;
    }
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let caller = request.extensions().get::<Caller>().cloned().unwrap_or_default();
    let answer = next.run(request).await;
    let (status, peer) = (answer.status().as_u16(), caller.peer.as_deref());
    info!(%method, path, status, peer, token = caller.token, "operator request");
    answer
}

/// Keeps responses out of caches and other pages, and names the scheme where a token is asked for.
pub(super) async fn private(request: Request, next: Next) -> Response {
    let mut answer = next.run(request).await;
    let headers = answer.headers_mut();
    headers.insert("x-content-type-options", HeaderValue::from_static("nosniff"));
    headers.insert("referrer-policy", HeaderValue::from_static("no-referrer"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    if answer.status() == StatusCode::UNAUTHORIZED {
        answer.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    answer
}

fn check(api: &Api, request: &Request) -> Result<(), ApiError> {
    // Without this, any web page could reach a server on loopback under a name of its own.
    if !names_this_server(api, request.headers()) {
        let message = "the host name is not allowed: add it to server.allowed_hosts";
        return Err(ApiError::new(StatusCode::MISDIRECTED_REQUEST, "host", message));
    }
    let safe = matches!(*request.method(), Method::GET | Method::HEAD);
    // None of them has anything of the store.
    let open = matches!(request.uri().path(), "/" | "/v1/healthz" | openapi::JSON | openapi::PAGE);
    if let Some(token) = api.token.as_ref().filter(|_| !open) {
        if !presents(request.headers(), token) {
            let message = "the bearer token is missing or wrong";
            return Err(ApiError::new(StatusCode::UNAUTHORIZED, "authorization", message));
        }
    } else if !safe && comes_from_a_foreign_page(request.headers()) {
        let message = "a request of another site's page is refused";
        return Err(ApiError::new(StatusCode::FORBIDDEN, "sec-fetch-site", message));
    }
    Ok(())
}

fn names_this_server(api: &Api, headers: &HeaderMap) -> bool {
    let Some(host) = headers.get(HOST).and_then(|host| host.to_str().ok()) else { return false };
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    api.hosts.iter().any(|known| known.eq_ignore_ascii_case(name))
}

/// Compares in constant time: the duration of a refusal reveals nothing of the token.
fn presents(headers: &HeaderMap, token: &Secrets) -> bool {
    let shown = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok());
    let Some((scheme, shown)) = shown.and_then(|value| value.split_once(' ')) else { return false };
    // The scheme in any case: RFC 9110, section 11.1.
    scheme.eq_ignore_ascii_case("bearer") && token.have(shown.trim().as_bytes())
}

fn comes_from_a_foreign_page(headers: &HeaderMap) -> bool {
    let site = headers.get(HeaderName::from_static("sec-fetch-site"));
    match site.and_then(|site| site.to_str().ok()) {
        Some("same-origin" | "none") => false,
        Some(_) => true,
        // Browsers that do not say send the origin with every unsafe method; other programs do not.
        None => headers.contains_key("origin"),
    }
}
