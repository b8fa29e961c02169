//! `/`: the overview for people, the API's own index for programs, and the events behind live pages.

use axum::RequestExt;
use axum::Router;
use axum::extract::{Request, State};
use axum::http::header::ACCEPT;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use minijinja::context;
use serde_json::Value;

use crate::answer::{Answer, page};
use crate::api::{self, Call};
use crate::site::Site;
use crate::text::encode;
use crate::visit::{Visit, shown};

pub(crate) fn routes() -> Router<Site> {
    Router::new().route("/", get(start)).route("/live", get(live))
}

/// `GET /`.
async fn start(State(site): State<Site>, mut request: Request) -> Response {
    let accepted = request.headers().get_all(ACCEPT).iter();
    let mut accepted = accepted.filter_map(|value| value.to_str().ok());
    if accepted.any(|value| value.contains("text/html")) {
        return match request.extract_parts_with_state::<Visit, _>(&site).await {
            Ok(visit) => overview(visit).await.into_response(),
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

async fn overview(visit: Visit) -> Answer {
    let mut overview: Value = visit.get("/v1/overview").await?;
    for trouble in overview["troubles"].as_array_mut().into_iter().flatten() {
        if let Some(path) = place_of(trouble) {
            trouble["url"] = visit.url(&path).into();
        }
    }
    let week = &overview["week"];
    let number = |name: &str| week[name].as_f64().unwrap_or_default();
    let covered = number("runs") + number("saved");
    let saved = (covered > 0.0).then(|| 100.0 * number("saved") / covered);
    let own = context! {
        o => shown(&overview),
        saved => saved.map(|share| format!("{share:.1}")),
    };
    page(&visit, "overview", "Overview", "overview", own)
}

/// The page that shows more of a trouble. The script knows the same.
fn place_of(trouble: &Value) -> Option<String> {
    let name = |member: &str| trouble[member].as_str().map(encode);
    let of = |path: &str, name: Option<String>| name.map(|name| format!("{path}/{name}"));
    match trouble["kind"].as_str()? {
        "alert" => Some("/settings".to_owned()),
        "workers" => Some("/workers".to_owned()),
        "late" => Some("/jobs?state=scheduled&late=1m".to_owned()),
        "dead" | "unreadable" => Some("/dead".to_owned()),
        "failing" => of("/tasks", name("task")),
        "paused" => of("/queues", name("queue")).or_else(|| of("/tasks", name("task"))),
        _ => None,
    }
}

/// `GET /live`: the API's events, as they come.
async fn live(visit: Visit) -> Response {
    visit.stream("/v1/events").await
}
