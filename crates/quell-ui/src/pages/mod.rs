//! The pages, a module for each group of paths, and the navigation.
//!
//! The form that changes something is sent to a path below the page that has it, such as `/jobs/7/cancel`. After
//! a login the browser goes on to that page.

mod actions;
mod audit;
mod dead;
mod job;
mod jobs;
mod line;
mod overview;
mod proof;
mod queues;
mod schedules;
mod settings;
mod sources;
mod tasks;
mod thresholds;
mod timeline;
mod triggers;
mod typed;
mod what_if;
mod workers;

use axum::Router;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::Value;

use crate::answer::Refusal;
use crate::api::Reply;
use crate::form::Fields;
use crate::site::Site;
use crate::visit::Visit;

/// How many names are offered for completion.
const OPTIONS: usize = 200;
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
    entry("overview", "Overview", "/", "v"),
    entry("timeline", "Timeline", "/timeline", "b"),
    entry("jobs", "Jobs", "/jobs", "j"),
    entry("tasks", "Tasks", "/tasks", "t"),
    entry("what-if", "What if", "/what-if", "i"),
    entry("queues", "Queues", "/queues", "q"),
    entry("dead", "Dead", "/dead", "d"),
    entry("schedules", "Schedules", "/schedules", "s"),
    entry("workers", "Workers", "/workers", "w"),
    entry("sources", "Sources", "/sources", "o"),
    entry("actions", "Actions", "/actions", "a"),
    entry("triggers", "Find a trigger", "/triggers", "f"),
    Entry { scope: Some("admin"), ..entry("audit", "Audit", "/audit", "u") },
    entry("proof", "Proof", "/proof", "p"),
    entry("settings", "Settings", "/settings", "e"),
];

/// The routes of all pages.
pub(crate) fn routes() -> Router<Site> {
    let all = [
        overview::routes(),
        timeline::routes(),
        what_if::routes(),
        proof::routes(),
        jobs::routes(),
        job::routes(),
        triggers::routes(),
        tasks::routes(),
        thresholds::routes(),
        queues::routes(),
        dead::routes(),
        schedules::routes(),
        workers::routes(),
        sources::routes(),
        actions::routes(),
        audit::routes(),
        settings::routes(),
    ];
    all.into_iter().fold(Router::new(), Router::merge)
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

/// What a list by name is asked for: the parameters of a page that were given.
struct ByName {
    /// The path of the page.
    path: &'static str,
    given: Fields,
    after: Fields,
}

impl ByName {
    fn of(visit: &Visit, path: &'static str) -> Self {
        let (given, after) = (visit.query().only(&["name"]), visit.query().only(&["after"]));
        ByName { path, given, after }
    }

    /// The query of the API.
    fn query(&self) -> String {
        Fields::default()
            .with("limit", &PAGE.to_string())
            .and(&self.given)
            .and(&self.after)
            .encode()
    }

    /// What templates have of it; `page` is the answer of the API.
    fn shown(&self, visit: &Visit, page: &Value) -> minijinja::value::Value {
        let here = |fields: &Fields| visit.url(&format!("{}?{}", self.path, fields.encode()));
        let next = page["next_after"].as_str();
        minijinja::context! {
            name => self.given.get("name").unwrap_or_default(),
            first => (!self.after.is_empty()).then(|| here(&self.given)),
            next => next.map(|next| here(&self.given.clone().with("after", next))),
        }
    }
}

/// The names of tasks, for completion.
async fn task_names(visit: &Visit) -> Result<Vec<String>, Refusal> {
    let tasks: Value = visit.get(&format!("/v1/tasks?limit={OPTIONS}")).await?;
    let names = tasks["tasks"].as_array().into_iter().flatten();
    let names = names.filter_map(|task| task["name"].as_str().map(str::to_owned));
    Ok(names.take(OPTIONS).collect())
}

/// Whether the API refused what a filter says: a value, or that it does not name one of the tasks or queues that
/// its caller is limited to.
fn is_about_a_field(reply: &Reply) -> bool {
    match reply.status {
        StatusCode::UNPROCESSABLE_ENTITY | StatusCode::BAD_REQUEST => true,
        StatusCode::FORBIDDEN => {
            matches!(reply.problem().field.as_deref(), Some("task" | "queue"))
        }
        _ => false,
    }
}

/// The priority that a form names.
fn priority(visit: &Visit, form: &Fields) -> Result<Option<i16>, Refusal> {
    let wrong = |message: String| visit.refuse(StatusCode::UNPROCESSABLE_ENTITY, &message);
    read_priority(form).map_err(wrong)
}

/// The same, or what is wrong with it.
fn read_priority(form: &Fields) -> Result<Option<i16>, String> {
    let Some(text) = form.get("priority") else { return Ok(None) };
    let wrong = |_| format!("The priority {text:?} is no whole number from -32768 to 32767.");
    text.parse().map(Some).map_err(wrong)
}

/// How many jobs a task or a queue has, by state.
fn of_group(counts: &Value, group: &str, name: &Value) -> Value {
    let mut states = serde_json::Map::new();
    let all = counts["counts"].as_array().into_iter().flatten();
    for count in all.filter(|count| count[group] == *name) {
        let Some(state) = count["state"].as_str() else { continue };
        let before = states.get(state).and_then(Value::as_u64).unwrap_or_default();
        let jobs = count["jobs"].as_u64().unwrap_or_default();
        states.insert(state.to_owned(), before.saturating_add(jobs).into());
    }
    Value::Object(states)
}
