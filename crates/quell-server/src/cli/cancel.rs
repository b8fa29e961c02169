//! `quell cancel`, `quell flush`, `quell run` and `quell reprioritise`: what an operator does to a job
//! that waits, or to the window of a key.

use std::io::Write;

use anyhow::Context as _;
use quell::job::Adjustment;
use quell::{JobId, JobState, Key, TaskName};
use reqwest::header::CONTENT_TYPE;
use serde::de::DeserializeOwned;
use serde_json::json;

use super::source::{Source, ask, join, print_json, read_store};
use crate::view::{AdjustedJob, CancelledJob, CancelledWindow, FlushedWindow};

/// Why a job was cancelled, as its record has it.
const REASON: &str = "cancelled from the command line";

/// `quell cancel ID`, or `quell cancel --task TASK --key KEY`.
#[derive(Debug, clap::Args)]
pub struct CancelArgs {
    /// The job's number.
    #[arg(required_unless_present = "key", conflicts_with_all = ["task", "key"])]
    id: Option<JobId>,
    /// In place of a job: the open window of this task's key.
    #[arg(long, requires = "key")]
    task: Option<TaskName>,
    /// That key.
    #[arg(long, requires = "task")]
    key: Option<Key>,
    #[command(flatten)]
    source: Source,
}

/// `quell flush TASK KEY`.
#[derive(Debug, clap::Args)]
pub struct FlushArgs {
    /// The task.
    task: TaskName,
    /// The debounce key.
    key: Key,
    #[command(flatten)]
    source: Source,
}

/// `quell run ID`.
#[derive(Debug, clap::Args)]
pub struct RunArgs {
    /// The job's number.
    id: JobId,
    #[command(flatten)]
    source: Source,
}

/// `quell reprioritise ID PRIORITY`.
#[derive(Debug, clap::Args)]
pub struct ReprioritiseArgs {
    /// The job's number.
    id: JobId,
    /// Its priority from now on, from -32768 to 32767; higher runs first.
    #[arg(allow_negative_numbers = true)]
    priority: i16,
    #[command(flatten)]
    source: Source,
}

/// Runs `quell cancel`.
///
/// # Errors
/// What the server or the store says, such as that the job has ended.
pub fn cancel(args: CancelArgs, out: &mut dyn Write) -> anyhow::Result<()> {
    let CancelArgs { id, task, key, source } = args;
    if let Some(id) = id {
        let answer: CancelledJob = match &source.store {
            Some(url) => read_store(url, async |quell| {
                quell.store().cancel(None, id, REASON).await?;
                Ok(CancelledJob { job: id, state: JobState::Cancelled })
            })?,
            None => {
                let url = join(&source.server, &["v1", "jobs", &id.to_string(), "cancel"])?;
                ask(&source.server, |client| client.post(url))?
            }
        };
        if source.json {
            return print_json(&answer, out);
        }
        return Ok(writeln!(out, "job {id} is cancelled")?);
    }
    let (task, key) = task.zip(key).context("give a job, or --task and --key")?;
    let answer: CancelledWindow = match &source.store {
        Some(url) => read_store(url, async |quell| {
            let job = quell.store().cancel_key(None, &task, &key).await?;
            Ok(job.map(|job| CancelledWindow { job, cancelled: true }))
        })?
        .context(NO_WINDOW)?,
        None => of_window(&source, &task, &key, "cancel")?,
    };
    if source.json {
        return print_json(&answer, out);
    }
    Ok(writeln!(out, "job {}, the open window of the key, is cancelled", answer.job)?)
}

/// Runs `quell flush`.
///
/// # Errors
/// What the server or the store says, such as that no window of the key is open.
pub fn flush(args: &FlushArgs, out: &mut dyn Write) -> anyhow::Result<()> {
    let FlushArgs { task, key, source } = args;
    let answer: FlushedWindow = match &source.store {
        Some(url) => read_store(url, async |quell| {
            let job = quell.store().flush(None, task, key).await?;
            Ok(job.map(|job| FlushedWindow { job, flushed: true }))
        })?
        .context(NO_WINDOW)?,
        None => of_window(source, task, key, "flush")?,
    };
    if source.json {
        return print_json(&answer, out);
    }
    Ok(writeln!(out, "job {}, the open window of the key, is due now", answer.job)?)
}

/// Runs `quell run`.
///
/// # Errors
/// What the server or the store says, such as that the job does not wait.
pub fn run(args: &RunArgs, out: &mut dyn Write) -> anyhow::Result<()> {
    let RunArgs { id, source } = args;
    let answer: AdjustedJob = match &source.store {
        Some(url) => adjusted(url, *id, Adjustment::default().run_now(true))?,
        None => {
            let url = join(&source.server, &["v1", "jobs", &id.to_string(), "run"])?;
            ask(&source.server, |client| client.post(url))?
        }
    };
    if source.json {
        return print_json(&answer, out);
    }
    let waits =
        if answer.waits_for_its_key { ", after the job of its key that goes first" } else { "" };
    Ok(writeln!(out, "job {id} is due at {}{waits}", answer.due_at)?)
}

/// Runs `quell reprioritise`.
///
/// # Errors
/// What the server or the store says, such as that the job does not wait.
pub fn reprioritise(args: &ReprioritiseArgs, out: &mut dyn Write) -> anyhow::Result<()> {
    let ReprioritiseArgs { id, priority, source } = args;
    let answer: AdjustedJob = match &source.store {
        Some(url) => adjusted(url, *id, Adjustment::default().priority(*priority))?,
        None => {
            let url = join(&source.server, &["v1", "jobs", &id.to_string()])?;
            let body = json!({ "priority": priority }).to_string();
            ask(&source.server, |client| {
                client.patch(url).header(CONTENT_TYPE, "application/json").body(body)
            })?
        }
    };
    if source.json {
        return print_json(&answer, out);
    }
    Ok(writeln!(out, "job {id} has priority {}", answer.priority)?)
}

fn adjusted(store: &str, id: JobId, adjustment: Adjustment) -> anyhow::Result<AdjustedJob> {
    read_store(store, async |quell| Ok(AdjustedJob::new(id, &quell.adjust(id, adjustment).await?)))
}

const NO_WINDOW: &str = "no window of this key is open";

fn of_window<T: DeserializeOwned>(
    source: &Source,
    task: &TaskName,
    key: &Key,
    action: &str,
) -> anyhow::Result<T> {
    let url = join(&source.server, &["v1", "tasks", task.as_str(), "windows", action])?;
    let body = json!({ "key": key }).to_string();
    ask(&source.server, |client| {
        client.post(url).header(CONTENT_TYPE, "application/json").body(body)
    })
}
