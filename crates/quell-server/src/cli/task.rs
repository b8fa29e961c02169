//! `quell task`: lists, sets, pauses and resumes tasks, live (R14, R33).

use std::io::Write;

use quell::queue::{TaskInfo, TaskSettings};
use quell::{Quell, TaskName};
use serde_json::{Value, json};

use super::pause::{Paused, get, post, print_paused};
use super::source::{Source, ask, join, print_json, read_store};
use super::text::{rows, table};
use crate::config::task_settings::patched;
use crate::view::{Task, Tasks};

/// `quell task …`.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// List the tasks.
    List(Source),
    /// Set thresholds of a task, in place of those that it declares.
    Set(SetArgs),
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

/// `quell task set NAME`.
#[derive(Debug, clap::Args)]
pub struct SetArgs {
    #[command(flatten)]
    task: TaskArgs,
    /// The quiet period and the longest delay, such as 10s/1m; `none` for what the task declares.
    #[arg(long, value_name = "MIN/MAX|none", value_parser = thresholds)]
    debounce: Value,
}

fn thresholds(text: &str) -> Result<Value, String> {
    if text == "none" {
        return Ok(Value::Null);
    }
    let wrong = || format!("{text:?} are no thresholds: write 10s/1m, or `none`");
    let (min, max) = text.split_once('/').ok_or_else(wrong)?;
    let (min, max) = (min.trim(), max.trim());
    for length in [min, max] {
        crate::config::duration::parse(length)?;
    }
    Ok(json!({ "min": min, "max": max }))
}

/// Runs `quell task`.
///
/// # Errors
/// What the server or the store says.
pub fn run(command: Command, out: &mut dyn Write) -> anyhow::Result<()> {
    match command {
        Command::List(source) => list_tasks(&source, out),
        Command::Set(args) => set_thresholds(&args, out),
        Command::Pause(args) => set_task(&args.task, Some(args.paused.or_caller()), out),
        Command::Resume(args) => set_task(&args, None, out),
    }
}

fn list_tasks(source: &Source, out: &mut dyn Write) -> anyhow::Result<()> {
    let answer: Tasks = match &source.store {
        Some(url) => read_store(url, async |quell| {
            Ok(Tasks {
                tasks: quell.tasks().await?.iter().map(Task::from).collect(),
                next_after: None,
            })
        })?,
        None => get(source, "tasks")?,
    };
    if source.json {
        return print_json(&answer, out);
    }
    let mut rows = rows(&answer.tasks);
    for row in &mut rows {
        let set = &row["debounce"];
        if let (Some(min), Some(max)) = (set["min"].as_str(), set["max"].as_str()) {
            row["debounce"] = json!(format!("{min}/{max}"));
        }
    }
    Ok(out.write_all(table(["name", "paused", "debounce"], &rows).as_bytes())?)
}

fn set_thresholds(args: &SetArgs, out: &mut dyn Write) -> anyhow::Result<()> {
    let TaskArgs { name, source } = &args.task;
    let patch = json!({ "debounce": args.debounce });
    let answer: Task = match &source.store {
        Some(url) => read_store(url, async |quell| {
            let patch = patch.as_object().cloned().unwrap_or_default();
            let debounce = patched(&TaskSettings::default(), patch)?.settings()?.debounce;
            change_in(quell, name, |known| TaskSettings { debounce, ..known }).await
        })?,
        None => {
            let url = join(&source.server, &["v1", "tasks", name.as_str()])?;
            ask(&source.server, |client| client.patch(url).json(&patch))?
        }
    };
    if source.json {
        return print_json(&answer, out);
    }
    Ok(writeln!(out, "task {name} is set")?)
}

/// Changes a task of a store, and reads what the store keeps.
async fn change_in(
    quell: &Quell,
    name: &TaskName,
    change: impl Fn(TaskSettings) -> TaskSettings,
) -> anyhow::Result<Task> {
    let is_known = quell.tasks().await?.iter().any(|task| task.name == *name);
    anyhow::ensure!(is_known, "no task {name} in the store");
    quell.change_task(name, |known| Ok::<_, quell::Error>(change(known))).await?;
    let settings = quell.task_settings(name).await?;
    Ok(Task::from(&TaskInfo::new(name.clone(), settings)))
}

fn set_task(args: &TaskArgs, paused: Option<Paused>, out: &mut dyn Write) -> anyhow::Result<()> {
    let TaskArgs { name, source } = args;
    let answer: Task = match &source.store {
        Some(url) => read_store(url, async |quell| {
            let by = paused.as_ref().and_then(|paused| paused.by.clone());
            let (paused, by) = (paused.is_some(), &by);
            let change = |known| TaskSettings { paused, paused_by: by.clone(), ..known };
            change_in(quell, name, change).await
        })?,
        None => post(source, ["tasks", name.as_str()], paused.as_ref())?,
    };
    print_paused(source, &answer, &format!("task {name}"), paused.is_some(), out)
}
