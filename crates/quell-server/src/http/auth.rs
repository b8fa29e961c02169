//! Admits requests: the right host, no page of another site, a token that permits the operation. Every response
//! gets headers that keep it out of caches and other pages.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::extract::{MatchedPath, Request, State};
use axum::http::header::{
    AUTHORIZATION, CACHE_CONTROL, COOKIE, HOST, ORIGIN, STRICT_TRANSPORT_SECURITY, WWW_AUTHENTICATE,
};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::error::ApiError;
use super::peer::{Client, Peer};
use super::rules::{self, Needs, Rule};
use super::{Api, audit, objects, openapi, session};
use crate::access::{Begun, Digest, Grant, Right};
use crate::view::Caller;

/// The name of callers with the configuration's own token.
const OWN: &str = "server.token";
/// The cookie of a session. Browsers accept this prefix over HTTPS only, without a domain, and for all paths.
pub(super) const COOKIE_NAME: &str = "__Host-quell";
/// How often a request that waits looks whether its token still counts.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// Operations that wait for something to happen.
const WAITING: [&str; 2] = ["workers_claim", "results_result"];

/// What a caller has shown.
#[derive(Clone, Debug)]
enum Proof {
    /// Nothing, as nothing is asked for.
    None,
    Token(Digest),
    Session(Begun),
}

/// What the caller of a request may do.
#[derive(Clone, Debug)]
pub(super) struct Access {
    grant: Arc<Grant>,
    proof: Proof,
    /// The id of the operation.
    pub(super) operation: &'static str,
}

impl Access {
    /// Its grant.
    pub(super) fn grant(&self) -> &Grant {
        &self.grant
    }

    /// Its session, if it has one.
    pub(super) fn session(&self) -> Option<&Begun> {
        match &self.proof {
            Proof::Session(begun) => Some(begun),
            Proof::None | Proof::Token(_) => None,
        }
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

    /// Completes when its token or its session no longer counts, or permits something else.
    pub(super) async fn ended(&self, api: &Api) {
        loop {
            tokio::time::sleep(LOOK_INTERVAL).await;
            let counts = match &self.proof {
                Proof::None => true,
                Proof::Token(token) => {
                    of_token(api, token).is_some_and(|(_, grant)| grant == *self.grant)
                }
                Proof::Session(begun) => {
                    let times = api.session_times;
                    let still = api.sessions.get(&begun.id, times, Instant::now());
                    still.is_some_and(|begun| session_counts(api, &begun))
                }
            };
            if !counts {
                return;
            }
        }
    }
}

/// Admits a request, or refuses it with the reason.
pub(super) async fn admit(State(api): State<Api>, mut request: Request, next: Next) -> Response {
    let client = Client::of(request.extensions().get(), request.headers(), &api.proxies);
    let admitted = match check(&api, &client, &request) {
        Ok((caller, access, rule)) => {
            let checked = objects::check(&api, &access, rule, &mut request).await;
            checked.map(|()| (caller, access))
        }
        Err(refusal) => Err(refusal),
    };
    let (caller, access) = match admitted {
        Ok(admitted) => admitted,
        Err(refusal) => {
            audit::refused(&api, &client, &request, &refusal);
            return refusal.into_response();
        }
    };
    request.extensions_mut().insert(caller);
    request.extensions_mut().insert(access.clone());
    request.extensions_mut().insert(client);
    if !WAITING.contains(&access.operation) {
        return next.run(request).await;
    }
    tokio::select! {
        answer = next.run(request) => answer,
        // As if the caller had gone away: what was claimed meanwhile is released.
        () = access.ended(&api) => {
            let message = "the token was revoked, or changed, while the request waited";
            ApiError::new(StatusCode::UNAUTHORIZED, "authorization", message).into_response()
        }
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

/// Has browsers use HTTPS only from now on, where the configuration says so.
pub(super) async fn strict(State(api): State<Api>, request: Request, next: Next) -> Response {
    let is_tls = request.extensions().get::<Peer>().is_some_and(Peer::is_tls);
    let mut answer = next.run(request).await;
    if is_tls && api.strict_transport {
        let year = HeaderValue::from_static("max-age=31536000");
        answer.headers_mut().insert(STRICT_TRANSPORT_SECURITY, year);
    }
    answer
}

fn check(
    api: &Api,
    client: &Client,
    request: &Request,
) -> Result<(Caller, Access, Rule), ApiError> {
    let headers = request.headers();
    // Without this, any web page could reach a server on loopback under a name of its own.
    let own = headers.get(HOST).and_then(|host| host.to_str().ok());
    if ![own, client.host(headers)].iter().all(|host| host.is_some_and(|host| names(api, host))) {
        let message = "the host name is not allowed: add it to server.allowed_hosts";
        return Err(ApiError::new(StatusCode::MISDIRECTED_REQUEST, "host", message));
    }
    let path = request.extensions().get::<MatchedPath>().map_or("", MatchedPath::as_str);
    // None of them has anything of the store.
    let is_open = matches!(path, "/" | openapi::JSON | openapi::PAGE | openapi::STYLES)
        || session::is_page(path);
    let known = rules::of_request(path, request.method());
    let (operation, rule) = known.unwrap_or(("", rules::of("")));
    let needs = if is_open { Needs::Nothing } else { rule.needs };
    let is_safe = matches!(*request.method(), Method::GET | Method::HEAD);
    let identity = identify(api, headers);
    if matches!(identity, Some((_, _, Proof::Session(_)))) && !is_safe {
        // A browser sends the cookie with whatever a page of its site asks for.
        check_origin(client, headers, false)?;
    }
    let (name, grant, proof) = match identity {
        Some((name, grant, proof)) => (Some(name), grant, proof),
        None if matches!(needs, Needs::Nothing | Needs::Proof) => {
            (None, Grant::new(Vec::new(), Default::default()), Proof::None)
        }
        None if api.asks_for_tokens() => {
            let message = "the bearer token is missing or wrong, or the session has ended";
            return Err(ApiError::new(StatusCode::UNAUTHORIZED, "authorization", message));
        }
        None => {
            if !is_safe && comes_from_a_foreign_page(client, headers) {
                let message = "a request of another site's page is refused";
                let is_said = headers.contains_key("sec-fetch-site");
                let field = if is_said { "sec-fetch-site" } else { "origin" };
                return Err(ApiError::new(StatusCode::FORBIDDEN, field, message));
            }
            (None, Grant::all(), Proof::None)
        }
    };
    // An unknown path is answered by the router, once its caller is known.
    if let (Needs::Right(right), Some(_)) = (needs, known)
        && !permits(&grant, operation, right)
    {
        return Err(lacks(right, &grant, "authorization"));
    }
    let access = Access { grant: Arc::new(grant), proof, operation };
    let rule = if known.is_some() { Rule { needs, ..rule } } else { rules::NOTHING };
    let peer = client.shown.clone();
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

/// The name behind a refused request, where it has a token or a session.
pub(super) fn name_of(api: &Api, headers: &HeaderMap) -> Option<String> {
    identify(api, headers).map(|(name, ..)| name)
}

/// Whose token or session a request has. A token is all that counts where there is one.
fn identify(api: &Api, headers: &HeaderMap) -> Option<(String, Grant, Proof)> {
    let Some(shown) = headers.get(AUTHORIZATION) else {
        let begun = session_of(api, headers)?;
        return Some((begun.of.name.clone(), begun.of.grant.clone(), Proof::Session(begun)));
    };
    let (scheme, shown) = shown.to_str().ok()?.split_once(' ')?;
    // The scheme in any case: RFC 9110, section 11.1.
    if !scheme.eq_ignore_ascii_case("bearer") {
        return None;
    }
    let token = Digest::of(shown.trim().as_bytes());
    let (name, grant) = of_token(api, &token)?;
    Some((name, grant, Proof::Token(token)))
}

/// The name and the grant of a token. Digests are compared in constant time: the duration of a refusal reveals
/// nothing of a token.
pub(super) fn of_token(api: &Api, token: &Digest) -> Option<(String, Grant)> {
    if api.token.as_ref().is_some_and(|own| own.have_digest(token)) {
        return Some((OWN.to_owned(), Grant::all()));
    }
    api.tokens.as_ref()?.find_digest(token)
}

/// The session of a request's cookie. It ends with its token, and when that permits something else.
fn session_of(api: &Api, headers: &HeaderMap) -> Option<Begun> {
    let begun = api.sessions.find(cookie(headers)?, api.session_times, Instant::now())?;
    if session_counts(api, &begun) {
        return Some(begun);
    }
    api.sessions.end(&begun.id);
    None
}

fn session_counts(api: &Api, begun: &Begun) -> bool {
    let of = of_token(api, &begun.of.token);
    of.is_some_and(|(name, grant)| name == begun.of.name && grant == begun.of.grant)
}

/// The cookie of a session: one that is there twice is none.
fn cookie(headers: &HeaderMap) -> Option<&str> {
    let lines = headers.get_all(COOKIE).iter().filter_map(|line| line.to_str().ok());
    let pairs = lines.flat_map(|line| line.split(';')).filter_map(|pair| pair.split_once('='));
    let mut own = pairs.filter(|(name, _)| name.trim() == COOKIE_NAME);
    let (_, value) = own.next()?;
    own.next().is_none().then(|| value.trim())
}

/// Refuses what a page of another site sends. A program that is no browser says nothing of its origin, which is
/// fine where a token is shown, and not where a cookie is.
pub(super) fn check_origin(
    client: &Client,
    headers: &HeaderMap,
    may_be_silent: bool,
) -> Result<(), ApiError> {
    let site = headers.get(HeaderName::from_static("sec-fetch-site"));
    let is_same = match (site, headers.get(ORIGIN)) {
        (Some(site), _) => site.as_bytes() == b"same-origin",
        // Browsers that do not say send the origin with every unsafe method.
        (None, Some(origin)) => {
            origin.to_str().is_ok_and(|origin| is_origin(client, headers, origin))
        }
        (None, None) => may_be_silent,
    };
    if is_same {
        return Ok(());
    }
    let field = if site.is_some() { "sec-fetch-site" } else { "origin" };
    let message =
        "a request with a cookie has to come from a page of this server: send a token otherwise";
    Err(ApiError::new(StatusCode::FORBIDDEN, field, message))
}

/// Whether an origin is the one under which the caller reached this server.
fn is_origin(client: &Client, headers: &HeaderMap, origin: &str) -> bool {
    let Some((scheme, authority)) = origin.split_once("://") else { return false };
    let is_scheme = client.scheme.map_or(matches!(scheme, "http" | "https"), |own| own == scheme);
    let default = if scheme == "https" { ":443" } else { ":80" };
    let bare = |host: &str| host.strip_suffix(default).unwrap_or(host).to_ascii_lowercase();
    is_scheme && client.host(headers).is_some_and(|host| bare(host) == bare(authority))
}

/// Whether a host is a name of this server, with or without a port.
fn names(api: &Api, host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    api.hosts.iter().any(|known| known.eq_ignore_ascii_case(name))
}

fn comes_from_a_foreign_page(client: &Client, headers: &HeaderMap) -> bool {
    let site = headers.get(HeaderName::from_static("sec-fetch-site"));
    match site.and_then(|site| site.to_str().ok()) {
        Some("same-origin" | "none") => false,
        Some(_) => true,
        // Browsers that do not say, as over HTTP to another host, send the origin with every unsafe method; other
        // programs do not.
        None => headers.get(ORIGIN).is_some_and(|origin| {
            !origin.to_str().is_ok_and(|origin| is_origin(client, headers, origin))
        }),
    }
}
