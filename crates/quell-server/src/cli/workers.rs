//! `quell workers`: which workers there are, and when each was last seen (R25); drains and resumes one
//! (R29).

use std::io::Write;

use quell::worker::WorkerDrain;
use quell_core::WorkerId;
use serde_json::json;

use super::pause::Paused;
use crate::cli::source::{Source, ask, join, print_json, read_store};
use crate::cli::text::{join_lists, rows, table};
use crate::view::Workers;

/// `quell workers`.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    source: Source,
}

/// What to do with a worker.
#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Let a worker claim nothing more. What it runs goes on to its end.
    Drain(DrainArgs),
    /// Let a drained worker claim again.
    Resume(WorkerArgs),
}

/// A worker by its name.
#[derive(Debug, clap::Args)]
struct WorkerArgs {
    /// The worker, as the list has it.
    name: WorkerId,
    #[command(flatten)]
    source: Source,
}

/// A worker and who drains it.
#[derive(Debug, clap::Args)]
struct DrainArgs {
    #[command(flatten)]
    worker: WorkerArgs,
    #[command(flatten)]
    caller: Paused,
}

/// Runs `quell workers`.
///
/// # Errors
/// What the server or the store says.
pub fn run(args: &Args, out: &mut dyn Write) -> anyhow::Result<()> {
    match &args.command {
        None => list(&args.source, out),
        Some(Command::Drain(args)) => set(&args.worker, Some(args.caller.clone().or_caller()), out),
        Some(Command::Resume(args)) => set(args, None, out),
    }
}

fn list(source: &Source, out: &mut dyn Write) -> anyhow::Result<()> {
    let answer: Workers = match &source.store {
        Some(url) => read_store(url, async |quell| Ok(Workers::from(&quell.workers().await?)))?,
        None => {
            let url = join(&source.server, &["v1", "workers"])?;
            ask(&source.server, |client| client.get(url))?
        }
    };
    if source.json {
        return print_json(&answer, out);
    }
    let mut rows = rows(&answer.workers);
    join_lists(&mut rows, &["queues", "tasks"]);
    let columns = [
        "worker",
        "state",
        "host",
        "pid",
        "version",
        "queues",
        "tasks",
        "busy",
        "slots",
        "started_at",
        "seen_at",
    ];
    Ok(out.write_all(table(columns, &rows).as_bytes())?)
}

/// Drains a worker, or resumes it.
fn set(args: &WorkerArgs, drains: Option<Paused>, out: &mut dyn Write) -> anyhow::Result<()> {
    let WorkerArgs { name, source } = args;
    let is_drain = drains.is_some();
    let by = drains.and_then(|caller| caller.by);
    let answer: Workers = match &source.store {
        Some(url) => read_store(url, async |quell| {
            let drain = WorkerDrain::new(name.clone(), is_drain).by(by.clone());
            anyhow::ensure!(quell.drain_worker(&drain).await? > 0, "no worker {name} is listed");
            let mut workers = quell.workers().await?;
            workers.rows.retain(|row| row.worker == *name);
            Ok(Workers::from(&workers))
        })?,
        None => {
            let verb = if is_drain { "drain" } else { "resume" };
            let url = join(&source.server, &["v1", "workers", name.as_str(), verb])?;
            ask(&source.server, |client| match &by {
                Some(by) => client.post(url).json(&json!({ "by": by })),
                None => client.post(url),
            })?
        }
    };
    if source.json {
        return print_json(&answer, out);
    }
    let what = if is_drain { "claims nothing more" } else { "claims again" };
    Ok(writeln!(out, "worker {name} {what}")?)
}
