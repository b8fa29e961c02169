//! Explanations: an id or a key leads to the job that covered a trigger (R15).
//!
//! Invariant: for a limited token, what is outside its limits looks exactly as what does not exist.

use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::{Extension, Json};
use quell::job::ExplainTarget;
use quell::trigger::TriggerId;
use quell::{ErrorKind, JobId, Key, TaskName, Timestamp};

use super::Api;
use super::auth::Access;
use super::error::{ApiError, Refused};
use super::jobs::{Pairs, Parameters};
use crate::view;

/// The most tasks among which a key without a task is looked for, for a limited token.
const MOST_TASKS: usize = 100;

/// Makes the target of a key, of a task or of any.
type OfKey = fn(Option<TaskName>, Key) -> ExplainTarget;

/// The kinds of keys, by the names of their parameters.
const KEYS: [(&str, OfKey); 3] = [
    ("key", |task, key| ExplainTarget::Key { task, key }),
    ("idempotency_key", |task, key| ExplainTarget::IdempotencyKey { task, key }),
    ("dedup_key", |task, key| ExplainTarget::DedupKey { task, key }),
];

/// `GET /v1/explain?id=`, or a key and its task.
#[utoipa::path(
    get,
    path = "/v1/explain",
    tag = "jobs",
    operation_id = "jobs_explain",
    summary = "Explain a key, a job or a trigger.",
    description = "Give an id or one key. A key of any task is meant where none is named: of several, \
                   the newest job.",
    params(
        ("id" = Option<String>, Query, description = "A job, or a trigger such as `42.17`."),
        ("key" = Option<String>, Query, description = "A debounce key: its newest job."),
        ("idempotency_key" = Option<String>, Query, description = "An idempotency key: the job that \
            it leads to while it is kept."),
        ("dedup_key" = Option<String>, Query, description = "A dedup key: the job that holds it."),
        ("task" = Option<String>, Query, description = "The task of the key."),
    ),
    responses((status = 200, body = view::Explanation, description = "Done."), Refused),
)]
pub(super) async fn explain(
    State(api): State<Api>,
    Extension(access): Extension<Access>,
    query: Result<Query<Pairs>, QueryRejection>,
) -> Result<Json<view::Explanation>, ApiError> {
    let mut query = Parameters::read(query)?;
    let id = query.take("id", |text| match text.parse::<TriggerId>() {
        Ok(trigger) => Ok(ExplainTarget::Trigger(trigger)),
        Err(_) => text.parse().map(ExplainTarget::Job),
    })?;
    let mut keys = Vec::new();
    for (name, of_key) in KEYS {
        keys.extend(query.take(name, Key::new)?.map(|key| (of_key, key)));
    }
    let task = query.take("task", TaskName::new)?;
    query.end()?;
    match (id, keys.pop()) {
        (Some(target), None) => explanation(&api, &access, &target).await,
        (None, Some((of_key, key))) if keys.is_empty() => {
            let target = within_limits(&api, &access, of_key, task, key).await?;
            explanation(&api, &access, &target).await
        }
        (Some(_) | None, Some(_)) | (None, None) => {
            let message = "give an id or one key, and not both: `id`, `key`, `idempotency_key` or `dedup_key`";
            Err(ApiError::invalid("id", message))
        }
    }
}

/// What a key means for a caller. A limited token that names no task means those that it sees: a newer
/// job of another task must not hide its own.
async fn within_limits(
    api: &Api,
    access: &Access,
    of_key: OfKey,
    task: Option<TaskName>,
    key: Key,
) -> Result<ExplainTarget, ApiError> {
    let grant = access.grant();
    match task {
        Some(task) if !grant.sees_task(&task) => return Err(unknown()),
        None if grant.is_limited() => {}
        task => return Ok(of_key(task, key)),
    }
    let mut tasks: Vec<TaskName> =
        api.quell.tasks().await?.into_iter().map(|info| info.name).collect();
    tasks.retain(|task| grant.sees_task(task));
    if tasks.len() > MOST_TASKS {
        let message = format!(
            "name the task of the key: the token sees {} tasks, and a key is looked for in {MOST_TASKS} \
             at most",
            tasks.len()
        );
        return Err(ApiError::invalid("task", message));
    }
    let (mut newest, mut gone): (Option<(Timestamp, JobId)>, _) = (None, None);
    for task in tasks {
        match api.quell.explain(&of_key(Some(task), key.clone())).await {
            Ok(found) => {
                let job = found.map(|found| found.job);
                let seen = job.filter(|job| grant.sees(&job.queue, &job.task));
                newest = newest.max(seen.map(|job| (job.window.first_at, job.id)));
            }
            Err(error) if is_of_job(&error) => gone = Some(error),
            Err(error) => return Err(error.into()),
        }
    }
    match (newest, gone) {
        (Some((_, id)), _) => Ok(ExplainTarget::Job(id)),
        (None, Some(error)) if !hides_queues(access) => Err(error.into()),
        (None, _) => Err(unknown()),
    }
}

/// What is known of a job, for a caller who may see it.
pub(super) async fn explanation(
    api: &Api,
    access: &Access,
    target: &ExplainTarget,
) -> Result<Json<view::Explanation>, ApiError> {
    let contents =
        if access.sees_payloads() { view::Contents::Shown } else { view::Contents::Hidden };
    let found = view::Explanation::of(&api.quell, target, contents, &api.rules).await;
    let found = match found {
        // What is left of a job that is gone has no queue: a token that is limited to some gets nothing.
        Err(error) if is_of_job(&error) && target.job().is_none() && hides_queues(access) => None,
        found => found?,
    };
    let found = found.filter(|(shown, _)| access.grant().sees(&shown.job.queue, &shown.job.task));
    let (mut shown, texts) = found.ok_or_else(unknown)?;
    // A script's lines may have what its payload has.
    if access.sees_payloads() {
        api.pull.add_reports(&mut shown, &texts);
    }
    let (task, queue) = (shown.job.task.clone(), shown.job.queue.clone());
    match api.tasks.get(&task).map(|declared| declared.checked.queue()) {
        None => shown.wait_for("task_undeclared", format!("this server declares no task {task}")),
        Some(own) if *own != queue => {
            let text = format!("this server runs task {task} from queue {own}, not from {queue}");
            shown.wait_for("other_queue", text);
        }
        Some(_) if api.pull.lacks_workers(&task) && !shown.lacks_workers() => {
            let text = format!("no worker that pulls task {task} has called this server of late");
            shown.wait_for("no_worker", text);
        }
        Some(_) => {}
    }
    Ok(Json(shown))
}

/// Whether an error is about the job that was found: its row was removed, or cannot be decoded.
fn is_of_job(error: &quell::Error) -> bool {
    error.kind() == ErrorKind::NotFound || error.unreadable_job().is_some()
}

/// Whether jobs of some queues are outside the caller's limits.
fn hides_queues(access: &Access) -> bool {
    !access.grant().limits().queues.is_empty()
}

fn unknown() -> ApiError {
    let message = "nothing is known of it: no such job, or it was removed or discarded; of an idempotency \
                   or dedup key, no such key of this task, or it is free again";
    ApiError::not_found("id", message)
}
