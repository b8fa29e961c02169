//! A worker of many queues that has nothing to do: it looks at all of them in one statement.
//!
//! What counts is the server's count of transactions. Autovacuum's are among them, so it is off for
//! that time.

use std::time::Duration;

use anyhow::{Result, ensure};
use pg_common::{Counters, Database};
use quell::{Ctx, Payload, Policy, Quell, TaskError, TaskName};

use crate::part::{Part, at_most};

/// A wait that costs the start and the stop, and little more.
const SHORT: u64 = 3;
const GOAL: f64 = 1.0;

pub(crate) async fn measure(url: &str, queues: usize, seconds: u64) -> Result<()> {
    ensure!(seconds > SHORT, "--seconds: more than {SHORT}");
    let mut database = crate::database(url).await?;
    // The schema is made.
    drop(Quell::open(database.url()).await?);
    database.autovacuum(false).await?;
    let counted = count(&mut database, queues, [SHORT, seconds]).await;
    database.autovacuum(true).await?;
    let [short, long] = counted?;
    database.drop().await?;
    let more = long - short;
    let rate = more / (seconds - SHORT) as f64;
    let mut part = Part::new(&["transactions per second"])?;
    part.add(&format!("{queues} queues"), [rate])?;
    let verdict = format!(
        "each is one statement; over {} s; goal {GOAL} in all: {}",
        seconds - SHORT,
        at_most(rate, GOAL)
    );
    part.conclude(&verdict)
}

/// The transactions of waits of these lengths.
async fn count(database: &mut Database, queues: usize, waits: [u64; 2]) -> Result<[f64; 2]> {
    let mut counted = [f64::NAN; 2];
    for (transactions, length) in counted.iter_mut().zip(waits) {
        let before = Counters::read(database).await?;
        wait(database, queues, Duration::from_secs(length)).await?;
        *transactions = Counters::read(database).await?.since(before).transactions;
    }
    Ok(counted)
}

async fn wait(database: &Database, queues: usize, length: Duration) -> Result<()> {
    let quell = Quell::open(database.url()).await?;
    let mut worker = quell.worker(());
    for n in 0..queues {
        let policy = Policy::queue(format!("queue-{n}"));
        worker = worker.register_raw(TaskName::new(format!("task-{n}"))?, &policy, nothing);
    }
    worker.run_until(tokio::time::sleep(length)).await?;
    Ok(())
}

async fn nothing(_: Payload, _: Ctx<()>) -> Result<(), TaskError> {
    Ok(())
}
