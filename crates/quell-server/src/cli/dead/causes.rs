//! `quell dead causes`: what the dead died of (R25).

use std::io::Write;

use quell::dead::{DeadFilter, DeadPlace};
use serde_json::{Value, json};

use super::desk::Desk;
use super::{FilterArgs, seconds};
use crate::cli::numbers::grouped;
use crate::cli::source::{Source, print_json};
use crate::cli::text::table;
use crate::view::Cause;

/// `quell dead causes`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    filter: FilterArgs,
    /// Go on after this place, where the call before stopped.
    #[arg(long, value_name = "PLACE")]
    before: Option<DeadPlace>,
    /// Show at most this many causes, up to 200.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u16).range(1..=200))]
    limit: u16,
    #[command(flatten)]
    source: Source,
}

pub(super) fn run(args: Args, out: &mut dyn Write) -> anyhow::Result<()> {
    let filter =
        DeadFilter { before: args.before, limit: args.limit.into(), ..args.filter.filter()? };
    let answer = Desk::open(&args.source)?.causes(&filter)?;
    if args.source.json {
        return print_json(&answer, out);
    }
    let rows: Vec<Value> = answer.causes.iter().map(row).collect();
    let columns = ["jobs", "task", "queue", "example", "first_at", "last_at", "cause"];
    out.write_all(table(columns, &rows).as_bytes())?;
    let (shown, distinct) = (grouped(rows.len() as u64), grouped(answer.distinct as u64));
    write!(out, "{shown} of {distinct} causes, of {} dead jobs", grouped(answer.jobs))?;
    match &answer.next_before {
        Some(place) => {
            Ok(writeln!(out, ", the latest deaths: those before with --before {place}")?)
        }
        None => Ok(writeln!(out)?),
    }
}

fn row(cause: &Cause) -> Value {
    json!({
        "jobs": grouped(cause.jobs), "task": cause.task, "queue": cause.queue,
        "example": cause.example, "first_at": seconds(&cause.first_died_at),
        "last_at": seconds(&cause.last_died_at), "cause": cause.cause,
    })
}
