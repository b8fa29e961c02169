//! Admits requests: the right host, no page of another site, a token that permits the operation. Every response
//! gets headers that keep it out of caches and other pages.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::extract::{MatchedPath, Request, State};
use axum::http::header::{AUTHORIZATION, CACHE_CONTROL, HOST, WWW_AUTHENTICATE};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::error::ApiError;
use super::rules::{self, Needs, Rule};
use super::{Api, objects, openapi};
use crate::access::{Grant, Right};
use crate::view::Caller;

/// The name of callers with the configuration's own token.
const OWN: &str = "server.token";

/// The address at the other end of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Peer(pub SocketAddr);

/// What the caller of a request may do.
#[derive(Clone, Debug)]
pub(super) struct Access {
    grant: Arc<Grant>,
    /// The id of the operation.
    pub(super) operation: &'static str,
}

impl Access {
    /// Its grant.
    pub(super) fn grant(&self) -> &Grant {
        &self.grant
    }

    /// Whether payloads and outputs are shown.
    pub(super) fn sees_payloads(&self) -> bool {
        self.grant.has(Right::Payload)
    }

    /// Refuses a caller without a right, naming what asks for it.
    pub(super) fn require(&self, right: Right, field: &str) -> Result<(), ApiError> {
        if self.grant.has(right) {
            return Ok(());
        }
        Err(lacks(right, &self.grant, field))
    }
}

/// Admits a request, or refuses it with the reason.
pub(super) async fn admit(State(api): State<Api>, mut request: Request, next: Next) -> Response {
    let admitted = match check(&api, &request) {
        Ok((caller, access, rule)) => {
            objects::check(&api, &access, rule, &mut request).await.map(|()| (caller, access))
        }
        Err(refusal) => Err(refusal),
    };
    match admitted {
        Ok((caller, access)) => {
            request.extensions_mut().insert(caller);
            request.extensions_mut().insert(access);
            next.run(request).await
        }
        Err(refusal) => refusal.into_response(),
    }
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

fn check(api: &Api, request: &Request) -> Result<(Caller, Access, Rule), ApiError> {
    // Without this, any web page could reach a server on loopback under a name of its own.
    if !names_this_server(api, request.headers()) {
        let message = "the host name is not allowed: add it to server.allowed_hosts";
        return Err(ApiError::new(StatusCode::MISDIRECTED_REQUEST, "host", message));
    }
    let path = request.extensions().get::<MatchedPath>().map_or("", MatchedPath::as_str);
    // None of them has anything of the store.
    let is_open = matches!(path, "/" | openapi::JSON | openapi::PAGE);
    let known = rules::of_request(path, request.method());
    let (operation, rule) = known.unwrap_or(("", rules::of("")));
    let needs = if is_open { Needs::Nothing } else { rule.needs };
    let peer = request.extensions().get::<Peer>().map(|Peer(address)| address.ip().to_string());
    let (name, grant) = match identify(api, request.headers()) {
        Some((name, grant)) => (Some(name), grant),
        None if needs == Needs::Nothing => (None, Grant::new(Vec::new(), Default::default())),
        None if api.asks_for_tokens() => {
            let message = "the bearer token is missing or wrong";
            return Err(ApiError::new(StatusCode::UNAUTHORIZED, "authorization", message));
        }
        None => {
            let is_safe = matches!(*request.method(), Method::GET | Method::HEAD);
            if !is_safe && comes_from_a_foreign_page(request.headers()) {
                let message = "a request of another site's page is refused";
                return Err(ApiError::new(StatusCode::FORBIDDEN, "sec-fetch-site", message));
            }
            (None, Grant::all())
        }
    };
    // An unknown path is answered by the router, once its caller is known.
    if let (Needs::Right(right), Some(_)) = (needs, known)
        && !permits(&grant, operation, right)
    {
        return Err(lacks(right, &grant, "authorization"));
    }
    let access = Access { grant: Arc::new(grant), operation };
    let rule = if known.is_some() { Rule { needs, ..rule } } else { rules::NOTHING };
    Ok((Caller { peer, token: name.is_some(), name }, access, rule))
}

/// Whether a grant is enough for an operation; the handler narrows it down.
fn permits(grant: &Grant, operation: &str, right: Right) -> bool {
    // Who may read jobs and payloads may read results, too.
    let is_result = operation == "results_result";
    grant.has(right) || (is_result && grant.has(Right::Read) && grant.has(Right::Payload))
}

fn lacks(right: Right, grant: &Grant, field: &str) -> ApiError {
    let (right, has) = (right.name(), grant.scopes());
    let message = format!("the token does not have the scope {right}: it has {has}");
    ApiError::new(StatusCode::FORBIDDEN, field, message)
}

/// Whose token a request has.
fn identify(api: &Api, headers: &HeaderMap) -> Option<(String, Grant)> {
    let shown = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok())?;
    let (scheme, shown) = shown.split_once(' ')?;
    // The scheme in any case: RFC 9110, section 11.1.
    if !scheme.eq_ignore_ascii_case("bearer") {
        return None;
    }
    let shown = shown.trim();
    // Compared in constant time: the duration of a refusal reveals nothing of a token.
    if api.token.as_ref().is_some_and(|token| token.have(shown.as_bytes())) {
        return Some((OWN.to_owned(), Grant::all()));
    }
    api.tokens.as_ref()?.find(shown)
}

fn names_this_server(api: &Api, headers: &HeaderMap) -> bool {
    let Some(host) = headers.get(HOST).and_then(|host| host.to_str().ok()) else { return false };
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    api.hosts.iter().any(|known| known.eq_ignore_ascii_case(name))
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
