//! `/proof`: what the checker says of the recorded history.

use axum::Router;
use axum::http::StatusCode;
use axum::routing::get;
use minijinja::context;
use serde_json::Value;

use crate::answer::{Answer, page};
use crate::api::Call;
use crate::site::Site;
use crate::visit::{Visit, shown};

pub(crate) fn routes() -> Router<Site> {
    Router::new().route("/proof", get(proof))
}

/// `GET /proof`.
async fn proof(visit: Visit) -> Answer {
    let reply = visit.ask(Call::get("/v1/proof")).await?;
    let is_recorded = reply.status != StatusCode::NOT_FOUND;
    let proof: Option<Value> = if is_recorded { Some(visit.read(&reply)?) } else { None };
    let own = context! { proof => proof.as_ref().map(shown) };
    page(&visit, "proof", "Proof", "proof", own)
}
