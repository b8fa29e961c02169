//! `quell torment`, hidden: callers and workers for the chaos tests to kill, stop and starve.
//!
//! A caller triggers as fast as it can; half of its keys carry the stamp witness, a counter in a
//! file that the store does not know. A worker's handler reads the counter first thing, so that
//! what it saw says whether a trigger was lost.

pub mod pay;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Context as _;
use quell::history::{Event, Sink};
use quell::sqlite::SqliteOptions;
use quell::{Batch, Ctx, Key, Payload, Policy, Quell, TaskError, TaskName, WorkerId};

use crate::history::FileSink;
use crate::signal;

/// The task that only torment's own workers run.
const STAMPED: &str = "stamped";
/// The task of the configuration that `quell serve` runs.
const NOTE: &str = "note";

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
    /// Triggers until it is killed.
    Call {
        /// Whose keys: no two callers that live at once have the same.
        slot: u32,
    },
    /// Runs stamped tasks until it is told to end.
    Work,
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
    let file = Arc::new(FileSink::append(&args.history)?);
    let sink: Sink = Arc::<FileSink>::clone(&file);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let worked = runtime.block_on(async {
        let quell = open(&args.store, &sink).await?;
        match &args.role {
            Role::Call { slot } => call(&quell, &sink, &args.stamps, *slot).await,
            Role::Work => work(&quell, &sink, &args.stamps).await,
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

async fn open(url: &str, sink: &Sink) -> anyhow::Result<Quell> {
    if !url.starts_with("sqlite:") {
        return Ok(Quell::recorded(url, Arc::clone(sink)).await?.build()?);
    }
    // Soon told of a file that another process keeps locked.
    let options = SqliteOptions::from_url(url)?.busy_timeout(Duration::from_millis(500));
    let store = Arc::new(options.history(Arc::clone(sink)).open().await?);
    Ok(Quell::with_store(store).history(Arc::clone(sink)).build()?)
}

fn policy() -> Policy {
    Policy::default()
        .debounce(Duration::from_millis(5)..=Duration::from_millis(40))
        .attempts(1_000)
        // Its workers are killed on purpose, and no job is to blame.
        .max_crashes(u32::MAX)
        .min_backoff(Duration::from_millis(1))
        .max_backoff(Duration::from_millis(5))
}

async fn call(quell: &Quell, sink: &Sink, stamps: &Path, slot: u32) -> anyhow::Result<()> {
    let policy = policy();
    for op in 0.. {
        let key = format!("s{slot}k{}", fastrand::u8(..3));
        let stamped = fastrand::bool();
        if stamped {
            let value = read_stamp(&stamps.join(&key)) + 1;
            // On record first, so that no run reads what nobody is known to have stamped.
            sink.record(&Event::Stamp { op, key: key.clone(), value });
            raise_stamp(stamps, &key, value)?;
        }
        let task = TaskName::new(if stamped { STAMPED } else { NOTE })?;
        let key = Key::new(key)?;
        let trigger = policy.trigger(task, Payload::encode(&key)?, Some(key))?;
        // Whatever the error is: the trigger counts as accepted only where the store said so.
        if quell.enqueue(Batch::one(trigger)).await.is_ok() && stamped {
            sink.record(&Event::StampOk { op });
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    Ok(())
}

/// What a worker's handlers share.
struct Witness {
    sink: Sink,
    stamps: PathBuf,
    runs: AtomicU64,
}

async fn work(quell: &Quell, sink: &Sink, stamps: &Path) -> anyhow::Result<()> {
    let runs = AtomicU64::new(0);
    let witness = Witness { sink: Arc::clone(sink), stamps: stamps.to_owned(), runs };
    let worker = quell
        .worker(witness)
        .register_raw(TaskName::new(STAMPED)?, &policy(), run_stamped)
        .lease(Duration::from_millis(300))
        .grace(Duration::from_secs(1))
        .concurrency(4)
        .name(WorkerId::new(format!("torment-{}", std::process::id()))?);
    worker.run_until(signal::shutdown()?).await.context("the worker")
}

async fn run_stamped(_: Payload, ctx: Ctx<Witness>) -> Result<(), TaskError> {
    let witness = ctx.state();
    let run = witness.runs.fetch_add(1, Ordering::Relaxed);
    let key = ctx.key().map(ToString::to_string).unwrap_or_default();
    let value = read_stamp(&witness.stamps.join(&key));
    witness.sink.record(&Event::Read { run, key, value });
    tokio::time::sleep(Duration::from_millis(fastrand::u64(1..15))).await;
    if fastrand::u8(..10) == 0 {
        return Err(TaskError::retry("it fails now and then"));
    }
    witness.sink.record(&Event::ReadOk { run });
    Ok(())
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
