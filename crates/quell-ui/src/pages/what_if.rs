//! `/what-if`: other thresholds on the triggers that a server has seen lately.

use axum::Router;
use axum::http::StatusCode;
use axum::response::Response;
use axum::routing::get;
use jiff::{SignedDuration, Timestamp};
use minijinja::context;
use minijinja::value::Value as Shown;
use serde_json::Value;

use crate::answer::{Answer, with_status};
use crate::api::Call;
use crate::form::Fields;
use crate::site::Site;
use crate::text::{self, encode, seconds};
use crate::visit::{Visit, shown};

/// The chart's area of points.
const WIDTH: f64 = 560.0;
const HEIGHT: f64 = 240.0;

pub(crate) fn routes() -> Router<Site> {
    Router::new().route("/what-if", get(what_if)).route("/what-if/data", get(data))
}

fn path(task: &str, query: &Fields) -> String {
    format!("/v1/tasks/{}/what-if?{}", encode(task), query.only(&["min", "max"]).encode())
}

/// `GET /what-if?task=&min=&max=`.
async fn what_if(visit: Visit) -> Answer {
    let names = super::task_names(&visit).await?;
    let query = visit.query().clone();
    let task = query.get("task").unwrap_or_default().to_owned();
    // Without a task the page shows what all of them save.
    let overview = if task.is_empty() { visit.get("/v1/overview").await? } else { Value::Null };
    let (mut found, mut problem, mut status) = (Value::Null, None, StatusCode::OK);
    if !task.is_empty() {
        let reply = visit.ask(Call::get(&path(&task, &query))).await?;
        if super::is_about_a_field(&reply) {
            let refused = reply.problem();
            // A task without thresholds is no fault of who looks at it.
            if refused.field.as_deref() != Some("task") {
                status = StatusCode::UNPROCESSABLE_ENTITY;
            }
            problem = Some(text::sentence(&refused.message));
        } else {
            found = visit.read(&reply)?;
        }
    }
    let pairs = found["pairs"].as_array().cloned().unwrap_or_default();
    let of = |name: &str| pairs.iter().find(|pair| pair[name] == true);
    let chosen = of("asked").or_else(|| of("current"));
    let seen = seen(&found);
    let max = chosen.and_then(|pair| pair["max"].as_str()?.parse::<SignedDuration>().ok());
    let own = context! {
        names,
        task => task.as_str(),
        seen,
        // Thresholds that are in force by another setting can still be set for the task.
        is_own => found["from_setting"] == "operator" && chosen.is_some_and(|pair| pair["current"] == true),
        // Bursts this long can hardly have been seen.
        is_short => max.is_some_and(|max| 2.0 * max.as_secs_f64() > seen),
        savings => shown(&savings(&overview)),
        since => overview["since"].as_str(),
        found => shown(&found),
        points => points(&pairs),
        guides => guides(&pairs),
        scale => { let (least, most) = scale(&pairs); format!("{least} {most}") },
        chosen => chosen.map(shown),
        current => of("current").map(shown),
        data => visit.url(&format!("/what-if/data?task={}", encode(&task))),
        problem,
    };
    with_status(&visit, status, "what-if", "What if", "what-if", own)
}

/// How many seconds lie between the first and the last trigger.
fn seen(found: &Value) -> f64 {
    let time = |name: &str| found[name].as_str()?.parse::<Timestamp>().ok();
    match (time("from"), time("to")) {
        (Some(from), Some(to)) => to.duration_since(from).as_secs_f64(),
        _ => 0.0,
    }
}

/// The tasks of an overview, with the share of runs that each saved this week.
fn savings(overview: &Value) -> Value {
    let tasks = overview["tasks"].as_array().into_iter().flatten();
    let rows = tasks.map(|task| {
        let of = |name: &str| task["week"][name].as_f64().unwrap_or_default();
        let covered = of("runs") + of("saved");
        let share = (covered > 0.0).then(|| format!("{:.1}", 100.0 * of("saved") / covered));
        let mut row = task.clone();
        row["share"] = share.map_or(Value::Null, Value::from);
        row
    });
    Value::Array(rows.collect())
}

/// The longest delay of the chart, in milliseconds, and the shortest.
fn scale(pairs: &[Value]) -> (f64, f64) {
    let delays = || pairs.iter().filter_map(|pair| pair["delay_p99_ms"].as_f64());
    let most = delays().fold(1_000.0, f64::max);
    let least = delays().filter(|delay| *delay > 0.0).fold(most, f64::min);
    (least.max(1.0), most * 1.2)
}

fn across(delay: f64, (least, most): (f64, f64)) -> f64 {
    let place = (delay.max(least) / least).ln() / (most / least).ln().max(f64::EPSILON);
    (place * WIDTH * 10.0).round() / 10.0
}

/// The pairs as points: delay to the right, by its logarithm, and runs saved upwards.
fn points(pairs: &[Value]) -> Vec<Shown> {
    let scale = scale(pairs);
    let point = |pair: &Value| {
        let of = |name: &str| pair[name].as_f64().unwrap_or_default();
        context! {
            x => across(of("delay_p99_ms"), scale),
            y => ((1.0 - of("saved")) * HEIGHT * 10.0).round() / 10.0,
            pair => shown(pair),
        }
    };
    pairs.iter().map(point).collect()
}

/// The lines of the chart's scale.
fn guides(pairs: &[Value]) -> Vec<Shown> {
    const DELAYS: [f64; 9] = [1e3, 5e3, 1e4, 3e4, 6e4, 3e5, 18e5, 36e5, 144e5];
    let scale = scale(pairs);
    let is_within = |delay: &&f64| **delay >= scale.0 && **delay <= scale.1;
    let guide = |delay: &f64| {
        context! { x => across(*delay, scale), label => seconds(delay / 1_000.0) }
    };
    DELAYS.iter().filter(is_within).map(guide).collect()
}

/// `GET /what-if/data?task=&min=&max=`: the API's answer, for the script.
async fn data(visit: Visit) -> Response {
    let query = visit.query().clone();
    visit.stream(&path(query.get("task").unwrap_or_default(), &query)).await
}
