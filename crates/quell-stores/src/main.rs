//! The chores that need Quell's stores: `cargo xtask conformance` and `cargo xtask soak` run this.

use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail};
use clap::{Parser, Subcommand};
use quell_conformance::oracle;
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
}

fn main() -> anyhow::Result<()> {
    match Cli::parse().chore {
        Chore::Table => {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(table())
        }
        Chore::Soak { store, minutes } => soak(store, minutes),
    }
}

/// Scripts between two looks at the clock.
const ROUND: u32 = 500;

#[expect(clippy::print_stdout, reason = "a chore tells what it does")]
fn soak(store: Kind, minutes: u64) -> anyhow::Result<()> {
    let end = Instant::now() + Duration::from_secs(60 * minutes);
    let (mut scripts, mut steps) = (0, 0);
    let mut told = Instant::now();
    while Instant::now() < end {
        let ran = oracle::run(|| store.open(), oracle::COUNTED, ROUND, Some(oracle::REGRESSIONS));
        steps += ran.map_err(|failure| {
            anyhow!("{failure}\nits seed is in {}: commit it", oracle::REGRESSIONS)
        })?;
        scripts += ROUND;
        if told.elapsed() > Duration::from_secs(30) {
            told = Instant::now();
            println!("{scripts} scripts, {steps} operations so far");
        }
    }
    println!("{}: {scripts} scripts, {steps} operations, no difference", store.name());
    Ok(())
}

#[expect(clippy::print_stdout, reason = "a chore tells what it does")]
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
