//! The chores that need Quell's stores: `cargo xtask conformance`, `cargo xtask soak` and
//! `cargo xtask sim --store …` run this.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail};
use clap::{Parser, Subcommand};
use quell_conformance::oracle;
use quell_conformance::sim::{Judged, Plan};
use quell_stores::{Kind, page, root};

/// Runs the suite on Quell's own stores.
#[derive(Debug, Parser)]
struct Cli {
    #[command(subcommand)]
    chore: Chore,
}

#[derive(Debug, Subcommand)]
enum Chore {
    /// Shows what the suite says of each store and writes docs/conformance.md.
    Table,
    /// Drives a store and the model with random operations for as long as asked.
    Soak {
        /// Which store.
        #[arg(long)]
        store: Kind,
        /// For how long.
        #[arg(long, default_value_t = 5)]
        minutes: u64,
    },
    /// Simulates clients and workers on a store, one seed after the other.
    Sim(Sim),
}

#[derive(Debug, clap::Args)]
struct Sim {
    /// Which store.
    #[arg(long)]
    store: Kind,
    /// The first seed.
    #[arg(long, default_value_t = 0)]
    from: u64,
    /// How many seeds.
    #[arg(long, default_value_t = 100)]
    seeds: u64,
    /// Only this seed.
    #[arg(long, conflicts_with_all = ["from", "seeds"])]
    seed: Option<u64>,
    /// Where to write the history of the first seed that fails, or of the only one.
    #[arg(long)]
    history: Option<PathBuf>,
}

fn main() -> anyhow::Result<()> {
    match Cli::parse().chore {
        Chore::Table => {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(table())
        }
        Chore::Soak { store, minutes } => soak(store, minutes),
        Chore::Sim(args) => sim(&args),
    }
}

/// Scripts between two looks at the clock.
const ROUND: u32 = 500;

#[expect(clippy::print_stdout, reason = "a chore prints what it does")]
fn soak(store: Kind, minutes: u64) -> anyhow::Result<()> {
    let end = Instant::now() + Duration::from_secs(60 * minutes);
    let (mut scripts, mut steps) = (0, 0);
    let mut reported = Instant::now();
    while Instant::now() < end {
        let ran = oracle::run(|| store.open(), oracle::COUNTED, ROUND, Some(oracle::REGRESSIONS));
        steps += ran.map_err(|failure| {
            anyhow!("{failure}\nits seed is in {}: commit it", oracle::REGRESSIONS)
        })?;
        scripts += ROUND;
        if reported.elapsed() > Duration::from_secs(30) {
            reported = Instant::now();
            println!("{scripts} scripts, {steps} operations so far");
        }
    }
    println!("{}: {scripts} scripts, {steps} operations, no difference", store.name());
    Ok(())
}

/// Stops at the first seed that fails.
#[expect(clippy::print_stdout, reason = "a chore prints what it did")]
fn sim(args: &Sim) -> anyhow::Result<()> {
    let name = args.store.name();
    let began = Instant::now();
    let seeds = match args.seed {
        Some(seed) => seed..seed.saturating_add(1),
        None => args.from..args.from.saturating_add(args.seeds),
    };
    let (mut events, mut attempts, mut accepted) = (0, 0, 0);
    for seed in seeds.clone() {
        let judged = Judged::new(Plan::draw(seed), &args.store.place());
        events += judged.report.events;
        attempts += judged.report.attempts;
        accepted += judged.report.accepted;
        let shown = args.history.as_ref().filter(|_| args.seed.is_some() || !judged.holds());
        if let Some(path) = shown {
            let lines = judged.ran.lines.iter().map(|line| format!("{line}\n"));
            std::fs::write(path, lines.collect::<String>())
                .with_context(|| path.display().to_string())?;
        }
        if !judged.holds() {
            bail!("{}", judged.text(name));
        }
    }
    println!(
        "{name}: {} seeds, {accepted} triggers, {attempts} attempts, {events} events in {:.1} s, \
         nothing found",
        seeds.end.saturating_sub(seeds.start),
        began.elapsed().as_secs_f64()
    );
    Ok(())
}

#[expect(clippy::print_stdout, reason = "a chore prints what it does")]
async fn table() -> anyhow::Result<()> {
    let mut reports = Vec::new();
    for kind in Kind::ALL {
        let report = kind.report().await;
        println!("{report}");
        reports.push(report);
    }
    let root = root()?;
    let place = root.join(page::PLACE);
    std::fs::write(&place, page::page(&root, &reports)?)
        .with_context(|| place.display().to_string())?;
    println!("wrote {}", page::PLACE);
    let failed: usize = reports.iter().map(|report| report.failures().count()).sum();
    if failed > 0 {
        bail!("{failed} tests failed: each one's message stands above");
    }
    Ok(())
}
