//! `GET /v1/tasks/{task}/timeline`: the bursts of a task, as this server saw them.

use std::ops::Range;
use std::time::Duration;

use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use axum::{Extension, Json};
use quell::job::JobFilter;
use quell::{JobState, Key, TaskName, Timestamp};

use super::Api;
use super::auth::Access;
use super::error::{ApiError, Refused};
use super::jobs::{Pairs, Parameters};
use super::overview::waiting::Waits;
use crate::recent::{Recent, Span};
use crate::view;

/// The steps where none are asked for, and the most.
const STEPS: usize = 600;
const MOST_STEPS: usize = 2_000;
/// The most windows of an answer.
const WINDOWS: usize = 100;
/// How many pages of jobs are read for them.
const PAGES: usize = 5;
/// The span where none is asked for.
const SPAN: Duration = Duration::from_secs(600);
/// The longest span.
const LONGEST: Duration = Duration::from_secs(366 * 86_400);

/// `GET /v1/tasks/{task}/timeline?key=&from=&to=&steps=`.
#[utoipa::path(
    get,
    path = "/v1/tasks/{task}/timeline",
    tag = "tasks",
    operation_id = "tasks_timeline",
    summary = "Show the bursts of a task: triggers, windows and runs over a span of time.",
    description = "As this server saw them: what other processes accepted or ran is not in it. Counts are by step, so \
                   an answer is small whatever the number of triggers.",
    params(
        ("task" = String, Path, description = "The task."),
        ("key" = Option<String>, Query, description = "Only this debounce key."),
        ("from" = Option<String>, Query, description = "Where the span begins, as a time; 10 minutes ago where it is left out."),
        ("to" = Option<String>, Query, description = "Where it ends; now where it is left out."),
        ("steps" = Option<u32>, Query, description = "In how many steps triggers are counted, up to 2,000."),
    ),
    responses((status = 200, body = view::Timeline, description = "Done."), Refused),
)]
pub(super) async fn timeline(
    State(api): State<Api>,
    Extension(access): Extension<Access>,
    Path(task): Path<String>,
    query: Result<Query<Pairs>, QueryRejection>,
) -> Result<Json<view::Timeline>, ApiError> {
    let task = TaskName::new(task)?;
    let mut query = Parameters::read(query)?;
    let key = query.take("key", Key::new)?;
    let now = api.overviews.recent().now();
    let end = query.take("to", |text| time("to", &text))?;
    let to = end.unwrap_or(now);
    let from = query.take("from", |text| time("from", &text))?.unwrap_or_else(|| to.before(SPAN));
    let steps = query.take_number("steps", MOST_STEPS)?.unwrap_or(STEPS);
    query.end()?;
    if from >= to || to.since(from) > LONGEST {
        let message =
            format!("from {from} to {to}: give a span that is longer than 0 and at most a year");
        return Err(ApiError::invalid("from", message));
    }
    let span = Span { from, to, steps };
    let grant = access.grant().clone();
    let (of, wanted) = (task.clone(), key.clone());
    let read = move |recent: &Recent| {
        recent.timeline(&of, |queue| grant.sees(queue, &of), wanted.as_ref(), span)
    };
    let found = api.overviews.read_record(read).await?;
    let waiting = waiting(&api, &access, &task, key.as_ref()).await?;
    let at = |time: Timestamp| (time.as_micros().saturating_sub(from.as_micros())) as f64 / 1_000.0;
    let window = |one: &Waits| view::OpenWindow {
        job: one.job,
        key: Some(one.key.clone()),
        triggers: one.triggers,
        opened: at(one.opened),
        due: at(one.due),
        bound: one.bound.map(at),
    };
    let (triggers, runs) = found.complete;
    let complete = triggers.max(runs);
    Ok(Json(view::Timeline {
        task,
        key,
        from: from.to_string(),
        to: to.to_string(),
        now: now.to_string(),
        step_ms: to.since(from).as_secs_f64() * 1_000.0 / steps as f64,
        complete_from: complete.to_string(),
        triggers: found.triggers,
        ticks: found.ticks,
        keys: found.keys.into_iter().map(view::KeyTicksOf::from).collect(),
        distinct_keys: found.distinct,
        windows: waiting.iter().map(window).collect(),
        // By this host's clock a mark may be a moment ahead of the store's.
        marks: marks(&api, from..end.unwrap_or(Timestamp::MAX), at),
        runs: found.runs,
        bars: found.bars.into_iter().map(|bar| view::Run::new(bar, at)).collect(),
        starts: found.starts.0,
        failures: found.starts.1,
    }))
}

/// Windows of a task that the caller sees, the newest first. All who look share what was read in the last seconds:
/// where few jobs of a task wait among many others, a store may read all of those to find them.
async fn waiting(
    api: &Api,
    access: &Access,
    task: &TaskName,
    key: Option<&Key>,
) -> Result<Vec<Waits>, ApiError> {
    let found = api.overviews.waiting().of(task, key, || read_waiting(api, task, key)).await?;
    let seen = found.iter().filter(|one| access.grant().sees(&one.queue, task));
    Ok(seen.take(WINDOWS).cloned().collect())
}

async fn read_waiting(api: &Api, task: &TaskName, key: Option<&Key>) -> quell::Result<Vec<Waits>> {
    let mut filter = JobFilter {
        task: Some(task.clone()),
        state: Some(JobState::Scheduled),
        key: key.cloned(),
        limit: JobFilter::MAX_PAGE,
        ..JobFilter::default()
    };
    let mut found = Vec::new();
    for _ in 0..PAGES {
        let page = api.quell.jobs(&filter).await?;
        filter.before = page.last().map(|job| job.id);
        let is_last = page.len() < filter.limit;
        found.extend(page.into_iter().filter_map(Waits::of));
        if is_last || found.len() >= WINDOWS {
            break;
        }
    }
    Ok(found)
}

/// The marks of a span.
fn marks(
    api: &Api,
    span: Range<Timestamp>,
    at: impl Fn(Timestamp) -> f64,
) -> Vec<view::TimelineMark> {
    let one = |mark: view::Mark| {
        let moment = time("at", &mark.at).ok().filter(|at| span.contains(at))?;
        Some(view::TimelineMark { at: at(moment), name: mark.name })
    };
    api.overviews.marks().into_iter().filter_map(one).collect()
}

/// A time of a query.
pub(super) fn time(field: &'static str, text: &str) -> quell::Result<Timestamp> {
    moment(field, text).map(|at| Timestamp::from_micros(at.as_microsecond()))
}

/// The same as its library has it.
pub(super) fn moment(field: &'static str, text: &str) -> quell::Result<jiff::Timestamp> {
    text.parse().map_err(|error| {
        let example = "write 2026-03-01T00:00:00Z";
        quell::Error::invalid(field, format!("{text:?} is not a time ({error}): {example}"))
    })
}
