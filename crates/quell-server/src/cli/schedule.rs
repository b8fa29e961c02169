//! The command `quell schedule`: what schedules there are, and what an operator does to one (R36).

use std::io::Write;

use anyhow::Context as _;
use quell::schedule::{ScheduleName, ScheduleState};
use quell::{Quell, Timestamp};
use quell_core::schedule::no_such_schedule;
use reqwest::Method;
use reqwest::header::CONTENT_TYPE;
use serde_json::{Value, json};

use crate::cli::source::{Source, ask, join, read_store};
use crate::cli::text::{printable, table};
use crate::view;

/// `quell schedule …`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// List all schedules, with their last and next ticks.
    List(ListArgs),
    /// Show one.
    Show(Named),
    /// Let its ticks pass by until it is resumed.
    Pause(Named),
    /// Go on with the next tick; what passed by does not fire.
    Resume(Named),
    /// Trigger what it triggers, now and outside its plan.
    Run(Named),
    /// Fire the ticks of a range that have not fired.
    Backfill(Range),
    /// Remove it, with the record of its ticks.
    Delete(Named),
}

#[derive(Debug, clap::Args)]
struct ListArgs {
    #[command(flatten)]
    source: Source,
}

#[derive(Debug, clap::Args)]
struct Named {
    /// The schedule's name.
    name: ScheduleName,
    #[command(flatten)]
    source: Source,
}

#[derive(Debug, clap::Args)]
struct Range {
    /// The schedule's name.
    name: ScheduleName,
    /// The first moment, such as 2026-03-01T00:00:00Z.
    #[arg(long, value_name = "TIME")]
    from: jiff::Timestamp,
    /// The last moment.
    #[arg(long, value_name = "TIME")]
    to: jiff::Timestamp,
    #[command(flatten)]
    source: Source,
}

/// Runs `quell schedule`.
///
/// # Errors
/// What the server or the store says.
pub fn run(args: Args, out: &mut dyn Write) -> anyhow::Result<()> {
    match args.action {
        Action::List(ListArgs { source }) => list(&source, out),
        Action::Show(Named { name, source }) => {
            let answer = act(&source, (Method::GET, &name, ""), None, async |quell| {
                shown(quell, &name).await
            })?;
            print_answer(&source, &answer, out, describe)
        }
        Action::Pause(named) => switch(&named, ("pause", ScheduleState::Paused), out),
        Action::Resume(named) => switch(&named, ("resume", ScheduleState::Active), out),
        Action::Run(Named { name, source }) => {
            let answer = act(&source, (Method::POST, &name, "run"), None, async |quell| {
                let receipt = quell.store().run_schedule(None, &name).await?;
                Ok(json!({ "receipt": receipt.outcome(), "job": receipt.job() }))
            })?;
            print_answer(&source, &answer, out, |answer| {
                format!("{} as job {}\n", text(answer, "receipt"), text(answer, "job"))
            })
        }
        Action::Backfill(range) => backfill(&range, out),
        Action::Delete(Named { name, source }) => {
            let answer = act(&source, (Method::DELETE, &name, ""), None, async |quell| {
                quell.store().delete_schedule(None, &name).await?;
                Ok(json!({ "schedule": name, "deleted": true }))
            })?;
            print_answer(&source, &answer, out, |_| format!("{name} is removed\n"))
        }
    }
}

fn list(source: &Source, out: &mut dyn Write) -> anyhow::Result<()> {
    let answer = match &source.store {
        Some(url) => read_store(url, async |quell| {
            let known = quell.store().schedules().await?;
            Ok(json!({ "schedules": known.iter().map(view::schedule).collect::<Vec<_>>() }))
        })?,
        None => {
            let url = join(&source.server, &["v1", "schedules"])?;
            ask(&source.server, |client| client.get(url))?
        }
    };
    print_answer(source, &answer, out, |answer| {
        let rows = answer.get("schedules").and_then(Value::as_array).cloned().unwrap_or_default();
        table(["name", "task", "plan", "catch_up", "state", "last", "next"], &rows)
    })
}

fn switch(
    Named { name, source }: &Named,
    (word, state): (&str, ScheduleState),
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    let answer = act(source, (Method::POST, name, word), None, async |quell| {
        quell.store().set_schedule_state(None, name, state).await?;
        shown(quell, name).await
    })?;
    print_answer(source, &answer, out, |answer| {
        let (state, next) = (text(answer, "state"), text(answer, "next"));
        format!("{name} is {state}, next tick {next}\n")
    })
}

fn backfill(range: &Range, out: &mut dyn Write) -> anyhow::Result<()> {
    let Range { name, from, to, source } = range;
    let body = json!({ "from": from.to_string(), "to": to.to_string() });
    let moment = |at: &jiff::Timestamp| Timestamp::from_micros(at.as_microsecond());
    let answer = act(source, (Method::POST, name, "backfill"), Some(body), async |quell| {
        let fired = quell.store().backfill(None, name, moment(from), moment(to)).await?;
        Ok(json!({ "schedule": name, "fired": fired }))
    })?;
    print_answer(source, &answer, out, |answer| {
        format!("{} ticks fired\n", answer.get("fired").cloned().unwrap_or_default())
    })
}

/// Asks the server, or does it on the store.
fn act(
    source: &Source,
    (method, name, action): (Method, &ScheduleName, &str),
    body: Option<Value>,
    on_store: impl AsyncFnOnce(&Quell) -> anyhow::Result<Value>,
) -> anyhow::Result<Value> {
    if let Some(url) = &source.store {
        return read_store(url, on_store);
    }
    let parts = ["v1", "schedules", name.as_str(), action];
    let parts: Vec<&str> = parts.into_iter().filter(|part| !part.is_empty()).collect();
    let url = join(&source.server, &parts)?;
    ask(&source.server, |client| {
        let request = client.request(method, url);
        match body {
            Some(body) => request.header(CONTENT_TYPE, "application/json").body(body.to_string()),
            None => request,
        }
    })
}

async fn shown(quell: &Quell, name: &ScheduleName) -> anyhow::Result<Value> {
    let known = quell.store().schedules().await?;
    let info = known.iter().find(|info| info.schedule.name == *name);
    Ok(view::schedule(info.with_context(|| no_such_schedule(name).to_string())?))
}

fn print_answer(
    source: &Source,
    answer: &Value,
    out: &mut dyn Write,
    text: impl FnOnce(&Value) -> String,
) -> anyhow::Result<()> {
    if source.json {
        return Ok(writeln!(out, "{answer}")?);
    }
    Ok(out.write_all(printable(&text(answer)).as_bytes())?)
}

fn text(answer: &Value, field: &str) -> String {
    answer.get(field).and_then(Value::as_str).unwrap_or("-").to_owned()
}

/// One schedule, a field per line.
fn describe(answer: &Value) -> String {
    let mut lines = format!("schedule {}: {}\n", text(answer, "name"), text(answer, "state"));
    for field in ["plan", "task", "queue", "key", "catch_up", "last", "next"] {
        lines.push_str(&format!("  {field:<10} {}\n", text(answer, field)));
    }
    let payload = answer.get("payload").cloned().unwrap_or_default();
    lines.push_str(&format!("  {:<10} {payload}\n", "payload"));
    lines
}
