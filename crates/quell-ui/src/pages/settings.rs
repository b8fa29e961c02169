//! The server as it is set: its version, its alerts, its tokens, the caller's own rights.

use axum::Router;
use axum::routing::get;
use minijinja::context;
use serde_json::Value;

use crate::answer::{Answer, page};
use crate::api::Call;
use crate::site::Site;
use crate::visit::{Visit, shown};

pub(crate) fn routes() -> Router<Site> {
    Router::new().route("/settings", get(all))
}

/// `GET /settings`.
async fn all(visit: Visit) -> Answer {
    let index: Value = visit.get("/").await?;
    let session = visit.get_if_seen("/v1/session").await?;
    let queues: Value = visit.get("/v1/queues").await?;
    let alerts = visit.get_of_all("read", "/v1/alerts").await?;
    let tokens = visit.get_of_all("admin", "/v1/tokens").await?;
    // A server that is not ready says so with 503 and the same body.
    let ready: Value = visit.ask(Call::get("/v1/readyz")).await?.json().unwrap_or_default();
    let own = context! {
        index => shown(&index),
        session => session.as_ref().map(shown),
        queues => shown(&queues["queues"]),
        alerts => alerts.as_ref().map(|found| shown(&found["alerts"])),
        tokens => tokens.as_ref().map(|found| shown(&found["tokens"])),
        ready => shown(&ready),
    };
    page(&visit, "settings", "Settings", "settings", own)
}
