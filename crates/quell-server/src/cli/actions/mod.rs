//! `quell actions`: what a server does to all jobs that match a filter.
//!
//! `wait` follows one to its end. Names, members and meanings are those of `/v1/actions`.

mod wait;

use std::io::Write;

use serde_json::{Map, Value, json};

use super::exit::Misuse;
use super::jobs::searched;
use super::numbers::grouped;
use super::source::{Server, ask, join, print_json};
use super::text::{printable, rows, table};
use crate::filter::FilterText;
use crate::view::{Action, ActionKind, ActionState, Actions};

/// `quell actions …`.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Begin an action on all jobs that match a filter.
    Begin(Box<BeginArgs>),
    /// List the actions that the server keeps, the newest first.
    List(At),
    /// Show how far an action has come.
    Show(Named),
    /// Stop an action after the job that it is at; forget one that has ended.
    Stop(Named),
}

/// The server of the actions.
#[derive(Debug, clap::Args)]
pub struct At {
    #[command(flatten)]
    server: Server,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// An action by its name.
#[derive(Debug, clap::Args)]
pub struct Named {
    /// The action's name.
    name: String,
    /// Wait until it has ended.
    #[arg(long)]
    wait: bool,
    #[command(flatten)]
    at: At,
}

/// `quell actions begin ACTION`.
#[derive(Debug, clap::Args)]
pub struct BeginArgs {
    /// What it does to each job: cancel, run, reprioritise, redrive or discard.
    #[arg(value_parser = kind)]
    action: ActionKind,
    #[command(flatten)]
    filter: FilterText,
    /// The action's name, by which it is shown and stopped; one with the time where it is left out.
    #[arg(long)]
    name: Option<String>,
    /// At most this many jobs a second.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    rate: Option<u32>,
    /// The new priority, of reprioritise.
    #[arg(long, allow_negative_numbers = true)]
    priority: Option<i16>,
    /// Why: the log and the history keep it. For cancel and discard, where it is required.
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    /// Count the jobs that match, and change none.
    #[arg(long)]
    dry_run: bool,
    /// Wait until it has ended, and show how far it is.
    #[arg(long)]
    wait: bool,
    #[command(flatten)]
    at: At,
}

fn kind(text: &str) -> Result<ActionKind, String> {
    let read = serde_json::from_value(Value::from(text));
    read.map_err(|_| format!("{text:?}: give cancel, run, reprioritise, redrive or discard"))
}

/// Runs `quell actions`.
///
/// # Errors
/// What the server says, and that an action which was waited for did not do all.
pub fn run(command: Command, out: &mut dyn Write) -> anyhow::Result<()> {
    match command {
        Command::Begin(args) => begin(*args, out),
        Command::List(at) => list(&at, out),
        Command::Show(Named { name, wait: true, at }) => wait::until_ended(&at, &name, out),
        Command::Show(Named { name, wait: false, at }) => {
            let url = join(&at.server, &["v1", "actions", &name])?;
            print_action(&at, &ask(&at.server, |client| client.get(url))?, out)
        }
        Command::Stop(named) => stop(&named, out),
    }
}

fn begin(args: BeginArgs, out: &mut dyn Write) -> anyhow::Result<()> {
    let BeginArgs { action, filter, name, rate, priority, reason, dry_run, wait, at } = args;
    if filter.is_empty() {
        let message = "the filter matches every job: give an option such as --task or --state";
        return Err(Misuse::error(message));
    }
    searched(&filter)?;
    let name = name.unwrap_or_else(|| named_by_time(action));
    let mut body = Map::from_iter([
        ("name".to_owned(), json!(name)),
        ("action".to_owned(), json!(action)),
        ("filter".to_owned(), serde_json::to_value(&filter)?),
        ("dry_run".to_owned(), json!(dry_run)),
    ]);
    body.extend(rate.map(|rate| ("rate".to_owned(), json!(rate))));
    body.extend(priority.map(|priority| ("priority".to_owned(), json!(priority))));
    body.extend(reason.map(|reason| ("reason".to_owned(), json!(reason))));
    let url = join(&at.server, &["v1", "actions"])?;
    let begun: Action = ask(&at.server, |client| client.post(url).json(&body))?;
    if wait {
        return wait::until_ended(&at, &name, out);
    }
    if at.json {
        return print_json(&begun, out);
    }
    Ok(writeln!(out, "action {name} has begun: `quell actions show {name}` shows how far it is")?)
}

/// A name that no kept action has: of the time to the millisecond.
fn named_by_time(action: ActionKind) -> String {
    let now = jiff::Timestamp::now().strftime("%Y%m%dT%H%M%S%3f");
    format!("{}-{now}", action.name())
}

fn list(at: &At, out: &mut dyn Write) -> anyhow::Result<()> {
    let url = join(&at.server, &["v1", "actions"])?;
    let answer: Actions = ask(&at.server, |client| client.get(url))?;
    if at.json {
        return print_json(&answer, out);
    }
    let mut rows = rows(&answer.actions);
    for (row, action) in rows.iter_mut().zip(&answer.actions) {
        row["filter"] = json!(shown_filter(action));
    }
    let columns = [
        "name",
        "action",
        "state",
        "matched",
        "done",
        "skipped",
        "failed",
        "filter",
        "started_at",
        "ended_at",
    ];
    Ok(out.write_all(table(columns, &rows).as_bytes())?)
}

fn stop(Named { name, wait, at }: &Named, out: &mut dyn Write) -> anyhow::Result<()> {
    let url = join(&at.server, &["v1", "actions", name])?;
    let was: Action = ask(&at.server, |client| client.delete(url))?;
    let runs = was.state == ActionState::Running;
    if *wait && runs {
        let stopped = wait::ended(at, name)?;
        return print_action(at, &stopped, out);
    }
    if at.json {
        return print_json(&was, out);
    }
    let done = if runs { "stops after the job that it is at" } else { "is forgotten" };
    Ok(writeln!(out, "action {name} {done}")?)
}

fn shown_filter(action: &Action) -> String {
    let pairs = action.filter.pairs();
    pairs.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(" ")
}

/// An action, and the failures that it keeps.
fn print_action(at: &At, action: &Action, out: &mut dyn Write) -> anyhow::Result<()> {
    if at.json {
        return print_json(action, out);
    }
    let mut text = format!("action {}: {}\n", action.name, summary(action));
    for (field, shown) in [
        ("does", format!("{} of {}", action.action.name(), shown_filter(action))),
        ("started", action.started_at.clone()),
        ("ended", action.ended_at.clone().unwrap_or_else(|| "-".to_owned())),
        ("by", action.by.name.clone().or_else(|| action.by.peer.clone()).unwrap_or_default()),
    ] {
        text.push_str(&format!("  {field:<10} {shown}\n"));
    }
    let errors = action.errors.iter().map(|error| format!("job {}: {}", error.job, error.message));
    for error in errors.chain(action.error.clone()) {
        text.push_str(&format!("  {:<10} {error}\n", "error"));
    }
    Ok(out.write_all(printable(&text).as_bytes())?)
}

/// Its state and its numbers on one line.
fn summary(action: &Action) -> String {
    let Action { state, total, matched, done, skipped, failed, dry_run, .. } = action;
    if *dry_run {
        return format!("{}, {} match; nothing was changed", state.name(), grouped(*matched));
    }
    let matched = grouped(total.map_or(*matched, |total| total.max(*matched)));
    let [done, skipped, failed] = [done, skipped, failed].map(|count| grouped(*count));
    format!("{}, {done} of {matched} done, {skipped} skipped, {failed} failed", state.name())
}
