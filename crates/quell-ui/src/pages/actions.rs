//! Actions on all jobs that match a filter.

use axum::Router;
use axum::extract::Path;
use axum::http::{Method, StatusCode};
use axum::routing::{get, post};
use jiff::Timestamp;
use minijinja::context;
use serde_json::{Map, Value, json};

use super::jobs::{FILTER, matching};
use super::typed::Typed;
use crate::answer::{Answer, done, go, page, with_status};
use crate::api::Call;
use crate::form::{Fields, Form};
use crate::site::Site;
use crate::text::encode;
use crate::visit::{Visit, shown};
use crate::{text, view};

/// What an action may do, in words.
const KINDS: [(&str, &str); 5] = [
    ("cancel", "Cancel jobs that wait or run"),
    ("run", "Make jobs that wait due now"),
    ("reprioritise", "Change the priority of jobs that wait"),
    ("redrive", "Run dead jobs again"),
    ("discard", "Remove dead jobs for good"),
];

pub(crate) fn routes() -> Router<Site> {
    Router::new()
        .route("/actions", get(list))
        .route("/actions/new", get(new).post(begin))
        .route("/actions/{name}", get(one))
        .route("/actions/{name}/stop", post(stop))
}

/// `GET /actions`.
async fn list(visit: Visit) -> Answer {
    let found: Value = visit.get("/v1/actions").await?;
    let all = found["actions"].as_array().into_iter().flatten();
    let is_running = all.clone().any(|action| action["state"] == "running");
    let own = context! { actions => shown(&found["actions"]), is_running };
    page(&visit, "actions", "Actions", "actions", own)
}

/// `GET /actions/{name}`.
async fn one(visit: Visit, Path(name): Path<String>) -> Answer {
    let action: Value = visit.get(&format!("/v1/actions/{}", encode(&name))).await?;
    let filter = action["filter"].as_object().into_iter().flatten();
    let text =
        |(name, value): (&String, &Value)| Some((name.clone(), value.as_str().map(str::to_owned)?));
    let pairs: Vec<(String, String)> = filter.filter_map(text).collect();
    let fields = pairs.iter().fold(Fields::default(), |all, (name, value)| all.with(name, value));
    let mut again = fields.clone().with("action", action["action"].as_str().unwrap_or_default());
    for member in ["reason", "rate", "priority"] {
        let text = match &action[member] {
            Value::String(text) => text.clone(),
            Value::Null => continue,
            other => other.to_string(),
        };
        again = again.with(member, &text);
    }
    let own = context! {
        action => shown(&action),
        pairs => pairs.iter().map(|(name, value)| vec![name.clone(), value.clone()]).collect::<Vec<_>>(),
        filter => fields.encode(),
        again => again.encode(),
        is_running => action["state"] == "running",
        here => visit.url(&format!("/actions/{}", encode(&name))),
    };
    page(&visit, "actions", &format!("Action {name}"), "action", own)
}

/// `GET /actions/new?…`: the form of an action on the jobs of a filter.
async fn new(visit: Visit) -> Answer {
    show(&visit, visit.query(), None).await
}

/// The form of an action with these values, and why it was refused if it was.
async fn show(visit: &Visit, query: &Fields, typed: Option<&Typed>) -> Answer {
    let filter = query.only(&FILTER);
    if filter.is_empty() {
        let message = "An action needs a filter: choose the jobs first, on the page of jobs.";
        return Err(visit.refuse(StatusCode::UNPROCESSABLE_ENTITY, message));
    }
    let asked = query.get("action").unwrap_or_else(|| first_choice(query.get("state")));
    let kinds = KINDS.map(|(name, label)| {
        context! { name, label, is_chosen => name == asked }
    });
    let given = ["reason", "rate", "priority"];
    let own = context! {
        pairs => filter.pairs().map(|(name, value)| vec![name.to_owned(), value.to_owned()]).collect::<Vec<_>>(),
        filter => filter.encode(),
        kinds => kinds.to_vec(),
        given => view::map(given.map(|name| (name, query.get(name).unwrap_or_default()))),
        name => query.get("name").map_or_else(|| suggested(asked), str::to_owned),
        matching => if typed.is_some() { None } else { matching(visit, &filter).await? },
        problem => typed.map(|typed| typed.problem(&["name", "action", "reason", "rate", "priority"])),
    };
    let status = typed.map_or(StatusCode::OK, |typed| typed.status);
    with_status(visit, status, "actions", "New action", "new-action", own)
}

/// What is most likely wanted of jobs in a state.
fn first_choice(state: Option<&str>) -> &'static str {
    if state == Some("dead") { "redrive" } else { "cancel" }
}

/// A name that is free.
fn suggested(action: &str) -> String {
    format!("{action}-{}", Timestamp::now().strftime("%Y%m%d-%H%M%S"))
}

/// `POST /actions/new`: begins an action.
async fn begin(visit: Visit, Form(form): Form) -> Answer {
    let action = form.get("action").unwrap_or_default();
    let filter = form.only(&FILTER);
    let filter = filter.pairs().map(|(name, value)| (name.to_owned(), json!(value)));
    let mut body = Map::new();
    body.insert("name".to_owned(), json!(form.get("name").unwrap_or_default()));
    body.insert("action".to_owned(), json!(action));
    body.insert("filter".to_owned(), Value::Object(filter.collect()));
    body.insert("dry_run".to_owned(), json!(form.get("dry_run").is_some()));
    if let Some(rate) = form.get("rate") {
        let Ok(rate) = rate.parse::<u32>() else {
            let message = format!("The rate {rate:?} is no number of jobs a second.");
            let typed = Typed::wrong(&form, "rate", &message);
            return show(&visit, &form, Some(&typed)).await;
        };
        body.insert("rate".to_owned(), json!(rate));
    }
    // Fields that only other actions have stay out, as the API refuses them.
    if let (Some(reason), "cancel" | "discard") = (form.get("reason"), action) {
        body.insert("reason".to_owned(), json!(reason));
    }
    match (super::read_priority(&form), action) {
        (Ok(Some(priority)), "reprioritise") => {
            body.insert("priority".to_owned(), json!(priority));
        }
        (Ok(_), _) => {}
        (Err(wrong), _) => {
            let typed = Typed::wrong(&form, "priority", &wrong);
            return show(&visit, &form, Some(&typed)).await;
        }
    }
    let body = Some(Value::Object(body).to_string());
    let reply = visit.ask(Call { method: Method::POST, path: "/v1/actions", body, tag: None });
    let reply = reply.await?;
    if let Some(typed) = Typed::refused(&form, &reply) {
        return show(&visit, &form, Some(&typed)).await;
    }
    let begun: Value = visit.read(&reply)?;
    let name = begun["name"].as_str().unwrap_or_default();
    go(&visit.url(&format!("/actions/{}", text::encode(name))))
}

/// `POST /actions/{name}/stop`: stops it, or forgets one that has ended.
async fn stop(visit: Visit, Path(name): Path<String>, Form(form): Form) -> Answer {
    visit.change(Method::DELETE, &format!("/v1/actions/{}", encode(&name)), None).await?;
    done(&visit, "/actions", if form.get("ended").is_some() { "forgotten" } else { "stopped" })
}
