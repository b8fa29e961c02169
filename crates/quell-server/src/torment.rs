//! `quell torment`, hidden: triggers as fast as it can until it is killed. Crash tests kill it.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use quell::history::Sink;
use quell::sqlite::SqliteOptions;
use quell::{Batch, Key, Payload, Policy, Quell, TaskName};

use crate::history::FileSink;

/// What to trigger, and where to record it.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// The store.
    #[arg(long, value_name = "URL")]
    store: String,
    /// The event history.
    #[arg(long, value_name = "FILE")]
    history: PathBuf,
}

/// Triggers until the process ends.
///
/// # Errors
/// When the store or the history cannot be opened, or a trigger is refused.
pub fn run(args: &Args) -> anyhow::Result<()> {
    let sink: Sink = Arc::new(FileSink::append(&args.history)?);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let store = SqliteOptions::from_url(&args.store)?.history(Arc::clone(&sink)).open().await?;
        let quell = Quell::with_store(Arc::new(store)).history(sink).build()?;
        let policy =
            Policy::default().debounce(Duration::from_millis(5)..=Duration::from_millis(40));
        let task = TaskName::new("note")?;
        loop {
            let key = Key::new(format!("k{}", fastrand::u8(..4)))?;
            let trigger = policy.trigger(task.clone(), Payload::encode(&key)?, Some(key))?;
            match quell.enqueue(Batch::one(trigger)).await {
                Ok(_) => {}
                Err(error) if error.is_retryable() => {}
                Err(error) => return Err(error.into()),
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
}
