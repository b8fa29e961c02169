//! Workers that were seen within the last day.

use axum::Router;
use axum::routing::get;
use minijinja::context;
use serde_json::Value;

use crate::answer::{Answer, page};
use crate::site::Site;
use crate::visit::{Visit, shown};

pub(crate) fn routes() -> Router<Site> {
    Router::new().route("/workers", get(list))
}

/// `GET /workers`.
async fn list(visit: Visit) -> Answer {
    let found: Value = visit.get("/v1/workers").await?;
    let own = context! { workers => shown(&found["workers"]) };
    page(&visit, "workers", "Workers", "workers", own)
}
