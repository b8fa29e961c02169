//! Holds a token that is limited to tasks or queues to them: what a request names is looked up before its handler
//! runs, and what it does not see is answered as if it did not exist.

use axum::RequestExt as _;
use axum::extract::{RawPathParams, Request};
use axum::http::StatusCode;
use quell::dead::DeadFilter;
use quell::queue::QueueInfo;
use quell::schedule::{ScheduleInfo, ScheduleName};
use quell::{JobId, QueueName, TaskName};

use super::Api;
use super::auth::Access;
use super::error::ApiError;
use super::rules::{Objects, Rule};
use crate::access::{Grant, Pattern, Right};
use crate::filter::FilterText;
use crate::view::Action;

/// Refuses what a limited token does not see.
pub(super) async fn check(
    api: &Api,
    access: &Access,
    rule: Rule,
    request: &mut Request,
) -> Result<(), ApiError> {
    let grant = access.grant();
    if !grant.is_limited() {
        return Ok(());
    }
    match rule.objects {
        Objects::None | Objects::Filtered => Ok(()),
        Objects::All => {
            let message =
                "the token is limited to some tasks or queues, and this is of all of them";
            Err(ApiError::new(StatusCode::FORBIDDEN, "authorization", message))
        }
        Objects::Task => {
            let task = param(request, "task").await.and_then(|name| TaskName::new(name).ok());
            match task.filter(|task| sees_declared(api, grant, task)) {
                Some(_) => Ok(()),
                None => Err(ApiError::not_found("task", "the token sees no such task")),
            }
        }
        Objects::Job => match param(request, "id").await.and_then(|id| id.parse().ok()) {
            Some(id) => job(api, grant, id).await,
            None => Err(no_job()),
        },
        Objects::Queue => {
            let queue = param(request, "name").await.and_then(|name| QueueName::new(name).ok());
            if queue.is_none_or(|queue| !grant.sees_queue(&queue)) {
                return Err(ApiError::not_found("queue", "the token sees no such queue"));
            }
            // Jobs of other tasks wait there, too.
            let changes =
                matches!(rule.needs, super::rules::Needs::Right(right) if right != Right::Read);
            if changes && !grant.limits().tasks.is_empty() {
                let message = "the token is limited to some tasks, and a queue has others, too";
                return Err(ApiError::new(StatusCode::FORBIDDEN, "authorization", message));
            }
            Ok(())
        }
        Objects::Schedule => {
            let name = param(request, "name").await.and_then(|name| ScheduleName::new(name).ok());
            let known = api.quell.schedules().await?;
            let found = known.iter().find(|info| Some(&info.schedule.name) == name.as_ref());
            if found.is_some_and(|info| schedule(grant, info)) {
                return Ok(());
            }
            Err(ApiError::not_found("schedule", "the token sees no such schedule"))
        }
    }
}

/// A parameter of a request's path.
pub(super) async fn param(request: &mut Request, name: &str) -> Option<String> {
    let params = request.extract_parts::<RawPathParams>().await.ok()?;
    params.iter().find(|(known, _)| *known == name).map(|(_, value)| value.to_owned())
}

/// Whether a grant sees a task, and the queue that this server declares for it.
pub(super) fn sees_declared(api: &Api, grant: &Grant, task: &TaskName) -> bool {
    let queue = api.tasks.get(task).map(|declared| declared.checked.queue());
    grant.sees_task(task)
        && queue.map_or(grant.limits().queues.is_empty(), |queue| grant.sees_queue(queue))
}

/// Refuses a job that a grant does not see as one that does not exist.
pub(super) async fn job(api: &Api, grant: &Grant, id: JobId) -> Result<(), ApiError> {
    if !grant.is_limited() {
        return Ok(());
    }
    let found = api.quell.job(id).await?;
    let sees = found.is_some_and(|job| grant.sees(&job.queue, &job.task));
    if sees { Ok(()) } else { Err(no_job()) }
}

/// Refuses triggers of a task that a grant does not permit.
pub(super) fn triggers(api: &Api, grant: &Grant, task: &str) -> Result<(), ApiError> {
    let name = TaskName::new(task).ok();
    let is_permitted = |task: &TaskName| grant.triggers(task) && sees_declared(api, grant, task);
    match name.filter(is_permitted) {
        Some(_) => Ok(()),
        // The answer does not show whether it exists.
        None if !grant.is_limited() && grant.triggers_any() => Ok(()),
        None => {
            let message = format!(
                "the token does not permit triggers of this task: it has {}",
                grant.scopes()
            );
            Err(ApiError::new(StatusCode::FORBIDDEN, "task", message))
        }
    }
}

/// Refuses the result of a job whose task a grant does not permit to trigger, unless it may read payloads.
pub(super) async fn result(api: &Api, grant: &Grant, id: JobId) -> Result<(), ApiError> {
    let reads = grant.has(Right::Read) && grant.has(Right::Payload);
    if !grant.is_limited() && (reads || grant.triggers_any()) {
        return Ok(());
    }
    let found = api.quell.job(id).await?;
    let sees = found.is_some_and(|job| {
        grant.sees(&job.queue, &job.task) && (reads || grant.triggers(&job.task))
    });
    if sees { Ok(()) } else { Err(no_job()) }
}

/// Refuses work on jobs of queues or tasks that a grant does not permit.
pub(super) fn works(
    grant: &Grant,
    queue: Option<&QueueName>,
    task: &TaskName,
) -> Result<(), ApiError> {
    let permits = |queue: &QueueName| grant.works(queue) && grant.sees_task(task);
    if queue.is_some_and(permits) {
        return Ok(());
    }
    let message =
        format!("the token does not permit work on task {task}: it has {}", grant.scopes());
    Err(ApiError::new(StatusCode::FORBIDDEN, "authorization", message))
}

/// Refuses work on a job whose queue or task a grant does not permit. A job that is gone is the settlement's to
/// refuse.
pub(super) async fn works_on(api: &Api, grant: &Grant, id: JobId) -> Result<(), ApiError> {
    match api.quell.job(id).await? {
        Some(job) => works(grant, Some(&job.queue), &job.task),
        None => Ok(()),
    }
}

fn no_job() -> ApiError {
    ApiError::not_found("id", "the token sees no such job")
}

/// Whether a grant sees a schedule.
pub(super) fn schedule(grant: &Grant, info: &ScheduleInfo) -> bool {
    grant.sees(&info.schedule.trigger.queue, &info.schedule.trigger.task)
}

/// Whether a grant sees a queue in a list.
pub(super) fn queue(grant: &Grant, info: &QueueInfo) -> bool {
    grant.sees_queue(&info.name)
}

/// Whether a grant sees an action: one whose filter stays within its limits.
pub(super) fn action(grant: &Grant, action: &Action) -> bool {
    let limits = grant.limits();
    within(&limits.tasks, action.filter.task.as_deref())
        && within(&limits.queues, action.filter.queue.as_deref())
}

fn within(patterns: &[Pattern], name: Option<&str>) -> bool {
    patterns.is_empty()
        || name.is_some_and(|name| patterns.iter().any(|pattern| pattern.matches(name)))
}

/// Holds a filter to a grant: where the grant is limited to one task or queue, that one is meant.
pub(super) fn narrow(grant: &Grant, filter: &mut FilterText) -> Result<(), ApiError> {
    let limits = grant.limits();
    narrow_member("task", &limits.tasks, &mut filter.task)?;
    narrow_member("queue", &limits.queues, &mut filter.queue)
}

/// Holds a filter of dead jobs to a grant.
pub(super) fn narrow_dead(grant: &Grant, filter: &mut DeadFilter) -> Result<(), ApiError> {
    let mut task = filter.task.take().map(|task| task.to_string());
    let mut queue = filter.queue.take().map(|queue| queue.to_string());
    narrow_member("task", &grant.limits().tasks, &mut task)?;
    narrow_member("queue", &grant.limits().queues, &mut queue)?;
    filter.task = task.map(TaskName::new).transpose()?;
    filter.queue = queue.map(QueueName::new).transpose()?;
    Ok(())
}

fn narrow_member(
    field: &str,
    patterns: &[Pattern],
    member: &mut Option<String>,
) -> Result<(), ApiError> {
    if within(patterns, member.as_deref()) {
        return Ok(());
    }
    if let (None, [only]) = (&member, patterns)
        && let Some(name) = only.exact()
    {
        *member = Some(name.to_owned());
        return Ok(());
    }
    let names: Vec<String> = patterns.iter().map(Pattern::to_string).collect();
    let message = format!("the token is limited to {field} {}: name one of them", names.join(", "));
    Err(ApiError::new(StatusCode::FORBIDDEN, field, message))
}
