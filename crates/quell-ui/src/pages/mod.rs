//! The pages, a module for each group of paths, and the navigation.
//!
//! The form that changes something is sent to a path below the page that has it, such as `/jobs/7/cancel`. After
//! a login the browser goes on to that page.

mod jobs;
mod overview;
mod tasks;
mod timeline;

use axum::Router;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};

use crate::answer::Refusal;
use crate::form::Fields;
use crate::site::Site;
use crate::visit::Visit;

/// How many rows a page of a list has.
const PAGE: usize = 50;

/// An entry of the navigation.
#[derive(Debug)]
pub(crate) struct Entry {
    /// The page's name.
    pub(crate) name: &'static str,
    pub(crate) label: &'static str,
    pub(crate) path: &'static str,
    /// The key that leads there, after `g`.
    pub(crate) key: &'static str,
    /// The scope without which it is not shown.
    pub(crate) scope: Option<&'static str>,
}

const fn entry(
    name: &'static str,
    label: &'static str,
    path: &'static str,
    key: &'static str,
) -> Entry {
    Entry { name, label, path, key, scope: None }
}

/// The navigation.
pub(crate) const NAVIGATION: &[Entry] = &[
    entry("overview", "Overview", "/", "o"),
    entry("timeline", "Timeline", "/timeline", "b"),
    entry("jobs", "Jobs", "/jobs", "j"),
    entry("tasks", "Tasks", "/tasks", "t"),
];

/// The routes of all pages.
pub(crate) fn routes() -> Router<Site> {
    Router::new()
        .merge(overview::routes())
        .merge(timeline::routes())
        .merge(jobs::routes())
        .merge(tasks::routes())
}

/// The answer to a path that no page has.
pub(crate) async fn unknown(visit: Visit) -> Response {
    visit.refuse(StatusCode::NOT_FOUND, "There is no page at this address.").into_response()
}

/// The answer to a method that a page does not have.
pub(crate) async fn wrong_method(visit: Visit) -> Response {
    let message = "This address does not take such a request.";
    visit.refuse(StatusCode::METHOD_NOT_ALLOWED, message).into_response()
}

/// The priority that a form names.
fn priority(visit: &Visit, form: &Fields) -> Result<Option<i16>, Refusal> {
    let Some(text) = form.get("priority") else { return Ok(None) };
    text.parse().map(Some).map_err(|_| {
        let message = format!("The priority {text:?} is no whole number from -32768 to 32767.");
        visit.refuse(StatusCode::UNPROCESSABLE_ENTITY, &message)
    })
}
