//! The command `quell schedule`: what schedules there are, and what an operator does to one (R36).

use std::io::Write;

use anyhow::Context as _;
use quell::schedule::{ScheduleName, ScheduleState};
use quell::{Quell, Timestamp};
use quell_core::schedule::no_such_schedule;
use reqwest::Method;
use reqwest::header::CONTENT_TYPE;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::cli::source::{Source, ask, join, print_json, read_store};
use crate::cli::text::{printable, table};
use crate::view::{Backfilled, DeletedSchedule, FiredTicks, Receipt, Schedule, Schedules};

/// `quell schedule …`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, clap::Subcommand)]
enum Action {
    /// List all schedules, with their last and next ticks.
    List(ListArgs),
    /// Show one.
    Show(Named),
    /// List its newest ticks that fired, with their jobs.
    Ticks(Named),
    /// Let its ticks pass by until it is resumed.
    Pause(Named),
    /// Go on with the next tick; what passed by does not fire.
    Resume(Named),
    /// Trigger what it triggers, now and outside its plan.
    Run(Named),
    /// Fire the ticks of a range that have not fired.
    Backfill(Range),
    /// Remove it, with the record of its ticks.
    Delete(Named),
}

#[derive(Debug, clap::Args)]
struct ListArgs {
    #[command(flatten)]
    source: Source,
}

#[derive(Debug, clap::Args)]
struct Named {
    /// The schedule's name.
    name: ScheduleName,
    #[command(flatten)]
    source: Source,
}

#[derive(Debug, clap::Args)]
struct Range {
    /// The schedule's name.
    name: ScheduleName,
    /// The first moment, such as 2026-03-01T00:00:00Z.
    #[arg(long, value_name = "TIME")]
    from: jiff::Timestamp,
    /// The last moment.
    #[arg(long, value_name = "TIME")]
    to: jiff::Timestamp,
    #[command(flatten)]
    source: Source,
}

/// Runs `quell schedule`.
///
/// # Errors
/// What the server or the store says.
pub fn run(args: Args, out: &mut dyn Write) -> anyhow::Result<()> {
    match args.action {
        Action::List(ListArgs { source }) => list(&source, out),
        Action::Show(Named { name, source }) => {
            let answer: Schedule = act(&source, (Method::GET, &name, ""), None, async |quell| {
                shown(quell, &name).await
            })?;
            print_answer(&source, &answer, out, describe)
        }
        Action::Ticks(Named { name, source }) => {
            let answer: FiredTicks =
                act(&source, (Method::GET, &name, "ticks"), None, async |quell| {
                    Ok(FiredTicks::read(quell, &name, 20).await?)
                })?;
            print_answer(&source, &answer, out, |answer| {
                let ticks = answer.ticks.iter().map(|tick| json!(tick));
                table(["tick", "by", "job", "state"], &ticks.collect::<Vec<_>>())
            })
        }
        Action::Pause(named) => switch(&named, ("pause", ScheduleState::Paused), out),
        Action::Resume(named) => switch(&named, ("resume", ScheduleState::Active), out),
        Action::Run(Named { name, source }) => {
            let answer: Receipt =
                act(&source, (Method::POST, &name, "run"), None, async |quell| {
                    let task = shown(quell, &name).await?.task;
                    let receipt = quell.store().run_schedule(None, &name).await?;
                    Ok(Receipt::new(&task, &receipt))
                })?;
            print_answer(&source, &answer, out, |answer| {
                let job = answer.job.map_or_else(|| "-".to_owned(), |job| job.to_string());
                format!("{} as job {job}\n", answer.receipt)
            })
        }
        Action::Backfill(range) => backfill(&range, out),
        Action::Delete(Named { name, source }) => {
            let gone = (Method::DELETE, &name, "");
            let answer: DeletedSchedule = act(&source, gone, None, async |quell| {
                quell.store().delete_schedule(None, &name).await?;
                Ok(DeletedSchedule { schedule: name.clone(), deleted: true })
            })?;
            print_answer(&source, &answer, out, |_| format!("{name} is removed\n"))
        }
    }
}

fn list(source: &Source, out: &mut dyn Write) -> anyhow::Result<()> {
    let answer: Schedules = match &source.store {
        Some(url) => {
            read_store(url, async |quell| Ok(Schedules::from(&*quell.store().schedules().await?)))?
        }
        None => {
            let url = join(&source.server, &["v1", "schedules"])?;
            ask(&source.server, |client| client.get(url))?
        }
    };
    print_answer(source, &answer, out, |answer| {
        let columns = ["name", "task", "plan", "catch_up", "state", "last", "next"];
        // Without payloads: a table shows none.
        let listed = answer.schedules.iter().map(|one| {
            json!({
                "name": one.name, "task": one.task, "plan": one.plan, "catch_up": one.catch_up,
                "state": one.state, "last": one.last, "next": one.next,
            })
        });
        table(columns, &listed.collect::<Vec<_>>())
    })
}

fn switch(
    Named { name, source }: &Named,
    (word, state): (&str, ScheduleState),
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    let answer: Schedule = act(source, (Method::POST, name, word), None, async |quell| {
        quell.store().set_schedule_state(None, name, state).await?;
        shown(quell, name).await
    })?;
    print_answer(source, &answer, out, |answer| {
        let next = answer.next.as_deref().unwrap_or("-");
        format!("{name} is {}, next tick {next}\n", answer.state)
    })
}

fn backfill(range: &Range, out: &mut dyn Write) -> anyhow::Result<()> {
    let Range { name, from, to, source } = range;
    let body = json!({ "from": from.to_string(), "to": to.to_string() });
    let moment = |at: &jiff::Timestamp| Timestamp::from_micros(at.as_microsecond());
    let of_range = (Method::POST, name, "backfill");
    let answer: Backfilled = act(source, of_range, Some(body), async |quell| {
        let fired = quell.store().backfill(None, name, moment(from), moment(to)).await?;
        Ok(Backfilled { schedule: name.clone(), fired })
    })?;
    print_answer(source, &answer, out, |answer| format!("{} ticks fired\n", answer.fired))
}

/// Asks the server, or does it on the store.
fn act<T: DeserializeOwned>(
    source: &Source,
    (method, name, action): (Method, &ScheduleName, &str),
    body: Option<Value>,
    on_store: impl AsyncFnOnce(&Quell) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    if let Some(url) = &source.store {
        return read_store(url, on_store);
    }
    let parts = ["v1", "schedules", name.as_str(), action];
    let parts: Vec<&str> = parts.into_iter().filter(|part| !part.is_empty()).collect();
    let url = join(&source.server, &parts)?;
    ask(&source.server, |client| {
        let request = client.request(method, url);
        match body {
            Some(body) => request.header(CONTENT_TYPE, "application/json").body(body.to_string()),
            None => request,
        }
    })
}

async fn shown(quell: &Quell, name: &ScheduleName) -> anyhow::Result<Schedule> {
    let known = quell.store().schedules().await?;
    let info = known.iter().find(|info| info.schedule.name == *name);
    Ok(Schedule::from(info.with_context(|| no_such_schedule(name).to_string())?))
}

fn print_answer<T: Serialize>(
    source: &Source,
    answer: &T,
    out: &mut dyn Write,
    text: impl FnOnce(&T) -> String,
) -> anyhow::Result<()> {
    if source.json {
        return print_json(answer, out);
    }
    Ok(out.write_all(printable(&text(answer)).as_bytes())?)
}

/// One schedule, a field per line.
fn describe(schedule: &Schedule) -> String {
    let mut lines = format!("schedule {}: {}\n", schedule.name, schedule.state);
    let shown = |text: Option<&str>| text.unwrap_or("-").to_owned();
    for (field, text) in [
        ("plan", schedule.plan.clone()),
        ("task", schedule.task.to_string()),
        ("queue", schedule.queue.to_string()),
        ("key", shown(schedule.key.as_ref().map(|key| key.as_str()))),
        ("catch_up", schedule.catch_up.name().to_owned()),
        ("last", shown(schedule.last.as_deref())),
        ("next", shown(schedule.next.as_deref())),
        ("payload", shown(schedule.payload.as_ref().map(crate::view::Document::as_str))),
    ] {
        lines.push_str(&format!("  {field:<10} {text}\n"));
    }
    lines
}
