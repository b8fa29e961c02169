//! Sessions of browsers: a page that takes a token, and a cookie in its place. It all works without scripts.
//!
//! Invariant: a path to go to after the login is one of this server, whatever a link says.

use std::net::IpAddr;
use std::sync::LazyLock;
use std::time::Instant;

use axum::body::Bytes;
use axum::extract::rejection::{BytesRejection, QueryRejection};
use axum::extract::{DefaultBodyLimit, Query, State};
use axum::http::header::{
    CONTENT_SECURITY_POLICY, CONTENT_TYPE, LOCATION, RETRY_AFTER, SET_COOKIE,
};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Extension, Json, Router};
use minijinja::{AutoEscape, Environment, context};
use serde::Deserialize;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::auth::{Access, COOKIE_NAME, check_origin, of_token};
use super::body::{JsonBody, parse};
use super::error::{ApiError, Problem, Refused};
use super::jobs::{Pairs, Parameters};
use super::peer::Client;
use super::{Api, audit};
use crate::access::{Begun, Digest, NewSession};
use crate::view::{self, Caller};

/// The login page.
pub(super) const PAGE: &str = "/login";
/// Its styles.
const STYLES: &str = "/login.css";
/// The picture of all pages, at the path where browsers look for it.
const ICON: &str = "/favicon.ico";
/// Where its form to log out goes.
pub(super) const LOGOUT: &str = "/logout";
/// The largest body of a login, in bytes.
const MAX_BODY: usize = 8 << 10;
/// The longest path to go to, in bytes.
const MAX_NEXT: usize = 1_024;
/// Where a login goes that names nothing.
const HOME: &str = "/";
/// What pages may do: nothing of it from elsewhere, and no script but the server's own.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
                      img-src 'self'; base-uri 'none'; form-action 'self'; \
                      frame-ancestors 'none'; require-trusted-types-for 'script'";

static PAGES: LazyLock<Environment<'_>> = LazyLock::new(|| {
    let mut pages = Environment::new();
    pages.set_auto_escape_callback(|_| AutoEscape::Html);
    // A template that is broken is an error of each page.
    let _broken = pages.add_template("login", include_str!("login.html"));
    pages
});

/// The operations on sessions.
pub(super) fn routes() -> OpenApiRouter<Api> {
    OpenApiRouter::new().routes(routes!(begin, show, end)).layer(DefaultBodyLimit::max(MAX_BODY))
}

/// The pages, which the API's description does not have.
pub(super) fn pages() -> Router<Api> {
    Router::new()
        .route(PAGE, get(login))
        .route(STYLES, get(async || ([(CONTENT_TYPE, "text/css")], include_str!("login.css"))))
        .route(ICON, get(async || ([(CONTENT_TYPE, "image/svg+xml")], quell_ui::ICON)))
        .route(LOGOUT, post(logout))
}

/// Whether a path needs no token.
pub(super) fn is_page(path: &str) -> bool {
    matches!(path, PAGE | STYLES | ICON | LOGOUT)
}

/// A login by a program.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Login)]
struct Asked {
    /// The token.
    token: String,
}

/// A login by a form.
#[derive(Default, Deserialize, ToSchema)]
#[serde(default)]
#[schema(as = LoginForm)]
struct Form {
    /// The token.
    token: String,
    /// The path to go to then; `/` where it is left out.
    next: String,
}

/// `POST /v1/session`.
#[utoipa::path(
    post,
    path = "/v1/session",
    tag = "sessions",
    operation_id = "session_begin",
    summary = "Begin a session: the answer sets a cookie that counts in place of the token.",
    description = "A form is answered by 303 to its `next`. Ten failed attempts of one address within a minute \
                   are followed by 429 for wrong tokens.",
    request_body(content((Asked = "application/json"), (Form = "application/x-www-form-urlencoded"))),
    responses(
        (status = 200, body = view::Session, description = "Done."),
        (status = 303, description = "The form was accepted."),
        (
            status = 401, description = "The token is wrong.",
            content((Problem = "application/problem+json"), (String = "text/html")),
        ),
        (
            status = 429, description = "Too many attempts failed.",
            content((Problem = "application/problem+json"), (String = "text/html")),
        ),
        Refused,
    ),
)]
async fn begin(
    State(api): State<Api>,
    Extension(client): Extension<Client>,
    Extension(access): Extension<Access>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    bytes: Result<Bytes, BytesRejection>,
) -> Response {
    let form = match read(&headers, bytes) {
        Ok(form) => form,
        Err(refusal) => return refusal.into_response(),
    };
    let (form, is_form) = form;
    let begun = begun(&api, &client, &access, &headers, &form);
    match begun {
        Ok((cookie, begun)) => {
            let by = Caller { name: Some(begun.of.name.clone()), token: true, ..caller };
            audit::session(&api, by, "session_begin");
            let cookie = set_cookie(&cookie, begun.most.as_secs());
            if is_form {
                let next = HeaderValue::from_str(&form.next);
                let next = next.unwrap_or(HeaderValue::from_static(HOME));
                return (StatusCode::SEE_OTHER, [(LOCATION, next), (SET_COOKIE, cookie)])
                    .into_response();
            }
            ([(SET_COOKIE, cookie)], Json(view::Session::from(&begun))).into_response()
        }
        Err(refusal) if is_form && is_for_people(&refusal) => refused_form(&form, refusal),
        Err(refusal) => refusal.into_response(),
    }
}

/// Reads a login, and whether it is that of a form.
fn read(
    headers: &HeaderMap,
    bytes: Result<Bytes, BytesRejection>,
) -> Result<(Form, bool), ApiError> {
    let kind = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim();
    if !kind.eq_ignore_ascii_case("application/x-www-form-urlencoded") {
        let body = JsonBody::of(headers, bytes).read()?;
        let Asked { token } = parse(&body)?;
        return Ok((Form { token, next: HOME.to_owned() }, false));
    }
    let body = JsonBody::of(headers, bytes).bytes()?;
    let mut form = Form::default();
    for (name, value) in form_urlencoded::parse(&body) {
        match &*name {
            "token" => form.token = value.into_owned(),
            "next" => form.next = value.into_owned(),
            _ => {}
        }
    }
    form.next = next(&form.next)?.to_owned();
    Ok((form, true))
}

/// The path to go to after a login.
fn next(text: &str) -> Result<&str, ApiError> {
    if text.is_empty() {
        return Ok(HOME);
    }
    let path = text.split(['?', '#']).next().unwrap_or_default();
    // Browsers take `\` for `/`, and servers behind this one may decode what is encoded.
    let lower = path.to_ascii_lowercase();
    let hides = ["%2f", "%5c", "%25", "//", "/."].iter().any(|part| lower.contains(part));
    let is_fine = text.starts_with('/')
        && text.len() <= MAX_NEXT
        && text.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'\\')
        && !hides;
    if is_fine {
        return Ok(text);
    }
    let message = "next has to be a path of this server, such as /v1/reference";
    Err(ApiError::invalid("next", message))
}

/// Begins the session of a login, in place of the one that it came with.
fn begun(
    api: &Api,
    client: &Client,
    access: &Access,
    headers: &HeaderMap,
    form: &Form,
) -> Result<(String, Begun), ApiError> {
    // Otherwise another site could log a browser in with a token of its own.
    check_origin(client, headers, true)?;
    asks_for_tokens(api)?;
    let now = Instant::now();
    let address: Option<IpAddr> = client.address;
    let token = Digest::of(form.token.trim().as_bytes());
    // A token that is right is never kept out by others that are wrong.
    let Some((name, grant)) = of_token(api, &token) else {
        if let Some(wait) = api.attempts.wait(address, now) {
            let seconds = wait.as_secs().saturating_add(1);
            let message = format!("too many failed logins: try again in {seconds} s");
            return Err(
                ApiError::new(StatusCode::TOO_MANY_REQUESTS, "token", message).retry_after(seconds)
            );
        }
        api.attempts.failed(address, now);
        audit::failed_login(api, client);
        return Err(ApiError::new(StatusCode::UNAUTHORIZED, "token", "the token is wrong"));
    };
    if let Some(before) = access.session() {
        api.sessions.end(&before.id);
    }
    let of = NewSession { token, name, grant };
    Ok(api.sessions.begin(of, api.session_times, now)?)
}

/// Whether the form may be filled in again.
fn is_for_people(refusal: &ApiError) -> bool {
    matches!(refusal.status(), StatusCode::UNAUTHORIZED | StatusCode::TOO_MANY_REQUESTS)
}

/// The login page again, with what was wrong.
fn refused_form(form: &Form, refusal: ApiError) -> Response {
    let status = refusal.status();
    let problem = refusal.message().to_owned();
    let retry = refusal.into_response().headers().get(RETRY_AFTER).cloned();
    let mut page = page(context! { next => form.next.as_str(), problem });
    if page.status().is_success() {
        *page.status_mut() = status;
    }
    if let Some(retry) = retry {
        page.headers_mut().insert(RETRY_AFTER, retry);
    }
    page
}

/// `GET /v1/session`.
#[utoipa::path(
    get,
    path = "/v1/session",
    tag = "sessions",
    operation_id = "session_show",
    summary = "Show the name, the scopes and the end of the session or the token of this request.",
    description = "",
    responses((status = 200, body = view::Session, description = "Done."), Refused),
)]
async fn show(
    State(api): State<Api>,
    Extension(access): Extension<Access>,
    Extension(caller): Extension<Caller>,
) -> Result<Json<view::Session>, ApiError> {
    asks_for_tokens(&api)?;
    if let Some(begun) = access.session() {
        return Ok(Json(view::Session::from(begun)));
    }
    let name = caller.name.ok_or_else(no_session)?;
    Ok(Json(view::Session::of_token(name, access.grant())))
}

/// `DELETE /v1/session`.
#[utoipa::path(
    delete,
    path = "/v1/session",
    tag = "sessions",
    operation_id = "session_end",
    summary = "End the session of this request.",
    description = "",
    responses((status = 200, body = view::EndedSession, description = "Done."), Refused),
)]
async fn end(
    State(api): State<Api>,
    Extension(access): Extension<Access>,
    Extension(caller): Extension<Caller>,
) -> Result<Response, ApiError> {
    asks_for_tokens(&api)?;
    let begun = access.session().ok_or_else(no_session)?;
    api.sessions.end(&begun.id);
    audit::session(&api, caller, "session_end");
    let ended = Json(view::EndedSession { ended: true });
    Ok(([(SET_COOKIE, set_cookie("", 0))], ended).into_response())
}

fn asks_for_tokens(api: &Api) -> Result<(), ApiError> {
    if api.asks_for_tokens() {
        return Ok(());
    }
    let message = "this server asks for no tokens, so it needs no sessions: see server.tokens";
    Err(ApiError::not_found("session", message))
}

fn no_session() -> ApiError {
    let message = "the request has no session: log in at /login";
    ApiError::new(StatusCode::UNAUTHORIZED, "session", message)
}

fn set_cookie(value: &str, seconds: u64) -> HeaderValue {
    let text =
        format!("{COOKIE_NAME}={value}; Path=/; Secure; HttpOnly; SameSite=Lax; Max-Age={seconds}");
    HeaderValue::try_from(text).unwrap_or(HeaderValue::from_static(""))
}

/// `GET /login?next=`.
async fn login(
    State(api): State<Api>,
    Extension(access): Extension<Access>,
    query: Result<Query<Pairs>, QueryRejection>,
) -> Result<Response, ApiError> {
    asks_for_tokens(&api)?;
    let mut query = Parameters::read(query)?;
    let asked = query.take("next", Ok)?.unwrap_or_default();
    query.end()?;
    let next = next(&asked)?;
    let session = access.session().map(|begun| &begun.of);
    let name = session.map(|of| of.name.as_str());
    let scopes = session.map(|of| of.grant.scopes());
    Ok(page(context! { next, name, scopes }))
}

/// `POST /logout`, of the page's form: ends the session, if there is one.
async fn logout(
    State(api): State<Api>,
    Extension(access): Extension<Access>,
    Extension(caller): Extension<Caller>,
) -> Response {
    if let Some(begun) = access.session() {
        api.sessions.end(&begun.id);
        audit::session(&api, caller, "session_end");
    }
    let location = HeaderValue::from_static(PAGE);
    let headers = [(LOCATION, location), (SET_COOKIE, set_cookie("", 0))];
    (StatusCode::SEE_OTHER, headers).into_response()
}

fn page(values: minijinja::Value) -> Response {
    let rendered = PAGES.get_template("login").and_then(|page| page.render(values));
    match rendered {
        Ok(page) => {
            let headers =
                [(CONTENT_TYPE, "text/html; charset=utf-8"), (CONTENT_SECURITY_POLICY, POLICY)];
            (headers, page).into_response()
        }
        Err(error) => ApiError::internal(StatusCode::INTERNAL_SERVER_ERROR, "internal", &error)
            .into_response(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_login_goes_to_a_path_of_this_server_only() {
        for fine in
            ["/", "/v1/reference", "/jobs?task=a%2Fb&x=//y", "/a/b.c#d", "/jobs?u=https://x"]
        {
            assert_eq!(next(fine).unwrap(), fine);
        }
        assert_eq!(next("").unwrap(), "/");
        let long = format!("/{}", "x".repeat(MAX_NEXT));
        for evil in [
            "//evil.test",
            "/\\evil.test",
            "\\\\evil.test",
            "/a//evil.test",
            "%2f%2fevil.test",
            "/%2fevil.test",
            "/%5cevil.test",
            "/%2Fevil.test",
            "/%252fevil.test",
            "https://evil.test",
            "javascript:alert(1)",
            "evil.test",
            "?x",
            "#x",
            " /x",
            "/x y",
            "/\tevil",
            "/\r\nset-cookie:x",
            "/./x",
            "/../x",
            "/%2e%2e/%2fx",
            "/\u{e9}",
            &long,
        ] {
            assert!(next(evil).is_err(), "{evil:?}");
        }
        assert!(next(&long[..MAX_NEXT]).is_ok());
    }

    #[test]
    fn the_page_escapes_what_it_shows() {
        let evil = "\"><script>alert(1)</script>";
        let shown = context! { next => evil, problem => evil, name => evil, scopes => evil };
        let page = PAGES.get_template("login").unwrap().render(shown).unwrap();
        assert!(!page.contains("<script") && page.contains("&lt;script"), "{page}");
        for inline in ["style=", "onclick", "<style", "javascript:", "http://", "https://"] {
            assert!(!page.contains(inline), "{inline}");
        }
    }
}
