//! `/`: pages for people, and the API's own index for programs.

use axum::RequestExt;
use axum::Router;
use axum::extract::{Request, State};
use axum::http::header::ACCEPT;
use axum::response::{IntoResponse, Response};
use axum::routing::get;

use crate::answer;
use crate::api::{self, Call};
use crate::site::Site;
use crate::visit::Visit;

/// Where people begin.
const FIRST: &str = "/tasks";

pub(crate) fn routes() -> Router<Site> {
    Router::new().route("/", get(start))
}

/// `GET /`.
async fn start(State(site): State<Site>, mut request: Request) -> Response {
    let accepted = request.headers().get_all(ACCEPT).iter();
    let mut accepted = accepted.filter_map(|value| value.to_str().ok());
    if accepted.any(|value| value.contains("text/html")) {
        return match request.extract_parts_with_state::<Visit, _>(&site).await {
            Ok(visit) => answer::go(&visit.url(FIRST)).into_response(),
            Err(refusal) => refusal,
        };
    }
    let (parts, _) = request.into_parts();
    let headers = match site.admit(&parts) {
        Ok(replaced) => api::of_caller(&parts.headers, replaced),
        Err(refusal) => return *refusal,
    };
    let carried = site.carried(&parts.extensions);
    api::ask(site.api(), &headers, &carried, Call::get("/")).await.into_response()
}
