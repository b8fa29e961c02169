//! One schedule's settings: its plan, and what each tick triggers.

use std::collections::BTreeMap;

use quell::schedule::SpecParts;
use quell::schedule::{CatchUp, Schedule, ScheduleName};
use quell::trigger::Limits;
use quell::{Payload, TaskName, Timestamp, When};
use serde::Deserialize;
use utoipa::ToSchema;

use super::DeclaredTask;
use super::parse::known;
use super::queues::Length;

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RawSchedule {
    /// the task that each tick triggers
    ///
    /// Default: required
    #[schema(value_type = String)]
    task: String,
    /// the payload of its triggers
    ///
    /// Default: null
    #[schema(value_type = String)]
    #[serde(default)]
    payload: serde_json::Value,
    /// by the calendar: `"0 6 * * 1-5"`
    ///
    /// Default: `cron` or `every` is required
    #[schema(value_type = String)]
    cron: Option<String>,
    /// the time zone of `cron`: `"Europe/Berlin"`
    ///
    /// Default: UTC
    #[schema(value_type = String)]
    zone: Option<String>,
    /// or at a fixed interval
    #[schema(value_type = String)]
    every: Option<Length>,
    /// the time from which intervals count
    ///
    /// Default: the Unix epoch
    #[schema(value_type = String)]
    anchor: Option<jiff::Timestamp>,
    /// missed ticks: `none`, `latest`, `all`
    ///
    /// Default: `latest`
    #[schema(value_type = String)]
    #[serde(default)]
    catch_up: CatchUp,
    /// the priority of its triggers
    ///
    /// Default: the task's
    #[schema(value_type = String)]
    priority: Option<i16>,
    /// the delay of its triggers; one beyond the task's max is refused ([R7](semantics.md#r7))
    #[schema(value_type = String)]
    delay: Option<Length>,
}

/// The valid schedules. `tasks` has the valid tasks; mistakes in others are reported already.
pub(super) fn schedules(
    raw: BTreeMap<String, RawSchedule>,
    tasks: &BTreeMap<TaskName, DeclaredTask>,
    broken: &dyn Fn(&str) -> bool,
    note: &mut impl FnMut(&str, String),
) -> Vec<Schedule> {
    let mut schedules = Vec::new();
    for (name, raw) in raw {
        let path = format!("schedules.{name}");
        if broken(&path) || broken(&format!("tasks.{}", raw.task)) {
            continue;
        }
        let Some(name) = known(ScheduleName::new(&name), &path, note) else { continue };
        match declare(name, raw, tasks) {
            Ok(schedule) => schedules.push(schedule),
            Err(error) => {
                let field = match error.field() {
                    Some("interval") => "every",
                    Some("key") => "payload",
                    Some(field) => field,
                    None => "task",
                };
                note(&format!("{path}.{field}"), error.to_string());
            }
        }
    }
    schedules
}

fn declare(
    name: ScheduleName,
    raw: RawSchedule,
    tasks: &BTreeMap<TaskName, DeclaredTask>,
) -> quell::Result<Schedule> {
    let task = TaskName::new(&raw.task)?;
    let task = tasks.get(&task).ok_or_else(|| {
        let message = format!("no task {:?} is declared: add [tasks.{0}]", raw.task);
        quell::Error::invalid("task", message)
    })?;
    let anchor = raw.anchor.map(|at| Timestamp::from_micros(at.as_microsecond()));
    let every = raw.every.map(|length| length.0);
    let parts = SpecParts { cron: raw.cron, zone: raw.zone, every, anchor };
    let mut trigger = task.trigger(Payload::encode(&raw.payload)?)?;
    trigger.priority = raw.priority.unwrap_or(trigger.priority);
    trigger.when = raw.delay.map_or(When::Now, |delay| When::After(delay.0));
    let schedule =
        Schedule { name, spec: parts.spec()?, catch_up: raw.catch_up, trigger, declared: None };
    schedule.validate(&Limits::default())?;
    Ok(schedule)
}
