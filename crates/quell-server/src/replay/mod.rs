//! `quell replay`: feeds a recorded history as real triggers through a real store and worker.
//!
//! `virtual_time` drives it as fast as the machine goes, with due times that come when the trace
//! says; `real_time` lets the clock run, sped up. `ledger` counts what the store answered, seen by
//! the wrapper in `observed`. Invariant: what is reported is what the store said, nothing else.

mod ledger;
mod observed;
mod one_core;
mod real_time;
mod report;
mod stage;
mod virtual_time;

use std::io::Write;
use std::str::FromStr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use indicatif::{ProgressBar, ProgressStyle};
use quell_core::window::Thresholds;

use crate::chart::Screen;
use crate::duration;
use crate::rule::RuleArgs;
use crate::serve::without_password;
use crate::simulate::Simulation;
use crate::trace::{Keep, Trace, TraceArgs};
use one_core::OneCore;
use report::Report;
use stage::{Scratch, Stage};

/// Feed recorded events as real triggers through a store and a worker, and measure.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    trace: TraceArgs,
    /// The quiet period, such as 60s: a window runs when no trigger came for this long.
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    min: Duration,
    /// The longest delay, such as 10m: a window runs this long after its first trigger at the latest.
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    max: Duration,
    #[command(flatten)]
    rule: RuleArgs,
    /// How many times faster than it happened, such as 1000; `max` leaves out all waiting.
    #[arg(long, value_name = "N|max", default_value = "max")]
    speed: Speed,
    /// The store to use, such as sqlite://replay.db; it must be empty. A temporary SQLite file by
    /// default.
    #[arg(long, value_name = "URL")]
    store: Option<String>,
    /// Print one JSON object in place of the table.
    #[arg(long)]
    json: bool,
}

/// How fast the trace's time goes.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Speed {
    /// Virtual: as fast as the machine goes.
    Max,
    /// So many trace seconds in one second.
    Times(f64),
}

impl FromStr for Speed {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "max" {
            return Ok(Speed::Max);
        }
        match text.trim_end_matches('x').parse::<f64>() {
            Ok(times) if (0.001..=1e9).contains(&times) => Ok(Speed::Times(times)),
            Ok(_) | Err(_) => {
                Err(format!("{text:?} is not a speed: give max, or a number from 0.001 to 1e9"))
            }
        }
    }
}

/// How a replay ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    Complete,
    Interrupted,
}

/// Runs the command. It makes its own runtime: call it from a thread that has none.
///
/// # Errors
/// Thresholds that cannot be meant, a trace that cannot be read, a store that fails or is not
/// empty, an interrupt, or triggers that no run covered.
pub fn run(args: Args, out: &mut dyn Write) -> Result<()> {
    let thresholds = Thresholds::new(args.min, args.max)?;
    let trace = Trace::read(&args.trace, Keep::Payloads)?;
    let predicted = Simulation::new(&trace).run(&args.rule, thresholds).summary.runs;
    // Before the threads of the store start.
    let one_core = (args.speed == Speed::Max).then(OneCore::pin);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let began = Instant::now();
    let (stage, ending, scratch) = runtime.block_on(replay(&args, thresholds, &trace))?;
    let elapsed = began.elapsed();
    let counted = stage.ledger().counted();
    drop((stage, scratch));
    // What the runtime still holds must not outlive the store's file.
    drop(runtime);
    drop(one_core);
    let scale = match args.speed {
        Speed::Max => 1.0,
        Speed::Times(times) => times,
    };
    let name = args.store.as_deref().map(without_password);
    let name = name.as_deref().unwrap_or("a temporary SQLite file");
    let events = trace.events().len();
    let report = Report { name, thresholds, events, predicted, elapsed, scale, counted: &counted };
    if args.json {
        writeln!(out, "{}", report.json())?;
    } else {
        report.write(&Screen::of_stdout(), out)?;
    }
    if ending == Ending::Interrupted {
        bail!("interrupted after {} of {events} triggers", counted.accepted);
    }
    if counted.covered != counted.accepted {
        bail!("{} triggers were accepted, but runs covered {}", counted.accepted, counted.covered);
    }
    Ok(())
}

async fn replay(
    args: &Args,
    thresholds: Thresholds,
    trace: &Trace,
) -> Result<(Stage, Ending, Option<Scratch>)> {
    // Before anything is made that an interrupt would leave behind.
    let interrupted = crate::signal::shutdown()?;
    let (url, scratch) = match &args.store {
        Some(url) => (url.clone(), None),
        None => {
            let scratch = Scratch::new().context("a temporary store could not be made")?;
            (scratch.url(), Some(scratch))
        }
    };
    let stage = Stage::open(&url, args.speed, thresholds, &args.rule, trace).await;
    let stage = stage.with_context(|| format!("--store {}", without_password(&url)))?;
    let bar = progress(trace);
    let feed = async {
        match &stage.clock {
            stage::Time::Virtual(clock) => {
                virtual_time::drive(&stage, clock, trace, args.rule.counts(), &bar).await
            }
            stage::Time::Real { speed } => real_time::drive(&stage, *speed, trace, &bar).await,
        }
    };
    let ending = stage.perform(feed, interrupted).await?;
    bar.finish_and_clear();
    Ok((stage, ending, scratch))
}

/// A bar on standard error; it hides itself where that is no terminal.
fn progress(trace: &Trace) -> ProgressBar {
    let bar = ProgressBar::new(trace.events().len() as u64);
    let template = "{bar:30} {human_pos}/{human_len} triggers  {msg} runs  {per_sec}  {eta} left";
    match ProgressStyle::with_template(template) {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}
