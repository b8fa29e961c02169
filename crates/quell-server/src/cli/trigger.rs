//! `quell trigger`: triggers a task of a server.

use std::io::Write;

use anyhow::Context as _;
use quell::TaskName;
use quell::trigger::TraceContext;
use reqwest::header::CONTENT_TYPE;
use reqwest::{Method, Url};
use serde_json::{Map, Value, json};

use super::source::{ask, join, read_argument};
use super::text::print_output;

/// `quell trigger TASK [PAYLOAD]`.
#[derive(Debug, clap::Args)]
pub struct Args {
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
    /// The trace that it belongs to: a W3C `traceparent`; by default the variables `TRACEPARENT` and
    /// `TRACESTATE`, where they are well-formed.
    #[arg(long, value_name = "TRACEPARENT")]
    traceparent: Option<String>,
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

/// The trace of the program that calls this one: variables are ignored where they are malformed, as W3C
/// Trace Context has it of headers.
fn trace_of_environment() -> Option<TraceContext> {
    let parent = std::env::var("TRACEPARENT").ok()?;
    TraceContext::new(&parent, std::env::var("TRACESTATE").ok().as_deref()).ok()
}

/// Runs `quell trigger`.
///
/// # Errors
/// What the server refused, or why it cannot be reached.
pub fn run(args: Args, out: &mut dyn Write) -> anyhow::Result<()> {
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
    let trace = match &args.traceparent {
        Some(parent) => Some(TraceContext::new(parent, None)?),
        None => trace_of_environment(),
    };
    let answer = ask(&args.server, |client| {
        let request = client.request(Method::POST, url).header(CONTENT_TYPE, "application/json");
        let request = match &trace {
            Some(context) => {
                let state = context.tracestate().map(|state| ("tracestate", state));
                [("traceparent", context.traceparent())]
                    .into_iter()
                    .chain(state)
                    .fold(request, |request, (name, value)| request.header(name, value))
            }
            None => request,
        };
        request.body(body)
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
