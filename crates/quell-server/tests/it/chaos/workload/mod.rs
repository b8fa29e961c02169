//! The callers and workers that chaos runs kill, stop and starve: this test binary again, as a
//! process of its own ([`process`]).
//!
//! A caller triggers every task of the workload as fast as it can. Some keys carry the stamp
//! witness, a counter in a file that the store does not know. A worker's handler reads the counter
//! first, so the value that it read shows whether a trigger was lost.

pub(crate) mod books;
mod caller;
pub(crate) mod record;
pub(crate) mod tasks;
pub(crate) mod till;
mod worker;

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use anyhow::Context as _;
use clap::Parser as _;
use quell::Quell;
use quell::history::Sink;
use quell::sqlite::SqliteOptions;
use quell_server::history::FileSink;

use books::Books;
use caller::Caller;
use record::Record;
use worker::{Registered, Witness};

/// Has the arguments of a process, one a line: the test harness would take them for its own.
const ARGUMENTS: &str = "QUELL_CHAOS_PROCESS";

/// A process with these arguments.
pub(crate) fn process(args: &[&str]) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["chaos::workload::runs_as_a_process", "--exact", "--ignored", "--nocapture"]);
    command.env(ARGUMENTS, args.join("\n"));
    command
}

#[test]
#[ignore = "no test, but the entry point of the processes that chaos runs start"]
fn runs_as_a_process() {
    let args = std::env::var(ARGUMENTS).unwrap_or_default();
    let args = Args::parse_from(std::iter::once("workload").chain(args.lines()));
    if let Err(error) = run(&args) {
        // The end of a process that gives up, as the program `quell` ends.
        eprintln!("error: {error:#}");
        std::process::exit(1);
    }
}

/// The role of a process, and its files.
#[derive(Clone, Debug, clap::Parser)]
struct Args {
    #[command(subcommand)]
    role: Role,
    /// The store.
    #[arg(long, value_name = "URL", global = true, default_value = "sqlite://q.db")]
    store: String,
    /// The event history.
    #[arg(long, value_name = "FILE", global = true, default_value = "workload.jsonl")]
    history: PathBuf,
    /// The folder of the stamp witness: one file for each key.
    #[arg(long, value_name = "FOLDER", global = true, default_value = "stamps")]
    stamps: PathBuf,
}

#[derive(Clone, Debug, clap::Subcommand)]
enum Role {
    /// Triggers until it is killed or asked to end.
    Call {
        /// Whose keys: no two callers that live at once have the same.
        slot: u32,
        /// The deploy whose policies it has.
        deploy: u32,
        /// Also trigger attempts that take longer than their leases.
        #[arg(long)]
        long: bool,
    },
    /// Runs the tasks of the load until it is asked to end.
    Work {
        /// The deploy whose policies it has.
        deploy: u32,
        /// Also run the task that other workers do not register.
        #[arg(long)]
        rare: bool,
    },
    /// Charges orders, and kills itself now and then.
    Pay {
        /// Where the payment service is.
        payments: String,
        /// The folder in which each death is a file.
        deaths: PathBuf,
    },
}

/// Works until the process ends.
fn run(args: &Args) -> anyhow::Result<()> {
    let file = Arc::new(FileSink::append(&args.history)?.with_payloads());
    let sink: Sink = Arc::<FileSink>::clone(&file);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let worked = runtime.block_on(async {
        let quell = open(&args.store, &sink).await?;
        match &args.role {
            Role::Call { slot, deploy, long } => {
                caller(args, quell, sink, (*slot, *deploy, *long))?.call().await
            }
            Role::Work { deploy, rare } => {
                let registered = Registered { deploy: *deploy, rare: *rare };
                worker::work(&quell, witness(args, sink)?, registered).await
            }
            Role::Pay { payments, deaths } => till::work(&quell, payments, deaths).await,
        }
    });
    // What was in flight is cancelled by now.
    drop(runtime);
    if worked.is_ok() {
        file.end();
    }
    worked
}

fn caller(
    args: &Args,
    quell: Quell,
    sink: Sink,
    (slot, deploy, long): (u32, u32, bool),
) -> anyhow::Result<Caller> {
    let record = Record::open(&args.history.with_extension("record"))?;
    let (stamps, books) = (args.stamps.clone(), Books::open(&args.store)?);
    let answered = VecDeque::new();
    Ok(Caller { quell, sink, record, stamps, books, slot, deploy, long, op: 0, answered })
}

fn witness(args: &Args, sink: Sink) -> anyhow::Result<Witness> {
    let record = Record::open(&args.history.with_extension("record"))?;
    let (stamps, books) = (args.stamps.clone(), Books::open(&args.store)?);
    Ok(Witness { sink, record, stamps, books, runs: AtomicU64::new(0) })
}

async fn open(url: &str, sink: &Sink) -> anyhow::Result<Quell> {
    if !url.starts_with("sqlite:") {
        return Ok(Quell::recorded(url, Arc::clone(sink)).await?.build()?);
    }
    // A file that another process keeps locked fails a call soon.
    let options = SqliteOptions::from_url(url)?.busy_timeout(Duration::from_millis(500));
    let store = Arc::new(options.history(Arc::clone(sink)).open().await?);
    Ok(Quell::with_store(store).history(Arc::clone(sink)).build()?)
}

fn read_stamp(file: &Path) -> u64 {
    std::fs::read_to_string(file).ok().and_then(|text| text.parse().ok()).unwrap_or(0)
}

/// A reader gets the old value or the new one, whenever the caller is killed.
fn raise_stamp(stamps: &Path, key: &str, value: u64) -> anyhow::Result<()> {
    let made = stamps.join(format!(".{key}"));
    std::fs::write(&made, value.to_string()).context("a stamp")?;
    std::fs::rename(&made, stamps.join(key)).context("a stamp")
}
