//! One task's settings: its policy, its key, its handler.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use quell::trigger::{TaskPolicy, Thresholds};
use quell::{DerivedKey, Edge, Fold, Jitter, Policy, TaskName};
use serde::Deserialize;
use utoipa::ToSchema;

use super::DeclaredTask;
use super::fold::parse_fold;
use super::key_template::KeyTemplate;
use super::parse::{known, secrets};
use super::queues::Length;
use crate::handlers::{Allowed, Exec, Handler, Http, HttpSettings};
use crate::redact::Redact;
use crate::secrets::Secrets;

/// How much longer than its timeout an attempt may take to end in good order.
const WRAP_UP: Duration = Duration::from_secs(5);
/// How long an HTTP call may take when the task names no timeout.
pub(crate) const HTTP_TIMEOUT: Duration = Duration::from_secs(30);

#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RawTask {
    /// the queue of its jobs
    ///
    /// Default: `default`
    #[schema(value_type = String)]
    queue: Option<String>,
    /// their priority: higher runs first
    ///
    /// Default: 0
    #[schema(value_type = String)]
    priority: Option<i16>,
    /// the debounce key: a [template](#templates) over the payload
    #[schema(value_type = String)]
    key: Option<String>,
    /// the partition of the queue: a template, too
    #[schema(value_type = String)]
    partition: Option<String>,
    /// a table of its own
    #[schema(value_type = String)]
    debounce: Option<RawDebounce>,
    /// one start per key and period, in place of a debounce
    #[schema(value_type = String)]
    throttle: Option<Length>,
    /// whether attempts of a key may run side by side
    ///
    /// Default: `false`
    #[schema(value_type = String)]
    #[serde(default)]
    overlap: bool,
    /// `last`, `first`, `merge`, `collect[:CAP]`, `accumulate:FIELD,…`: [what the run
    /// gets](handlers.md#the-payload)
    ///
    /// Default: `last`
    #[schema(value_type = String)]
    payload: Option<RawFold>,
    /// members of payloads and outputs that [people do not see](security-model.md#redaction):
    /// `["/card/number", "/**/password"]`
    #[schema(value_type = String)]
    #[serde(default)]
    redact: Vec<String>,
    /// whether its payloads are [encrypted](security-model.md#encryption), where the server has keys
    ///
    /// Default: `true`
    #[schema(value_type = String)]
    encrypt: Option<bool>,
    /// a table of its own
    #[schema(value_type = String)]
    retry: Option<RawRetry>,
    /// how long an attempt may take
    ///
    /// Default: `10m`, for `http` `30s`
    #[schema(value_type = String)]
    timeout: Option<Length>,
    /// a table of its own
    #[schema(value_type = String)]
    idempotency: Option<RawIdempotency>,
    /// a command: [below](#tasksnameexec)
    #[schema(value_type = String)]
    exec: Option<RawExec>,
    /// an endpoint to call: [below](#tasksnamehttp)
    #[schema(value_type = String)]
    http: Option<RawHttp>,
    /// `true`: [workers elsewhere](workers.md) pull its jobs
    ///
    /// Default: `false`
    #[schema(value_type = String)]
    #[serde(default)]
    pull: bool,
}

#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RawDebounce {
    /// the quiet period after the last trigger; `min` and `max` go together
    ///
    /// Default: the queue's
    #[schema(value_type = String)]
    min: Option<Length>,
    /// the longest delay after the first trigger
    ///
    /// Default: the queue's
    #[schema(value_type = String)]
    max: Option<Length>,
    /// a window with this many triggers is due
    #[schema(value_type = String)]
    max_triggers: Option<u32>,
    /// a window whose payload would have more closes ([R10](semantics.md#r10))
    ///
    /// Default: 1 MiB
    #[schema(value_type = String)]
    max_bytes: Option<u32>,
    /// `trailing`, `leading` or `both` ([R13](semantics.md#r13))
    ///
    /// Default: `trailing`
    #[schema(value_type = String)]
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

#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RawRetry {
    /// attempts in all
    ///
    /// Default: 20
    #[schema(value_type = String)]
    max_attempts: Option<u32>,
    /// the delay after the first failure; it doubles after each further one
    ///
    /// Default: `1s`
    #[schema(value_type = String)]
    min_backoff: Option<Length>,
    /// the longest delay
    ///
    /// Default: `1h`
    #[schema(value_type = String)]
    max_backoff: Option<Length>,
    /// crashes in a row until the job is dead ([R25](semantics.md#r25))
    ///
    /// Default: 5
    #[schema(value_type = String)]
    max_crashes: Option<u32>,
    /// `equal`, `full` or `none`
    ///
    /// Default: `equal`
    #[schema(value_type = String)]
    jitter: Option<RawJitter>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum RawJitter {
    Equal,
    Full,
    None,
}

#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RawIdempotency {
    /// how long idempotency keys are kept
    ///
    /// Default: `24h`
    #[schema(value_type = String)]
    retention: Option<Length>,
    /// a key derived from the payload (`"payload"`) or its members (`["FIELD", …]`)
    #[schema(value_type = String)]
    key: Option<RawDerived>,
    /// and from the time, cut to this window
    #[schema(value_type = String)]
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

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RawExec {
    /// the program and its arguments: a list, never a shell
    ///
    /// Default: required
    #[schema(value_type = String)]
    command: Vec<String>,
    /// the directory in which it runs
    ///
    /// Default: the server's
    #[schema(value_type = String)]
    cwd: Option<PathBuf>,
    /// variables to set
    #[schema(value_type = String)]
    #[serde(default)]
    env: BTreeMap<String, String>,
    /// variables of the server to pass on, besides `PATH`, `HOME` and `LANG`
    #[schema(value_type = String)]
    #[serde(default)]
    pass_env: Vec<String>,
    /// exit codes that no retry can help: `[65]`
    #[schema(value_type = String)]
    #[serde(default)]
    permanent_exit_codes: Vec<i32>,
    /// exit codes that run the job again after the delay, no attempt spent: `{ 75 = "1m" }`
    #[schema(value_type = String)]
    #[serde(default)]
    snooze_exit_codes: BTreeMap<String, Length>,
    /// exit codes that end the job as cancelled
    #[schema(value_type = String)]
    #[serde(default)]
    cancel_exit_codes: Vec<i32>,
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RawHttp {
    /// the URL, `http` or `https`, without a user and password
    ///
    /// Default: required
    #[schema(value_type = String)]
    url: String,
    /// `POST`, `PUT`, `PATCH`, `GET` or `DELETE`
    ///
    /// Default: `POST`
    #[schema(value_type = String)]
    method: Option<String>,
    /// headers to send
    #[schema(value_type = String)]
    #[serde(default)]
    headers: BTreeMap<String, String>,
    /// the variable with the [secrets](#secrets) that sign calls
    #[schema(value_type = String)]
    secret_env: Option<String>,
    /// the file with the secrets that sign calls
    #[schema(value_type = String)]
    secret_file: Option<String>,
    /// subnets and hosts that it may connect to although they are not public: `["10.0.0.0/8"]`
    #[schema(value_type = String)]
    #[serde(default)]
    allow: Vec<String>,
    /// how long work may take that the target [answers with 202](handlers.md#work-that-takes-long);
    /// needs a secret
    ///
    /// Default: none: 202 is a success
    #[schema(value_type = String)]
    completion: Option<Length>,
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
    let redact = known(Redact::new(&raw.redact), &format!("{path}.redact"), note)?;
    let encrypt = raw.encrypt.unwrap_or(true);
    let limit = raw.timeout.map(|length| length.0);
    let handler = match (raw.exec, raw.http, raw.pull) {
        (Some(raw), None, false) => exec(raw, limit, path, folder, note).map(Some),
        (None, Some(raw), false) => http(raw, limit, path, folder, note).map(Some),
        (None, None, true) => Some(None),
        (None, None, false) => {
            note(path, "a task needs a handler: exec, http or pull".to_owned());
            None
        }
        _ => {
            note(path, "a task has one handler: exec, http or pull".to_owned());
            None
        }
    };
    let (policy, key, partition, handler) = (policy?, key?, partition?, handler?);
    let checked = TaskPolicy::new(name.clone(), &policy, Thresholds::DEFAULT);
    let checked = known(checked, path, note)?;
    // The handler ends its attempt in good order at the task's timeout; the worker's is for when it
    // cannot.
    let policy = match &handler {
        Some(handler) => policy.timeout(handler.timeout().saturating_add(WRAP_UP)),
        None => policy,
    };
    Some(DeclaredTask { policy, checked, key, partition, handler, redact, encrypt })
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
    let mut snooze_exit_codes = BTreeMap::new();
    for (code, delay) in &raw.snooze_exit_codes {
        let Ok(code) = code.parse() else {
            let message = format!("{code:?} is no exit code: give a number, such as 75");
            note(&format!("{path}.exec.snooze_exit_codes"), message);
            return None;
        };
        snooze_exit_codes.insert(code, delay.0);
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
        snooze_exit_codes,
        cancel_exit_codes: raw.cancel_exit_codes,
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
        completion: raw.completion.map(|length| length.0),
    };
    match Http::new(settings) {
        Ok(http) => Some(Handler::Http(http)),
        Err(error) => {
            note(&format!("{path}.http.{}", error.field().unwrap_or("url")), error.to_string());
            None
        }
    }
}
