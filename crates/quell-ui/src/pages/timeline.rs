//! `/timeline`: the bursts of a task.

use axum::Router;
use axum::response::Response;
use axum::routing::get;
use minijinja::context;
use serde_json::Value;

use crate::answer::{Answer, page};
use crate::form::Fields;
use crate::site::Site;
use crate::text::encode;
use crate::visit::{Visit, shown};

/// How many runs the page lists.
const RUNS: usize = 50;

pub(crate) fn routes() -> Router<Site> {
    Router::new().route("/timeline", get(timeline)).route("/timeline/data", get(data))
}

/// What of a query is about the span.
const SPAN: &[&str] = &["key", "from", "to", "steps"];

fn path(task: &str, query: &Fields) -> String {
    format!("/v1/tasks/{}/timeline?{}", encode(task), query.only(SPAN).encode())
}

/// `GET /timeline?task=&key=&from=&to=`.
async fn timeline(visit: Visit) -> Answer {
    let names = super::task_names(&visit).await?;
    let query = visit.query().clone();
    let busiest = match query.get("task") {
        Some(_) => Value::Null,
        None => visit.get::<Value>("/v1/overview").await?["tasks"][0]["task"].take(),
    };
    let task = query.get("task").or(busiest.as_str()).or(names.first().map(String::as_str));
    let task = task.unwrap_or_default().to_owned();
    let mut found = Value::Null;
    if !task.is_empty() {
        found = visit.get(&path(&task, &query)).await?;
        if query.get("from").is_none() {
            begin_where_it_has_something(&mut found);
        }
        newest_first(&mut found);
    }
    let own = context! {
        names,
        task => task.as_str(),
        key => query.get("key"),
        from => query.get("from"),
        to => query.get("to"),
        timeline => shown(&found),
        data => visit.url(&format!("/timeline/data?task={}", encode(&task))),
    };
    let title = if task.is_empty() { "Timeline".to_owned() } else { format!("Timeline of {task}") };
    page(&visit, "timeline", &title, "timeline", own)
}

/// Begins the view where the record does, if that is later, and a minute before its end at the latest.
fn begin_where_it_has_something(found: &mut Value) {
    let time = |name: &str| found[name].as_str()?.parse::<jiff::Timestamp>().ok();
    let (Some(from), Some(to), Some(complete)) = (time("from"), time("to"), time("complete_from"))
    else {
        return;
    };
    let latest = to.checked_sub(jiff::SignedDuration::from_mins(1)).unwrap_or(from);
    found["view_from"] = complete.min(latest).max(from).to_string().into();
}

/// The newest runs, the newest first, with times in place of milliseconds.
fn newest_first(found: &mut Value) {
    let from = found["from"].as_str().and_then(|from| from.parse::<jiff::Timestamp>().ok());
    let Some(from) = from else { return };
    let at = |millis: &Value| {
        let millis = millis.as_f64()?;
        let span = jiff::SignedDuration::try_from_secs_f64(millis / 1_000.0).ok()?;
        Some(from.checked_add(span).ok()?.to_string())
    };
    for (list, times) in [
        ("bars", &["opened", "due", "started", "ended"][..]),
        ("windows", &["opened", "due", "bound"]),
        ("marks", &["at"]),
    ] {
        for row in found[list].as_array_mut().into_iter().flatten() {
            let seconds =
                |from: &Value, to: &Value| Some((to.as_f64()? - from.as_f64()?) / 1_000.0);
            if let Some(late) = seconds(&row["due"], &row["started"]) {
                row["late"] = late.into();
            }
            if let Some(took) = seconds(&row["started"], &row["ended"]) {
                row["took"] = took.into();
            }
            for name in times {
                row[*name] = at(&row[*name]).map_or(Value::Null, Value::from);
            }
        }
    }
    if let Some(bars) = found["bars"].as_array_mut() {
        bars.reverse();
        bars.truncate(RUNS);
    }
}

/// `GET /timeline/data?task=&key=&from=&to=&steps=`: the API's answer, for the script.
async fn data(visit: Visit) -> Response {
    let query = visit.query().clone();
    let task = query.get("task").unwrap_or_default().to_owned();
    visit.stream(&path(&task, &query)).await
}
