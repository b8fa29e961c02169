//! Pages, redirects and refusals, and the headers that all of them have.

use axum::extract::Request;
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, LOCATION, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use minijinja::context;
use minijinja::value::Value as Shown;

use crate::api::Reply;
use crate::text;
use crate::visit::Visit;

/// What a page may do: its own script, styles and requests, and nothing of or to elsewhere.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
                      connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'; \
                      require-trusted-types-for 'script'";

/// What a page's handler returns.
pub(crate) type Answer = Result<Response, Refusal>;

/// Adds the headers that keep an answer to itself.
pub(crate) async fn protect(request: Request, next: Next) -> Response {
    const ALL: [(HeaderName, &str); 5] = [
        (CONTENT_SECURITY_POLICY, POLICY),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (REFERRER_POLICY, "no-referrer"),
        (CACHE_CONTROL, "no-store"),
        (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    ];
    let mut response = next.run(request).await;
    for (name, value) in ALL {
        response.headers_mut().entry(name).or_insert(HeaderValue::from_static(value));
    }
    response
}

/// The page of a template. `page` is its name in the navigation.
pub(crate) fn page(visit: &Visit, page: &str, title: &str, template: &str, own: Shown) -> Answer {
    with_status(visit, StatusCode::OK, page, title, template, own)
}

/// The same with a status.
pub(crate) fn with_status(
    visit: &Visit,
    status: StatusCode,
    page: &str,
    title: &str,
    template: &str,
    own: Shown,
) -> Answer {
    let views = &visit.site().views;
    let html = views.page(template, visit.context(page, title), own);
    Ok((status, [(CONTENT_TYPE, "text/html; charset=utf-8")], html).into_response())
}

/// A redirect to a page after a change, which says what was done.
pub(crate) fn done(visit: &Visit, path: &str, done: &str) -> Answer {
    let mark = if path.contains('?') { '&' } else { '?' };
    go(&visit.url(&format!("{path}{mark}done={done}")))
}

/// A redirect to an address.
pub(crate) fn go(url: &str) -> Answer {
    let location = HeaderValue::from_str(url).unwrap_or(HeaderValue::from_static("/"));
    Ok((StatusCode::SEE_OTHER, [(LOCATION, location)]).into_response())
}

/// What was refused, and why.
#[derive(Debug)]
pub(crate) struct Refused {
    pub(crate) status: StatusCode,
    pub(crate) message: String,
    pub(crate) field: Option<String>,
    /// Under what the server's log has the error.
    pub(crate) id: Option<String>,
}

/// A page that cannot be shown, or a change that was not made.
pub(crate) struct Refusal(Box<(Visit, Refused)>);

impl Refusal {
    pub(crate) fn new(visit: &Visit, refused: Refused) -> Self {
        Refusal(Box::new((visit.clone(), refused)))
    }

    /// What the API refused.
    pub(crate) fn of(visit: &Visit, reply: &Reply) -> Self {
        let problem = reply.problem();
        let refused = Refused {
            status: reply.status,
            message: text::sentence(&problem.message),
            field: problem.field,
            id: problem.id,
        };
        Refusal::new(visit, refused)
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let (visit, refused) = *self.0;
        let Refused { status, message, field, id } = refused;
        if let (StatusCode::UNAUTHORIZED, Some(url)) = (status, visit.site().login()) {
            let next = text::encode(&login_path(&visit.after_login()));
            let mark = if url.contains('?') { '&' } else { '?' };
            let login = go(&format!("{url}{mark}next={next}"));
            return login.unwrap_or_else(|_| StatusCode::UNAUTHORIZED.into_response());
        }
        // A redirect of the API is none of these pages.
        let is_error = status.is_client_error() || status.is_server_error();
        let status = if is_error { status } else { StatusCode::BAD_GATEWAY };
        let title = title(status);
        let own = context! { message, field, id, status => status.as_u16() };
        let page = with_status(&visit, status, "", title, "error", own);
        page.unwrap_or_else(|_| status.into_response())
    }
}

/// A path that the login goes to: others it refuses.
fn login_path(path: &str) -> String {
    let own = path.split('?').next().unwrap_or_default();
    let lower = own.to_ascii_lowercase();
    let is_refused = ["%2f", "%5c", "%25", "//", "/."].iter().any(|part| lower.contains(part));
    if is_refused || path.len() > 1_024 { "/".to_owned() } else { path.to_owned() }
}

fn title(status: StatusCode) -> &'static str {
    match status {
        StatusCode::UNAUTHORIZED => "Not logged in",
        StatusCode::FORBIDDEN => "Not permitted",
        StatusCode::NOT_FOUND => "Not found",
        StatusCode::CONFLICT => "Not possible now",
        StatusCode::PRECONDITION_FAILED => "Changed meanwhile",
        StatusCode::PAYLOAD_TOO_LARGE => "Too large",
        StatusCode::UNPROCESSABLE_ENTITY | StatusCode::BAD_REQUEST => "Not accepted",
        StatusCode::TOO_MANY_REQUESTS => "Too many requests",
        status if status.is_server_error() => "The server does not answer",
        _ => "Refused",
    }
}
