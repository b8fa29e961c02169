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
    // A token that is limited is refused, and a refusal is on record as if it had been wanted.
    let reply = match visit.is_limited() {
        true => None,
        false => Some(visit.ask(Call::get("/v1/proof")).await?),
    };
    let recorded = reply.filter(|reply| reply.status != StatusCode::NOT_FOUND);
    let proof: Option<Value> = recorded.map(|reply| visit.read(&reply)).transpose()?;
    let own = context! { proof => proof.as_ref().map(shown) };
    page(&visit, "proof", "Proof", "proof", own)
}
