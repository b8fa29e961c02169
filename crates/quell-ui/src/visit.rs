//! One request for a page: its caller, its session, and what it asks of the API.

use std::sync::Arc;

use axum::extract::{FromRequestParts, NestedPath};
use axum::http::header::{ACCEPT, ETAG, HOST};
use axum::http::request::Parts;
use axum::http::{Extensions, HeaderMap, Method, StatusCode};
use axum::response::{IntoResponse, Response};
use minijinja::context;
use minijinja::value::{Serde, Value as Shown};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::answer::{Refusal, Refused};
use crate::api::{self, Call, Reply};
use crate::form::Fields;
use crate::site::Site;
use crate::{pages, text, view};

/// A request for a page.
#[derive(Clone)]
pub(crate) struct Visit(Arc<Inner>);

struct Inner {
    site: Site,
    headers: HeaderMap,
    extensions: Extensions,
    prefix: String,
    /// The path below the prefix.
    path: String,
    query: Fields,
    is_safe: bool,
    session: Session,
}

/// Who looks at a page, as the API says.
#[derive(Clone, Debug, Default, Deserialize)]
struct Session {
    #[serde(default)]
    name: Option<String>,
    /// None where everything is permitted, as no token is asked for.
    #[serde(default)]
    scopes: Option<Vec<String>>,
    /// What the token is limited to; of none, to nothing.
    #[serde(default)]
    tasks: Vec<String>,
    #[serde(default)]
    queues: Vec<String>,
    /// The end of a browser's session; none of a token.
    #[serde(default)]
    expires_at: Option<String>,
}

impl Session {
    fn has(&self, scope: &str) -> bool {
        let Some(scopes) = &self.scopes else { return true };
        let implied: &[&str] = if scope == "read" { &["operate", "admin"] } else { &["admin"] };
        scopes.iter().any(|has| has == scope || implied.contains(&has.as_str()))
    }

    fn may_trigger(&self, task: &str) -> bool {
        let patterns = self.scopes.iter().flatten().filter_map(|has| has.strip_prefix("trigger:"));
        let matches = |pattern: &str| match pattern.strip_suffix('*') {
            Some(beginning) => task.starts_with(beginning),
            None => pattern == task,
        };
        self.has("trigger") || patterns.into_iter().any(matches)
    }
}

impl FromRequestParts<Site> for Visit {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, site: &Site) -> Result<Self, Response> {
        let is_safe = matches!(parts.method, Method::GET | Method::HEAD);
        // Before a body is read, and whatever headers a hook adds.
        if !is_safe && comes_from_elsewhere(&parts.headers) {
            let message = "A form of another site changes nothing here.";
            return Err((StatusCode::FORBIDDEN, message).into_response());
        }
        let headers =
            api::of_caller(&parts.headers, site.admit(parts).map_err(|refusal| *refusal)?);
        let nested = parts.extensions.get::<NestedPath>().map(NestedPath::as_str);
        let prefix = site.given_prefix().or(nested).unwrap_or_default();
        let mut inner = Inner {
            headers,
            extensions: site.carried(&parts.extensions),
            prefix: prefix.trim_end_matches('/').to_owned(),
            path: parts.uri.path().to_owned(),
            query: Fields::parse(parts.uri.query().unwrap_or_default().as_bytes()),
            is_safe,
            session: Session::default(),
            site: site.clone(),
        };
        let call = Call::get("/v1/session");
        let reply = api::ask(site.api(), &inner.headers, &inner.extensions, call).await;
        if reply.status.is_success() {
            inner.session = reply.json().unwrap_or_default();
        }
        let visit = Visit(Arc::new(inner));
        // A server without tokens has no sessions.
        if reply.status.is_success() || reply.status == StatusCode::NOT_FOUND {
            return Ok(visit);
        }
        // A script cannot follow to a login.
        if reply.status == StatusCode::UNAUTHORIZED && is_safe && !accepts_pages(&parts.headers) {
            return Err(StatusCode::UNAUTHORIZED.into_response());
        }
        Err(Refusal::of(&visit, &reply).into_response())
    }
}

/// Whether the caller is one that shows pages, and not a script of a page.
fn accepts_pages(headers: &HeaderMap) -> bool {
    let accepted = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let mut accepted = accepted.peekable();
    accepted.peek().is_none() || accepted.any(|value| value.contains("text/html") || value == "*/*")
}

/// Whether a browser says that another site sent the request.
fn comes_from_elsewhere(headers: &HeaderMap) -> bool {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    if let Some(site) = text("sec-fetch-site") {
        return !matches!(site, "same-origin" | "none");
    }
    let Some(origin) = text("origin") else { return false };
    let authority = origin.split_once("://").map(|(_, authority)| authority);
    authority.is_none() || authority != text("host")
}

impl Visit {
    pub(crate) fn site(&self) -> &Site {
        &self.0.site
    }

    /// The parameters of the page's own query.
    pub(crate) fn query(&self) -> &Fields {
        &self.0.query
    }

    /// The address of a path of these pages.
    pub(crate) fn url(&self, path: &str) -> String {
        format!("{}{path}", self.0.prefix)
    }

    /// The beginning of a command that asks the API at the address that the browser used.
    pub(crate) fn curl(&self) -> String {
        let inner = &*self.0;
        let host = inner.headers.get(HOST).and_then(|host| host.to_str().ok());
        let token = match inner.session.scopes {
            Some(_) => "-H \"Authorization: Bearer $QUELL_TOKEN\" ",
            None => "",
        };
        format!("curl {token}{}", text::shell(host.unwrap_or("localhost:7777")))
    }

    /// Whether the caller may do what a scope permits, as far as these pages are concerned.
    pub(crate) fn may(&self, scope: &str) -> bool {
        let is_change = !matches!(scope, "read" | "payload");
        self.0.session.has(scope) && !(is_change && self.site().is_read_only())
    }

    pub(crate) fn may_trigger(&self, task: &str) -> bool {
        self.0.session.may_trigger(task) && !self.site().is_read_only()
    }

    /// Whether the caller sees some tasks only, and so nothing that several tasks share.
    pub(crate) fn is_of_some_tasks(&self) -> bool {
        !self.0.session.tasks.is_empty()
    }

    /// Whether the caller sees some tasks or queues only, and so nothing that is of all of them.
    pub(crate) fn is_limited(&self) -> bool {
        let Session { tasks, queues, .. } = &self.0.session;
        !tasks.is_empty() || !queues.is_empty()
    }

    /// What the API has of all tasks and queues at a path, for callers with a scope; nothing for others. Those
    /// are not asked for: a refusal is on record, as if the caller had wanted it.
    pub(crate) async fn get_of_all(
        &self,
        scope: &str,
        path: &str,
    ) -> Result<Option<Value>, Refusal> {
        if self.is_limited() || !self.may(scope) {
            return Ok(None);
        }
        self.get_if_seen(path).await
    }

    /// Why the caller may not do what a scope permits.
    pub(crate) fn lack(&self, scope: &str) -> String {
        if self.site().is_read_only() && !matches!(scope, "read" | "payload") {
            return "These pages are read-only.".to_owned();
        }
        format!("Your token does not have the scope {scope}.")
    }

    /// Where to go on after a login: the page, or of a form the page that has it.
    pub(crate) fn after_login(&self) -> String {
        let Inner { path, query, is_safe, .. } = &*self.0;
        let page =
            if *is_safe { path } else { path.rsplit_once('/').map_or("/", |(page, _)| page) };
        let query = if *is_safe { query.encode() } else { String::new() };
        let mark = if query.is_empty() { "" } else { "?" };
        self.url(&format!("{page}{mark}{query}"))
    }

    /// What the API says, whatever its status is.
    pub(crate) async fn ask(&self, call: Call<'_>) -> Result<Reply, Refusal> {
        if call.method != Method::GET && self.site().is_read_only() {
            return Err(self.refuse(StatusCode::FORBIDDEN, "These pages are read-only."));
        }
        let inner = &*self.0;
        Ok(api::ask(self.site().api(), &inner.headers, &inner.extensions, call).await)
    }

    /// What the API has at a path.
    pub(crate) async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, Refusal> {
        let reply = self.ask(Call::get(path)).await?;
        self.read(&reply)
    }

    /// The answer of the API as it comes.
    pub(crate) async fn stream(&self, path: &str) -> Response {
        let inner = &*self.0;
        api::stream(self.site().api(), &inner.headers, &inner.extensions, path).await
    }

    /// The same, or nothing where the caller may not see it or it is not there.
    pub(crate) async fn get_if_seen(&self, path: &str) -> Result<Option<Value>, Refusal> {
        let reply = self.ask(Call::get(path)).await?;
        if matches!(reply.status, StatusCode::FORBIDDEN | StatusCode::NOT_FOUND) {
            return Ok(None);
        }
        self.read(&reply).map(Some)
    }

    /// The same, with the tag of these settings.
    pub(crate) async fn get_tagged(&self, path: &str) -> Result<(Value, String), Refusal> {
        let reply = self.ask(Call::get(path)).await?;
        let tag = reply.header(&ETAG).unwrap_or_default().to_owned();
        Ok((self.read(&reply)?, tag))
    }

    /// Asks for a change.
    pub(crate) async fn change(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Value, Refusal> {
        let body = body.map(Value::to_string);
        let reply = self.ask(Call { method, path, body, tag: None }).await?;
        self.read(&reply)
    }

    pub(crate) async fn post(&self, path: &str, body: Option<&Value>) -> Result<Value, Refusal> {
        self.change(Method::POST, path, body).await
    }

    /// The body of a pause: the name of the caller, where it is known.
    pub(crate) fn by(&self) -> Option<Value> {
        self.0.session.name.as_ref().map(|name| serde_json::json!({ "by": name }))
    }

    /// Reads an answer that is none of a failure.
    pub(crate) fn read<T: DeserializeOwned>(&self, reply: &Reply) -> Result<T, Refusal> {
        if !reply.status.is_success() {
            return Err(Refusal::of(self, reply));
        }
        reply.json().map_err(|error| {
            let message = format!("The answer of the API cannot be read: {error}.");
            self.refuse(StatusCode::BAD_GATEWAY, &message)
        })
    }

    pub(crate) fn refuse(&self, status: StatusCode, message: &str) -> Refusal {
        Refusal::new(self, Refused { status, message: message.to_owned(), field: None, id: None })
    }

    /// What each template may use, as `v`.
    pub(crate) fn context(&self, page: &str, title: &str) -> Shown {
        const SCOPES: [&str; 4] = ["read", "payload", "operate", "admin"];
        let inner = &*self.0;
        let may = SCOPES.map(|scope| (scope, self.may(scope)));
        let lacks = SCOPES.map(|scope| (scope, self.lack(scope)));
        let is_known = |entry: &&pages::Entry| entry.scope.is_none_or(|scope| self.may(scope));
        let nav = pages::NAVIGATION.iter().filter(is_known).map(|entry| {
            context! { name => entry.name, label => entry.label, path => entry.path, key => entry.key }
        });
        let field = |name: &str| inner.query.get(name).unwrap_or_default();
        context! {
            page, title,
            prefix => inner.prefix.as_str(),
            path => inner.path.as_str(),
            here => self.after_login(),
            nav => nav.collect::<Vec<_>>(),
            may => view::map(may),
            lacks => view::map(lacks),
            read_only => self.site().is_read_only(),
            notice => text::notice(field("done"), field("n")),
            session => context! {
                name => inner.session.name.as_deref(),
                scopes => inner.session.scopes.as_ref().map(|scopes| scopes.join(", ")),
                logout => self.site().logout().filter(|_| inner.session.expires_at.is_some()),
            },
        }
    }
}

/// A value of the API in a template.
pub(crate) fn shown(value: &Value) -> Shown {
    Shown::from(Serde(value))
}
