//! The chores that need Quell's stores: `cargo xtask conformance` and `cargo xtask soak` run this.

use anyhow::{Context, bail};
use clap::{Parser, Subcommand};
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
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    match Cli::parse().chore {
        Chore::Table => table().await,
    }
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
