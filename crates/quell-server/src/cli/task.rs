//! `quell task`: lists, pauses and resumes tasks, live (R33).

use std::io::Write;

use quell::TaskName;
use quell::queue::TaskSettings;

use super::pause::{get, post, print_paused};
use super::source::{Source, print_json, read_store};
use super::text::{rows, table};
use crate::view::{Task, Tasks};

/// `quell task …`.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// List the tasks.
    List(Source),
    /// Let no attempt of a task start, in any queue.
    Pause(TaskArgs),
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

/// Runs `quell task`.
///
/// # Errors
/// What the server or the store says.
pub fn run(command: Command, out: &mut dyn Write) -> anyhow::Result<()> {
    match command {
        Command::List(source) => list_tasks(&source, out),
        Command::Pause(args) => set_task(&args, true, out),
        Command::Resume(args) => set_task(&args, false, out),
    }
}

fn list_tasks(source: &Source, out: &mut dyn Write) -> anyhow::Result<()> {
    let answer: Tasks = match &source.store {
        Some(url) => read_store(url, async |quell| {
            let known = quell.tasks().await?.into_iter();
            let tasks = known.map(|task| Task { name: task.name, paused: task.settings.paused });
            Ok(Tasks { tasks: tasks.collect() })
        })?,
        None => get(source, "tasks")?,
    };
    if source.json {
        return print_json(&answer, out);
    }
    Ok(out.write_all(table(["name", "paused"], &rows(&answer.tasks)).as_bytes())?)
}

fn set_task(args: &TaskArgs, paused: bool, out: &mut dyn Write) -> anyhow::Result<()> {
    let TaskArgs { name, source } = args;
    let answer: Task = match &source.store {
        Some(url) => read_store(url, async |quell| {
            let is_known = quell.tasks().await?.iter().any(|task| task.name == *name);
            anyhow::ensure!(is_known, "no task {name} in the store");
            quell.store().set_task(name, &TaskSettings { paused }).await?;
            Ok(Task { name: name.clone(), paused })
        })?,
        None => post(source, ["tasks", name.as_str()], paused)?,
    };
    print_paused(source, &answer, &format!("task {name}"), paused, out)
}
