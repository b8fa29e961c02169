//! Jobs: a filtered list.

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

/// The members of a filter: docs/api.md has what they mean.
pub(crate) const FILTER: [&str; 9] =
    ["task", "queue", "state", "key", "partition", "error", "cause", "age", "late"];
/// The states of jobs.
pub(crate) const STATES: [&str; 7] =
    ["scheduled", "running", "succeeded", "dead", "cancelled", "absorbed", "unreadable"];

pub(crate) fn routes() -> Router<Site> {
    Router::new().route("/jobs", get(list))
}

/// `GET /jobs`.
async fn list(visit: Visit) -> Answer {
    let given = visit.query().only(&FILTER);
    let before = visit.query().only(&["before"]);
    let asked = [given.encode(), before.encode()].into_iter().filter(|part| !part.is_empty());
    let asked = asked.collect::<Vec<_>>().join("&");
    let reply = visit.ask(Call::get(&format!("/v1/jobs?limit={PAGE}&{asked}"))).await?;
    // What was typed is shown again, with what is wrong with it.
    let is_wrong = super::is_about_a_field(&reply);
    let problem = is_wrong.then(|| reply.problem());
    let page: Value = if is_wrong { Value::Null } else { visit.read(&reply)? };
    let tasks: Value = visit.get("/v1/tasks?limit=200").await?;
    let queues: Value = visit.get("/v1/queues?limit=200").await?;
    let matching = if is_wrong { None } else { matching(&visit, &given).await? };
    let here = |fields: &Fields| visit.url(&format!("/jobs?{}", fields.encode()));
    let next = page["next_before"].as_str();
    let next = next.map(|next| here(&given.clone().with("before", next)));
    let status = if is_wrong { StatusCode::UNPROCESSABLE_ENTITY } else { StatusCode::OK };
    let own = context! {
        filter => view::map(FILTER.map(|name| (name, given.get(name).unwrap_or_default()))),
        states => STATES,
        tasks => shown(&tasks["tasks"]),
        queues => shown(&queues["queues"]),
        jobs => shown(&page["jobs"]),
        next,
        first => (!before.is_empty()).then(|| here(&given)),
        given => given.encode(),
        pairs => given.pairs().map(|(name, value)| vec![name.to_owned(), value.to_owned()]).collect::<Vec<_>>(),
        matching,
        problem => problem.as_ref().map(|problem| text::sentence(&problem.message)),
        field => problem.as_ref().and_then(|problem| problem.field.as_deref()),
    };
    with_status(&visit, status, "jobs", "Jobs", "jobs", own)
}

/// How many jobs match, where the counts of the store say it.
pub(super) async fn matching(
    visit: &Visit,
    given: &Fields,
) -> Result<Option<u64>, crate::answer::Refusal> {
    if given.is_empty() || !given.without(&["task", "queue", "state"]).is_empty() {
        return Ok(None);
    }
    let counts: Value = visit.get("/v1/counts").await?;
    let counts = counts["counts"].as_array().into_iter().flatten();
    let matches = |count: &&Value| given.pairs().all(|(name, value)| count[name] == value);
    Ok(Some(counts.filter(matches).filter_map(|count| count["jobs"].as_u64()).sum()))
}
