//! `quell queue`: lists and sets queues, live (R31–R33).

use std::io::Write;

use anyhow::Context as _;
use quell::queue::{QueueInfo, QueueSettings};
use quell::{Quell, QueueName};
use reqwest::Method;
use reqwest::header::CONTENT_TYPE;
use serde_json::{Map, Value, json};

use super::pause::{Paused, get, post, print_paused};
use super::source::{Source, ask, join, print_json, read_store};
use super::text::{rows, table};
use crate::config::queues::patched;
use crate::view::{DeletedQueue, Partitions, Queue, Queues};

/// `quell queue …`.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// List the queues with their settings.
    List(Source),
    /// List the partitions of a queue with the most waiting jobs.
    Partitions(QueueArgs),
    /// Change settings of a queue; makes it where there is none.
    Set(SetArgs),
    /// Let nothing of a queue start.
    Pause(PauseArgs),
    /// Let a paused queue go on.
    Resume(QueueArgs),
    /// Delete a queue's settings: nothing starts until it is set again.
    Delete(QueueArgs),
}

/// A queue by its name.
#[derive(Debug, clap::Args)]
pub struct QueueArgs {
    /// The queue.
    name: QueueName,
    #[command(flatten)]
    source: Source,
}

/// A queue and who pauses it.
#[derive(Debug, clap::Args)]
pub struct PauseArgs {
    #[command(flatten)]
    queue: QueueArgs,
    #[command(flatten)]
    paused: Paused,
}

/// `quell queue set NAME`: only what is given changes.
#[derive(Debug, clap::Args)]
pub struct SetArgs {
    /// The queue.
    name: QueueName,
    /// Attempts at once, over all processes; `none` for no limit.
    #[arg(long, value_name = "N|none", value_parser = number)]
    concurrency: Option<Value>,
    /// Attempts at once by one worker.
    #[arg(long, value_name = "N|none", value_parser = number)]
    worker_concurrency: Option<Value>,
    /// Attempts at once of one partition.
    #[arg(long, value_name = "N|none", value_parser = number)]
    partition_concurrency: Option<Value>,
    /// In which order the jobs of one partition start: `by_priority`, or `strict`, one at a time, each
    /// after all before it have ended.
    #[arg(long, value_name = "ORDER", value_parser = order)]
    partition_order: Option<Value>,
    /// Starts per time, such as 100/1m.
    #[arg(long, value_name = "N/DURATION|none", value_parser = rate)]
    rate: Option<Value>,
    /// Starts per time of one partition.
    #[arg(long, value_name = "N/DURATION|none", value_parser = rate)]
    partition_rate: Option<Value>,
    #[command(flatten)]
    source: Source,
}

fn number(text: &str) -> Result<Value, String> {
    if text == "none" {
        return Ok(Value::Null);
    }
    let number = text.parse::<u32>();
    number.map(Value::from).map_err(|_| format!("{text:?} is not a number, nor `none`"))
}

fn order(text: &str) -> Result<Value, String> {
    match text {
        "by_priority" | "strict" => Ok(Value::from(text)),
        _ => Err(format!("{text:?} is no order: write `by_priority` or `strict`")),
    }
}

fn rate(text: &str) -> Result<Value, String> {
    if text == "none" {
        return Ok(Value::Null);
    }
    let wrong = || format!("{text:?} is not a rate: write 100/1m, or `none`");
    let (limit, period) = text.split_once('/').ok_or_else(wrong)?;
    let limit = limit.trim().parse::<u32>().map_err(|_| wrong())?;
    crate::config::duration::parse(period)?;
    Ok(json!({ "limit": limit, "period": period.trim() }))
}

/// Runs `quell queue`.
///
/// # Errors
/// What the server or the store says.
pub fn run(command: Command, out: &mut dyn Write) -> anyhow::Result<()> {
    match command {
        Command::List(source) => list_queues(&source, out),
        Command::Partitions(args) => list_partitions(&args, out),
        Command::Set(args) => {
            let fields = [
                ("concurrency", args.concurrency),
                ("worker_concurrency", args.worker_concurrency),
                ("partition_concurrency", args.partition_concurrency),
                ("partition_order", args.partition_order),
                ("rate", args.rate),
                ("partition_rate", args.partition_rate),
            ];
            let given = fields.into_iter().filter_map(|(name, value)| Some((name, value?)));
            let patch = given.map(|(name, value)| (name.to_owned(), value)).collect();
            change(&args.name, patch, true, &args.source, out)
        }
        Command::Pause(args) => set_paused(&args.queue, Some(args.paused.or_caller()), out),
        Command::Resume(args) => set_paused(&args, None, out),
        Command::Delete(args) => delete(&args, out),
    }
}

fn list_partitions(args: &QueueArgs, out: &mut dyn Write) -> anyhow::Result<()> {
    let (name, source) = (args.name.as_str(), &args.source);
    let answer: Partitions = match &source.store {
        Some(url) => read_store(url, async |quell| {
            let queue = quell.queue(name);
            queue.settings().await?.with_context(|| format!("there is no queue {name}"))?;
            Ok(Partitions::from(&queue.backlog().await?))
        })?,
        None => {
            let url = join(&source.server, &["v1", "queues", name, "partitions"])?;
            ask(&source.server, |client| client.get(url))?
        }
    };
    if source.json {
        return print_json(&answer, out);
    }
    let columns = ["partition", "due", "later", "running", "first_due"];
    out.write_all(table(columns, &rows(&answer.partitions)).as_bytes())?;
    if !answer.whole {
        writeln!(
            out,
            "There may be more: a look reads 10,000 waiting jobs and shows 50 partitions."
        )?;
    }
    Ok(())
}

fn list_queues(source: &Source, out: &mut dyn Write) -> anyhow::Result<()> {
    let answer: Queues = match &source.store {
        Some(url) => read_store(url, async |quell| {
            let queues = quell.queues().await?;
            Ok(Queues { queues: queues.iter().map(Queue::from).collect(), next_after: None })
        })?,
        None => get(source, "queues")?,
    };
    if source.json {
        return print_json(&answer, out);
    }
    let mut rows = rows(&answer.queues);
    for row in &mut rows {
        for name in ["rate", "partition_rate"] {
            let per =
                |rate: &Value| Some(format!("{}/{}", rate["limit"], rate["period"].as_str()?));
            if let Some(text) = row.get(name).and_then(per) {
                row[name] = json!(text);
            }
        }
    }
    let columns = [
        "name",
        "paused",
        "concurrency",
        "worker_concurrency",
        "partition_concurrency",
        "partition_order",
        "rate",
        "partition_rate",
    ];
    Ok(out.write_all(table(columns, &rows).as_bytes())?)
}

/// Changes what `patch` names; `make` a queue that is not there.
fn change(
    name: &QueueName,
    patch: Map<String, Value>,
    make: bool,
    source: &Source,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    let answer: Queue = match &source.store {
        Some(url) => read_store(url, async |quell| change_in(quell, name, patch, make).await)?,
        None => {
            let url = join(&source.server, &["v1", "queues", name.as_str()])?;
            let listed: Queues = get(source, "queues")?;
            let is_known = listed.queues.iter().any(|queue| queue.name == *name);
            let method = if is_known || !make { Method::PATCH } else { Method::PUT };
            let body = Value::Object(patch).to_string();
            ask(&source.server, |client| {
                client.request(method, url).header(CONTENT_TYPE, "application/json").body(body)
            })?
        }
    };
    if source.json {
        return print_json(&answer, out);
    }
    Ok(writeln!(out, "queue {name} is set")?)
}

async fn change_in(
    quell: &Quell,
    name: &QueueName,
    patch: Map<String, Value>,
    make: bool,
) -> anyhow::Result<Queue> {
    let queue = quell.queue(name.as_str());
    let known = queue.settings().await?.or_else(|| make.then(QueueSettings::default));
    let known = known.with_context(|| format!("no queue {name}: set it first"))?;
    let settings = patched(&known, patch)?.settings()?;
    queue.set(&settings).await?;
    let settings = queue.settings().await?.unwrap_or(settings);
    Ok(Queue::from(&QueueInfo { name: name.clone(), settings }))
}

async fn set_paused_in(
    quell: &Quell,
    name: &QueueName,
    paused: Option<&Paused>,
) -> anyhow::Result<Queue> {
    let queue = quell.queue(name.as_str());
    let known = queue.settings().await?;
    let known = known.with_context(|| format!("no queue {name}: set it first"))?;
    let paused_by = paused.and_then(|paused| paused.by.clone());
    queue.set(&QueueSettings { paused: paused.is_some(), paused_by, ..known.clone() }).await?;
    let settings = queue.settings().await?.unwrap_or(known);
    Ok(Queue::from(&QueueInfo { name: name.clone(), settings }))
}

fn set_paused(args: &QueueArgs, paused: Option<Paused>, out: &mut dyn Write) -> anyhow::Result<()> {
    let QueueArgs { name, source } = args;
    let answer: Queue = match &source.store {
        Some(url) => {
            read_store(url, async |quell| set_paused_in(quell, name, paused.as_ref()).await)?
        }
        None => post(source, ["queues", name.as_str()], paused.as_ref())?,
    };
    print_paused(source, &answer, &format!("queue {name}"), paused.is_some(), out)
}

fn delete(args: &QueueArgs, out: &mut dyn Write) -> anyhow::Result<()> {
    let QueueArgs { name, source } = args;
    let answer: DeletedQueue = match &source.store {
        Some(url) => read_store(url, async |quell| {
            let deleted = quell.queue(name.as_str()).delete().await?;
            anyhow::ensure!(deleted, "no queue {name}");
            Ok(DeletedQueue { queue: name.clone(), deleted: true })
        })?,
        None => {
            let url = join(&source.server, &["v1", "queues", name.as_str()])?;
            ask(&source.server, |client| client.delete(url))?
        }
    };
    if source.json {
        return print_json(&answer, out);
    }
    Ok(writeln!(out, "queue {name} is deleted: nothing of it starts until it is set again")?)
}
