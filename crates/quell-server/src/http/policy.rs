//! The policy of a task in force (R14): what its declaration says, what its queue does, and the defaults.

use std::time::Duration;

use axum::Json;
use axum::extract::{Path, State};
use quell::trigger::Thresholds;
use quell::{DEFAULT_QUEUE, DEFAULT_TIMEOUT, Edge, Fold, Jitter, Payload, Retry, TaskName};

use super::Api;
use super::error::{ApiError, Refused};
use super::triggers::known_task;
use crate::config::duration::exact;
use crate::config::{DeclaredTask, HTTP_TIMEOUT};
use crate::handlers::Handler;
use crate::view::{self, SettingOrigin, TaskSetting};

/// `GET /v1/tasks/{task}/policy`.
#[utoipa::path(
    get,
    path = "/v1/tasks/{task}/policy",
    tag = "tasks",
    operation_id = "tasks_policy",
    summary = "Show the policy of a declared task in force, and where each value comes from.",
    description = "",
    params(
        ("task" = String, Path, description = "The task."),
    ),
    responses((status = 200, body = view::TaskPolicy, description = "Done."), Refused),
)]
pub(super) async fn show(
    State(api): State<Api>,
    Path(task): Path<String>,
) -> Result<Json<view::TaskPolicy>, ApiError> {
    let (name, task) = known_task(&api, &task)?;
    let in_force = thresholds_in_force(&api, &name, task).await?;
    let runs_by = match &task.handler {
        Some(Handler::Exec(_)) => "exec",
        Some(Handler::Http(_)) => "http",
        None => "pull",
    };
    let mut settings = triggers(task);
    settings.extend(windows(task, in_force));
    settings.extend(attempts(task));
    Ok(Json(view::TaskPolicy { task: name, runs_by: runs_by.to_owned(), settings }))
}

/// A value, which the declaration says unless it is the default.
fn setting(name: &str, value: Option<String>, is_default: bool) -> TaskSetting {
    let from = if is_default { SettingOrigin::Default } else { SettingOrigin::Task };
    TaskSetting { name: name.to_owned(), value, from }
}

/// What counts when a trigger is accepted.
fn triggers(task: &DeclaredTask) -> Vec<TaskSetting> {
    let queue = task.checked.queue().to_string();
    let key = task.key.as_ref().map(|key| key.text().to_owned());
    let partition = task.partition.as_ref().map(|partition| partition.text().to_owned());
    let priority = task.checked.trigger(Payload::from_stored("null"), None).priority;
    let (has_key, has_partition) = (key.is_some(), partition.is_some());
    vec![
        setting("queue", Some(queue.clone()), queue == DEFAULT_QUEUE),
        setting("key", key, !has_key),
        setting("partition", partition, !has_partition),
        setting("priority", Some(priority.to_string()), priority == 0),
        setting("payload", Some(fold(task.checked.fold())), *task.checked.fold() == Fold::Last),
        setting("redact", Some((!task.redact.is_empty()).to_string()), task.redact.is_empty()),
        setting("encrypt", Some(task.encrypt.to_string()), task.encrypt),
    ]
}

/// The thresholds of a task in force, and where they come from: what an operator set for the task, else its
/// declaration. A queue's replace the default ones only (R14).
pub(super) async fn thresholds_in_force(
    api: &Api,
    name: &TaskName,
    task: &DeclaredTask,
) -> Result<(Thresholds, SettingOrigin), ApiError> {
    let debounce = task.checked.debounce();
    let set = api.quell.task_settings(name).await?.debounce;
    if let Some(set) = set.filter(|_| debounce.edge != Edge::Throttle) {
        return Ok((set, SettingOrigin::Operator));
    }
    if !debounce.from_default {
        return Ok((debounce.thresholds, SettingOrigin::Task));
    }
    let of_queue = api.quell.queue(task.checked.queue().as_str()).settings().await?;
    Ok(match of_queue.and_then(|settings| settings.debounce) {
        Some(of_queue) => (of_queue, SettingOrigin::Queue),
        None => (debounce.thresholds, SettingOrigin::Default),
    })
}

/// What counts for the windows of its keys.
fn windows(
    task: &DeclaredTask,
    (thresholds, from): (Thresholds, SettingOrigin),
) -> Vec<TaskSetting> {
    let debounce = task.checked.debounce();
    if debounce.edge == Edge::Throttle {
        let period = setting("throttle", Some(exact(thresholds.min())), false);
        return vec![
            period,
            setting("overlap", Some(debounce.overlap.to_string()), !debounce.overlap),
        ];
    }
    let of = |name: &str, value: Duration| TaskSetting {
        from,
        ..setting(name, Some(exact(value)), true)
    };
    let edge = match debounce.edge {
        Edge::Trailing => "trailing",
        Edge::Leading => "leading",
        Edge::Both => "both",
        other => return vec![setting("debounce.edge", Some(format!("{other:?}")), false)],
    };
    let number = |number: Option<u32>| number.map(|number| number.to_string());
    let (most, bytes) = (debounce.max_triggers, debounce.max_bytes);
    vec![
        of("debounce.min", thresholds.min()),
        of("debounce.max", thresholds.max()),
        setting("debounce.max_triggers", number(most), most.is_none()),
        setting("debounce.max_bytes", number(bytes), bytes.is_none()),
        setting("debounce.edge", Some(edge.to_owned()), debounce.edge == Edge::Trailing),
        setting("overlap", Some(debounce.overlap.to_string()), !debounce.overlap),
    ]
}

/// What counts for its attempts.
fn attempts(task: &DeclaredTask) -> Vec<TaskSetting> {
    let (own, usual) = (task.checked.retry(), Retry::default());
    let jitter = match own.jitter {
        Jitter::Equal => "equal",
        Jitter::Full => "full",
        Jitter::None => "none",
    };
    let number = |name: &str, own: u32, usual: u32| {
        setting(&format!("retry.{name}"), Some(own.to_string()), own == usual)
    };
    let length = |name: &str, own: Duration, usual: Duration| {
        setting(&format!("retry.{name}"), Some(exact(own)), own == usual)
    };
    let (timeout, usual_timeout) = timeout(task);
    vec![
        number("max_attempts", own.max_attempts, usual.max_attempts),
        length("min_backoff", own.min_backoff, usual.min_backoff),
        length("max_backoff", own.max_backoff, usual.max_backoff),
        number("max_crashes", own.max_crashes, usual.max_crashes),
        setting("retry.jitter", Some(jitter.to_owned()), own.jitter == usual.jitter),
        setting("timeout", Some(exact(timeout)), timeout == usual_timeout),
    ]
}

/// How long an attempt may take, and how long where the task does not say it. A call has its own limit.
fn timeout(task: &DeclaredTask) -> (Duration, Duration) {
    match &task.handler {
        Some(Handler::Http(http)) => (http.timeout(), HTTP_TIMEOUT),
        Some(Handler::Exec(_)) | None => (task.checked.timeout(), DEFAULT_TIMEOUT),
    }
}

fn fold(fold: &Fold) -> String {
    match fold {
        Fold::Last => "last".to_owned(),
        Fold::First => "first".to_owned(),
        Fold::Merge => "merge".to_owned(),
        Fold::Collect { cap } => format!("collect:{cap}"),
        Fold::Accumulate { fields } => format!("accumulate:{}", fields.join(",")),
        other => format!("{other:?}"),
    }
}
