//! Webhook sources and how their deliveries went.

use axum::Router;
use axum::routing::get;
use minijinja::context;
use serde_json::Value;

use crate::answer::{Answer, page};
use crate::site::Site;
use crate::visit::{Visit, shown};

pub(crate) fn routes() -> Router<Site> {
    Router::new().route("/sources", get(list))
}

/// `GET /sources`.
async fn list(visit: Visit) -> Answer {
    let found: Value = visit.get("/v1/sources").await?;
    let own = context! { sources => shown(&found["sources"]) };
    page(&visit, "sources", "Sources", "sources", own)
}
