//! One job: what happened to it, why it waits or ran when it did, and what may be done with it.

use axum::Router;
use axum::extract::Path;
use axum::http::{Method, StatusCode};
use axum::routing::{get, post};
use minijinja::context;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::line::{self, Moment};
use super::tasks::document;
use crate::answer::{Answer, Refusal, done, page};
use crate::api::{Call, Reply};
use crate::form::Form;
use crate::json::{Members, values};
use crate::site::Site;
use crate::text::encode;
use crate::visit::{Visit, shown};

pub(crate) fn routes() -> Router<Site> {
    Router::new()
        .route("/jobs/{id}", get(one))
        .route("/jobs/{id}/run", post(run))
        .route("/jobs/{id}/cancel", post(cancel))
        .route("/jobs/{id}/priority", post(priority))
        .route("/jobs/{id}/redrive", post(redrive))
        .route("/jobs/{id}/discard", post(discard))
        .route("/jobs/{id}/restore", post(restore))
}

/// What the API says of a job. Documents are the texts that they were: a number may be one that no program
/// keeps.
struct Explained {
    all: Value,
    payload: Option<Box<RawValue>>,
    output: Option<Box<RawValue>>,
    original: Option<Box<RawValue>>,
    progress: Option<Box<RawValue>>,
}

impl Explained {
    fn read(reply: &Reply) -> Result<Self, serde_json::Error> {
        let mut whole: Members = reply.json()?;
        let mut part = |name: &str| -> Result<Members, serde_json::Error> {
            let part = whole.remove(name);
            Ok(part.map(|part| serde_json::from_str(part.get())).transpose()?.unwrap_or_default())
        };
        let (mut job, mut running) = (part("job")?, part("running")?);
        let there = |text: &RawValue| text.get() != "null";
        let original = whole.remove("original_payload");
        let (payload, output) = (job.remove("payload"), job.remove("output"));
        let progress = running.remove("progress");
        let mut all = values(whole)?;
        all.insert("job".to_owned(), Value::Object(values(job)?));
        all.insert("running".to_owned(), Value::Object(values(running)?));
        Ok(Explained {
            all: Value::Object(all),
            payload,
            output: output.filter(|text| there(text)),
            original: original.filter(|text| there(text)),
            progress: progress.filter(|text| there(text)),
        })
    }
}

/// `GET /jobs/{id}`.
async fn one(visit: Visit, Path(id): Path<String>) -> Answer {
    let reply = visit.ask(Call::get(&format!("/v1/jobs/{}", encode(&id)))).await?;
    if !reply.status.is_success() {
        return Err(Refusal::of(&visit, &reply));
    }
    let found = Explained::read(&reply).map_err(|error| {
        let message = format!("The answer of the API cannot be read: {error}.");
        visit.refuse(StatusCode::BAD_GATEWAY, &message)
    })?;
    let job = &found.all["job"];
    let text = |text: &Option<Box<RawValue>>| text.as_ref().map(|text| text.get().to_owned());
    let state = job["state"].as_str().unwrap_or_default();
    let task = job["task"].as_str().unwrap_or_default();
    let traces = job["traces"].as_array().into_iter().flatten();
    let traces = traces.filter_map(|trace| trace["traceparent"].as_str());
    let led_by =
        super::triggers::led_by(&visit, job["id"].as_str().unwrap_or_default(), task).await?;
    let own = context! {
        job => shown(job),
        led_by => led_by.map(|(kind, key)| context! { kind, key }),
        waiting => shown(&found.all["waiting"]),
        late => shown(&found.all["late"]),
        open_window => shown(&found.all["open_window"]),
        effects => shown(&found.all["effects"]),
        text => shown(&found.all["text"]),
        line => line::of(&found.all, visit.url("")).iter().map(Moment::shown).collect::<Vec<_>>(),
        log => shown(&found.all["running"]["log"]),
        payload => text(&found.payload),
        output => text(&found.output),
        original => text(&found.original),
        progress => text(&found.progress),
        traces => traces.map(|parent| trace(&visit, parent)).collect::<Vec<_>>(),
        waits => state == "scheduled",
        may_end => matches!(state, "scheduled" | "running"),
        is_dead => state == "dead",
        is_unreadable => state == "unreadable",
        here => visit.url(&format!("/jobs/{}", encode(&id))),
        curl => format!("{}/v1/jobs/{}", visit.curl(), encode(&id)),
        again => again(&visit, task, found.payload.as_deref()),
    };
    page(&visit, "jobs", &format!("Job {id}"), "job", own)
}

/// The commands that trigger the same once more.
fn again(visit: &Visit, task: &str, payload: Option<&RawValue>) -> Option<Vec<String>> {
    const LONGEST: usize = 4 << 10;
    let payload = payload.map(RawValue::get).filter(|text| text.len() <= LONGEST)?;
    let body = format!("{{\"payload\":{payload}}}");
    let (path, word) = (encode(task), crate::text::shell);
    Some(vec![
        format!("{}/v1/tasks/{path}/triggers --json {}", visit.curl(), word(&body)),
        format!("quell trigger {} {}", word(task), word(payload)),
    ])
}

/// The id of a trace, where it is shown, and the whole header.
fn trace(visit: &Visit, parent: &str) -> minijinja::Value {
    let id = parent.split('-').nth(1).unwrap_or(parent);
    context! { id, parent, url => visit.site().trace_url(id) }
}

/// `POST /jobs/{id}/run`.
async fn run(visit: Visit, Path(id): Path<String>) -> Answer {
    visit.post(&format!("/v1/jobs/{}/run", encode(&id)), None).await?;
    back(&visit, &id, "due")
}

/// `POST /jobs/{id}/cancel`.
async fn cancel(visit: Visit, Path(id): Path<String>) -> Answer {
    visit.post(&format!("/v1/jobs/{}/cancel", encode(&id)), None).await?;
    back(&visit, &id, "cancelled")
}

/// `POST /jobs/{id}/priority`.
async fn priority(visit: Visit, Path(id): Path<String>, Form(form): Form) -> Answer {
    let body = json!({ "priority": super::priority(&visit, &form)?.unwrap_or_default() });
    visit.change(Method::PATCH, &format!("/v1/jobs/{}", encode(&id)), Some(&body)).await?;
    back(&visit, &id, "priority")
}

/// `POST /jobs/{id}/redrive`, with another payload where the form has one.
async fn redrive(visit: Visit, Path(id): Path<String>, Form(form): Form) -> Answer {
    let body = match form.get("payload") {
        Some(_) => {
            // A form ends lines as texts of the internet do; JSON does not mind, but a reader of the job may.
            let text = form.whole("payload").replace("\r\n", "\n");
            let text = document(&visit, text.trim())?.get().to_owned();
            Some(format!("{{\"payload\":{text}}}"))
        }
        None => None,
    };
    let path = format!("/v1/jobs/{}/redrive", encode(&id));
    let call = Call { method: Method::POST, path: &path, body, tag: None };
    let reply = visit.ask(call).await?;
    visit.read::<Value>(&reply)?;
    back(&visit, &id, "redriven")
}

/// `POST /jobs/{id}/discard`.
async fn discard(visit: Visit, Path(id): Path<String>, Form(form): Form) -> Answer {
    let body = json!({ "reason": form.whole("reason") });
    visit.post(&format!("/v1/jobs/{}/discard", encode(&id)), Some(&body)).await?;
    done(&visit, "/dead", "discarded")
}

/// `POST /jobs/{id}/restore`.
async fn restore(visit: Visit, Path(id): Path<String>) -> Answer {
    visit.post(&format!("/v1/jobs/{}/restore", encode(&id)), None).await?;
    back(&visit, &id, "restored")
}

fn back(visit: &Visit, id: &str, said: &str) -> Answer {
    done(visit, &format!("/jobs/{}", encode(id)), said)
}
