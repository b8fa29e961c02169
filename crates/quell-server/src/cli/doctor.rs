//! `quell doctor`: is a store in order, and how far is its clock ahead (R38)?

use std::io::Write;

use anyhow::{Context as _, bail};
use quell::checkup::{Checkup, ClockReset, SKIPPED_IDS};

use crate::cli::source::{check_exists, open_store, unmade};

/// `quell doctor --store URL`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The store.
    #[arg(long, value_name = "URL")]
    store: String,
    /// Set a clock that ran ahead back, and the times that it made. Stop all processes of the
    /// store first.
    #[arg(long)]
    reset_clock: bool,
    /// Leave the next 100,000,000 ids out. For a store that was restored from a backup, or lost its
    /// newest writes in a failover: ids that were lost must not name other jobs.
    #[arg(long)]
    skip_ids: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Prints a checkup; fails where it found a problem.
///
/// # Errors
/// What the store answers, and the number of problems.
pub fn run(args: &Args, out: &mut impl Write) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (reset, checkup) = runtime.block_on(examine(args))?;
    if args.json {
        serde_json::to_writer_pretty(&mut *out, &checkup)?;
        writeln!(out)?;
    } else {
        if args.skip_ids {
            writeln!(out, "left out {SKIPPED_IDS} ids")?;
        }
        if let Some(ClockReset { from, to, by, .. }) = reset {
            writeln!(out, "set the clock back by {by:?}: from {from} to {to}")?;
        }
        write!(out, "{checkup}")?;
    }
    match checkup.problems().count() {
        0 => Ok(()),
        1 => bail!("the store has a problem"),
        count => bail!("the store has {count} problems"),
    }
}

async fn examine(args: &Args) -> anyhow::Result<(Option<ClockReset>, Checkup)> {
    // Before the store is opened: an open one keeps the clock that it has seen.
    let reset = if args.reset_clock {
        check_exists(&args.store)?;
        Some(quell::checkup::reset_clock(&unmade(&args.store)).await.context("--reset-clock")?)
    } else {
        None
    };
    if args.skip_ids {
        check_exists(&args.store)?;
        quell::checkup::skip_ids(&unmade(&args.store)).await.context("--skip-ids")?;
    }
    Ok((reset, open_store(&args.store).await?.checkup().await?))
}
