//! The API's description: OpenAPI 3.1, made of the routes' own annotations, and a page that shows it.
//!
//! The page has no scripts and nothing from elsewhere, so it works offline.

use std::sync::LazyLock;

use axum::Router;
use axum::http::header::{CONTENT_SECURITY_POLICY, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use minijinja::value::{Serde, Value};
use minijinja::{AutoEscape, Environment, HtmlEscape};
use utoipa::OpenApi as _;
use utoipa::openapi::OpenApi;
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};

use super::error::Problem;
use super::{Api, ApiError, description};

/// Where the description is.
pub(super) const JSON: &str = "/v1/openapi.json";
/// Where the page is.
pub(super) const PAGE: &str = "/v1/reference";
/// Where its styles are.
pub(super) const STYLES: &str = "/v1/reference.css";
const TEMPLATE: &str = include_str!("reference.html");
/// The name of the bearer token in the description.
pub(super) const TOKEN: &str = "token";

/// What the description says of the whole API.
#[derive(utoipa::OpenApi)]
#[openapi(
    info(
        title = "Quell",
        description = "Durable background tasks that run once per burst. \
                       Times are RFC 3339 in UTC, durations `250ms`, `10s`, `1h30m`, ids texts.",
        license(name = "MIT OR Apache-2.0")
    ),
    components(schemas(Problem)),
    security((), ("token" = []))
)]
struct Head;

/// A description without paths.
pub(super) fn head() -> OpenApi {
    let mut head = Head::openapi();
    let bearer = HttpBuilder::new()
        .scheme(HttpAuthScheme::Bearer)
        .description(Some(
            "A token of `server.tokens`, with the scope that the operation names, or the one of \
             `server.token_env` or `server.token_file`, which permits everything.",
        ))
        .build();
    if let Some(components) = &mut head.components {
        components.add_security_scheme(TOKEN, SecurityScheme::Http(bearer));
    }
    head
}

/// The description and its page, as they are answered: made at the first request, and the same for all servers.
struct Described {
    json: String,
    page: Result<String, String>,
}

static DESCRIBED: LazyLock<Described> = LazyLock::new(|| {
    let document = description();
    Described {
        json: document.to_json().unwrap_or_default(),
        page: page(&document).map_err(|error| format!("{error:#}")),
    }
});

pub(super) fn routes() -> Router<Api> {
    let styles = get(async || ([(CONTENT_TYPE, "text/css")], include_str!("reference.css")));
    Router::new().route(JSON, get(json)).route(PAGE, get(html)).route(STYLES, styles)
}

async fn json() -> Response {
    ([(CONTENT_TYPE, "application/json")], DESCRIBED.json.as_str()).into_response()
}

async fn html() -> Response {
    match &DESCRIBED.page {
        Ok(page) => {
            let policy = "default-src 'none'; style-src 'self'; img-src 'self'; base-uri 'none'; \
                          form-action 'none'; frame-ancestors 'none'; \
                          require-trusted-types-for 'script'";
            let headers =
                [(CONTENT_TYPE, "text/html; charset=utf-8"), (CONTENT_SECURITY_POLICY, policy)];
            (headers, page.as_str()).into_response()
        }
        Err(error) => {
            let status = axum::http::StatusCode::INTERNAL_SERVER_ERROR;
            ApiError::internal(status, "internal", error).into_response()
        }
    }
}

/// The page of a description.
fn page(document: &OpenApi) -> Result<String, minijinja::Error> {
    let mut engine = Environment::new();
    engine.set_auto_escape_callback(|_| AutoEscape::Html);
    engine.add_function("type_of", |schema: Value| Value::from_safe_string(type_of(&schema)));
    engine.add_template("page", TEMPLATE)?;
    engine.get_template("page")?.render(Value::from(Serde(document)))
}

/// A schema's type as people read it, in HTML: a reference is a link.
fn type_of(schema: &Value) -> String {
    let part = |name: &str| schema.get_attr(name).ok().filter(|part| !part.is_undefined());
    let each = |parts: &Value, shown: fn(&Value) -> String| {
        let parts = parts.try_iter().into_iter().flatten();
        parts.map(|one| shown(&one)).collect::<Vec<_>>()
    };
    if let Some(reference) = part("$ref") {
        let name = reference.as_str().unwrap_or_default().rsplit('/').next().unwrap_or_default();
        return format!("<a href=\"#{0}\">{0}</a>", escaped(name));
    }
    if let Some(choices) = part("oneOf") {
        return each(&choices, type_of).join(" or ");
    }
    if let Some(codes) = part("enum") {
        return each(&codes, |code| format!("<code>{}</code>", escaped(&code.to_string())))
            .join(", ");
    }
    match part("type") {
        None => "any".to_owned(),
        Some(kind) if kind.as_str() == Some("array") => {
            format!("list of {}", type_of(&part("items").unwrap_or_default()))
        }
        Some(kind) if kind.as_str().is_some() => escaped(&kind.to_string()),
        Some(kinds) => each(&kinds, |kind| escaped(&kind.to_string())).join(" or "),
    }
}

fn escaped(text: &str) -> String {
    HtmlEscape(text).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_has_every_operation_and_nothing_from_elsewhere() {
        let document = description();
        let shown = page(&document).unwrap().replace("&#x2f;", "/");
        for path in document.paths.paths.keys() {
            assert!(shown.contains(path.as_str()), "{path} is missing");
        }
        for foreign in ["<script", "<style", "style=", "http://", "https://", "@import", "url("] {
            assert!(!shown.contains(foreign), "{foreign}");
        }
    }
}
