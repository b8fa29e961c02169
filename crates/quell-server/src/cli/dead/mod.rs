//! The command `quell dead`: what an operator does with dead jobs (R25, R26).
//!
//! `desk` asks a server or a store, `causes` counts, `many` takes what matches page by page, `file` exports and
//! imports.

mod causes;
mod desk;
mod file;
mod many;
mod unreadable;

use std::io::Write;

use anyhow::{Context as _, ensure};
use quell::dead::{DeadFilter, DeadPlace};
use quell::{JobId, JobState, Payload, QueueName, TaskName, Timestamp};
use quell_core::SettledAs;
use serde_json::{Value, json};

use crate::cli::exit::Misuse;
use crate::cli::jobs::print_payload;
use crate::cli::numbers::grouped;
use crate::cli::page::Page;
use crate::cli::source::{Source, print_json, read_argument};
use crate::cli::text::{printable, table};
use crate::config::duration;
use crate::view::{DeadJobs, Job};
use desk::Desk;

/// How much of an error a row of the list shows, in characters.
const SHOWN_ERROR: usize = 100;

/// `quell dead …`.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// List dead jobs, the latest death first.
    List(ListArgs),
    /// Count dead jobs by cause, the most frequent first.
    Causes(causes::Args),
    /// Show one with its payload and all its attempts.
    Show(OneArgs),
    /// Put one back, or all that match at a chosen rate.
    Redrive(RedriveArgs),
    /// Remove one, or all that match, for good.
    Discard(DiscardArgs),
    /// List the jobs that were set aside because their rows cannot be decoded, newest first.
    Unreadable(unreadable::Args),
    /// Put such a job back, if its row can be decoded now.
    Restore(OneArgs),
    /// Write all that match to a file of JSON lines.
    Export(file::ExportArgs),
    /// Take the dead jobs of such a file in; what is here already stays as it is.
    Import(file::ImportArgs),
}

/// Which of the dead are meant.
#[derive(Clone, Debug, clap::Args)]
pub struct FilterArgs {
    /// Only of this task.
    #[arg(long)]
    task: Option<TaskName>,
    /// Only of this queue.
    #[arg(long)]
    queue: Option<QueueName>,
    /// Only with this text in their last error, in capitals or not.
    #[arg(long, value_name = "TEXT")]
    error: Option<String>,
    /// Only those that died at this time or later: 2026-03-01T00:00:00Z, or 2h for two hours ago.
    #[arg(long, value_name = "TIME", value_parser = moment)]
    died_after: Option<Timestamp>,
    /// Only those that died before this time.
    #[arg(long, value_name = "TIME", value_parser = moment)]
    died_before: Option<Timestamp>,
}

impl FilterArgs {
    fn filter(self) -> quell::Result<DeadFilter> {
        let FilterArgs { task, queue, error, died_after, died_before } = self;
        let filter =
            DeadFilter { task, queue, error, died_after, died_before, before: None, limit: 0 };
        filter.validate()?;
        Ok(filter)
    }

    /// Whether nothing is left out.
    fn is_everything(&self) -> bool {
        let FilterArgs { task, queue, error, died_after, died_before } = self;
        task.is_none()
            && queue.is_none()
            && error.is_none()
            && died_after.is_none()
            && died_before.is_none()
    }
}

/// A moment, or how long ago it was.
fn moment(text: &str) -> Result<Timestamp, String> {
    if let Ok(ago) = duration::parse(text) {
        let now = Timestamp::from_micros(jiff::Timestamp::now().as_microsecond());
        return Ok(now.before(ago));
    }
    let at = text.parse::<jiff::Timestamp>().map_err(|_| {
        format!("{text:?} is not a time: give one such as 2026-03-01T00:00:00Z, or 2h for ago")
    })?;
    Ok(Timestamp::from_micros(at.as_microsecond()))
}

/// `quell dead list`.
#[derive(Debug, clap::Args)]
pub struct ListArgs {
    #[command(flatten)]
    filter: FilterArgs,
    /// Go on after this place, which the page before ended with.
    #[arg(long, value_name = "PLACE")]
    before: Option<DeadPlace>,
    /// With --json: with payloads, which need the scope `payload`.
    #[arg(long, requires = "json")]
    payload: bool,
    #[command(flatten)]
    page: Page,
}

/// A job by its number.
#[derive(Debug, clap::Args)]
pub struct OneArgs {
    /// The job's number.
    id: JobId,
    #[command(flatten)]
    source: Source,
}

/// `quell dead redrive ID` or `--all`.
#[derive(Debug, clap::Args)]
pub struct RedriveArgs {
    #[command(flatten)]
    which: Which,
    /// Run it with this payload from now on: JSON, `@FILE`, or `-` for standard input. The original
    /// stays on record.
    #[arg(long, value_name = "JSON", conflicts_with = "all")]
    payload: Option<String>,
    /// With --all: how many a second.
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    rate: u32,
    #[command(flatten)]
    source: Source,
}

/// `quell dead discard ID` or `--all`.
#[derive(Debug, clap::Args)]
pub struct DiscardArgs {
    #[command(flatten)]
    which: Which,
    /// Why: the log and the history keep it.
    #[arg(long, value_name = "TEXT", required_unless_present = "dry_run")]
    reason: Option<String>,
    /// With --all: do it.
    #[arg(long)]
    yes: bool,
    #[command(flatten)]
    source: Source,
}

/// One, or all that match.
#[derive(Clone, Debug, clap::Args)]
struct Which {
    /// The job's number.
    #[arg(required_unless_present = "all", conflicts_with = "all")]
    id: Option<JobId>,
    /// All that match; without a filter, all there are.
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    filter: FilterArgs,
    /// With --all: only say what would be done.
    #[arg(long, requires = "all")]
    dry_run: bool,
}

/// Which of the dead a command is about.
enum Chosen {
    One(JobId),
    All(DeadFilter),
}

impl Which {
    fn chosen(self) -> anyhow::Result<Chosen> {
        match self.id {
            Some(id) => {
                if !self.filter.is_everything() {
                    return Err(Misuse::error("give a job or a filter with --all, not both"));
                }
                // `requires` says nothing where what is required conflicts with what was given.
                if self.dry_run {
                    let message =
                        format!("--dry-run goes with --all: `quell dead show {id}` shows one");
                    return Err(Misuse::error(message));
                }
                Ok(Chosen::One(id))
            }
            None => Ok(Chosen::All(self.filter.filter()?)),
        }
    }
}

/// Runs `quell dead`.
///
/// # Errors
/// What the server or the store says, or what is wrong with a file.
pub fn run(command: Command, out: &mut dyn Write) -> anyhow::Result<()> {
    match command {
        Command::List(args) => list(args, out),
        Command::Causes(args) => causes::run(args, out),
        Command::Show(args) => show(&args, out),
        Command::Redrive(args) => redrive(args, out),
        Command::Discard(args) => discard(args, out),
        Command::Unreadable(args) => unreadable::list(args, out),
        Command::Restore(args) => unreadable::restore(&args, out),
        Command::Export(args) => file::export(args, out),
        Command::Import(args) => file::import(args, out),
    }
}

fn list(args: ListArgs, out: &mut dyn Write) -> anyhow::Result<()> {
    let filter =
        DeadFilter { before: args.before, limit: args.page.limit.into(), ..args.filter.filter()? };
    let answer = Desk::open(&args.page.source)?.listed(&filter, args.payload)?;
    if args.page.source.json {
        return print_json(&answer, out);
    }
    write_page(&answer, out)
}

/// A page of the list, and how to see the next.
fn write_page(answer: &DeadJobs, out: &mut dyn Write) -> anyhow::Result<()> {
    let rows: Vec<Value> = answer.jobs.iter().map(row).collect();
    let columns = ["id", "task", "queue", "died_at", "starts", "error"];
    out.write_all(table(columns, &rows).as_bytes())?;
    write!(out, "{} of {}", grouped(rows.len() as u64), grouped(answer.matching))?;
    match &answer.next_before {
        Some(place) => Ok(writeln!(out, "; the next page: --before {place}")?),
        None => Ok(writeln!(out)?),
    }
}

fn row(job: &Job) -> Value {
    let error = job.error.as_deref().unwrap_or_default();
    // The output of a command, which separates one cause from another, follows the first line.
    let line = error.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut shown: String = line.chars().take(SHOWN_ERROR).collect();
    if shown.len() < line.len() {
        shown.push('…');
    }
    json!({
        "id": job.id, "task": job.task, "queue": job.queue,
        "died_at": job.ended_at.as_deref().map(seconds), "starts": job.starts, "error": shown,
    })
}

/// A time in whole seconds, which are enough in a list.
fn seconds(time: &str) -> &str {
    time.get(..19).unwrap_or(time)
}

fn show(args: &OneArgs, out: &mut dyn Write) -> anyhow::Result<()> {
    let OneArgs { id, source } = args;
    let answer = Desk::open(source)?.show(*id)?;
    let state = answer.job.state;
    ensure!(state == JobState::Dead, "job {id} is {state}, not dead: `quell job {id}` shows it");
    if source.json {
        return print_json(&answer, out);
    }
    out.write_all(printable(&answer.text).as_bytes())?;
    writeln!(out, "  died       {}", answer.job.ended_at.as_deref().unwrap_or("-"))?;
    print_payload(&answer.job, out)
}

fn redrive(args: RedriveArgs, out: &mut dyn Write) -> anyhow::Result<()> {
    let (source, dry_run) = (args.source, args.which.dry_run);
    let id = match args.which.chosen()? {
        Chosen::One(id) => id,
        Chosen::All(filter) if dry_run => return would(&source, filter, "redriven", out),
        Chosen::All(filter) => return many::redrive(&source, filter, args.rate, out),
    };
    let payload = match args.payload {
        Some(text) => {
            let payload = Payload::from_text(read_argument(&text)?);
            Some(payload.context("--payload (a text needs quotes: '\"text\"')")?)
        }
        None => None,
    };
    let answer = Desk::open(&source)?.redrive(id, payload)?;
    if source.json {
        return print_json(&answer, out);
    }
    match answer.became {
        SettledAs::Absorbed { by, .. } => {
            Ok(writeln!(out, "job {id} joined job {by}, the open window of its key")?)
        }
        _ => Ok(writeln!(out, "job {id} is redriven with fresh attempts")?),
    }
}

fn discard(args: DiscardArgs, out: &mut dyn Write) -> anyhow::Result<()> {
    let (source, dry_run) = (args.source, args.which.dry_run);
    let reason = args.reason.unwrap_or_default();
    if !dry_run {
        quell_core::dead::validate_reason(&reason)?;
    }
    let id = match args.which.chosen()? {
        Chosen::One(id) => id,
        Chosen::All(filter) if dry_run => return would(&source, filter, "discarded", out),
        Chosen::All(filter) => return many::discard(&source, filter, &reason, args.yes, out),
    };
    let answer = Desk::open(&source)?.discard(id, &reason)?;
    if source.json {
        return print_json(&answer, out);
    }
    Ok(writeln!(out, "job {id} is discarded")?)
}

/// Prints what a command with a filter would do.
fn would(
    source: &Source,
    filter: DeadFilter,
    done: &str,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    let mut answer = Desk::open(source)?.list(&DeadFilter { limit: 10, ..filter })?;
    if source.json {
        return Ok(writeln!(out, "{}", json!({ "matching": answer.matching }))?);
    }
    answer.next_before = None;
    write_page(&answer, out)?;
    let matching = grouped(answer.matching);
    Ok(writeln!(out, "{matching} would be {done}; nothing was changed")?)
}
