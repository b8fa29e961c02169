//! `quell task`: lists, pauses and resumes tasks, live (R33).

use std::io::Write;

use anyhow::Context as _;
use quell::TaskName;
use quell::queue::TaskSettings;

use super::pause::{Paused, get, post, print_paused};
use super::source::{Source, print_json, read_store};
use super::text::{rows, table};
use crate::view::{Task, Tasks};

/// `quell task …`.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// List the tasks.
    List(Source),
    /// Let no attempt of a task start, in any queue.
    Pause(PauseArgs),
    /// Let a paused task go on.
    Resume(TaskArgs),
}

/// A task by its name.
#[derive(Debug, clap::Args)]
pub struct TaskArgs {
    /// The task.
    name: TaskName,
    #[command(flatten)]
    source: Source,
}

/// A task and who pauses it.
#[derive(Debug, clap::Args)]
pub struct PauseArgs {
    #[command(flatten)]
    task: TaskArgs,
    #[command(flatten)]
    paused: Paused,
}

/// Runs `quell task`.
///
/// # Errors
/// What the server or the store says.
pub fn run(command: Command, out: &mut dyn Write) -> anyhow::Result<()> {
    match command {
        Command::List(source) => list_tasks(&source, out),
        Command::Pause(args) => set_task(&args.task, Some(args.paused.or_caller()), out),
        Command::Resume(args) => set_task(&args, None, out),
    }
}

fn list_tasks(source: &Source, out: &mut dyn Write) -> anyhow::Result<()> {
    let answer: Tasks = match &source.store {
        Some(url) => read_store(url, async |quell| {
            Ok(Tasks { tasks: quell.tasks().await?.iter().map(Task::from).collect() })
        })?,
        None => get(source, "tasks")?,
    };
    if source.json {
        return print_json(&answer, out);
    }
    Ok(out.write_all(table(["name", "paused"], &rows(&answer.tasks)).as_bytes())?)
}

fn set_task(args: &TaskArgs, paused: Option<Paused>, out: &mut dyn Write) -> anyhow::Result<()> {
    let TaskArgs { name, source } = args;
    let answer: Task = match &source.store {
        Some(url) => read_store(url, async |quell| {
            let is_known = quell.tasks().await?.iter().any(|task| task.name == *name);
            anyhow::ensure!(is_known, "no task {name} in the store");
            let settings = TaskSettings::default().paused(paused.is_some());
            let by = paused.as_ref().and_then(|paused| paused.by.clone());
            quell.set_task(name, &settings.paused_by(by)).await?;
            let known = quell.tasks().await?.into_iter().find(|task| task.name == *name);
            known.as_ref().map(Task::from).with_context(|| format!("no task {name} in the store"))
        })?,
        None => post(source, ["tasks", name.as_str()], paused.as_ref())?,
    };
    print_paused(source, &answer, &format!("task {name}"), paused.is_some(), out)
}
