//! The settings of an alert: what it watches, and its sinks (R27).

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use quell::alert::AlertName;
use quell::alert::{Alert, MILLION, Measure, NOTICE_LEASE};
use quell::{Error, QueueName, TaskName};
use serde::Deserialize;
use utoipa::ToSchema;

use super::duration;
use super::parse::known;
use super::queues::Length;
use super::tasks::{RawExec, RawHttp, exec, http};
use crate::alerts::{DeclaredAlert, Sinks};

/// How far back attempts count where an alert does not say.
const DEFAULT_WINDOW: Duration = Duration::from_secs(300);
/// With fewer attempts than this a rate says nothing, where an alert does not say.
const DEFAULT_MIN_ATTEMPTS: u64 = 10;
/// How long a sink may take where an alert does not say.
const SINK_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RawAlert {
    /// what is measured: `dead`, `unreadable`, `lateness` or `failure_rate`
    ///
    /// Default: required
    #[schema(value_type = String)]
    on: On,
    /// count this queue only
    ///
    /// Default: all queues
    #[schema(value_type = String)]
    queue: Option<String>,
    /// count this task only
    ///
    /// Default: all tasks
    #[schema(value_type = String)]
    task: Option<String>,
    /// raised above this: a number of jobs, a time, or a share of 0 to 1
    ///
    /// Default: required
    #[schema(value_type = String)]
    threshold: Level,
    /// over at this
    ///
    /// Default: the threshold
    #[schema(value_type = String)]
    clear: Option<Level>,
    /// of `failure_rate`: how far back attempts count
    ///
    /// Default: `5m`
    #[schema(value_type = String)]
    window: Option<Length>,
    /// of `failure_rate`: with fewer attempts the rate is 0
    ///
    /// Default: 10
    #[schema(value_type = String)]
    min_attempts: Option<u64>,
    /// an endpoint to notify, with the settings of [`tasks.NAME.http`](#tasksnamehttp)
    #[schema(value_type = String)]
    http: Option<RawHttp>,
    /// a command to run, with the settings of [`tasks.NAME.exec`](#tasksnameexec)
    #[schema(value_type = String)]
    exec: Option<RawExec>,
    /// how long a notification may take, `30s` at most
    ///
    /// Default: `10s`
    #[schema(value_type = String)]
    timeout: Option<Length>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum On {
    Dead,
    Unreadable,
    Lateness,
    FailureRate,
}

/// A number of jobs, a share of attempts, or a time.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
enum Level {
    Count(u64),
    Share(f64),
    Time(String),
}

impl Level {
    /// The level as it is measured.
    fn measured(&self, field: &'static str, on: On) -> quell::Result<u64> {
        let refuse = |message: String| Err(Error::invalid(field, message));
        match (on, self) {
            (On::Dead | On::Unreadable, Level::Count(jobs)) => Ok(*jobs),
            (On::Dead, _) => refuse(format!("{field} of dead jobs is a number of them: write 10")),
            (On::Unreadable, _) => {
                refuse(format!("{field} of unreadable jobs is a number of them: write 0"))
            }
            (On::Lateness, Level::Time(text)) => {
                let time = duration::parse(text).map_err(|why| Error::invalid(field, why))?;
                Ok(u64::try_from(time.as_micros()).unwrap_or(u64::MAX))
            }
            (On::Lateness, _) => refuse(format!("{field} of lateness is a time: write \"5m\"")),
            (On::FailureRate, Level::Count(0)) => Ok(0),
            (On::FailureRate, Level::Share(share)) if (0.0..1.0).contains(share) => {
                #[expect(
                    clippy::cast_possible_truncation,
                    clippy::cast_sign_loss,
                    reason = "a share of a million is between 0 and a million"
                )]
                let of_million = (share * MILLION as f64).round() as u64;
                Ok(of_million)
            }
            (On::FailureRate, _) => {
                refuse(format!("{field} of a failure rate is a share of 0 to 1: write 0.2"))
            }
        }
    }
}

/// The alerts that can be meant.
pub(super) fn alerts(
    raw: BTreeMap<String, RawAlert>,
    folder: &Path,
    broken: &dyn Fn(&str) -> bool,
    note: &mut impl FnMut(&str, String),
) -> Vec<DeclaredAlert> {
    let mut alerts = Vec::new();
    for (name, raw) in raw {
        let path = format!("alerts.{name}");
        if broken(&path) {
            continue;
        }
        let Some(name) = known(AlertName::new(&name), &path, note) else { continue };
        let alert = match declare(name, &raw) {
            Ok(alert) => alert,
            Err(error) => {
                let field = error.field().unwrap_or("threshold");
                note(&format!("{path}.{field}"), error.to_string());
                continue;
            }
        };
        alerts.extend(with_sinks(alert, raw, &path, folder, note));
    }
    alerts
}

fn declare(name: AlertName, raw: &RawAlert) -> quell::Result<Alert> {
    let above = raw.threshold.measured("threshold", raw.on)?;
    let clear = raw.clear.as_ref().map(|level| level.measured("clear", raw.on)).transpose()?;
    if raw.on != On::FailureRate && raw.window.is_some() {
        return Err(Error::invalid("window", "window is for on = \"failure_rate\": leave it out"));
    }
    if raw.on != On::FailureRate && raw.min_attempts.is_some() {
        let message = "min_attempts is for on = \"failure_rate\": leave it out";
        return Err(Error::invalid("min_attempts", message));
    }
    let alert = Alert {
        name,
        on: match raw.on {
            On::Dead => Measure::Dead,
            On::Unreadable => Measure::Unreadable,
            On::Lateness => Measure::Lateness,
            On::FailureRate => Measure::FailureRate {
                window: raw.window.map_or(DEFAULT_WINDOW, |window| window.0),
                min_attempts: raw.min_attempts.unwrap_or(DEFAULT_MIN_ATTEMPTS),
            },
        },
        queue: raw.queue.as_ref().map(QueueName::new).transpose()?,
        task: raw.task.as_ref().map(TaskName::new).transpose()?,
        above,
        clear: clear.unwrap_or(above),
        sinks: BTreeSet::new(),
    };
    alert.validate()?;
    Ok(alert)
}

fn with_sinks(
    mut alert: Alert,
    raw: RawAlert,
    path: &str,
    folder: &Path,
    note: &mut impl FnMut(&str, String),
) -> Option<DeclaredAlert> {
    let timeout = raw.timeout.map_or(SINK_TIMEOUT, |timeout| timeout.0);
    if timeout.is_zero() || timeout > NOTICE_LEASE / 2 {
        let message = format!("timeout of {timeout:?} is not between 0 and {:?}", NOTICE_LEASE / 2);
        note(&format!("{path}.timeout"), message);
        return None;
    }
    let mut sinks = Sinks::new();
    if let Some(raw) = raw.http {
        sinks.insert("http".to_owned(), http(raw, Some(timeout), path, folder, note)?);
    }
    if let Some(raw) = raw.exec {
        sinks.insert("exec".to_owned(), exec(raw, Some(timeout), path, folder, note)?);
    }
    alert.sinks = sinks.keys().cloned().collect();
    Some(DeclaredAlert { alert, sinks })
}
