//! `quell jobs`, `quell job` and `quell explain`: what a store knows of jobs.

use std::io::Write;

use anyhow::Context as _;
use quell::job::{ExplainTarget, JobSearch};
use quell::trigger::TriggerId;
use quell::{JobId, Key, TaskName};
use reqwest::Url;

use super::exit::Misuse;
use super::page::Page;
use super::source::{Source, ask, ask_for, join, print_json, read_store};
use super::text::{printable, rows, table};
use crate::filter::FilterText;
use crate::redact::Rules;
use crate::view;

/// Why there is nothing to show.
const UNKNOWN: &str = "nothing is known of it: no such key or job, or it was removed or discarded";

/// Why a key leads nowhere.
const FREE: &str = "no job has this key: it never was, or it is free again";

/// `quell jobs`.
#[derive(Debug, clap::Args)]
pub struct JobsArgs {
    #[command(flatten)]
    filter: FilterText,
    /// Only jobs older than this one.
    #[arg(long, value_name = "ID")]
    before: Option<JobId>,
    /// With --json: with payloads and outputs, which need the scope `payload`.
    #[arg(long, requires = "json")]
    payload: bool,
    #[command(flatten)]
    page: Page,
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
    #[arg(
        value_name = "KEY|JOB|TRIGGER",
        required_unless_present_any = ["idempotency_key", "dedup_key"],
        conflicts_with_all = ["idempotency_key", "dedup_key"]
    )]
    what: Option<String>,
    /// The job that an idempotency key leads to, as long as the key is kept.
    #[arg(long, value_name = "KEY", conflicts_with = "dedup_key")]
    idempotency_key: Option<Key>,
    /// The job that holds a dedup key.
    #[arg(long, value_name = "KEY")]
    dedup_key: Option<Key>,
    /// The task of the key; without one a key of any task is meant, and of several the newest job.
    #[arg(long)]
    task: Option<TaskName>,
    /// Take it for a key, and not for an id if there is no such key.
    #[arg(long, requires = "what")]
    key: bool,
    #[command(flatten)]
    source: Source,
}

/// Runs `quell jobs`.
///
/// # Errors
/// What the server or the store says.
pub fn jobs(args: JobsArgs, out: &mut dyn Write) -> anyhow::Result<()> {
    let (limit, source) = (usize::from(args.page.limit), args.page.source);
    let mut search = searched(&args.filter)?;
    search.filter.before = args.before;
    let mut answer = view::Jobs { jobs: Vec::new(), next_before: None };
    // A page may have few jobs and lead to a next one: the list goes on until it is full.
    loop {
        search.filter.limit = limit.saturating_sub(answer.jobs.len());
        let page = page_of(&source, &args.filter, &search, args.payload)?;
        answer.jobs.extend(page.jobs);
        answer.next_before = page.next_before;
        search.filter.before = page.next_before;
        if page.next_before.is_none() || answer.jobs.len() >= limit {
            break;
        }
    }
    if source.json {
        return print_json(&answer, out);
    }
    let columns = ["id", "task", "key", "state", "triggers", "attempt", "due_at"];
    Ok(out.write_all(table(columns, &rows(&answer.jobs)).as_bytes())?)
}

/// What a filter means; members that exclude each other are misuse.
pub(super) fn searched(filter: &FilterText) -> anyhow::Result<JobSearch> {
    filter.search().map_err(|error| {
        let option = error.field().unwrap_or("filter");
        Misuse::error(format!("--{option}: {error}"))
    })
}

fn page_of(
    source: &Source,
    filter: &FilterText,
    search: &JobSearch,
    payload: bool,
) -> anyhow::Result<view::Jobs> {
    if let Some(url) = &source.store {
        return read_store(url, async |quell| {
            Ok(view::Jobs::new(&quell.search(search).await?, payload))
        });
    }
    let mut url = join(&source.server, &["v1", "jobs"])?;
    let mut query = url.query_pairs_mut();
    query.extend_pairs(filter.pairs());
    query.extend_pairs(search.filter.before.map(|before| ("before", before.to_string())));
    query.append_pair("limit", &search.filter.limit.to_string());
    query.extend_pairs(payload.then_some(("payload", "true")));
    drop(query);
    ask(&source.server, |client| client.get(url))
}

/// Runs `quell job`.
///
/// # Errors
/// What the server or the store says.
pub fn job(args: JobArgs, out: &mut dyn Write) -> anyhow::Result<()> {
    let target = ExplainTarget::Job(args.id);
    let answer = found(&args.source, &target)?.context(UNKNOWN)?;
    if args.source.json {
        return print_json(&answer, out);
    }
    out.write_all(printable(&answer.text).as_bytes())?;
    print_payload(&answer.job, out)
}

/// Runs `quell explain` (R15).
///
/// # Errors
/// What the server or the store says.
pub fn explain(args: ExplainArgs, out: &mut dyn Write) -> anyhow::Result<()> {
    let ExplainArgs { what, idempotency_key, dedup_key, task, key, source } = args;
    let target = match (what, idempotency_key, dedup_key) {
        (Some(what), _, _) => return explain_text(&what, task, key, &source, out),
        (None, Some(key), _) => ExplainTarget::IdempotencyKey { task, key },
        (None, None, Some(key)) => ExplainTarget::DedupKey { task, key },
        (None, None, None) => anyhow::bail!("{UNKNOWN}"),
    };
    let answer = if source.store.is_some() {
        found(&source, &target)?.context(FREE)?
    } else {
        // The server says more than that nothing was found.
        let url = address_of(&source, &target)?;
        ask(&source.server, |client| client.get(url))?
    };
    if source.json {
        return print_json(&answer, out);
    }
    Ok(out.write_all(printable(&answer.text).as_bytes())?)
}

/// Explains what may be a key or an id.
fn explain_text(
    what: &str,
    task: Option<TaskName>,
    is_key: bool,
    source: &Source,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    let id = match (what.parse::<TriggerId>(), what.parse::<JobId>()) {
        (Ok(trigger), _) => Some(ExplainTarget::Trigger(trigger)),
        (Err(_), Ok(job)) => Some(ExplainTarget::Job(job)),
        (Err(_), Err(_)) => None,
    };
    let id = id.filter(|_| !is_key && task.is_none());
    // A key may look like an id: the customer 4711 is asked for more often than the job 4711.
    let by_key = match Key::new(what) {
        Ok(key) => found(source, &ExplainTarget::Key { task, key })?,
        Err(_) if id.is_some() => None,
        Err(error) => return Err(error.into()),
    };
    let found_key = by_key.is_some();
    let answer = match (by_key, &id) {
        (Some(answer), _) => answer,
        (None, Some(id)) => found(source, id)?.context(UNKNOWN)?,
        (None, None) => anyhow::bail!("{UNKNOWN}"),
    };
    if source.json {
        return print_json(&answer, out);
    }
    out.write_all(printable(&answer.text).as_bytes())?;
    if let (true, Some(ExplainTarget::Job(id))) = (found_key, id) {
        writeln!(
            out,
            "  note       {id} is a key here: `quell job {id}` shows the job of that number"
        )?;
    }
    Ok(())
}

/// The payload of a job, as it is.
pub(super) fn print_payload(job: &view::Job, out: &mut dyn Write) -> anyhow::Result<()> {
    let payload = job.payload.as_ref().map_or("-", |payload| payload.as_str());
    Ok(writeln!(out, "  payload    {}", printable(payload))?)
}

/// The explanation of one thing, from the server or the store; none where nothing is known of it.
fn found(source: &Source, target: &ExplainTarget) -> anyhow::Result<Option<view::Explanation>> {
    if let Some(url) = &source.store {
        return read_store(url, async |quell| {
            // Who may open the store sees what it has: the rules are those of a server.
            let (none, shown) = (Rules::default(), view::Contents::Shown);
            let found = view::Explanation::of(quell, target, shown, &none).await?;
            Ok(found.map(|(found, _)| found))
        });
    }
    let url = address_of(source, target)?;
    ask_for(&source.server, |client| client.get(url))
}

fn address_of(source: &Source, target: &ExplainTarget) -> anyhow::Result<Url> {
    let mut url = join(&source.server, &["v1", "explain"])?;
    let mut query = url.query_pairs_mut();
    let (task, name, value) = match target {
        ExplainTarget::Job(id) => (&None, "id", id.to_string()),
        ExplainTarget::Trigger(id) => (&None, "id", id.to_string()),
        ExplainTarget::Key { task, key } => (task, "key", key.to_string()),
        ExplainTarget::IdempotencyKey { task, key } => (task, "idempotency_key", key.to_string()),
        ExplainTarget::DedupKey { task, key } => (task, "dedup_key", key.to_string()),
    };
    query.extend_pairs(task.as_ref().map(|task| ("task", task.as_str())));
    query.append_pair(name, &value);
    drop(query);
    Ok(url)
}
