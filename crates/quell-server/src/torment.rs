//! `quell torment`, hidden: callers and workers for the chaos tests to kill, stop and starve.
//!
//! A caller triggers every task of the load as fast as it can. Some keys carry the stamp witness, a
//! counter in a file that the store does not know. A worker's handler reads the counter first
//! thing, so the value that it read shows whether a trigger was lost.

pub mod books;
mod call;
pub mod load;
pub mod pay;
pub mod record;
mod work;

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use anyhow::Context as _;
use quell::Quell;
use quell::history::Sink;
use quell::sqlite::SqliteOptions;

use crate::history::FileSink;
use books::Books;
use call::Caller;
use record::Record;
use work::{Registered, Witness};

/// Who to be, and where.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    role: Role,
    /// The store.
    #[arg(long, value_name = "URL", global = true, default_value = "sqlite://q.db")]
    store: String,
    /// The event history.
    #[arg(long, value_name = "FILE", global = true, default_value = "torment.jsonl")]
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
///
/// # Errors
/// When the store or the history cannot be opened.
pub fn run(args: &Args) -> anyhow::Result<()> {
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
                work::work(&quell, witness(args, sink)?, registered).await
            }
            Role::Pay { payments, deaths } => pay::work(&quell, payments, deaths).await,
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
    // Soon told of a file that another process keeps locked.
    let options = SqliteOptions::from_url(url)?.busy_timeout(Duration::from_millis(500));
    let store = Arc::new(options.history(Arc::clone(sink)).open().await?);
    Ok(Quell::with_store(store).history(Arc::clone(sink)).build()?)
}

fn read_stamp(file: &Path) -> u64 {
    std::fs::read_to_string(file).ok().and_then(|text| text.parse().ok()).unwrap_or(0)
}

/// Whoever reads sees the old value or the new one, whenever the caller is killed.
fn raise_stamp(stamps: &Path, key: &str, value: u64) -> anyhow::Result<()> {
    let made = stamps.join(format!(".{key}"));
    std::fs::write(&made, value.to_string()).context("a stamp")?;
    std::fs::rename(&made, stamps.join(key)).context("a stamp")
}
