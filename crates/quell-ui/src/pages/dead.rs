//! Dead jobs: by cause, and one by one.

use axum::Router;
use axum::http::StatusCode;
use axum::routing::get;
use minijinja::context;
use serde_json::Value;

use super::PAGE;
use crate::answer::{Answer, with_status};
use crate::api::Call;
use crate::form::Fields;
use crate::site::Site;
use crate::visit::{Visit, shown};
use crate::{text, view};

/// The members of a filter of dead jobs.
const FILTER: [&str; 5] = ["task", "queue", "error", "died_after", "died_before"];
/// How many causes a page has.
const CAUSES: usize = 20;
/// Among how many dead jobs causes are counted, so that a page comes at once; who asks gets more.
pub(super) const AMONG: &str = "2000";
const AMONG_ALL: &str = "10000";

pub(crate) fn routes() -> Router<Site> {
    Router::new().route("/dead", get(list))
}

/// `GET /dead`.
async fn list(visit: Visit) -> Answer {
    let given = visit.query().only(&FILTER);
    let before = visit.query().only(&["before"]);
    let query = |limit: usize, before: &Fields| {
        let parts = [format!("limit={limit}"), given.encode(), before.encode()];
        parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("&")
    };
    let among = visit.query().get("among").filter(|among| *among == AMONG_ALL).unwrap_or(AMONG);
    let causes = format!("/v1/dead/causes?among={among}&{}", query(CAUSES, &Fields::default()));
    let reply = visit.ask(Call::get(&causes)).await?;
    let is_wrong = super::is_about_a_field(&reply);
    let problem = is_wrong.then(|| reply.problem());
    let (causes, page) = if is_wrong {
        (Value::Null, Value::Null)
    } else {
        let causes = visit.read(&reply)?;
        (causes, visit.get(&format!("/v1/dead?{}", query(PAGE, &before))).await?)
    };
    let tasks: Value = visit.get("/v1/tasks?limit=200").await?;
    let queues: Value = visit.get("/v1/queues?limit=200").await?;
    let unreadable = visit.get_of_all("read", "/v1/dead/unreadable?limit=50").await?;
    let here = |fields: &Fields| visit.url(&format!("/dead?{}", fields.encode()));
    let next = page["next_before"].as_str();
    // Actions do not choose by the time of death.
    let is_action = given.without(&["task", "queue", "error"]).is_empty();
    let action = given.clone().with("state", "dead").with("action", "redrive").encode();
    let own = context! {
        filter => view::map(FILTER.map(|name| (name, given.get(name).unwrap_or_default()))),
        tasks => shown(&tasks["tasks"]),
        queues => shown(&queues["queues"]),
        causes => shown(&causes),
        among_all => (among != AMONG_ALL).then(|| here(&given.clone().with("among", AMONG_ALL))),
        jobs => shown(&page["jobs"]),
        matching => shown(&page["matching"]),
        next => next.map(|next| here(&given.clone().with("before", next))),
        first => (!before.is_empty()).then(|| here(&given)),
        action => is_action.then_some(action),
        unreadable => unreadable.as_ref().map(|found| shown(&found["jobs"])),
        problem => problem.as_ref().map(|problem| text::sentence(&problem.message)),
        field => problem.as_ref().and_then(|problem| problem.field.as_deref()),
    };
    let status = if is_wrong { StatusCode::UNPROCESSABLE_ENTITY } else { StatusCode::OK };
    with_status(&visit, status, "dead", "Dead jobs", "dead", own)
}
