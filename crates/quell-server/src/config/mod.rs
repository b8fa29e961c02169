//! `quell.toml`: what the server runs.
//!
//! `place` names file, line and field of what is wrong, `parse` checks the settings, `tasks` turns
//! each task's into a policy, a key template and a handler, `schedules` each schedule's into a plan
//! and a trigger, `alerts` each alert's into a threshold and its sinks. Invariant: a [`Config`] that exists can
//! be served; only the world (a port, a file, a program) can still say no.

mod alerts;
mod changes;
pub mod duration;
pub(crate) mod engine;
pub(crate) mod exact;
pub mod fold;
pub mod key_template;
mod listen;
pub(crate) mod otel;
mod parse;
mod place;
pub(crate) mod queues;
pub mod reference;
mod schedules;
mod sources;
pub(crate) mod task_settings;
mod tasks;
pub(crate) mod world;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use quell::queue::QueueSettings;
use quell::schedule::Schedule;
use quell::trigger::{NewTrigger, TaskPolicy};
use quell::worker::Retention;
use quell::{Error, Key, Payload, QueueName, TaskName};

pub use changes::{Change, changes};
use key_template::KeyTemplate;
pub use listen::{Listen, Place, SessionTimes, TrustedProxies};
pub use otel::{Otel, Sampling};
pub(crate) use tasks::HTTP_TIMEOUT;

use crate::access::Tokens;
use crate::alerts::DeclaredAlert;
use crate::declare::Apply;
use crate::encryption::FileKeys;
use crate::handlers::Handler;
use crate::redact::Redact;
use crate::secrets::Secrets;
use crate::sources::Source;
use crate::tls::Pair;

/// Everything the server needs to start.
#[derive(Debug)]
pub struct Config {
    /// Where to listen.
    pub listen: Listen,
    /// The rights of its Unix sockets.
    pub socket_mode: u32,
    /// What its addresses show; without it they have no TLS.
    pub tls: Option<Pair>,
    /// The proxies whose headers about their callers are trusted.
    pub trusted_proxies: TrustedProxies,
    /// How long sessions last.
    pub session: SessionTimes,
    /// Where a trace is shown, with `{trace_id}` in it.
    pub trace_url: Option<String>,
    /// Where others reach the server; by the address on which it listens where there is none.
    pub url: Option<String>,
    /// Host names that requests may name besides the loopback ones and the address itself.
    pub allowed_hosts: Vec<String>,
    /// What callers must present; this or `tokens` is required off loopback.
    pub token: Option<Secrets>,
    /// The tokens of a file, each with its scopes.
    pub tokens: Option<Tokens>,
    /// The file of what operators did.
    pub audit: Option<PathBuf>,
    /// The largest request body, in bytes.
    pub max_body: usize,
    /// The store's URL.
    pub store: String,
    /// The keys that encrypt payloads before they reach the store.
    pub keys: Option<FileKeys>,
    /// What becomes of dedup keys where the store cannot keep them.
    pub dedup_fallback: quell::trigger::DedupFallback,
    /// Attempts at once.
    pub concurrency: usize,
    /// How long attempts may go on after the shutdown began.
    pub grace: Duration,
    /// How long a lease holds without renewal.
    pub lease: Duration,
    /// Settings to write into the store at the start.
    pub queues: BTreeMap<QueueName, DeclaredQueue>,
    /// The tasks.
    pub tasks: BTreeMap<TaskName, DeclaredTask>,
    /// The webhook sources, by name.
    pub sources: BTreeMap<String, Source>,
    /// Schedules to set at the start.
    pub schedules: Vec<Schedule>,
    /// Which queues and schedules are set at the start.
    pub apply: Apply,
    /// The alerts, with their sinks.
    pub alerts: Vec<DeclaredAlert>,
    /// How often it is looked at.
    pub alert_interval: Duration,
    /// How long ended jobs are kept.
    pub retention: Retention,
    /// Where traces and metrics go by OTLP.
    pub otel: Option<Otel>,
    /// The text that it was read from.
    pub text: String,
}

/// A queue that the configuration declares.
#[derive(Clone, Debug)]
pub struct DeclaredQueue {
    /// Its settings.
    pub settings: QueueSettings,
    /// Whether they say if it is paused. Where they do not, the operator's last word counts.
    pub says_paused: bool,
}

impl DeclaredQueue {
    /// The settings to write over those that the store has.
    #[must_use]
    pub fn over(&self, known: Option<&QueueSettings>) -> QueueSettings {
        let mut settings = self.settings.clone();
        if !self.says_paused {
            settings.paused = known.is_some_and(|known| known.paused);
        } else if settings.paused {
            settings.paused_by = Some("the configuration".to_owned());
        }
        settings
    }
}

/// A task that the configuration declares.
#[derive(Debug)]
pub struct DeclaredTask {
    /// Its policy as users wrote it, for the worker.
    pub policy: quell::Policy,
    /// Its policy, checked, for triggers.
    pub checked: TaskPolicy,
    /// What makes its debounce key.
    pub key: Option<KeyTemplate>,
    /// What names its partition of the queue.
    pub partition: Option<KeyTemplate>,
    /// What this server runs of it; none where workers elsewhere pull its jobs.
    pub handler: Option<Handler>,
    /// What people do not see of its documents.
    pub redact: Redact,
    /// Whether its payloads are encrypted, where the server has keys.
    pub encrypt: bool,
}

impl DeclaredTask {
    /// A trigger with this payload, and with the key that it makes.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](quell::ErrorKind::Invalid) that names `payload` or `key`.
    pub fn trigger(&self, payload: Payload) -> quell::Result<NewTrigger> {
        let key = self.key_of(&payload)?;
        Ok(self.checked.trigger(payload, key))
    }

    /// The debounce key that the task's template makes of a payload.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](quell::ErrorKind::Invalid) that names `payload` or `key`.
    pub fn key_of(&self, payload: &Payload) -> quell::Result<Option<Key>> {
        made("key", self.key.as_ref(), payload)
    }

    /// The partition that the task's template makes of a payload.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](quell::ErrorKind::Invalid) that names `payload` or `partition`.
    pub fn partition_of(&self, payload: &Payload) -> quell::Result<Option<Key>> {
        made("partition", self.partition.as_ref(), payload)
    }
}

/// What a template of a task makes of a payload.
fn made(
    field: &'static str,
    template: Option<&KeyTemplate>,
    payload: &Payload,
) -> quell::Result<Option<Key>> {
    let Some(template) = template else { return Ok(None) };
    // A key made of a rounded number would be another number's key, too.
    let value = serde_json::from_str(&exact::carry(payload.as_str()).0);
    let value = value
        .map_err(|error| Error::invalid("payload", format!("payload cannot be read: {error}")))?;
    let made = template.key(&value);
    made.map_err(|error| Error::invalid(field, format!("the task's {field}: {error}")))
}

impl Config {
    /// Whether callers must present a token.
    #[must_use]
    pub fn asks_for_tokens(&self) -> bool {
        self.token.is_some() || self.tokens.is_some()
    }

    /// Reads a file.
    ///
    /// # Errors
    /// All that is wrong with it, each with file, line and field.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        Config::parse(&read(path)?, path)
    }

    /// Reads a file, and checks what it names outside of it: programs, addresses, folders.
    ///
    /// # Errors
    /// As for [`Config::load`].
    pub fn load_and_check(path: &Path) -> Result<Self, ConfigError> {
        let text = read(path)?;
        let config = Config::parse(&text, path)?;
        let faults = world::faults(&config);
        if faults.is_empty() {
            return Ok(config);
        }
        let shown = place::show(&text, path, faults);
        Err(ConfigError(shown))
    }

    /// Reads the text of a file that stands at `path`; relative paths in it begin there.
    ///
    /// # Errors
    /// As for [`Config::load`].
    pub fn parse(text: &str, path: &Path) -> Result<Self, ConfigError> {
        let folder = path.parent().map_or_else(PathBuf::new, Path::to_owned);
        parse::parse(text, &folder).map_err(|problems| {
            let shown = problems.into_iter().map(|problem| problem.show(path)).collect();
            ConfigError(shown)
        })
    }
}

fn read(path: &Path) -> Result<String, ConfigError> {
    std::fs::read_to_string(path)
        .map_err(|error| ConfigError(vec![format!("{}: cannot be read: {error}", path.display())]))
}

/// What is wrong with a configuration, one line each.
#[derive(Debug)]
pub struct ConfigError(Vec<String>);

impl std::fmt::Display for ConfigError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0.join("\n"))
    }
}

impl std::error::Error for ConfigError {}
