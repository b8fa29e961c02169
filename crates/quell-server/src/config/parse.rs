//! From TOML to plain settings, with the place of each mistake.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use quell::{QueueName, QueueSettings, TaskName, Thresholds};
use serde::Deserialize;
use serde::de::{self, Deserializer};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::Config;
use super::tasks::{RawTask, declare};
use crate::duration;
use crate::handler::Secret;

/// Something wrong, and where.
#[derive(Debug)]
pub struct Problem {
    line: usize,
    field: String,
    message: String,
}

impl Problem {
    pub(super) fn show(&self, path: &Path) -> String {
        let Problem { line, field, message } = self;
        let field = if field.is_empty() { String::new() } else { format!(" {field}:") };
        format!("{}:{line}:{field} {message}", path.display())
    }
}

/// The file as it is written.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Raw {
    server: RawServer,
    store: RawStore,
    worker: RawWorker,
    queues: BTreeMap<String, RawQueue>,
    tasks: BTreeMap<String, RawTask>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct RawServer {
    listen: Option<SocketAddr>,
    allowed_hosts: Vec<String>,
    token_env: Option<String>,
    token_file: Option<String>,
    max_body: Option<Bytes>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct RawStore {
    url: Option<String>,
    synchronous: Option<Synchronous>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Synchronous {
    Full,
    Normal,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct RawWorker {
    concurrency: Option<usize>,
    grace: Option<Length>,
    lease: Option<Length>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct RawQueue {
    concurrency: Option<u32>,
    paused: bool,
    debounce: Option<RawThresholds>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawThresholds {
    min: Length,
    max: Length,
}

/// A duration such as `10s`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Length(pub(super) Duration);

impl<'de> Deserialize<'de> for Length {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        duration::parse(&text).map(Length).map_err(de::Error::custom)
    }
}

/// A size such as `1MiB` or a number of bytes.
#[derive(Clone, Copy, Debug)]
struct Bytes(usize);

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
    let places = Places::new(text)?;
    let raw: Raw = toml::from_str(text).map_err(|error| {
        let offset = error.span().map_or(0, |span| span.start);
        let field = places.field_at(offset);
        vec![Problem { line: line_of(text, offset), field, message: first_line(error.message()) }]
    })?;
    let mut problems = Vec::new();
    let mut note = |field: &str, message: String| {
        let line = line_of(text, places.offset_of(field));
        problems.push(Problem { line, field: field.to_owned(), message });
    };
    let token = token(&raw.server, folder, &mut note);
    let listen = raw.server.listen.unwrap_or_else(|| SocketAddr::from(([127, 0, 0, 1], 7777)));
    if !listen.ip().is_loopback() && token.is_none() {
        let message = format!(
            "{listen} is reachable from elsewhere: set server.token_env or server.token_file first"
        );
        note("server.listen", message);
    }
    let queues = queues(raw.queues, &mut note);
    let mut tasks = BTreeMap::new();
    for (name, task) in raw.tasks {
        let path = format!("tasks.{name}");
        let Some(checked) = known(TaskName::new(&name), &path, &mut note) else { continue };
        if let Some(task) = declare(&checked, task, &path, folder, &mut note) {
            tasks.insert(checked, task);
        }
    }
    if raw.worker.concurrency == Some(0) {
        note("worker.concurrency", "concurrency is 0: give 1 or more".to_owned());
    }
    if !problems.is_empty() {
        return Err(problems);
    }
    Ok(Config {
        listen,
        allowed_hosts: raw.server.allowed_hosts,
        token,
        max_body: raw.server.max_body.map_or(1 << 20, |bytes| bytes.0),
        store: store_url(raw.store),
        concurrency: raw.worker.concurrency.unwrap_or(32),
        grace: raw.worker.grace.map_or(Duration::from_secs(30), |grace| grace.0),
        lease: raw.worker.lease.map_or(Duration::from_secs(30), |lease| lease.0),
        queues,
        tasks,
    })
}

fn store_url(store: RawStore) -> String {
    let url = store.url.unwrap_or_else(|| "sqlite://quell.db".to_owned());
    match store.synchronous {
        None => url,
        Some(synchronous) => {
            let mark = if url.contains('?') { '&' } else { '?' };
            let mode = match synchronous {
                Synchronous::Full => "full",
                Synchronous::Normal => "normal",
            };
            format!("{url}{mark}synchronous={mode}")
        }
    }
}

/// The token, by reference: it never stands in the file itself.
fn token(server: &RawServer, folder: &Path, note: &mut impl FnMut(&str, String)) -> Option<Secret> {
    secret(
        &server.token_env,
        &server.token_file,
        folder,
        ["server.token_env", "server.token_file"],
        note,
    )
}

/// Reads a secret from a variable or a file.
pub(super) fn secret(
    env: &Option<String>,
    file: &Option<String>,
    folder: &Path,
    fields: [&str; 2],
    note: &mut impl FnMut(&str, String),
) -> Option<Secret> {
    let [env_field, file_field] = fields;
    let (field, text) = match (env, file) {
        (Some(_), Some(_)) => {
            note(env_field, "give a variable or a file, not both".to_owned());
            return None;
        }
        (Some(name), None) => {
            (env_field, std::env::var(name).map_err(|_| format!("the variable {name} is not set")))
        }
        (None, Some(path)) => (
            file_field,
            std::fs::read_to_string(folder.join(path))
                .map_err(|error| format!("the file {path} cannot be read: {error}")),
        ),
        (None, None) => return None,
    };
    let read = text.and_then(|text| Secret::new(&text).map_err(|error| error.to_string()));
    read.map_err(|message| note(field, message)).ok()
}

fn queues(
    raw: BTreeMap<String, RawQueue>,
    note: &mut impl FnMut(&str, String),
) -> BTreeMap<QueueName, QueueSettings> {
    let mut queues = BTreeMap::new();
    for (name, queue) in raw {
        let path = format!("queues.{name}");
        let Some(name) = known(QueueName::new(&name), &path, note) else { continue };
        let thresholds =
            queue.debounce.map(|raw| Thresholds::new(raw.min.0, raw.max.0)).transpose();
        let debounce = known(thresholds, &format!("{path}.debounce.min"), note).flatten();
        let (concurrency, paused) = (queue.concurrency, queue.paused);
        queues.insert(name, QueueSettings { concurrency, paused, debounce });
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

/// Where fields stand in the text.
struct Places<'t>(Spanned<DeTable<'t>>);

impl<'t> Places<'t> {
    fn new(text: &'t str) -> Result<Self, Vec<Problem>> {
        DeTable::parse(text).map(Places).map_err(|error| {
            let line = line_of(text, error.span().map_or(0, |span| span.start));
            vec![Problem { line, field: String::new(), message: first_line(error.message()) }]
        })
    }

    /// The field around an offset, as a dotted path.
    fn field_at(&self, offset: usize) -> String {
        let mut path = Vec::new();
        let mut table = Some(self.0.get_ref());
        while let Some(fields) = table.take() {
            for (name, value) in fields {
                if name.span().contains(&offset)
                    || value.span().contains(&offset)
                    || holds(value, offset)
                {
                    path.push(name.get_ref().to_string());
                    table = match value.get_ref() {
                        DeValue::Table(inner) if !name.span().contains(&offset) => Some(inner),
                        _ => None,
                    };
                    break;
                }
            }
        }
        path.join(".")
    }

    /// Where a dotted path stands, or as much of it as there is.
    fn offset_of(&self, field: &str) -> usize {
        let (mut offset, mut table) = (0, Some(self.0.get_ref()));
        let mut rest = field;
        while let Some(fields) = table.take() {
            let found = fields.iter().find(|(name, _)| {
                let name: &str = name.get_ref();
                rest == name || rest.strip_prefix(name).is_some_and(|rest| rest.starts_with('.'))
            });
            let Some((name, value)) = found else { break };
            offset = name.span().start;
            rest = rest.get(name.get_ref().len()..).unwrap_or_default().trim_start_matches('.');
            if let DeValue::Table(inner) = value.get_ref() {
                table = Some(inner);
            }
        }
        offset
    }
}

/// Whether a table written under headers of its own holds the offset somewhere inside.
fn holds(value: &Spanned<DeValue<'_>>, offset: usize) -> bool {
    match value.get_ref() {
        DeValue::Table(fields) => fields.iter().any(|(name, value)| {
            name.span().contains(&offset) || value.span().contains(&offset) || holds(value, offset)
        }),
        _ => false,
    }
}

fn line_of(text: &str, offset: usize) -> usize {
    text.get(..offset).map_or(1, |before| before.matches('\n').count().saturating_add(1))
}

fn first_line(message: &str) -> String {
    message.replace('\n', "; ")
}
