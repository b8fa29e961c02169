//! JSON of jobs and everything beside them, for the HTTP API and the command line: times as text,
//! states by name.

use quell::alert::Alert;
use quell::alert::AlertRow;
use quell::dead::{DeadCause, DeadCauses, DeadFilter, DeadPlace, UnreadableJob, UnreadablePage};
use quell::effect::Effect;
use quell::job::{Explanation, describe_reason};
use quell::schedule::{ScheduleInfo, Spec};
use quell::worker::{WorkerRow, Workers};
use quell::{Job, JobResult, Payload, Timestamp};
use serde_json::{Value, json};

use crate::config::duration::exact;

/// A payload or output as JSON. One that exceeds this program's JSON values, such as a number beyond
/// all floats or a thousand nested lists, is shown as text.
#[must_use]
pub(crate) fn document(payload: &Payload) -> Value {
    serde_json::to_value(payload).unwrap_or_else(|_| Value::from(payload.as_str()))
}

/// A job as JSON.
#[must_use]
pub fn job(job: &Job) -> Value {
    let moment = |time: Timestamp| (time != Timestamp::MIN).then(|| time.to_string());
    let window = &job.window;
    json!({
        "id": job.id,
        "task": job.task,
        "queue": job.queue,
        "partition": job.partition,
        "key": job.key,
        "state": job.state,
        "priority": job.priority,
        "payload": document(&job.payload),
        "triggers": window.triggers,
        "not_run": job.suppressed,
        "first_at": moment(window.first_at),
        "last_at": moment(window.last_at),
        "due_at": moment(window.due_at),
        "due_because": describe_reason(window.reason),
        "not_before": moment(window.not_before),
        "waits_for_its_key": job.waits,
        "attempt": job.attempt,
        "failures": job.failures,
        "starts": job.starts(),
        "lapses": job.crashes,
        "worker": job.worker,
        "started_at": job.started_at.and_then(moment),
        "ended_at": job.ended_at.and_then(moment),
        "absorbed_by": job.absorbed_by,
        "error": job.error,
        "output": job.output.as_ref().map(document),
        "traces": job.traces.iter().collect::<Vec<_>>(),
    })
}

/// Workers as JSON, by name.
#[must_use]
pub fn workers(workers: &Workers) -> Vec<Value> {
    let show = |row: &WorkerRow| {
        json!({
            "worker": row.worker,
            "incarnation": row.incarnation,
            "state": if row.is_unseen(workers.now) { "unseen" } else { "seen" },
            "host": row.host,
            "pid": row.pid,
            "version": row.version,
            "queues": row.queues,
            "slots": row.slots,
            "busy": row.busy,
            "lease": exact(row.lease),
            "started_at": row.started_at.to_string(),
            "seen_at": row.seen_at.to_string(),
        })
    };
    workers.rows.iter().map(show).collect()
}

/// The result of a job, as JSON.
#[must_use]
pub fn result(result: &JobResult) -> Value {
    json!({
        "job": result.job,
        "state": result.state,
        "ended": result.is_ended(),
        "output": result.output.as_ref().map(document),
        "error": result.error,
    })
}

/// A page of the dead as JSON, with how many match over all pages.
#[must_use]
pub fn dead(jobs: &[Job], filter: &DeadFilter, matching: u64) -> Value {
    let is_full = jobs.len() == filter.page();
    let next = jobs.last().filter(|_| is_full).and_then(DeadPlace::of);
    json!({
        "jobs": jobs.iter().map(job).collect::<Vec<_>>(),
        "matching": matching,
        "next_before": next.map(|place| place.to_string()),
    })
}

/// A page of the jobs whose rows cannot be decoded.
#[must_use]
pub fn unreadable(jobs: &[UnreadableJob], page: &UnreadablePage) -> Value {
    let next = jobs.last().filter(|_| jobs.len() == page.size()).map(|job| job.id);
    let job = |job: &UnreadableJob| {
        json!({
            "id": job.id,
            "task": job.task,
            "queue": job.queue,
            "was": job.was,
            "set_aside_at": job.set_aside_at.to_string(),
            "reason": job.reason,
        })
    };
    json!({ "jobs": jobs.iter().map(job).collect::<Vec<_>>(), "next_before": next })
}

/// What the dead died of: the `limit` most frequent causes, and of how many.
#[must_use]
pub fn dead_causes(found: &DeadCauses, limit: usize) -> Value {
    let cause = |one: &DeadCause| {
        json!({
            "cause": one.cause,
            "task": one.task,
            "queue": one.queue,
            "jobs": one.jobs,
            "example": one.example,
            "first_died_at": one.first_died_at.to_string(),
            "last_died_at": one.last_died_at.to_string(),
        })
    };
    json!({
        "causes": found.causes.iter().take(limit).map(cause).collect::<Vec<_>>(),
        "distinct": found.causes.len(),
        "jobs": found.jobs,
        "next_before": found.next.map(|place| place.to_string()),
    })
}

/// A schedule as JSON; `plan` is when it ticks, for people.
#[must_use]
pub fn schedule(info: &ScheduleInfo) -> Value {
    let schedule = &info.schedule;
    let trigger = &schedule.trigger;
    let mut shown = json!({
        "name": schedule.name,
        "task": trigger.task,
        "queue": trigger.queue,
        "key": trigger.keyed.as_ref().map(|keyed| &keyed.key),
        "priority": trigger.priority,
        "payload": document(&trigger.payload),
        "catch_up": schedule.catch_up,
        "state": info.state,
        "last": info.last.map(|tick| tick.to_string()),
        "next": info.next.map(|tick| tick.to_string()),
    });
    match &schedule.spec {
        Spec::Cron(cron) => {
            shown["cron"] = json!(cron.expression());
            shown["zone"] = json!(cron.zone());
            shown["plan"] = json!(format!("{} {}", cron.expression(), cron.zone()));
        }
        Spec::Every(every) => {
            let interval = exact(every.interval());
            shown["anchor"] = json!(every.anchor().to_string());
            shown["plan"] = json!(format!("every {interval}"));
            shown["every"] = json!(interval);
        }
    }
    shown
}

/// An alert as JSON: what is declared of it, where it is, and what is kept of it.
#[must_use]
pub fn alert(declared: Option<&Alert>, row: Option<&AlertRow>) -> Value {
    let state = row.map(|row| row.state.clone()).unwrap_or_default();
    let words = |value| declared.map(|alert| alert.on.describe(value));
    json!({
        "name": declared.map(|alert| &alert.name).or(row.map(|row| &row.name)),
        "declared": declared.is_some(),
        "on": declared.map(|alert| alert.on.name()),
        "queue": declared.map(|alert| &alert.queue),
        "task": declared.map(|alert| &alert.task),
        "threshold": declared.and_then(|alert| words(alert.above)),
        "clear": declared.and_then(|alert| words(alert.clear)),
        "state": if state.raised { "raised" } else { "clear" },
        "since": state.since.map(|time| time.to_string()),
        "value": state.value,
        "measured": state.since.and_then(|_| words(state.value)),
        "changes": state.changes,
        "notices_waiting": state.notices.len(),
    })
}

/// A recorded effect as JSON; a long result is cut.
fn effect(effect: &Effect) -> Value {
    let done = effect.done.as_ref();
    json!({
        "name": effect.name,
        "key": effect.key,
        "state": if done.is_some() { "done" } else { "intended" },
        "begun_at": effect.begun_at.to_string(),
        "begun_by": effect.begun_by.starts(),
        "done_at": done.map(|done| done.at.to_string()),
        "done_by": done.map(|done| done.by.starts()),
        "result": effect.shown_result(),
    })
}

/// What happened to a job and why, as JSON; `text` is the same for people.
#[must_use]
pub fn explanation(found: &Explanation) -> Value {
    let attempts: Vec<Value> = found
        .attempts
        .iter()
        .map(|attempt| {
            json!({
                "token": attempt.token,
                "worker": attempt.worker,
                "started_at": attempt.started_at.to_string(),
                "ended_at": attempt.ended_at.map(|time| time.to_string()),
                "seconds": attempt.ended_at.map(|end| end.since(attempt.started_at).as_secs_f64()),
                "outcome": attempt.outcome,
                "error": attempt.error,
            })
        })
        .collect();
    let ticks: Vec<Value> = found
        .ticks
        .iter()
        .map(|tick| json!({ "schedule": tick.schedule, "tick": tick.tick.to_string(), "by": tick.by }))
        .collect();
    let effects: Vec<Value> = found.effects.iter().map(effect).collect();
    json!({
        "trigger": found.trigger,
        "job": job(&found.job),
        "attempts": attempts,
        "attempts_dropped": found.dropped_attempts(),
        "absorbed": found.absorbed,
        "open_window": found.open_window,
        "ticks": ticks,
        "original_payload": found.past.original.as_ref().map(document),
        "imported_from": found.past.origin.map(|origin| {
            json!({ "job": origin.job, "first_at": origin.first_at.to_string() })
        }),
        "effects": effects,
        "text": found.to_string(),
    })
}
