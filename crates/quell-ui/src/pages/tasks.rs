//! Tasks: a list, and one with its windows and a form to trigger it.

use axum::Router;
use axum::extract::Path;
use axum::http::{Method, StatusCode};
use axum::routing::{get, post};
use minijinja::context;
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::jobs::STATES;
use super::typed::Typed;
use super::{ByName, PAGE, of_group, thresholds};
use crate::answer::{Answer, Refusal, done, page, with_status};
use crate::api::Call;
use crate::form::{Fields, Form};
use crate::site::Site;
use crate::text::encode;
use crate::view;
use crate::visit::{Visit, shown};

pub(crate) fn routes() -> Router<Site> {
    Router::new()
        .route("/tasks", get(list))
        .route("/tasks/{task}", get(one))
        .route("/tasks/{task}/trigger", post(trigger))
        .route("/tasks/{task}/flush", post(flush))
        .route("/tasks/{task}/cancel", post(cancel))
        .route("/tasks/{task}/pause", post(pause))
        .route("/tasks/{task}/resume", post(resume))
}

/// `GET /tasks`.
async fn list(visit: Visit) -> Answer {
    let by_name = ByName::of(&visit, "/tasks");
    let tasks: Value = visit.get(&format!("/v1/tasks?{}", by_name.query())).await?;
    let counts: Value = visit.get("/v1/counts").await?;
    let empty = Vec::new();
    let rows = tasks["tasks"].as_array().unwrap_or(&empty).iter().map(|task| {
        let mut row = task.clone();
        row["counts"] = of_group(&counts, "task", &task["name"]);
        row
    });
    let own = context! {
        tasks => shown(&Value::Array(rows.collect())),
        list => by_name.shown(&visit, &tasks),
    };
    page(&visit, "tasks", "Tasks", "tasks", own)
}

/// `POST /tasks/{task}/pause`.
async fn pause(visit: Visit, Path(task): Path<String>) -> Answer {
    let path = format!("/v1/tasks/{}/pause", encode(&task));
    visit.change(Method::POST, &path, visit.by().as_ref()).await?;
    done(&visit, &format!("/tasks/{}", encode(&task)), "paused")
}

/// `POST /tasks/{task}/resume`.
async fn resume(visit: Visit, Path(task): Path<String>) -> Answer {
    visit.post(&format!("/v1/tasks/{}/resume", encode(&task)), None).await?;
    done(&visit, &format!("/tasks/{}", encode(&task)), "resumed")
}

/// `GET /tasks/{task}`.
async fn one(visit: Visit, Path(name): Path<String>) -> Answer {
    show(&visit, &name, None).await
}

/// The page of a task, with a form that was refused if there is one.
async fn show(visit: &Visit, name: &str, typed: Option<Typed>) -> Answer {
    let below = format!("/v1/tasks/{}", encode(name));
    let (task, tag) = visit.get_tagged(&below).await?;
    let counts: Value = visit.get("/v1/counts").await?;
    let before = visit.query().only(&["before"]);
    let windows = format!("{below}/windows?limit={PAGE}&{}", before.encode());
    let windows = visit.get_if_seen(&windows).await?;
    let policy = visit.get_if_seen(&format!("{below}/policy")).await?;
    let habits = visit.get_if_seen(&format!("{below}/habits")).await?;
    let causes =
        format!("/v1/dead/causes?task={}&limit=5&among={}", encode(name), super::dead::AMONG);
    let causes = visit.get_if_seen(&causes).await?;
    let took = habits.as_ref().and_then(|habits| habits["took"].as_array());
    let took = took.into_iter().flatten().filter_map(|group| group["attempts"].as_u64());
    let here = visit.url(&format!("/tasks/{}", encode(name)));
    let given = |field: &str| typed.as_ref().map_or("", |typed| typed.given.whole(field));
    let next = windows.as_ref().and_then(|page| page["next_before"].as_str());
    let settings = policy.as_ref().and_then(|policy| policy["settings"].as_array());
    let throttled = settings.into_iter().flatten().any(|setting| setting["name"] == "throttle");
    let own = context! {
        task => shown(&task),
        former => thresholds::former(visit, name, &task).await?,
        tag,
        throttled,
        counts => shown(&of_group(&counts, "task", &task["name"])),
        states => STATES,
        windows => windows.as_ref().map(shown),
        policy => policy.as_ref().map(shown),
        habits => habits.as_ref().map(shown),
        took_most => took.max(),
        causes => causes.as_ref().map(shown),
        next => next.map(|next| format!("{here}?before={}", encode(next))),
        first => (!before.is_empty()).then_some(here.as_str()),
        here,
        may_trigger => visit.may_trigger(name),
        lack_trigger => visit.lack(&format!("trigger:{name}")),
        given => view::map(TRIGGER.map(|field| (field, given(field)))),
        problem => typed.as_ref().map(|typed| typed.problem(&TRIGGER)),
    };
    let status = typed.as_ref().map_or(StatusCode::OK, |typed| typed.status);
    with_status(visit, status, "tasks", &format!("Task {name}"), "task", own)
}

/// A trigger as the API takes it. The payload goes on byte for byte.
#[derive(Serialize)]
struct Trigger<'a> {
    payload: &'a RawValue,
    #[serde(skip_serializing_if = "Option::is_none")]
    delay: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    priority: Option<i16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    partition: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dedup: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    idempotency_key: Option<&'a str>,
}

/// The fields of the form of a trigger.
const TRIGGER: [&str; 6] =
    ["payload", "delay", "priority", "partition", "dedup", "idempotency_key"];

/// `POST /tasks/{task}/trigger`.
async fn trigger(visit: Visit, Path(task): Path<String>, Form(form): Form) -> Answer {
    let payload = match read_document(form.whole("payload")) {
        Ok(payload) => payload,
        Err(wrong) => {
            return show(&visit, &task, Some(Typed::wrong(&form, "payload", &wrong))).await;
        }
    };
    let priority = match super::read_priority(&form) {
        Ok(priority) => priority,
        Err(wrong) => {
            return show(&visit, &task, Some(Typed::wrong(&form, "priority", &wrong))).await;
        }
    };
    let body = serde_json::to_string(&Trigger {
        payload,
        delay: form.get("delay"),
        priority,
        partition: form.get("partition"),
        dedup: form.get("dedup"),
        idempotency_key: form.get("idempotency_key"),
    });
    let path = format!("/v1/tasks/{}/triggers", encode(&task));
    let call = Call { method: Method::POST, path: &path, body: body.ok(), tag: None };
    let reply = visit.ask(call).await?;
    if let Some(typed) = Typed::refused(&form, &reply) {
        return show(&visit, &task, Some(typed)).await;
    }
    let receipt: Value = visit.read(&reply)?;
    let said = receipt["receipt"].as_str().unwrap_or_default();
    match receipt["job"].as_str() {
        Some(job) => done(&visit, &format!("/jobs/{}", encode(job)), said),
        None => done(&visit, &format!("/tasks/{}", encode(&task)), said),
    }
}

/// A JSON text of a form.
pub(super) fn document<'a>(visit: &Visit, text: &'a str) -> Result<&'a RawValue, Refusal> {
    let wrong = |message: String| visit.refuse(StatusCode::UNPROCESSABLE_ENTITY, &message);
    read_document(text).map_err(wrong)
}

/// The same, or what is wrong with it.
fn read_document(text: &str) -> Result<&RawValue, String> {
    serde_json::from_str(text).map_err(|error| format!("The payload is no JSON: {error}."))
}

/// `POST /tasks/{task}/flush`.
async fn flush(visit: Visit, Path(task): Path<String>, Form(form): Form) -> Answer {
    window(&visit, &task, &form, "flush", "flushed").await
}

/// `POST /tasks/{task}/cancel`.
async fn cancel(visit: Visit, Path(task): Path<String>, Form(form): Form) -> Answer {
    window(&visit, &task, &form, "cancel", "window-cancelled").await
}

/// A row of a list names its job, as its window may be closed; without one the open window of a key is meant.
async fn window(visit: &Visit, task: &str, form: &Fields, what: &str, said: &str) -> Answer {
    let task = encode(task);
    if let Some(job) = form.get("job") {
        let what = if what == "flush" { "run" } else { what };
        visit.post(&format!("/v1/jobs/{}/{what}", encode(job)), None).await?;
        return done(visit, &format!("/tasks/{task}"), said);
    }
    let body = json!({ "key": form.whole("key") });
    visit.post(&format!("/v1/tasks/{task}/windows/{what}"), Some(&body)).await?;
    done(visit, &format!("/tasks/{task}"), said)
}
