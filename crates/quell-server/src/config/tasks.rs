//! One task's settings: its policy, its key, its handler.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use quell::trigger::{TaskPolicy, Thresholds};
use quell::{DerivedKey, Edge, Fold, Jitter, Policy, TaskName};
use serde::Deserialize;

use super::DeclaredTask;
use super::fold::parse_fold;
use super::key_template::KeyTemplate;
use super::parse::{known, secrets};
use super::queues::Length;
use crate::handlers::{Allowed, Exec, Handler, Http, HttpSettings};
use crate::secrets::Secrets;

/// How much longer than its timeout an attempt may take to end in good order.
const WRAP_UP: Duration = Duration::from_secs(5);
/// How long an HTTP call may take when the task names no timeout.
const HTTP_TIMEOUT: Duration = Duration::from_secs(30);

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct RawTask {
    queue: Option<String>,
    priority: Option<i16>,
    key: Option<String>,
    partition: Option<String>,
    debounce: Option<RawDebounce>,
    throttle: Option<Length>,
    overlap: bool,
    payload: Option<RawFold>,
    retry: Option<RawRetry>,
    timeout: Option<Length>,
    idempotency: Option<RawIdempotency>,
    exec: Option<RawExec>,
    http: Option<RawHttp>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct RawDebounce {
    min: Option<Length>,
    max: Option<Length>,
    max_triggers: Option<u32>,
    max_bytes: Option<u32>,
    edge: Option<RawEdge>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum RawEdge {
    Trailing,
    Leading,
    Both,
}

/// `last`, `first`, `merge`, `collect[:CAP]` or `accumulate:FIELD,...`.
#[derive(Debug)]
struct RawFold(Fold);

impl<'de> Deserialize<'de> for RawFold {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        parse_fold(&text).map(RawFold).map_err(serde::de::Error::custom)
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct RawRetry {
    max_attempts: Option<u32>,
    min_backoff: Option<Length>,
    max_backoff: Option<Length>,
    max_crashes: Option<u32>,
    jitter: Option<RawJitter>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum RawJitter {
    Equal,
    Full,
    None,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct RawIdempotency {
    retention: Option<Length>,
    key: Option<RawDerived>,
    window: Option<Length>,
}

/// `"payload"`, or a list of its members.
#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "expected \"payload\", or a list of the payload's fields")]
enum RawDerived {
    Of(OfPayload),
    Fields(Vec<String>),
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum OfPayload {
    Payload,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawExec {
    command: Vec<String>,
    cwd: Option<PathBuf>,
    #[serde(default)]
    env: BTreeMap<String, String>,
    #[serde(default)]
    pass_env: Vec<String>,
    #[serde(default)]
    permanent_exit_codes: Vec<i32>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawHttp {
    url: String,
    method: Option<String>,
    #[serde(default)]
    headers: BTreeMap<String, String>,
    secret_env: Option<String>,
    secret_file: Option<String>,
    #[serde(default)]
    allow: Vec<String>,
}

/// The task, or notes of all that is wrong with it.
pub(super) fn declare(
    name: &TaskName,
    raw: RawTask,
    path: &str,
    folder: &Path,
    note: &mut impl FnMut(&str, String),
) -> Option<DeclaredTask> {
    let policy = policy(&raw, path, note);
    let key = template(raw.key.as_deref(), &format!("{path}.key"), note);
    let partition = template(raw.partition.as_deref(), &format!("{path}.partition"), note);
    if raw.key.is_none() && (raw.debounce.is_some() || raw.throttle.is_some()) {
        let message = "a task that is debounced or throttled needs a key".to_owned();
        note(&format!("{path}.key"), message);
        return None;
    }
    let limit = raw.timeout.map(|length| length.0);
    let handler = match (raw.exec, raw.http) {
        (Some(raw), None) => exec(raw, limit, path, folder, note),
        (None, Some(raw)) => http(raw, limit, path, folder, note),
        (Some(_), Some(_)) => {
            note(path, "a task has exec or http, not both".to_owned());
            None
        }
        (None, None) => {
            note(path, "a task needs a handler: exec or http".to_owned());
            None
        }
    };
    let (policy, key, partition, handler) = (policy?, key?, partition?, handler?);
    let checked = TaskPolicy::new(name.clone(), &policy, Thresholds::DEFAULT);
    let checked = known(checked, path, note)?;
    // The handler ends its attempt in good order at the task's timeout; the worker's is for when it
    // cannot.
    let policy = policy.timeout(handler.timeout().saturating_add(WRAP_UP));
    Some(DeclaredTask { policy, checked, key, partition, handler })
}

/// The template, if there is one; a note and nothing where it is none.
fn template(
    text: Option<&str>,
    field: &str,
    note: &mut impl FnMut(&str, String),
) -> Option<Option<KeyTemplate>> {
    let made = text.map(KeyTemplate::new).transpose();
    made.map_err(|error| note(field, error.to_string())).ok()
}

/// Where the configuration keeps a policy's field.
fn place_of(field: &str) -> String {
    match field {
        "min" | "max_triggers" | "max_bytes" | "edge" => format!(".debounce.{field}"),
        "max_attempts" | "min_backoff" | "max_backoff" | "max_crashes" => format!(".retry.{field}"),
        "idempotency_retention" => ".idempotency.retention".to_owned(),
        "idempotency_fields" => ".idempotency.key".to_owned(),
        "idempotency_window" => ".idempotency.window".to_owned(),
        "collect" => ".payload".to_owned(),
        "" => String::new(),
        other => format!(".{other}"),
    }
}

/// The policy, if it can be meant.
fn policy(raw: &RawTask, path: &str, note: &mut impl FnMut(&str, String)) -> Option<Policy> {
    let mut policy = match &raw.queue {
        Some(queue) => Policy::queue(queue.as_str()),
        None => Policy::default(),
    };
    if let Some(raw) = &raw.debounce {
        policy = with_debounce(policy, raw, &format!("{path}.debounce"), note)?;
    }
    if let Some(period) = raw.throttle {
        policy = policy.throttle(period.0);
    }
    if raw.overlap {
        policy = policy.overlap();
    }
    if let Some(RawFold(fold)) = &raw.payload {
        policy = policy.fold(fold.clone());
    }
    if let Some(retry) = &raw.retry {
        policy = with_retry(policy, retry);
    }
    if let Some(timeout) = raw.timeout {
        policy = policy.timeout(timeout.0);
    }
    if let Some(raw) = &raw.idempotency {
        policy = with_idempotency(policy, raw, path, note)?;
    }
    policy = policy.priority(raw.priority.unwrap_or(0));
    match policy.validate() {
        Ok(()) => Some(policy),
        Err(error) => {
            let place = place_of(error.field().unwrap_or_default());
            note(&format!("{path}{place}"), error.to_string());
            None
        }
    }
}

fn with_debounce(
    mut policy: Policy,
    raw: &RawDebounce,
    path: &str,
    note: &mut impl FnMut(&str, String),
) -> Option<Policy> {
    match (raw.min, raw.max) {
        (Some(min), Some(max)) => policy = policy.debounce(min.0..=max.0),
        (Some(_), None) | (None, Some(_)) => {
            let lacking = if raw.min.is_some() { "max" } else { "min" };
            note(&format!("{path}.{lacking}"), "is missing: give both min and max".to_owned());
            return None;
        }
        (None, None) => {}
    }
    if let Some(triggers) = raw.max_triggers {
        policy = policy.max_triggers(triggers);
    }
    if let Some(bytes) = raw.max_bytes {
        policy = policy.max_bytes(bytes);
    }
    policy = policy.edge(match raw.edge {
        None | Some(RawEdge::Trailing) => Edge::Trailing,
        Some(RawEdge::Leading) => Edge::Leading,
        Some(RawEdge::Both) => Edge::Both,
    });
    Some(policy)
}

fn with_idempotency(
    mut policy: Policy,
    raw: &RawIdempotency,
    path: &str,
    note: &mut impl FnMut(&str, String),
) -> Option<Policy> {
    if let Some(retention) = raw.retention {
        policy = policy.idempotency_retention(retention.0);
    }
    let derived = match (&raw.key, raw.window) {
        (None, None) => return Some(policy),
        (None, Some(_)) => {
            let message = "is missing: a window goes with a key that is made of the payload";
            note(&format!("{path}.idempotency.key"), message.to_owned());
            return None;
        }
        (Some(RawDerived::Of(OfPayload::Payload)), _) => DerivedKey::of_payload(),
        (Some(RawDerived::Fields(fields)), _) => DerivedKey::of_fields(fields.iter().cloned()),
    };
    Some(policy.idempotency(match raw.window {
        Some(window) => derived.within(window.0),
        None => derived,
    }))
}

fn with_retry(mut policy: Policy, retry: &RawRetry) -> Policy {
    if let Some(attempts) = retry.max_attempts {
        policy = policy.attempts(attempts);
    }
    if let Some(backoff) = retry.min_backoff {
        policy = policy.min_backoff(backoff.0);
    }
    if let Some(backoff) = retry.max_backoff {
        policy = policy.max_backoff(backoff.0);
    }
    if let Some(crashes) = retry.max_crashes {
        policy = policy.max_crashes(crashes);
    }
    policy.jitter(match retry.jitter {
        None | Some(RawJitter::Equal) => Jitter::Equal,
        Some(RawJitter::Full) => Jitter::Full,
        Some(RawJitter::None) => Jitter::None,
    })
}

pub(super) fn exec(
    raw: RawExec,
    timeout: Option<Duration>,
    path: &str,
    folder: &Path,
    note: &mut impl FnMut(&str, String),
) -> Option<Handler> {
    let field = format!("{path}.exec.command");
    let Some(program) = raw.command.first().filter(|program| !program.is_empty()) else {
        note(&field, "the command is empty: name a program and its arguments".to_owned());
        return None;
    };
    if raw.command.iter().any(|word| word.contains('\0')) {
        note(&field, "the command has a NUL character".to_owned());
        return None;
    }
    let pairs = raw.env.iter().map(|(name, value)| ("env", name, value.as_str()));
    let passed = raw.pass_env.iter().map(|name| ("pass_env", name, ""));
    for (field, name, value) in pairs.chain(passed) {
        if name.is_empty() || name.contains(['=', '\0']) || value.contains('\0') {
            note(&format!("{path}.exec.{field}"), format!("{name:?} is no valid variable name"));
            return None;
        }
    }
    // A path with a folder in it begins beside the configuration, a bare name is looked up in PATH.
    let relative = program.contains('/') && !program.starts_with('/');
    let mut command = raw.command.clone();
    if let (true, Some(first)) = (relative, command.first_mut()) {
        let joined = folder.join(&*first);
        *first = std::path::absolute(&joined).unwrap_or(joined).to_string_lossy().into_owned();
    }
    Some(Handler::Exec(Exec {
        command,
        cwd: raw.cwd.map(|cwd| folder.join(cwd)),
        env: raw.env,
        pass_env: raw.pass_env,
        permanent_exit_codes: raw.permanent_exit_codes,
        timeout: timeout.unwrap_or(quell::DEFAULT_TIMEOUT),
    }))
}

pub(super) fn http(
    raw: RawHttp,
    timeout: Option<Duration>,
    path: &str,
    folder: &Path,
    note: &mut impl FnMut(&str, String),
) -> Option<Handler> {
    let fields = [format!("{path}.http.secret_env"), format!("{path}.http.secret_file")];
    let named = raw.secret_env.is_some() || raw.secret_file.is_some();
    let [env_field, file_field] = &fields;
    let secrets = secrets(&raw.secret_env, &raw.secret_file, folder, [env_field, file_field], note);
    if named && secrets.is_none() {
        return None;
    }
    let field = if raw.secret_env.is_some() { env_field } else { file_field };
    let secrets = known(secrets.map(Secrets::for_signing).transpose(), field, note)?;
    let allow = raw.allow.iter().map(|entry| entry.parse::<Allowed>()).collect();
    let settings = HttpSettings {
        url: raw.url,
        method: raw.method.unwrap_or_else(|| "POST".to_owned()),
        headers: raw.headers,
        secrets,
        allow: known(allow, &format!("{path}.http.allow"), note)?,
        timeout: timeout.unwrap_or(HTTP_TIMEOUT),
    };
    match Http::new(settings) {
        Ok(http) => Some(Handler::Http(http)),
        Err(error) => {
            note(&format!("{path}.http.{}", error.field().unwrap_or("url")), error.to_string());
            None
        }
    }
}
