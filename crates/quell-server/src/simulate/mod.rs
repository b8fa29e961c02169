//! `quell simulate`: what a recorded history would have cost, for several thresholds at once.
//!
//! `rules` answers from the pure rules in virtual time, `report` shows the answer. Nothing is
//! stored and nothing runs; `quell replay` asks a real store and worker the same question.

mod report;
mod rules;

use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use quell_core::window::Thresholds;

use crate::chart::{Screen, svg};
use crate::duration;
use crate::rule::RuleArgs;
use crate::trace::{Keep, Trace, TraceArgs};
pub use rules::{Simulated, Simulation};

/// The most pairs in one call.
const MAX_PAIRS: usize = 100;
/// What is tried where no quiet period is given.
const MINS: [Duration; 3] =
    [Duration::from_secs(1), Duration::from_secs(10), Duration::from_secs(60)];
/// What is tried where no longest delay is given.
const MAXES: [Duration; 3] =
    [Duration::from_secs(60), Duration::from_secs(600), Duration::from_secs(3_600)];

/// Try debounce thresholds on recorded events, from the rules alone: runs saved, delay added.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    trace: TraceArgs,
    /// Quiet periods to try, such as 10s,60s; every one is paired with every longer --max.
    #[arg(long, value_name = "DURATIONS", value_delimiter = ',', value_parser = duration::parse)]
    min: Vec<Duration>,
    /// Longest delays to try, such as 60s,10m.
    #[arg(long, value_name = "DURATIONS", value_delimiter = ',', value_parser = duration::parse)]
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
/// Thresholds that cannot be meant, a trace that cannot be read, output that cannot be written.
pub fn run(args: Args, out: &mut dyn Write) -> Result<()> {
    let pairs = pairs(&args)?;
    let trace = Trace::read(&args.trace, Keep::Times)?;
    let simulation = Simulation::new(&trace);
    let results: Vec<Simulated> =
        pairs.into_iter().map(|thresholds| simulation.run(&args.rule, thresholds)).collect();
    let report = report::Report::new(&args.trace.file, &trace, &results);
    if let Some(file) = &args.svg {
        let drawn = svg::draw(&report.picture());
        std::fs::write(file, drawn).with_context(|| format!("--svg {}", file.display()))?;
    }
    if args.json {
        writeln!(out, "{}", report.json())?;
    } else {
        report.write(&Screen::of_stdout(), out)?;
        if let Some(file) = &args.svg {
            writeln!(out, "\nwrote {}", file.display())?;
        }
    }
    Ok(())
}

/// The named pairs, then every --min with every --max that is not shorter.
fn pairs(args: &Args) -> Result<Vec<Thresholds>> {
    let mut pairs = args.pair.clone();
    if pairs.is_empty() || !args.min.is_empty() || !args.max.is_empty() {
        let mins = if args.min.is_empty() { &MINS[..] } else { &args.min };
        let maxes = if args.max.is_empty() { &MAXES[..] } else { &args.max };
        let product = mins.iter().flat_map(|min| maxes.iter().map(|max| (*min, *max)));
        let all: Vec<_> = product.map(|(min, max)| Thresholds::new(min, max)).collect();
        let before = pairs.len();
        let mut refused = None;
        for made in all {
            match made {
                Ok(pair) => pairs.push(pair),
                Err(error) => refused = Some(error),
            }
        }
        if let (true, Some(error)) = (pairs.len() == before, refused) {
            return Err(error.into());
        }
    }
    let mut seen = Vec::new();
    pairs.retain(|pair| {
        let new = !seen.contains(pair);
        seen.push(*pair);
        new
    });
    if pairs.len() > MAX_PAIRS {
        bail!("{} pairs of --min and --max, the limit is {MAX_PAIRS}: try fewer", pairs.len());
    }
    Ok(pairs)
}

fn parse_pair(text: &str) -> Result<Thresholds, String> {
    let (min, max) = text.split_once(':').ok_or("give two durations, such as 60s:10m")?;
    Thresholds::new(duration::parse(min)?, duration::parse(max)?).map_err(|e| e.to_string())
}
