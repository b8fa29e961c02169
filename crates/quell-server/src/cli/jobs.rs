//! `quell jobs`, `quell job` and `quell explain`: what a store knows of jobs.

use std::io::Write;

use anyhow::Context as _;
use quell::job::{ExplainTarget, JobFilter};
use quell::trigger::TriggerId;
use quell::{JobId, JobState, Key, QueueName, TaskName};
use serde_json::{Value, json};

use super::page::Page;
use super::source::{Source, ask, join, read_store};
use super::text::{printable, table};
use crate::view;

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
        limit: args.page.limit.into(),
    };
    let source = args.page.source;
    let answer = match &source.store {
        Some(url) => read_store(url, async |quell| {
            let jobs = quell.store().jobs(&filter).await?;
            Ok(json!({ "jobs": jobs.iter().map(view::job).collect::<Vec<_>>() }))
        })?,
        None => {
            let mut url = join(&source.server, &["v1", "jobs"])?;
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
            ask(&source.server, |client| client.get(url))?
        }
    };
    if source.json {
        return Ok(writeln!(out, "{answer}")?);
    }
    let rows = answer.get("jobs").and_then(Value::as_array).cloned().unwrap_or_default();
    let columns = ["id", "task", "key", "state", "triggers", "attempt", "due_at"];
    Ok(out.write_all(table(columns, &rows).as_bytes())?)
}

/// Runs `quell job`.
///
/// # Errors
/// What the server or the store says.
pub fn job(args: JobArgs, out: &mut dyn Write) -> anyhow::Result<()> {
    let target = ExplainTarget::Job(args.id);
    let mut answer = explanation(&args.source, &target)?;
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
    let answer = explanation(&args.source, &target)?;
    if args.source.json {
        return Ok(writeln!(out, "{answer}")?);
    }
    Ok(out.write_all(text_of(&answer).as_bytes())?)
}

fn text_of(answer: &Value) -> String {
    printable(answer.get("text").and_then(Value::as_str).unwrap_or_default())
}

/// The explanation of one thing, from the server or the store.
fn explanation(source: &Source, target: &ExplainTarget) -> anyhow::Result<Value> {
    if let Some(url) = &source.store {
        return read_store(url, async |quell| {
            let found = quell.store().explain(target).await?;
            let found = found
                .context("nothing is known of it: no such job, or it was removed or discarded")?;
            Ok(view::explanation(&found))
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
