//! `quell doctor`: is a store in order, how far is its clock ahead (R38), and does it fit what a
//! configuration declares?
//!
//! A problem ends the command with status 1; a warning does not.

mod fit;

use std::io::Write;
use std::path::PathBuf;

use anyhow::{Context as _, bail};
use quell::Quell;
use quell::checkup::{Checkup, ClockReset, SKIPPED_IDS};
use quell::worker::Workers;
use serde::Serialize;

use crate::cli::source::{check_exists, open_store, unmade};
use crate::config::Config;

/// `quell doctor`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The store; that of the configuration, where it is left out.
    #[arg(long, value_name = "URL", required_unless_present = "config")]
    store: Option<String>,
    /// Compare the store with what this configuration declares.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
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

/// What was found.
#[derive(Debug, Serialize)]
struct Report {
    #[serde(flatten)]
    checkup: Checkup,
    /// The versions of workers that were seen of late, each once.
    versions: Vec<String>,
    /// What is wrong, with what to do about it.
    problems: Vec<String>,
    /// What had better be otherwise.
    warnings: Vec<String>,
}

/// Prints a checkup; fails where it found a problem.
///
/// # Errors
/// What the store answers, what is wrong with the configuration, and the number of problems.
pub fn run(args: &Args, out: &mut dyn Write) -> anyhow::Result<()> {
    let config = args.config.as_deref().map(Config::load).transpose()?;
    let store = args.store.as_deref().or(config.as_ref().map(|config| config.store.as_str()));
    let Some(store) = store else { bail!("--store: name a store, or a configuration") };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (reset, report) = runtime.block_on(examine(args, store, config.as_ref()))?;
    if args.json {
        serde_json::to_writer_pretty(&mut *out, &report)?;
        writeln!(out)?;
    } else {
        if args.skip_ids {
            writeln!(out, "left out {SKIPPED_IDS} ids")?;
        }
        if let Some(ClockReset { from, to, by, .. }) = reset {
            writeln!(out, "set the clock back by {by:?}: from {from} to {to}")?;
        }
        print(&report, out)?;
    }
    match report.problems.len() {
        0 => Ok(()),
        1 => bail!("the store has a problem"),
        count => bail!("the store has {count} problems"),
    }
}

fn print(report: &Report, out: &mut dyn Write) -> anyhow::Result<()> {
    write!(out, "{}", report.checkup)?;
    let versions = match &*report.versions {
        [] => "none seen of late".to_owned(),
        versions => versions.join(", "),
    };
    writeln!(out, "{:<14} {versions}", "workers run")?;
    // The checkup has printed its own.
    for problem in report.problems.iter().skip(report.checkup.problems().count()) {
        writeln!(out, "problem: {problem}")?;
    }
    for warning in report.warnings.iter().skip(report.checkup.warnings().count()) {
        writeln!(out, "warning: {warning}")?;
    }
    Ok(())
}

async fn examine(
    args: &Args,
    store: &str,
    config: Option<&Config>,
) -> anyhow::Result<(Option<ClockReset>, Report)> {
    // Before the store is opened: an open one keeps the clock that it has seen.
    let reset = if args.reset_clock {
        check_exists(store)?;
        Some(quell::checkup::reset_clock(&unmade(store)).await.context("--reset-clock")?)
    } else {
        None
    };
    if args.skip_ids {
        check_exists(store)?;
        quell::checkup::skip_ids(&unmade(store)).await.context("--skip-ids")?;
    }
    let quell = open_store(store).await?;
    let report = report(&quell, config).await?;
    quell.close().await?;
    Ok((reset, report))
}

async fn report(quell: &Quell, config: Option<&Config>) -> anyhow::Result<Report> {
    let (checkup, workers) = (quell.checkup().await?, quell.workers().await?);
    let (mut problems, mut warnings): (Vec<_>, Vec<_>) =
        (checkup.problems().collect(), checkup.warnings().collect());
    let versions = versions(&workers);
    if versions.len() > 1 {
        warnings.push(format!(
            "workers run different versions ({}): end the update, so that all run the newest",
            versions.join(", ")
        ));
    }
    if let Some(config) = config {
        let found = fit::compare(quell, config, &workers).await?;
        problems.extend(found.problems);
        warnings.extend(found.warnings);
    }
    Ok(Report { checkup, versions, problems, warnings })
}

/// The versions of workers that were seen of late.
fn versions(workers: &Workers) -> Vec<String> {
    let seen = workers.rows.iter().filter(|row| !row.is_unseen(workers.now));
    let mut versions: Vec<String> = seen.map(|row| row.version.clone()).collect();
    versions.sort();
    versions.dedup();
    versions
}
