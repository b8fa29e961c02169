//! From TOML to plain settings.
//!
//! Everything that can be wrong is noted with the dotted path of its field; `place` knows the line.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use quell::trigger::DedupFallback;
use quell::worker::Retention;
use quell::{Fold, QueueName, TaskName};
use serde::Deserialize;
use serde::de::{self, Deserializer};
use utoipa::ToSchema;

use super::DeclaredTask;
use super::alerts::{RawAlert, alerts};
use super::duration;
use super::listen::{Connections, Listen, Mode, RawTls, connections};
use super::otel::{RawOtel, otel};
use super::place::{Document, Problem};
use super::queues::{Length, QueueText};
use super::schedules::{RawSchedule, schedules};
use super::sources::{RawSource, sources};
use super::tasks::{RawTask, declare};
use super::{Config, DeclaredQueue};
use crate::access::Tokens;
use crate::encryption::FileKeys;
use crate::secrets::Secrets;

/// What stands for the id of a trace in `server.trace_url`.
const TRACE_ID: &str = "{trace_id}";
/// How often a server without a setting evaluates its alerts.
const ALERT_INTERVAL: Duration = Duration::from_secs(10);
/// What the URL of a store begins with, in any build; opening it says which of them this build has.
const SCHEMES: [&str; 11] = [
    "sqlite",
    "postgres",
    "postgresql",
    "redis",
    "rediss",
    "redis-cluster",
    "rediss-cluster",
    "redis+sentinel",
    "rediss+sentinel",
    "azure",
    "memory",
];
/// A shorter lease could not be renewed in time.
const MIN_LEASE: Duration = Duration::from_millis(3);

/// The file as it is written.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Raw {
    server: RawServer,
    store: RawStore,
    encryption: RawEncryption,
    worker: RawWorker,
    queues: BTreeMap<String, QueueText>,
    tasks: BTreeMap<String, RawTask>,
    sources: BTreeMap<String, RawSource>,
    schedules: BTreeMap<String, RawSchedule>,
    alerts: BTreeMap<String, RawAlert>,
    otel: Option<RawOtel>,
}

#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RawServer {
    /// address and port, or `unix:` and the path of a [Unix socket](server.md#a-unix-socket), or a list of
    /// up to 8 of them; an address that is not loopback needs a token
    ///
    /// Default: `127.0.0.1:7777`
    #[schema(value_type = String)]
    pub(super) listen: Option<Listen>,
    /// the mode of Unix sockets
    ///
    /// Default: `0600`
    #[schema(value_type = String)]
    pub(super) socket_mode: Option<Mode>,
    /// the certificate
    #[schema(value_type = String)]
    pub(super) tls: Option<RawTls>,
    /// subnets of [proxies](proxy.md) whose headers about their callers are trusted; `unix` for those that
    /// connect by a Unix socket
    #[schema(value_type = String)]
    #[serde(default)]
    pub(super) trusted_proxies: Vec<String>,
    /// where others reach the server, such as `https://quell.example.com`: targets report
    /// [completions](handlers.md#work-that-takes-long) there. Required for them if the server
    /// listens on all addresses
    ///
    /// Default: the address it listens on
    #[schema(value_type = String)]
    url: Option<String>,
    /// host names that requests may use, besides loopback and the address
    #[schema(value_type = String)]
    #[serde(default)]
    allowed_hosts: Vec<String>,
    /// the variable with the bearer tokens, one on each line ([secrets](#secrets))
    #[schema(value_type = String)]
    token_env: Option<String>,
    /// the file with the bearer tokens
    #[schema(value_type = String)]
    token_file: Option<String>,
    /// the file of [tokens with scopes](security-model.md#tokens), as `quell tokens` makes it
    #[schema(value_type = String)]
    tokens: Option<String>,
    /// how long a [session](security-model.md#sessions) lasts without a request
    ///
    /// Default: `1h`
    #[schema(value_type = String)]
    pub(super) session_idle: Option<Length>,
    /// how long a session lasts in all
    ///
    /// Default: `12h`
    #[schema(value_type = String)]
    pub(super) session_max: Option<Length>,
    /// where traces are shown: an address with `{trace_id}` in it, to which [pages](page.md) of jobs link
    #[schema(value_type = String)]
    trace_url: Option<String>,
    /// the file to which each [operator's request](security-model.md#audit) is appended
    #[schema(value_type = String)]
    audit_file: Option<String>,
    /// the largest request body
    ///
    /// Default: `1MiB`
    #[schema(value_type = String)]
    max_body: Option<Bytes>,
    /// how often the server evaluates [alerts](server.md#alerts)
    ///
    /// Default: `10s`
    #[schema(value_type = String)]
    alert_interval: Option<Length>,
}

#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RawStore {
    /// `sqlite://FILE`, `postgres://USER@HOST/DATABASE`, `redis://HOST`,
    /// `redis-cluster://HOST,HOST`, `redis+sentinel://HOST,HOST/MASTER`, `azure://ACCOUNT/TABLE` or
    /// `memory:`. Redis by TLS is `rediss` in each of its forms
    ///
    /// Default: `sqlite://quell.db`
    #[schema(value_type = String)]
    url: Option<String>,
    /// on SQLite: `full` or `normal`
    ///
    /// Default: `full`
    #[schema(value_type = String)]
    synchronous: Option<Synchronous>,
    /// on a store that cannot keep dedup keys: `closed` refuses them, `open` accepts without
    ///
    /// Default: `closed`
    #[schema(value_type = String)]
    #[serde(default)]
    dedup_fallback: Fallback,
}

#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RawEncryption {
    /// the file of [keys](security-model.md#encryption), as `quell keys` makes it
    ///
    /// Default: none: payloads are stored as they are
    #[schema(value_type = String)]
    keys_file: Option<String>,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Fallback {
    Open,
    #[default]
    Closed,
}

impl From<Fallback> for DedupFallback {
    fn from(fallback: Fallback) -> Self {
        match fallback {
            Fallback::Open => DedupFallback::Open,
            Fallback::Closed => DedupFallback::Closed,
        }
    }
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Synchronous {
    Full,
    Normal,
}

#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RawWorker {
    /// attempts at once in this server
    ///
    /// Default: 32
    #[schema(value_type = String)]
    concurrency: Option<usize>,
    /// time to finish at shutdown
    ///
    /// Default: `30s`
    #[schema(value_type = String)]
    grace: Option<Length>,
    /// the term of a lease
    ///
    /// Default: `30s`
    #[schema(value_type = String)]
    lease: Option<Length>,
    /// how long jobs that succeeded, were cancelled or absorbed are kept, or `forever` ([R37](semantics.md#r37))
    ///
    /// Default: `1h`
    #[schema(value_type = String)]
    keep_succeeded: Option<Keep>,
    /// how long dead jobs are kept
    ///
    /// Default: `forever`
    #[schema(value_type = String)]
    keep_dead: Option<Keep>,
}

/// A duration, or `forever`.
#[derive(Clone, Copy, Debug)]
struct Keep(Option<Duration>);

impl<'de> Deserialize<'de> for Keep {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        if text == "forever" {
            return Ok(Keep(None));
        }
        let wrong = |why| de::Error::custom(format!("{why}, or `forever`"));
        duration::parse(&text).map(|length| Keep(Some(length))).map_err(wrong)
    }
}

fn retention(worker: &RawWorker) -> Retention {
    let default = Retention::default();
    Retention {
        succeeded: worker.keep_succeeded.map_or(default.succeeded, |keep| keep.0),
        dead: worker.keep_dead.map_or(default.dead, |keep| keep.0),
    }
}

/// A size such as `1MiB` or a number of bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bytes(pub(super) usize);

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
        let unit = match text.get(digits.len()..).unwrap_or_default().trim() {
            "" | "B" => Some(1),
            "KiB" => Some(1 << 10),
            "MiB" => Some(1 << 20),
            _ => None,
        };
        let size = unit.zip(digits.parse::<usize>().ok()).and_then(|(u, n)| n.checked_mul(u));
        size.filter(|size| *size > 0).map(Bytes).ok_or_else(|| {
            de::Error::custom(format!("{text:?} is not a size: write 512KiB or 1MiB"))
        })
    }
}

/// Reads the whole file, or says all that is wrong with it.
pub(super) fn parse(text: &str, folder: &Path) -> Result<Config, Vec<Problem>> {
    let document = Document::new(text).map_err(|problem| vec![problem])?;
    let (raw, mut problems) = document.read::<Raw>();
    let Some(raw) = raw else { return Err(problems) };
    // What was wrong already would only be complained about twice.
    let broken = |path: &str| problems.iter().any(|problem| problem.is_below(path));
    let mut found = Vec::new();
    let config = check(raw, folder, &broken, &mut |field, message| {
        found.push(document.problem(field, message));
    });
    problems.extend(found);
    problems.sort_by_key(Problem::line);
    if problems.is_empty() { Ok(Config { text: text.to_owned(), ..config }) } else { Err(problems) }
}

/// What the settings amount to, with a note of each that cannot be meant.
fn check(
    raw: Raw,
    folder: &Path,
    broken: &dyn Fn(&str) -> bool,
    note: &mut impl FnMut(&str, String),
) -> Config {
    let token = token(&raw.server, folder, note);
    let tokens = tokens(&raw.server, folder, note);
    let Connections { listen, socket_mode, tls, trusted_proxies, session } =
        connections(&raw.server, folder, note);
    if let Some(address) = listen.open_address()
        && token.is_none()
        && raw.server.tokens.is_none()
        && !broken("server")
    {
        let message = format!(
            "{address} is reachable from elsewhere: set server.tokens, server.token_env or \
             server.token_file first"
        );
        note("server.listen", message);
    }
    let url = raw.server.url.as_deref().and_then(|text| base_url(text, note));
    for host in raw.server.allowed_hosts.iter().filter(|host| !is_host(host)) {
        let message = format!("{host:?} is not a host name: give it without scheme and port");
        note("server.allowed_hosts", message);
    }
    if raw.worker.concurrency == Some(0) {
        note("worker.concurrency", "concurrency is 0: give 1 or more".to_owned());
    }
    let lease = lease(&raw.worker, note);
    let queues = queues(raw.queues, note);
    let tasks = tasks(raw.tasks, folder, broken, note);
    if url.is_none() && !listen.has_a_url() && tasks.values().any(reports_later) {
        let message = format!("is missing: targets cannot report their completions to {listen}");
        note("server.url", message);
    }
    let keys = keys(&raw.encryption, &tasks, folder, note);
    let sources = sources(raw.sources, &tasks, folder, broken, note);
    let schedules = schedules(raw.schedules, &tasks, broken, note);
    let alerts = alerts(raw.alerts, folder, broken, note);
    let alert_interval = raw.server.alert_interval.map_or(ALERT_INTERVAL, |length| length.0);
    if alert_interval.is_zero() {
        note("server.alert_interval", "alert_interval is zero: give a duration".to_owned());
    }
    Config {
        trace_url: raw.server.trace_url.and_then(|text| trace_url(text, note)),
        otel: otel(raw.otel, folder, note),
        listen,
        socket_mode,
        tls,
        trusted_proxies,
        session,
        url,
        allowed_hosts: raw.server.allowed_hosts,
        token,
        tokens,
        audit: raw.server.audit_file.as_ref().map(|file| folder.join(file)),
        keys,
        max_body: raw.server.max_body.map_or(1 << 20, |bytes| bytes.0),
        dedup_fallback: raw.store.dedup_fallback.into(),
        store: store_url(raw.store, note),
        concurrency: raw.worker.concurrency.unwrap_or(32),
        grace: raw.worker.grace.map_or(Duration::from_secs(30), |grace| grace.0),
        lease,
        queues,
        tasks,
        sources,
        schedules,
        apply: crate::declare::Apply::Changed,
        alerts,
        alert_interval,
        retention: retention(&raw.worker),
        text: String::new(),
    }
}

fn lease(worker: &RawWorker, note: &mut impl FnMut(&str, String)) -> Duration {
    let lease = worker.lease.map_or(Duration::from_secs(30), |lease| lease.0);
    if lease < MIN_LEASE {
        let message = format!("lease of {lease:?} is too short: give {MIN_LEASE:?} or more");
        note("worker.lease", message);
    }
    lease
}

fn tasks(
    raw: BTreeMap<String, RawTask>,
    folder: &Path,
    broken: &dyn Fn(&str) -> bool,
    note: &mut impl FnMut(&str, String),
) -> BTreeMap<TaskName, DeclaredTask> {
    let mut tasks = BTreeMap::new();
    for (name, task) in raw {
        let path = format!("tasks.{name}");
        if broken(&path) {
            continue;
        }
        let Some(checked) = known(TaskName::new(&name), &path, note) else { continue };
        if let Some(task) = declare(&checked, task, &path, folder, note) {
            tasks.insert(checked, task);
        }
    }
    tasks
}

/// Whether the target of a task may report its end later.
fn reports_later(task: &DeclaredTask) -> bool {
    task.handler.as_ref().is_some_and(|handler| handler.completion().is_some())
}

/// Where others reach the server, without a slash at its end.
fn base_url(text: &str, note: &mut impl FnMut(&str, String)) -> Option<String> {
    let url = reqwest::Url::parse(text).ok();
    let is_fine = |url: &reqwest::Url| {
        matches!(url.scheme(), "http" | "https")
            && url.has_host()
            && url.query().is_none()
            && url.fragment().is_none()
            && url.username().is_empty()
            && url.password().is_none()
    };
    if url.as_ref().is_some_and(is_fine) {
        return Some(text.trim_end_matches('/').to_owned());
    }
    let message =
        format!("{text:?} is not where others reach the server: write https://quell.example.com");
    note("server.url", message);
    None
}

/// Where a trace is shown.
fn trace_url(text: String, note: &mut impl FnMut(&str, String)) -> Option<String> {
    let url = reqwest::Url::parse(&text.replace(TRACE_ID, "0")).ok();
    let is_fine = url.is_some_and(|url| matches!(url.scheme(), "http" | "https") && url.has_host());
    if is_fine && text.contains(TRACE_ID) {
        return Some(text);
    }
    let remedy = "write https://traces.example.com/trace/{trace_id}";
    note("server.trace_url", format!("{text:?} is not where a trace is shown: {remedy}"));
    None
}

/// A host as requests name it: a name, or an address in brackets where it has colons.
fn is_host(text: &str) -> bool {
    let inner = text.strip_prefix('[').and_then(|text| text.strip_suffix(']'));
    match inner {
        Some(address) => address.parse::<std::net::Ipv6Addr>().is_ok(),
        None => {
            let allowed = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '.' || c == '_';
            !text.is_empty() && text.chars().all(allowed)
        }
    }
}

fn store_url(store: RawStore, note: &mut impl FnMut(&str, String)) -> String {
    let url = store.url.unwrap_or_else(|| "sqlite://quell.db".to_owned());
    if !SCHEMES.contains(&url.split(':').next().unwrap_or_default()) || !url.contains(':') {
        let known = SCHEMES.join("://, ");
        note("store.url", format!("the URL of a store begins with one of {known}:"));
    }
    let Some(synchronous) = store.synchronous else { return url };
    if !url.starts_with("sqlite:") {
        let why = "this is for sqlite:// only: leave it out (PostgreSQL has synchronous_commit, \
                   Redis appendfsync, Azure always writes fully)";
        note("store.synchronous", why.to_owned());
    }
    let mark = if url.contains('?') { '&' } else { '?' };
    let mode = match synchronous {
        Synchronous::Full => "full",
        Synchronous::Normal => "normal",
    };
    format!("{url}{mark}synchronous={mode}")
}

/// The token, by reference: it never stands in the file itself.
fn token(
    server: &RawServer,
    folder: &Path,
    note: &mut impl FnMut(&str, String),
) -> Option<Secrets> {
    secrets(
        &server.token_env,
        &server.token_file,
        folder,
        ["server.token_env", "server.token_file"],
        note,
    )
}

fn tokens(
    server: &RawServer,
    folder: &Path,
    note: &mut impl FnMut(&str, String),
) -> Option<Tokens> {
    let file = server.tokens.as_ref()?;
    let path = folder.join(file);
    if !path.exists() {
        let message = format!("{} does not exist: make it by `quell tokens add`", path.display());
        note("server.tokens", message);
        return None;
    }
    let opened = Tokens::open(&path);
    opened.map_err(|error| note("server.tokens", error.to_string())).ok()
}

/// The keys of a file, for all tasks but those that say otherwise.
fn keys(
    encryption: &RawEncryption,
    tasks: &BTreeMap<TaskName, DeclaredTask>,
    folder: &Path,
    note: &mut impl FnMut(&str, String),
) -> Option<FileKeys> {
    let file = encryption.keys_file.as_ref()?;
    let merges = |task: &DeclaredTask| {
        matches!(task.checked.fold(), Fold::Merge | Fold::Accumulate { .. }) && task.key.is_some()
    };
    for (name, _) in tasks.iter().filter(|(_, task)| task.encrypt && merges(task)) {
        let message =
            "the store cannot merge or accumulate encrypted payloads: use last, first or \
                       collect, or set encrypt = false"
                .to_owned();
        note(&format!("tasks.{name}.payload"), message);
    }
    let plain = tasks.iter().filter(|(_, task)| !task.encrypt).map(|(name, _)| name.clone());
    let opened = FileKeys::open(&folder.join(file), plain.collect());
    known(opened, "encryption.keys_file", note)
}

/// Reads secrets from a variable or a file.
pub(super) fn secrets(
    env: &Option<String>,
    file: &Option<String>,
    folder: &Path,
    fields: [&str; 2],
    note: &mut impl FnMut(&str, String),
) -> Option<Secrets> {
    let [env_field, file_field] = fields;
    let (field, read) = match (env, file) {
        (Some(_), Some(_)) => {
            note(env_field, "give a variable or a file, not both".to_owned());
            return None;
        }
        (Some(name), None) => {
            let unset =
                |_| quell::Error::invalid("secret", format!("the variable {name} is not set"));
            (env_field, std::env::var(name).map_err(unset).and_then(|text| Secrets::of_text(&text)))
        }
        (None, Some(path)) => (file_field, Secrets::of_file(&folder.join(path))),
        (None, None) => return None,
    };
    known(read, field, note)
}

fn queues(
    raw: BTreeMap<String, QueueText>,
    note: &mut impl FnMut(&str, String),
) -> BTreeMap<QueueName, DeclaredQueue> {
    let mut queues = BTreeMap::new();
    for (name, queue) in raw {
        let path = format!("queues.{name}");
        let Some(name) = known(QueueName::new(&name), &path, note) else { continue };
        let says_paused = queue.says_paused();
        match queue.settings() {
            Ok(settings) => drop(queues.insert(name, DeclaredQueue { settings, says_paused })),
            Err(error) => {
                let place = match error.field().unwrap_or_default() {
                    "min" => "debounce.min",
                    other => other,
                };
                note(&format!("{path}.{place}"), error.to_string());
            }
        }
    }
    queues
}

/// The value, or a note of what is wrong with the field.
pub(super) fn known<T>(
    value: quell::Result<T>,
    field: &str,
    note: &mut impl FnMut(&str, String),
) -> Option<T> {
    value.map_err(|error| note(field, error.to_string())).ok()
}
