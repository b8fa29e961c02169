//! `/proof`: what the checker says of the recorded history.

use axum::Router;
use axum::routing::get;
use minijinja::context;

use crate::answer::{Answer, page};
use crate::site::Site;
use crate::visit::{Visit, shown};

pub(crate) fn routes() -> Router<Site> {
    Router::new().route("/proof", get(proof))
}

/// `GET /proof`.
async fn proof(visit: Visit) -> Answer {
    let proof = visit.get_if_seen("/v1/proof").await?;
    let own = context! { proof => proof.as_ref().map(shown) };
    page(&visit, "proof", "Proof", "proof", own)
}
