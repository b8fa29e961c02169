//! `quell backup` and `quell restore`: copies of a store on SQLite. Other stores have tools of their
//! own, which the refusals name.

use std::io::Write;
use std::path::PathBuf;

use anyhow::bail;

/// `quell backup`.
#[derive(Debug, clap::Args)]
pub struct BackupArgs {
    /// The store. Processes may use it meanwhile.
    #[arg(long, value_name = "URL")]
    store: String,
    /// The copy to make.
    file: PathBuf,
    /// Replace a file of that name.
    #[arg(long)]
    force: bool,
    /// Write at most this number of megabytes a second.
    #[arg(long, value_name = "MB", value_parser = clap::value_parser!(u64).range(1..))]
    rate: Option<u64>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// `quell restore`.
#[derive(Debug, clap::Args)]
pub struct RestoreArgs {
    /// The store. Stop all of its processes first.
    #[arg(long, value_name = "URL")]
    store: String,
    /// The backup, which stays as it is.
    file: PathBuf,
    /// Remove the store that is replaced, instead of keeping it as `FILE.before-restore-TIME`.
    #[arg(long)]
    discard: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Copies a store.
///
/// # Errors
/// What the store says; that it is none on SQLite.
pub fn backup(args: &BackupArgs, out: &mut dyn Write) -> anyhow::Result<()> {
    check_scheme(&args.store)?;
    #[cfg(feature = "sqlite")]
    return sqlite::backup(args, out);
    #[cfg(not(feature = "sqlite"))]
    return without_sqlite((&args.file, args.force, args.rate, args.json), out);
}

/// Puts a copy in a store's place.
///
/// # Errors
/// What the store says; that it is none on SQLite.
pub fn restore(args: &RestoreArgs, out: &mut dyn Write) -> anyhow::Result<()> {
    check_scheme(&args.store)?;
    #[cfg(feature = "sqlite")]
    return sqlite::restore(args, out);
    #[cfg(not(feature = "sqlite"))]
    return without_sqlite((&args.file, args.discard, args.json), out);
}

#[cfg(not(feature = "sqlite"))]
fn without_sqlite<A>(_args: A, _out: &mut dyn Write) -> anyhow::Result<()> {
    bail!("this build has no SQLite: build quell with the feature `sqlite`")
}

/// Refuses other stores, with the tools that they have.
fn check_scheme(url: &str) -> anyhow::Result<()> {
    let tools = match url.split_once(':').map(|(scheme, _)| scheme) {
        Some("sqlite") => return Ok(()),
        Some("postgres" | "postgresql") => {
            "use PostgreSQL's own: `pg_dump --schema=quell`, a base backup or point-in-time recovery"
        }
        Some(scheme) if scheme.starts_with("redis") => {
            "use Redis's own: a copy of its RDB file (`redis-cli --rdb`), or of its append-only files"
        }
        Some("azure") => {
            "use Azure's own: copy the table, for example with Azure Data Factory, while all processes \
             are stopped"
        }
        Some("memory") => "a store in memory ends with its process",
        _ => bail!("--store {url}: give sqlite://FILE"),
    };
    bail!(
        "--store: only stores on SQLite have this command; {tools}. After a restore run `quell doctor \
         --skip-ids`"
    )
}

#[cfg(feature = "sqlite")]
mod sqlite {
    use std::convert::Infallible;
    use std::io::{IsTerminal, Write};
    use std::time::Duration;

    use indicatif::{ProgressBar, ProgressFinish, ProgressStyle};
    use quell::checkup::SKIPPED_IDS;
    use quell::sqlite::{Backup, BackupOptions, BackupProgress, RestoreOptions, SqliteOptions};
    use serde_json::json;

    use super::{BackupArgs, RestoreArgs};
    use crate::cli::numbers::grouped;
    use crate::cli::source::{check_exists, print_json};

    /// Between two changes of the bar.
    const TICK: Duration = Duration::from_millis(100);
    /// What `--rate` counts in.
    const MEGABYTE: u64 = 1_000_000;

    pub(super) fn backup(args: &BackupArgs, out: &mut dyn Write) -> anyhow::Result<()> {
        check_exists(&args.store)?;
        let progress = BackupProgress::default();
        let how = BackupOptions::new().replace(args.force).progress(progress.clone());
        let how = match args.rate {
            Some(rate) => how.bytes_per_second(rate.saturating_mul(MEGABYTE)),
            None => how,
        };
        let store = SqliteOptions::from_url(&args.store)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let made = runtime.block_on(async {
            let copying = store.backup(&args.file, how);
            tokio::select! {
                made = copying => made.map_err(anyhow::Error::from),
                never = show(&progress) => match never {},
                stopped = interrupted() => Err(stopped),
            }
        })?;
        let Backup { store, bytes, took, log_bytes, .. } = made;
        let rate = bytes as f64 / took.as_secs_f64().max(0.001) / MEGABYTE as f64;
        if args.json {
            let answer = json!({
                "file": args.file, "store": store, "bytes": bytes,
                "seconds": took.as_secs_f64(), "wal_bytes": log_bytes,
            });
            return print_json(&answer, out);
        }
        writeln!(
            out,
            "{}: {} bytes in {:.1} s, {rate:.0} MB/s; the write-ahead log had {} bytes at most",
            args.file.display(),
            grouped(bytes),
            took.as_secs_f64(),
            grouped(log_bytes),
        )?;
        Ok(())
    }

    pub(super) fn restore(args: &RestoreArgs, out: &mut dyn Write) -> anyhow::Result<()> {
        let store = SqliteOptions::from_url(&args.store)?;
        let how = RestoreOptions::new().discard(args.discard);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let done = runtime.block_on(store.restore(&args.file, how))?;
        if args.json {
            let answer = json!({
                "store": done.store, "bytes": done.bytes, "schema": done.schema,
                "as_of": done.as_of.to_string(), "running": done.running,
                "skipped_ids": SKIPPED_IDS, "aside": done.aside,
            });
            return print_json(&answer, out);
        }
        writeln!(out, "restored store {} as of {}", done.store, done.as_of)?;
        if let Some(aside) = &done.aside {
            writeln!(out, "the store before is {}", aside.display())?;
        }
        writeln!(out, "left out {SKIPPED_IDS} ids")?;
        if done.running > 0 {
            let running = grouped(done.running);
            writeln!(
                out,
                "{running} jobs ran at the backup: they run again once their leases expire"
            )?;
        }
        Ok(())
    }

    /// A signal ends the copy, so that no part of it stays.
    async fn interrupted() -> anyhow::Error {
        match crate::signal::shutdown() {
            Ok(signal) => {
                signal.await;
                anyhow::anyhow!("stopped by a signal: no copy was made")
            }
            Err(error) => error,
        }
    }

    /// Shows how far it is, on a terminal.
    async fn show(progress: &BackupProgress) -> Infallible {
        if !std::io::stderr().is_terminal() {
            return std::future::pending().await;
        }
        let style = ProgressStyle::with_template("{bar:32} {bytes}/{total_bytes} {bytes_per_sec}");
        let bar = ProgressBar::new(0).with_finish(ProgressFinish::AndClear);
        if let Ok(style) = style {
            bar.set_style(style);
        }
        loop {
            let (written, all) = progress.bytes();
            bar.set_length(all);
            bar.set_position(written);
            tokio::time::sleep(TICK).await;
        }
    }
}
