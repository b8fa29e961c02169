//! Schedules: their ticks, and what an operator does to one.

use axum::Router;
use axum::extract::Path;
use axum::routing::{get, post};
use minijinja::context;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::answer::{Answer, Refusal, done, page};
use crate::form::Form;
use crate::json::{Members, values};
use crate::site::Site;
use crate::text::encode;
use crate::visit::{Visit, shown};

pub(crate) fn routes() -> Router<Site> {
    Router::new()
        .route("/schedules", get(list))
        .route("/schedules/{name}", get(one))
        .route("/schedules/{name}/pause", post(pause))
        .route("/schedules/{name}/resume", post(resume))
        .route("/schedules/{name}/run", post(run))
        .route("/schedules/{name}/backfill", post(backfill))
}

/// All schedules, with their payloads as the texts that they are.
#[derive(Deserialize)]
struct Schedules {
    schedules: Vec<Members>,
}

/// A schedule and its payload.
fn split(visit: &Visit, mut schedule: Members) -> Result<(Value, Option<String>), Refusal> {
    let payload = schedule.remove("payload").map(|payload| payload.get().to_owned());
    let schedule = values(schedule).map_err(|error| {
        let message = format!("The answer of the API cannot be read: {error}.");
        visit.refuse(axum::http::StatusCode::BAD_GATEWAY, &message)
    })?;
    Ok((Value::Object(schedule), payload))
}

/// `GET /schedules`.
async fn list(visit: Visit) -> Answer {
    let found: Schedules = visit.get("/v1/schedules").await?;
    let rows = found.schedules.into_iter().map(|one| Ok(split(&visit, one)?.0));
    let schedules = Value::Array(rows.collect::<Result<_, Refusal>>()?);
    let own = context! { schedules => shown(&schedules) };
    page(&visit, "schedules", "Schedules", "schedules", own)
}

/// `GET /schedules/{name}`.
async fn one(visit: Visit, Path(name): Path<String>) -> Answer {
    let (schedule, payload) = split(&visit, visit.get(&at(&name)).await?)?;
    let fired = visit.get_if_seen(&format!("{}/ticks?limit=20", at(&name))).await?;
    let own = context! {
        fired => fired.as_ref().map(|found| shown(&found["ticks"])),
        schedule => shown(&schedule),
        payload,
        here => visit.url(&format!("/schedules/{}", encode(&name))),
    };
    page(&visit, "schedules", &format!("Schedule {name}"), "schedule", own)
}

/// `POST /schedules/{name}/pause`.
async fn pause(visit: Visit, Path(name): Path<String>) -> Answer {
    change(&visit, &name, "pause", "paused").await
}

/// `POST /schedules/{name}/resume`.
async fn resume(visit: Visit, Path(name): Path<String>) -> Answer {
    change(&visit, &name, "resume", "resumed").await
}

/// `POST /schedules/{name}/run`.
async fn run(visit: Visit, Path(name): Path<String>) -> Answer {
    change(&visit, &name, "run", "fired").await
}

/// `POST /schedules/{name}/backfill`.
async fn backfill(visit: Visit, Path(name): Path<String>, Form(form): Form) -> Answer {
    let body = json!({ "from": form.get("from"), "to": form.get("to") });
    let filled = visit.post(&format!("{}/backfill", at(&name)), Some(&body)).await?;
    let fired = filled["fired"].as_u64().unwrap_or_default();
    done(&visit, &format!("/schedules/{}?n={fired}", encode(&name)), "backfilled")
}

async fn change(visit: &Visit, name: &str, what: &str, said: &str) -> Answer {
    let path = format!("{}/{what}", at(name));
    let call =
        crate::api::Call { method: axum::http::Method::POST, ..crate::api::Call::get(&path) };
    let reply = visit.ask(call).await?;
    // The answer may have the payload, which need not be one that is kept.
    visit.read::<serde::de::IgnoredAny>(&reply)?;
    done(visit, &format!("/schedules/{}", encode(name)), said)
}

fn at(name: &str) -> String {
    format!("/v1/schedules/{}", encode(name))
}
