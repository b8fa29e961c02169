//! The thresholds that an operator sets for a task (R14): before and after, save, undo, and back to what
//! the task declares.

use axum::Router;
use axum::extract::Path;
use axum::http::Method;
use axum::routing::post;
use minijinja::context;
use serde_json::{Value, json};

use crate::answer::{Answer, Refusal, done, page};
use crate::api::Call;
use crate::form::Form;
use crate::site::Site;
use crate::text::encode;
use crate::view;
use crate::visit::Visit;

/// The fields of the form, each with a label.
const FIELDS: [(&str, &str); 2] = [("min", "Quiet period (min)"), ("max", "Longest delay (max)")];

pub(crate) fn routes() -> Router<Site> {
    Router::new()
        .route("/tasks/{task}/review", post(review))
        .route("/tasks/{task}/save", post(save))
        .route("/tasks/{task}/clear", post(clear))
        .route("/tasks/{task}/undo", post(undo))
}

fn api(task: &str) -> String {
    format!("/v1/tasks/{}", encode(task))
}

/// `POST /tasks/{task}/review`: shows what a change does before it is made.
async fn review(visit: Visit, Path(task): Path<String>, Form(form): Form) -> Answer {
    let (shown, tag) = visit.get_tagged(&api(&task)).await?;
    let policy = visit.get_if_seen(&format!("{}/policy", api(&task))).await?;
    let in_force = |field: &str| in_force(policy.as_ref(), &shown, field);
    let rows = FIELDS.map(|(field, label)| {
        let (old, new) = (in_force(field).0, form.get(field).unwrap_or_default().to_owned());
        context! { label, is_changed => old != new, old, new }
    });
    let (from, new) = (in_force("min").1, "an operator");
    let whose = context! { label => "Set by", old => from, new, is_changed => from != new };
    let own = context! {
        rows => rows.into_iter().chain([whose]).collect::<Vec<_>>(),
        fields => view::map(FIELDS.map(|(field, _)| (field, form.get(field).unwrap_or_default()))),
        is_stale => false,
        tag,
        is_any => true,
        note => "They count in every process from a few seconds after they are saved, for triggers that \
                 bring none of their own. The bound of a window that is open can only shrink, with its next trigger.",
        here => visit.url(&format!("/tasks/{}", encode(&task))),
    };
    page(&visit, "tasks", &format!("Change task {task}"), "review", own)
}

/// A threshold that counts now, and who says so.
fn in_force<'v>(
    policy: Option<&'v Value>,
    task: &'v Value,
    field: &str,
) -> (&'v str, &'static str) {
    if let Some(set) = task["debounce"][field].as_str() {
        return (set, "an operator");
    }
    let settings = policy.and_then(|policy| policy["settings"].as_array());
    let name = format!("debounce.{field}");
    let found = settings.into_iter().flatten().find(|setting| setting["name"] == name);
    let from = match found.and_then(|setting| setting["from"].as_str()) {
        Some("queue") => "the queue's settings",
        Some("default") => "the default",
        _ => "the task's declaration",
    };
    (found.and_then(|setting| setting["value"].as_str()).unwrap_or_default(), from)
}

/// `POST /tasks/{task}/save`.
async fn save(visit: Visit, Path(task): Path<String>, Form(form): Form) -> Answer {
    let wanted = json!({ "min": form.whole("min").trim(), "max": form.whole("max").trim() });
    send(&visit, &task, wanted, form.whole("tag")).await?;
    done(&visit, &format!("/tasks/{}", encode(&task)), "saved")
}

/// `POST /tasks/{task}/clear`: what the task declares counts again.
async fn clear(visit: Visit, Path(task): Path<String>, Form(form): Form) -> Answer {
    send(&visit, &task, Value::Null, form.whole("tag")).await?;
    done(&visit, &format!("/tasks/{}", encode(&task)), "saved")
}

/// `POST /tasks/{task}/undo`: sends the former ones, if nothing was changed since.
async fn undo(visit: Visit, Path(task): Path<String>, Form(form): Form) -> Answer {
    let former = serde_json::from_str(form.whole("former")).unwrap_or_default();
    send(&visit, &task, former, form.whole("tag")).await?;
    done(&visit, &format!("/tasks/{}", encode(&task)), "undone")
}

async fn send(visit: &Visit, task: &str, wanted: Value, tag: &str) -> Result<(), Refusal> {
    let body = Some(json!({ "debounce": wanted }).to_string());
    let call = Call { method: Method::PATCH, path: &api(task), body, tag: Some(tag) };
    let reply = visit.ask(call).await?;
    visit.read::<Value>(&reply).map(drop)
}

/// The thresholds before the last change, as the audit has them, for the form that undoes it: `null` where
/// none were set. There are none where they were changed since by another way.
pub(super) async fn former(
    visit: &Visit,
    name: &str,
    now: &Value,
) -> Result<Option<String>, Refusal> {
    if !visit.may("admin") {
        return Ok(None);
    }
    let Some(audit) = visit.get_if_seen("/v1/audit?limit=200").await? else { return Ok(None) };
    let path = api(name);
    let entries = audit["entries"].as_array().into_iter().flatten();
    let of = |entry: &Value, when: &str| entry[when]["debounce"].clone();
    let mut changes = entries.filter(|entry| {
        entry["path"] == path
            && entry["after"].is_object()
            && of(entry, "before") != of(entry, "after")
    });
    let last = changes.next().filter(|last| of(last, "after") == now["debounce"]);
    Ok(last.map(|last| of(last, "before").to_string()))
}
