//! Tasks that run by the clock: a report by a cron expression in a time zone, and polls at a fixed
//! interval with each kind of catch-up.
//!
//! A service copies [`declare`] and calls it at each start, beside a worker that has the tasks. The
//! rest shows what follows, in virtual time, so that a quarter of a year passes in a moment.
#![expect(clippy::print_stdout, reason = "the example prints what runs")]

use std::sync::Arc;
use std::time::Duration;

use quell::schedule::{CatchUp, ScheduleName};
use quell::store::engine::{Engine, Maps};
use quell::testing::{TestClock, TestKit};
use quell::{Ctx, Policy, Quell, Task, TaskError, Timestamp};
use serde::{Deserialize, Serialize};

const HOUR: Duration = Duration::from_secs(3_600);
const DAY: Duration = Duration::from_secs(24 * 3_600);

/// A report for people, in the morning of a working day.
#[derive(Debug, Serialize, Deserialize)]
struct Report {
    of: String,
}

impl Task for Report {
    const NAME: &'static str = "report";
    type Output = ();

    fn policy() -> Policy {
        Policy::queue("reports")
    }
}

/// Fetches news from a source.
#[derive(Debug, Serialize, Deserialize)]
struct Poll {
    source: String,
}

impl Task for Poll {
    const NAME: &'static str = "poll";
    type Output = ();

    fn policy() -> Policy {
        Policy::queue("polls")
    }
}

/// Declares the schedules. Equal ones change nothing, so each process calls this at each start.
async fn declare(quell: &Quell) -> quell::Result<()> {
    // Monday to Friday at 06:00 in Berlin, in winter and in summer.
    let report = Report { of: "sales".to_owned() };
    quell.schedule("sales", report).cron("0 6 * * 1-5").zone("Europe/Berlin").await?;

    // Each hour at half past. The names say what happens to ticks that no worker was there for.
    let half_past = Timestamp::from_secs(1_800);
    for (name, catch_up) in
        [("drop", CatchUp::None), ("newest", CatchUp::Latest), ("each", CatchUp::All)]
    {
        let poll = Poll { source: name.to_owned() };
        quell.schedule(name, poll).every(HOUR).anchor(half_past).catch_up(catch_up).await?;
    }
    Ok(())
}

async fn report(task: Report, ctx: Ctx<()>) -> Result<(), TaskError> {
    println!("  {}  report of {}", minute(ctx.started_at()), task.of);
    Ok(())
}

async fn poll(task: Poll, ctx: Ctx<()>) -> Result<(), TaskError> {
    println!("  {}  poll `{}`", minute(ctx.started_at()), task.source);
    Ok(())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> quell::Result<()> {
    // The schedules are declared at 20:20, and no worker is there until midnight.
    let evening = Timestamp::from_secs(TestKit::START.as_micros() / 1_000_000 - 220 * 60);
    let store = Arc::new(Engine::new(Maps::new(evening)));
    let clock = Arc::new(TestClock::new(evening));
    declare(&Quell::with_store(Arc::<Engine<Maps>>::clone(&store)).clock(clock).build()?).await?;

    println!("The worker starts at midnight, after four ticks of each poll:");
    let kit = TestKit::start_on(store, |quell| quell.worker(()).register(report).register(poll))?;
    let quell = kit.quell();
    declare(quell).await?;
    kit.settle().await;

    println!("The next hour:");
    kit.advance(HOUR).await;

    for name in ["drop", "newest", "each"] {
        quell.delete_schedule(&ScheduleName::new(name)?).await?;
    }
    println!("Polls are deleted. Thursday to Monday, in UTC:");
    kit.advance(DAY * 4 + HOUR * 23).await;

    let sales = ScheduleName::new("sales")?;
    println!("A run by hand:");
    quell.run_schedule(&sales).await?;
    kit.settle().await;

    println!("Paused for two days; resuming fires none of the ticks that passed:");
    quell.pause_schedule(&sales).await?;
    let paused_at = kit.now();
    kit.advance(DAY * 2).await;
    quell.resume_schedule(&sales).await?;
    kit.settle().await;

    println!("A backfill fires them:");
    let fired = quell.backfill(&sales, paused_at, kit.now()).await?;
    kit.settle().await;
    println!("  {fired} ticks");

    for info in quell.schedules().await? {
        let (last, next) = (info.last.map(minute), info.next.map(minute));
        let (last, next) = (last.unwrap_or_default(), next.unwrap_or_default());
        println!("Schedule `{}`: last tick {last}, next tick {next}", info.schedule.name);
    }
    Ok(())
}

/// A time to the minute, in UTC.
fn minute(time: Timestamp) -> String {
    time.to_string().chars().take("2026-01-01T00:00".len()).collect()
}
