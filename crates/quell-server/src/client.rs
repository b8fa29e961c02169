//! The commands that talk to a server, or read a store directly: `trigger`, `jobs`, `job`,
//! `explain`.

use std::borrow::Cow;
use std::io::{Read, Write};
use std::net::IpAddr;

use anyhow::{Context as _, bail};
use quell::job::{ExplainTarget, JobFilter};
use quell::trigger::TriggerId;
use quell::{JobId, JobState, Key, Quell, QueueName, TaskName};
use reqwest::header::CONTENT_TYPE;
use reqwest::{Client, Method, RequestBuilder, Url};
use serde_json::{Map, Value, json};

use crate::view;

/// Where the answer comes from.
#[derive(Clone, Debug, clap::Args)]
pub struct Source {
    /// The server to ask.
    #[arg(long, value_name = "URL", env = "QUELL_SERVER", default_value = "http://127.0.0.1:7777")]
    pub(crate) server: Url,
    /// Use this store instead of asking a server.
    #[arg(long, value_name = "URL")]
    pub(crate) store: Option<String>,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// `quell trigger TASK [PAYLOAD]`.
#[derive(Debug, clap::Args)]
pub struct TriggerArgs {
    /// The task, as the server's configuration names it.
    task: TaskName,
    /// The payload: JSON, `@FILE`, or `-` for standard input.
    #[arg(default_value = "null")]
    payload: String,
    /// Run no earlier than this long from now, such as 10m.
    #[arg(long, value_name = "DURATION")]
    delay: Option<String>,
    /// Higher runs first.
    #[arg(long, allow_negative_numbers = true)]
    priority: Option<i16>,
    /// Accept it only once while this key is taken.
    #[arg(long, value_name = "KEY")]
    dedup: Option<String>,
    /// How long the dedup key is taken, such as 1h.
    #[arg(long, value_name = "DURATION", requires = "dedup")]
    dedup_ttl: Option<String>,
    /// Get the first trigger's job and output where this key was used for the same payload.
    #[arg(long, value_name = "KEY")]
    idempotency_key: Option<String>,
    /// Run it on its own, at once, whatever its key says.
    #[arg(long)]
    no_debounce: bool,
    /// The server to ask.
    #[arg(long, value_name = "URL", env = "QUELL_SERVER", default_value = "http://127.0.0.1:7777")]
    server: Url,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// `quell jobs`.
#[derive(Debug, clap::Args)]
pub struct JobsArgs {
    /// Only of this task.
    #[arg(long)]
    task: Option<TaskName>,
    /// Only of this queue.
    #[arg(long)]
    queue: Option<QueueName>,
    /// Only in this state: scheduled, running, succeeded, dead, cancelled or absorbed.
    #[arg(long, value_parser = parse_state)]
    state: Option<JobState>,
    /// Only of this debounce key.
    #[arg(long)]
    key: Option<Key>,
    /// Only jobs older than this one.
    #[arg(long, value_name = "ID")]
    before: Option<JobId>,
    /// At most this many, up to 200.
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u16).range(1..=200))]
    limit: u16,
    #[command(flatten)]
    source: Source,
}

/// `quell job ID`.
#[derive(Debug, clap::Args)]
pub struct JobArgs {
    /// The job's number.
    id: JobId,
    #[command(flatten)]
    source: Source,
}

/// `quell explain KEY|ID`.
#[derive(Debug, clap::Args)]
pub struct ExplainArgs {
    /// A debounce key, a job's number, or a trigger's id such as 42.17.
    what: String,
    /// The task of the key.
    #[arg(long)]
    task: Option<TaskName>,
    /// Take it for a key even if it looks like an id.
    #[arg(long)]
    key: bool,
    #[command(flatten)]
    source: Source,
}

fn parse_state(text: &str) -> Result<JobState, String> {
    let known = JobState::ALL.into_iter().find(|state| state.name() == text);
    known.ok_or_else(|| {
        let names = JobState::ALL.map(JobState::name).join(", ");
        format!("{text:?} is not a state: give one of {names}")
    })
}

/// Runs `quell trigger`.
///
/// # Errors
/// What the server refused, or why it cannot be reached.
pub fn trigger(args: TriggerArgs, out: &mut dyn Write) -> anyhow::Result<()> {
    let payload = read_payload(&args.payload)?;
    let mut body = Map::new();
    body.insert("payload".to_owned(), payload);
    let texts = [
        ("delay", args.delay),
        ("dedup", args.dedup),
        ("dedup_ttl", args.dedup_ttl),
        ("idempotency_key", args.idempotency_key),
    ];
    for (name, text) in texts {
        body.extend(text.map(|text| (name.to_owned(), json!(text))));
    }
    body.extend(args.priority.map(|priority| ("priority".to_owned(), json!(priority))));
    if args.no_debounce {
        body.insert("debounce".to_owned(), json!(false));
    }
    let url = join(&args.server, &["v1", "tasks", args.task.as_str(), "triggers"])?;
    let body = Value::Object(body).to_string();
    let answer = ask(&args.server, |client| {
        client.request(Method::POST, url).header(CONTENT_TYPE, "application/json").body(body)
    })?;
    if args.json {
        return Ok(writeln!(out, "{answer}")?);
    }
    let text = |name: &str| answer.get(name).and_then(Value::as_str).unwrap_or("-").to_owned();
    if text("receipt") == "existing" {
        let (job, state) = (text("job"), text("state"));
        writeln!(out, "existing as job {job}, which is {state}")?;
        return print_output(&answer, out);
    }
    if text("receipt") == "pending" {
        return Ok(writeln!(out, "pending: it runs, unless its dedup key was taken")?);
    }
    write!(out, "{} as trigger {} of job {}", text("receipt"), text("trigger"), text("job"))?;
    if let Some(triggers) = answer.get("triggers") {
        write!(out, ", which has {triggers} triggers")?;
    }
    Ok(writeln!(out, ", due {}", text("due"))?)
}

fn read_payload(text: &str) -> anyhow::Result<Value> {
    let read = read_argument(text)?;
    serde_json::from_str(&read).context("payload is not JSON (a text needs quotes: '\"text\"')")
}

/// An argument itself, `@FILE`, or `-` for standard input.
pub(crate) fn read_argument(text: &str) -> anyhow::Result<String> {
    Ok(match text.strip_prefix('@') {
        Some(file) => {
            std::fs::read_to_string(file).with_context(|| format!("cannot read {file}"))?
        }
        None if text == "-" => {
            let mut read = String::new();
            std::io::stdin().read_to_string(&mut read).context("cannot read standard input")?;
            read
        }
        None => text.to_owned(),
    })
}

/// Prints what a handler returned, if it did.
pub(crate) fn print_output(answer: &Value, out: &mut dyn Write) -> anyhow::Result<()> {
    match answer.get("output").filter(|output| !output.is_null()) {
        Some(output) => Ok(writeln!(out, "{}", printable(&output.to_string()))?),
        None => Ok(()),
    }
}

/// Runs `quell jobs`.
///
/// # Errors
/// What the server or the store says.
pub fn jobs(args: JobsArgs, out: &mut dyn Write) -> anyhow::Result<()> {
    let filter = JobFilter {
        task: args.task,
        queue: args.queue,
        state: args.state,
        key: args.key,
        before: args.before,
        limit: args.limit.into(),
    };
    let answer = match &args.source.store {
        Some(url) => read_store(url, async |quell| {
            let jobs = quell.store().jobs(&filter).await?;
            Ok(json!({ "jobs": jobs.iter().map(view::job).collect::<Vec<_>>() }))
        })?,
        None => {
            let mut url = join(&args.source.server, &["v1", "jobs"])?;
            let parts = [
                ("task", filter.task.map(|task| task.to_string())),
                ("queue", filter.queue.map(|queue| queue.to_string())),
                ("state", filter.state.map(|state| state.to_string())),
                ("key", filter.key.map(|key| key.to_string())),
                ("before", filter.before.map(|before| before.to_string())),
                ("limit", Some(filter.limit.to_string())),
            ];
            let mut query = url.query_pairs_mut();
            for (name, value) in parts {
                query.extend_pairs(value.map(|value| (name, value)));
            }
            drop(query);
            ask(&args.source.server, |client| client.get(url))?
        }
    };
    if args.source.json {
        return Ok(writeln!(out, "{answer}")?);
    }
    let rows = answer.get("jobs").and_then(Value::as_array).cloned().unwrap_or_default();
    let columns = ["id", "task", "key", "state", "triggers", "attempt", "due_at"];
    Ok(out.write_all(table(columns, &rows).as_bytes())?)
}

/// Rows in aligned columns.
pub(crate) fn table<const N: usize>(columns: [&str; N], rows: &[Value]) -> String {
    let cell = |row: &Value, column: &str| match row.get(column) {
        Some(Value::String(text)) => printable(text).replace('\n', "\\n"),
        Some(Value::Null) | None => "-".to_owned(),
        Some(other) => other.to_string(),
    };
    let heads = columns.map(|column| column.trim_end_matches("_at").to_uppercase());
    let rows: Vec<[String; N]> = std::iter::once(heads)
        .chain(rows.iter().map(|row| columns.map(|column| cell(row, column))))
        .collect();
    let mut widths = [0; N];
    for row in &rows {
        widths
            .iter_mut()
            .zip(row)
            .for_each(|(width, cell)| *width = (*width).max(cell.chars().count()));
    }
    let mut text = String::new();
    for row in rows {
        let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}"));
        text.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
        text.push('\n');
    }
    text
}

/// Runs `quell job`.
///
/// # Errors
/// What the server or the store says.
pub fn job(args: JobArgs, out: &mut dyn Write) -> anyhow::Result<()> {
    let target = ExplainTarget::Job(args.id);
    let mut answer = told(&args.source, &target)?;
    if args.source.json {
        return Ok(writeln!(out, "{answer}")?);
    }
    out.write_all(text_of(&answer).as_bytes())?;
    let payload = answer.get_mut("job").and_then(|job| job.get_mut("payload")).map(Value::take);
    Ok(writeln!(out, "  payload    {}", payload.unwrap_or_default())?)
}

/// Runs `quell explain` (R15).
///
/// # Errors
/// What the server or the store says.
pub fn explain(args: ExplainArgs, out: &mut dyn Write) -> anyhow::Result<()> {
    let target = match (args.key, args.what.parse::<TriggerId>(), args.what.parse::<JobId>()) {
        (false, Ok(trigger), _) => ExplainTarget::Trigger(trigger),
        (false, _, Ok(job)) => ExplainTarget::Job(job),
        _ => ExplainTarget::Key { task: args.task, key: Key::new(&args.what)? },
    };
    let answer = told(&args.source, &target)?;
    if args.source.json {
        return Ok(writeln!(out, "{answer}")?);
    }
    Ok(out.write_all(text_of(&answer).as_bytes())?)
}

fn text_of(answer: &Value) -> String {
    printable(answer.get("text").and_then(Value::as_str).unwrap_or_default())
}

/// Keys, payloads and outputs come from anywhere: what would steer the terminal is shown as code.
pub(crate) fn printable(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() && c != '\n' && c != '\t' {
            shown.extend(c.escape_default());
        } else {
            shown.push(c);
        }
    }
    shown
}

/// The explanation of one thing, from the server or the store.
fn told(source: &Source, target: &ExplainTarget) -> anyhow::Result<Value> {
    if let Some(url) = &source.store {
        return read_store(url, async |quell| {
            let told = quell.store().explain(target).await?;
            let told =
                told.context("nothing is known of it: it never was, or was removed or discarded")?;
            Ok(view::explanation(&told))
        });
    }
    let mut url = join(&source.server, &["v1", "explain"])?;
    let mut query = url.query_pairs_mut();
    match target {
        ExplainTarget::Job(id) => query.append_pair("id", &id.to_string()),
        ExplainTarget::Trigger(id) => query.append_pair("id", &id.to_string()),
        ExplainTarget::Key { task, key } => {
            query.extend_pairs(task.as_ref().map(|task| ("task", task.as_str())));
            query.append_pair("key", key.as_str())
        }
    };
    drop(query);
    ask(&source.server, |client| client.get(url))
}

pub(crate) fn join(server: &Url, parts: &[&str]) -> anyhow::Result<Url> {
    let mut url = server.clone();
    match url.path_segments_mut() {
        Ok(mut path) => path.pop_if_empty().extend(parts),
        Err(()) => bail!("--server {server}: give a URL such as http://127.0.0.1:7777"),
    };
    Ok(url)
}

/// Asks the server and reads its answer, or its refusal.
pub(crate) fn ask(
    server: &Url,
    request: impl FnOnce(&Client) -> RequestBuilder,
) -> anyhow::Result<Value> {
    let on_loopback = match server.host_str().map(|host| host.trim_matches(['[', ']'])) {
        Some("localhost") => true,
        Some(host) => host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback()),
        None => false,
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let client = Client::builder().timeout(std::time::Duration::from_secs(60));
        // A proxy of the environment has no way to this machine's loopback.
        let client = if on_loopback { client.no_proxy() } else { client }.build()?;
        let mut request = request(&client);
        if let Ok(token) = std::env::var("QUELL_TOKEN") {
            request = request.bearer_auth(token);
        }
        let answer = request.send().await.map_err(|error| unreachable_server(&error))?;
        let status = answer.status();
        let text = answer.text().await.context("the server's answer broke off")?;
        let body: Value = serde_json::from_str(&text).unwrap_or_default();
        if status.is_success() {
            return Ok(body);
        }
        let part = |name: &str| Some(body.get("error")?.get(name)?.as_str()?.to_owned());
        let field = part("field").map_or_else(String::new, |field| format!("{field}: "));
        bail!(
            "{field}{}",
            part("message").unwrap_or_else(|| format!("the server answered {status}"))
        )
    })
}

fn unreachable_server(error: &reqwest::Error) -> anyhow::Error {
    let what = if error.is_connect() {
        "no server answers there: start `quell serve`, or name it with --server"
    } else {
        "the server did not answer"
    };
    anyhow::anyhow!("{what} ({error})")
}

/// Uses a store that is there already.
pub(crate) fn read_store(
    url: &str,
    read: impl AsyncFnOnce(&Quell) -> anyhow::Result<Value>,
) -> anyhow::Result<Value> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async { read(&open_store(url).await?).await })
}

/// Opens a store that is there already.
pub(crate) async fn open_store(url: &str) -> anyhow::Result<Quell> {
    check_exists(url)?;
    Ok(Quell::open(&unmade(url)).await?)
}

/// The URL by which opening an Azure table that is missing fails and does not make it, and its timer stays
/// what it is: of parameters that are there twice, the last one counts.
pub(crate) fn unmade(url: &str) -> Cow<'_, str> {
    if !url.starts_with("azure:") {
        return Cow::Borrowed(url);
    }
    let mark = if url.contains('?') { '&' } else { '?' };
    Cow::Owned(format!("{url}{mark}create=false&set_timer=false"))
}

/// Refuses a store's file that is not there, which opening would make.
pub(crate) fn check_exists(url: &str) -> anyhow::Result<()> {
    if let Some(path) = url.strip_prefix("sqlite:") {
        let path = path.trim_start_matches("//").split('?').next().unwrap_or_default();
        if !std::path::Path::new(path).exists() {
            bail!("--store {url}: there is no such file");
        }
    }
    Ok(())
}
