//! `quell trigger`: triggers a task of a server.

use std::io::Write;

use anyhow::Context as _;
use quell::trigger::TraceContext;
use quell::{Payload, TaskName};
use reqwest::Method;
use reqwest::header::CONTENT_TYPE;
use serde_json::{Map, Value, json};

use super::source::{Server, ask, join, print_json, read_argument};
use super::text::print_output;
use crate::view::Receipt;

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
    #[command(flatten)]
    server: Server,
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
    // The payload as it was written: a number keeps its digits, members their order.
    let rest = Value::Object(body).to_string();
    let rest = rest.strip_prefix('{').filter(|rest| *rest != "}");
    let rest = rest.map_or_else(|| "}".to_owned(), |rest| format!(",{rest}"));
    let body = format!("{{\"payload\":{}{rest}", payload.as_str());
    let trace = match &args.traceparent {
        Some(parent) => Some(TraceContext::new(parent, None)?),
        None => trace_of_environment(),
    };
    let answer: Receipt = ask(&args.server, |client| {
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
        return print_json(&answer, out);
    }
    let shown = |part: Option<String>| part.unwrap_or_else(|| "-".to_owned());
    let job = shown(answer.job.map(|job| job.to_string()));
    match answer.receipt.as_str() {
        "existing" => {
            let state = shown(answer.state.map(|state| state.to_string()));
            writeln!(out, "existing as job {job}, which is {state}")?;
            print_output(answer.output.flatten().as_ref(), out)
        }
        "pending" => Ok(writeln!(out, "pending: it runs, unless its dedup key was taken")?),
        receipt => {
            let trigger = shown(answer.trigger.map(|trigger| trigger.to_string()));
            write!(out, "{receipt} as trigger {trigger} of job {job}")?;
            if let Some(triggers) = answer.triggers {
                write!(out, ", which has {triggers} triggers")?;
            }
            Ok(writeln!(out, ", due {}", shown(answer.due))?)
        }
    }
}

fn read_payload(text: &str) -> anyhow::Result<Payload> {
    let read = read_argument(text)?;
    Payload::from_text(read.trim()).context("payload is not JSON (a text needs quotes: '\"text\"')")
}
