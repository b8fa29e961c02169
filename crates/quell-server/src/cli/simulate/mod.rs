//! `quell simulate`: the cost of a recorded history, for several thresholds at once.
//!
//! Nothing is stored and nothing runs; `quell replay` measures the same with a real store and
//! worker.

mod report;

use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use quell::trigger::Thresholds;
use quell_lab::simulate::{Simulated, Simulation};
use quell_lab::trace::Trace;

use super::recorded::{RuleArgs, TraceArgs, with_argument};
use super::screen;
use crate::config::duration;

/// The most pairs in one call.
const MAX_PAIRS: usize = 100;
/// The pairs that are tried where none are given, in seconds.
const DEFAULT_PAIRS: [(u64, u64); 7] =
    [(1, 10), (5, 30), (10, 60), (30, 300), (60, 600), (300, 1_800), (900, 3_600)];

/// Try debounce thresholds on recorded events, from the rules alone: runs saved, delay added.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    trace: TraceArgs,
    /// Quiet periods to try, such as 10s,60s; each is paired with each --max that is not shorter.
    #[arg(long, value_name = "DURATIONS", value_delimiter = ',', value_parser = duration::parse)]
    #[arg(requires = "max")]
    min: Vec<Duration>,
    /// Longest delays to try, such as 60s,10m.
    #[arg(long, value_name = "DURATIONS", value_delimiter = ',', value_parser = duration::parse)]
    #[arg(requires = "min")]
    max: Vec<Duration>,
    /// One more pair to try, such as 60s:10m; may be repeated.
    #[arg(long, value_name = "MIN:MAX", value_parser = parse_pair)]
    pair: Vec<Thresholds>,
    #[command(flatten)]
    rule: RuleArgs,
    /// Print one JSON object in place of the table and the chart.
    #[arg(long)]
    json: bool,
    /// Write the chart as SVG to this file.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

/// Runs the command.
///
/// # Errors
/// Thresholds that are no pair, a trace that cannot be read, output that cannot be written.
pub fn run(args: Args, out: &mut dyn Write) -> Result<()> {
    let pairs = pairs(&args)?;
    let trace = Trace::read(&args.trace.source()?).map_err(with_argument)?;
    let simulation = Simulation::new(&trace);
    let results: Vec<Simulated> =
        pairs.into_iter().map(|pair| simulation.run(&args.rule.rule(pair))).collect();
    let report = report::Report::new(&args.trace.file, &trace, &results);
    if let Some(file) = &args.svg {
        std::fs::write(file, report.picture().svg())
            .with_context(|| format!("--svg {}", file.display()))?;
    }
    if args.json {
        writeln!(out, "{}", report.json())?;
    } else {
        report.write(&screen::stdout(), out)?;
        if let Some(file) = &args.svg {
            writeln!(out, "\nwrote {}", file.display())?;
        }
    }
    Ok(())
}

/// The pairs of --pair, then each --min with each --max that is not shorter; each pair once.
fn pairs(args: &Args) -> Result<Vec<Thresholds>> {
    let product = args.min.iter().flat_map(|min| args.max.iter().map(|max| (*min, *max)));
    let secs = Duration::from_secs;
    let asked: Vec<_> = if args.pair.is_empty() && args.min.is_empty() {
        DEFAULT_PAIRS.iter().map(|(min, max)| (secs(*min), secs(*max))).collect()
    } else {
        product.collect()
    };
    let (made, refused): (Vec<_>, Vec<_>) =
        asked.into_iter().map(|(min, max)| Thresholds::new(min, max)).partition(Result::is_ok);
    if made.is_empty()
        && let Some(Err(error)) = refused.into_iter().next()
    {
        return Err(error.into());
    }
    let mut pairs: Vec<Thresholds> = Vec::new();
    for pair in args.pair.iter().copied().chain(made.into_iter().flatten()) {
        if !pairs.contains(&pair) {
            pairs.push(pair);
        }
    }
    if pairs.len() > MAX_PAIRS {
        bail!(
            "{} pairs of thresholds, the limit is {MAX_PAIRS}: give fewer of --min, --max and --pair",
            pairs.len()
        );
    }
    Ok(pairs)
}

fn parse_pair(text: &str) -> Result<Thresholds, String> {
    let (min, max) = text.split_once(':').ok_or("give two durations, such as 60s:10m")?;
    Thresholds::new(duration::parse(min)?, duration::parse(max)?).map_err(|e| e.to_string())
}
