//! `quell dead unreadable` and `quell dead restore`: jobs whose rows cannot be decoded (R25).

use std::io::Write;

use quell::JobId;
use quell::dead::UnreadablePage;
use serde_json::{Value, json};

use super::desk::Desk;
use super::{OneArgs, seconds};
use crate::cli::numbers::grouped;
use crate::cli::page::Page;
use crate::cli::source::print_json;
use crate::cli::text::table;
use crate::view::UnreadableJob;

/// `quell dead unreadable`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Only ids below this one, which the page before ended with.
    #[arg(long, value_name = "ID")]
    before: Option<JobId>,
    #[command(flatten)]
    page: Page,
}

pub(super) fn list(args: Args, out: &mut dyn Write) -> anyhow::Result<()> {
    let page = UnreadablePage { before: args.before, limit: args.page.limit.into() };
    let answer = Desk::open(&args.page.source)?.unreadable(&page)?;
    if args.page.source.json {
        return print_json(&answer, out);
    }
    let rows: Vec<Value> = answer.jobs.iter().map(row).collect();
    let columns = ["id", "task", "queue", "was", "set_aside_at", "reason"];
    out.write_all(table(columns, &rows).as_bytes())?;
    write!(out, "{} set aside", grouped(rows.len() as u64))?;
    match answer.next_before {
        Some(id) => Ok(writeln!(out, "; the next page: --before {id}")?),
        None => Ok(writeln!(out)?),
    }
}

fn row(job: &UnreadableJob) -> Value {
    json!({
        "id": job.id, "task": job.task, "queue": job.queue, "was": job.was,
        "set_aside_at": seconds(&job.set_aside_at), "reason": job.reason,
    })
}

pub(super) fn restore(args: &OneArgs, out: &mut dyn Write) -> anyhow::Result<()> {
    let answer = Desk::open(&args.source)?.restore(args.id)?;
    if args.source.json {
        return print_json(&answer, out);
    }
    Ok(writeln!(out, "job {} is back where it was", args.id)?)
}
