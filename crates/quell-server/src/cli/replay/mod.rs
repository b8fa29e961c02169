//! `quell replay`: sends a recorded history as real triggers through a real store and worker.

mod report;

use std::io::Write;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use indicatif::{ProgressBar, ProgressStyle};
use quell::Quell;
use quell::trigger::Thresholds;
use quell_lab::replay::{OneCore, Replay, Replayed, Speed};
use quell_lab::simulate::Simulation;
use quell_lab::trace::Trace;
use tempfile::TempDir;

use super::recorded::{RuleArgs, TraceArgs, with_argument};
use super::screen;
use crate::config::duration;
use crate::serve::without_password;
use report::Report;

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

/// Runs the command. It makes its own runtime: call it from a thread that has none.
///
/// # Errors
/// Thresholds that are no pair, a trace that cannot be read, a store that fails or is not empty, an
/// interrupt, or triggers that no run covered.
pub fn run(args: Args, out: &mut dyn Write) -> Result<()> {
    let thresholds = Thresholds::new(args.min, args.max)?;
    let trace = Trace::read(&args.trace.source()?.payloads()).map_err(with_argument)?;
    let predicted = Simulation::new(&trace).run(&args.rule.rule(thresholds)).summary.runs;
    // Before the threads of the store start.
    let one_core = (args.speed == Speed::MAX).then(OneCore::pin);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let began = Instant::now();
    let (replayed, scratch) = runtime.block_on(replay(&args, thresholds, &trace))?;
    let elapsed = began.elapsed();
    // The runtime must not outlive the store's file, which something in it may have open.
    drop(runtime);
    drop(scratch);
    drop(one_core);
    let store = args.store.as_deref().map(without_password);
    let store = store.as_deref().unwrap_or("a temporary SQLite file");
    let events = trace.events().len();
    let report = Report { store, events, predicted, elapsed, replayed: &replayed };
    if args.json {
        writeln!(out, "{}", report.json())?;
    } else {
        report.write(&screen::stdout(), out)?;
    }
    let (accepted, covered) = (replayed.summary.triggers, replayed.summary.covered);
    if !replayed.complete {
        bail!("interrupted after {accepted} of {events} triggers");
    }
    if covered != accepted {
        bail!("{accepted} triggers were accepted, but runs covered {covered}");
    }
    Ok(())
}

async fn replay(
    args: &Args,
    thresholds: Thresholds,
    trace: &Trace,
) -> Result<(Replayed, Option<TempDir>)> {
    // Before anything is made that an interrupt would leave behind.
    let interrupted = crate::signal::shutdown()?;
    let (url, scratch) = match &args.store {
        Some(url) => (url.clone(), None),
        None => {
            let scratch = tempfile::Builder::new().prefix("quell-replay-").tempdir();
            let scratch = scratch.context("cannot make a temporary folder for the store")?;
            // Not fully synchronous: the file is removed afterwards.
            let file = scratch.path().join("replay.db");
            (format!("sqlite://{}?synchronous=normal", file.display()), Some(scratch))
        }
    };
    let place = || format!("--store {}", without_password(&url));
    let rule = args.rule.rule(thresholds);
    let replay = if url.starts_with("memory:") {
        Replay::in_memory(rule)
    } else {
        let quell = Quell::open(&url).await.with_context(place)?;
        Replay::on(quell.store().clone(), rule)
    };
    let bar = progress(trace);
    let shown = bar.clone();
    let replay = replay.speed(args.speed).on_progress(move |progress| {
        shown.set_position(progress.triggers as u64);
        shown.set_message(progress.runs.to_string());
    });
    let replayed = replay.run_until(trace, interrupted).await;
    let replayed = replayed.map_err(|error| match error.field() {
        Some("store") => anyhow::Error::new(error).context(place()),
        _ => with_argument(error),
    })?;
    bar.finish_and_clear();
    Ok((replayed, scratch))
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
