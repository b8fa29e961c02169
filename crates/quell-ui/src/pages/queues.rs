//! Queues: their limits with the use now, pauses, and live edits that can be undone.

use axum::Router;
use axum::extract::Path;
use axum::http::{Method, StatusCode};
use axum::routing::{get, post};
use minijinja::context;
use serde_json::{Map, Value, json};

use super::jobs::STATES;
use super::typed::Typed;
use super::{ByName, of_group};
use crate::answer::{Answer, Refusal, done, page, with_status};
use crate::api::{Call, Reply};
use crate::form::{Fields, Form};
use crate::site::Site;
use crate::text::encode;
use crate::view;
use crate::visit::{Visit, shown};

/// The limits that are numbers.
const NUMBERS: [&str; 3] = ["concurrency", "worker_concurrency", "partition_concurrency"];
/// The limits that are starts in a time.
const RATES: [&str; 2] = ["rate", "partition_rate"];
/// The fields that a form of settings has, each with a label.
const FIELDS: [(&str, &str, &str); 7] = [
    ("concurrency", "Attempts at once", "number"),
    ("worker_concurrency", "Attempts at once by one worker", "number"),
    ("partition_concurrency", "Attempts at once of one partition", "number"),
    ("partition_order", "Order in a partition: by_priority or strict", "text"),
    ("rate", "Starts in a time, such as 100/1m", "text"),
    ("partition_rate", "Starts in a time of one partition", "text"),
    ("debounce", "Thresholds of tasks without their own, such as 10s/60s", "text"),
];

pub(crate) fn routes() -> Router<Site> {
    Router::new()
        .route("/queues", get(list))
        .route("/queues/{queue}", get(one))
        .route("/queues/{queue}/pause", post(pause))
        .route("/queues/{queue}/resume", post(resume))
        .route("/queues/{queue}/review", post(review))
        .route("/queues/{queue}/save", post(save))
        .route("/queues/{queue}/undo", post(undo))
}

/// `GET /queues`.
async fn list(visit: Visit) -> Answer {
    let by_name = ByName::of(&visit, "/queues");
    let found: Value = visit.get(&format!("/v1/queues?{}", by_name.query())).await?;
    let counts: Value = visit.get("/v1/counts").await?;
    let empty = Vec::new();
    let rows = found["queues"].as_array().unwrap_or(&empty).iter().map(|queue| {
        let mut row = queue.clone();
        row["counts"] = of_group(&counts, "queue", &queue["name"]);
        row
    });
    let own = context! {
        queues => shown(&Value::Array(rows.collect())),
        list => by_name.shown(&visit, &found),
    };
    page(&visit, "queues", "Queues", "queues", own)
}

/// `GET /queues/{queue}`.
async fn one(visit: Visit, Path(name): Path<String>) -> Answer {
    show(&visit, &name, None).await
}

/// The page of a queue, with a form that was refused if there is one.
async fn show(visit: &Visit, name: &str, typed: Option<Typed>) -> Answer {
    let (queue, tag) = visit.get_tagged(&at(name)).await?;
    let counts: Value = visit.get("/v1/counts").await?;
    let texts = typed.as_ref().map_or_else(|| texts(&queue), |typed| typed.given.clone());
    let fields = FIELDS.map(|(field, label, kind)| {
        context! { name => field, label, kind, value => texts.get(field).unwrap_or_default() }
    });
    let former = former(visit, name, &queue).await?;
    let partitions = match visit.is_of_some_tasks() {
        true => None,
        false => visit.get_if_seen(&format!("{}/partitions", at(name))).await?,
    };
    let own = context! {
        queue => shown(&queue),
        tag,
        counts => shown(&of_group(&counts, "queue", &queue["name"])),
        states => STATES,
        fields => fields.to_vec(),
        former,
        partitions => partitions.as_ref().map(shown),
        problem => typed.as_ref().map(|typed| typed.problem(&FIELDS.map(|(field, ..)| field))),
        here => visit.url(&format!("/queues/{}", encode(name))),
    };
    let status = typed.as_ref().map_or(StatusCode::OK, |typed| typed.status);
    with_status(visit, status, "queues", &format!("Queue {name}"), "queue", own)
}

/// `POST /queues/{queue}/review`: shows what a change does before it is made.
async fn review(visit: Visit, Path(name): Path<String>, Form(form): Form) -> Answer {
    let (queue, tag) = visit.get_tagged(&at(&name)).await?;
    let before = texts(&queue);
    let wanted = match patch(&form) {
        Ok(wanted) => wanted,
        Err(typed) => return show(&visit, &name, Some(typed)).await,
    };
    let rows = FIELDS.map(|(field, label, _)| {
        let (old, new) =
            (before.get(field).unwrap_or_default(), form.get(field).unwrap_or_default());
        context! { label, old, new, is_changed => old != new }
    });
    let own = context! {
        rows => rows.to_vec(),
        fields => view::map(FIELDS.map(|(field, ..)| (field, form.get(field).unwrap_or_default()))),
        is_stale => form.whole("tag") != tag,
        tag,
        is_any => before.only(&FIELDS.map(|(field, ..)| field)).encode()
            != form.only(&FIELDS.map(|(field, ..)| field)).encode(),
        wanted => Value::Object(wanted).to_string(),
        here => visit.url(&format!("/queues/{}", encode(&name))),
    };
    page(&visit, "queues", &format!("Change queue {name}"), "review", own)
}

/// `POST /queues/{queue}/save`: changes the settings that were reviewed, and no others.
async fn save(visit: Visit, Path(name): Path<String>, Form(form): Form) -> Answer {
    let wanted = match patch(&form) {
        Ok(wanted) => Value::Object(wanted).to_string(),
        Err(typed) => return show(&visit, &name, Some(typed)).await,
    };
    let reply = send(&visit, Method::PATCH, &name, wanted, form.whole("tag")).await?;
    if let Some(typed) = Typed::refused(&form, &reply) {
        return show(&visit, &name, Some(typed)).await;
    }
    visit.read::<Value>(&reply)?;
    done(&visit, &format!("/queues/{}", encode(&name)), "saved")
}

/// `POST /queues/{queue}/undo`: sends the former settings, if nothing was changed since.
async fn undo(visit: Visit, Path(name): Path<String>, Form(form): Form) -> Answer {
    let former = form.whole("former").to_owned();
    let reply = send(&visit, Method::PUT, &name, former, form.whole("tag")).await?;
    visit.read::<Value>(&reply)?;
    done(&visit, &format!("/queues/{}", encode(&name)), "undone")
}

async fn send(
    visit: &Visit,
    method: Method,
    name: &str,
    body: String,
    tag: &str,
) -> Result<Reply, Refusal> {
    let path = at(name);
    visit.ask(Call { method, path: &path, body: Some(body), tag: Some(tag) }).await
}

/// `POST /queues/{queue}/pause`.
async fn pause(visit: Visit, Path(name): Path<String>) -> Answer {
    visit.post(&format!("{}/pause", at(&name)), visit.by().as_ref()).await?;
    done(&visit, &format!("/queues/{}", encode(&name)), "paused")
}

/// `POST /queues/{queue}/resume`.
async fn resume(visit: Visit, Path(name): Path<String>) -> Answer {
    visit.post(&format!("{}/resume", at(&name)), None).await?;
    done(&visit, &format!("/queues/{}", encode(&name)), "resumed")
}

fn at(name: &str) -> String {
    format!("/v1/queues/{}", encode(name))
}

/// The settings of a queue, as a `PUT` takes them.
fn settings(queue: &Value) -> Value {
    let kept = FIELDS.map(|(field, ..)| field).into_iter().chain(["paused"]);
    let kept = kept.filter(|field| !queue[*field].is_null());
    Value::Object(kept.map(|field| (field.to_owned(), queue[field].clone())).collect())
}

/// The settings before the last change, as the audit has them. There are none where the settings were changed
/// since by another way.
async fn former(visit: &Visit, name: &str, now: &Value) -> Result<Option<String>, Refusal> {
    let audit = visit.get_of_all("admin", "/v1/audit?limit=200").await?;
    let Some(audit) = audit else { return Ok(None) };
    let path = at(name);
    let entries = audit["entries"].as_array().into_iter().flatten();
    let mut changes = entries.filter(|entry| entry["path"] == path && !entry["after"].is_null());
    let last = changes.next();
    let last = last.filter(|last| last["after"] == *now && last["before"].is_object());
    Ok(last.map(|last| settings(&last["before"]).to_string()))
}

/// The settings as a form has them.
fn texts(queue: &Value) -> Fields {
    let pair = |value: &Value, first: &str, second: &str| {
        let first = value[first].as_str().map_or_else(|| value[first].to_string(), str::to_owned);
        format!("{first}/{}", value[second].as_str().unwrap_or_default())
    };
    FIELDS.iter().fold(Fields::default(), |all, (field, ..)| {
        let value = &queue[*field];
        let text = match (*field, value) {
            (_, Value::Null) => return all,
            ("debounce", value) => pair(value, "min", "max"),
            (field, value) if RATES.contains(&field) => pair(value, "limit", "period"),
            (_, Value::String(text)) => text.clone(),
            (_, other) => other.to_string(),
        };
        all.with(field, &text)
    })
}

/// What a form asks for, as a `PATCH` takes it: an empty field removes a setting.
fn patch(form: &Fields) -> Result<Map<String, Value>, Typed> {
    let mut all = Map::new();
    for (field, label, _) in FIELDS {
        let Some(text) = form.get(field) else {
            all.insert(field.to_owned(), Value::Null);
            continue;
        };
        let wrong = || {
            let message = format!("{label}: {text:?} is not such a value.");
            Typed::wrong(form, field, &message)
        };
        let value = if NUMBERS.contains(&field) {
            json!(text.parse::<u32>().map_err(|_| wrong())?)
        } else if RATES.contains(&field) {
            let (limit, period) = text.split_once('/').ok_or_else(wrong)?;
            let limit = limit.trim().parse::<u32>().map_err(|_| wrong())?;
            json!({ "limit": limit, "period": period.trim() })
        } else if field == "debounce" {
            let (min, max) = text.split_once('/').ok_or_else(wrong)?;
            json!({ "min": min.trim(), "max": max.trim() })
        } else {
            json!(text)
        };
        all.insert(field.to_owned(), value);
    }
    Ok(all)
}
