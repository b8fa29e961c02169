//! An outside call that is recorded, so that no retry repeats it: a card is charged once although
//! the worker dies between the call and the record.
//!
//! A service copies [`ship`]. The rest makes it fail: the program starts itself as a worker process
//! that dies right after the charge, and then as one that completes the job. The bank is a file, as
//! it must outlive both.
#![expect(clippy::print_stdout, reason = "the example prints what happens")]

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::Context;
use quell::{Ctx, Jitter, JobId, JobResult, Policy, Quell, Task, TaskError};
use serde::{Deserialize, Serialize};

/// Charges an order and ships it.
#[derive(Debug, Serialize, Deserialize)]
struct Ship {
    order: u64,
    cents: u64,
}

impl Task for Ship {
    const NAME: &'static str = "order.ship";
    type Output = String;

    fn policy() -> Policy {
        let policy = Policy::queue("orders").attempts(5);
        policy.min_backoff(Duration::from_millis(100)).jitter(Jitter::None)
    }
}

/// The intent is stored before the charge, and its result after it. An attempt that finds the intent
/// alone asks the bank; one that finds the result makes no call.
async fn ship(task: Ship, ctx: Ctx<App>) -> Result<String, TaskError> {
    let app = ctx.state();
    let charge: String = ctx
        .effect("charge")
        .verify(|key| async move { Ok(app.bank.find(key.as_str())?) })
        .run(|key| async move {
            let charge = app.bank.charge(key.as_str(), task.cents)?;
            if app.dies {
                println!("  the worker dies before the charge is recorded");
                std::process::abort();
            }
            Ok(charge)
        })
        .await?;
    println!("  attempt {}: {charge} is on record", ctx.attempt());
    if ctx.attempt() == 1 {
        println!("  attempt 1 fails: the carrier does not answer");
        return Err(TaskError::retry("the carrier does not answer"));
    }
    println!("  order {} is shipped", task.order);
    Ok(charge)
}

/// What handlers share.
#[derive(Debug)]
struct App {
    bank: Bank,
    dies: bool,
}

/// Another service: it charges cards, and finds charges by their idempotency keys.
#[derive(Debug)]
struct Bank {
    charges: PathBuf,
}

impl Bank {
    fn charge(&self, key: &str, cents: u64) -> io::Result<String> {
        println!("  bank: charges {cents} cents");
        let mut file = OpenOptions::new().create(true).append(true).open(&self.charges)?;
        writeln!(file, "{key} {cents}")?;
        Ok(format!("charge {}", self.count()?))
    }

    fn find(&self, key: &str) -> io::Result<Option<String>> {
        let charges = fs::read_to_string(&self.charges)?;
        let found = charges.lines().position(|line| line.starts_with(key));
        println!("  bank: is there a charge with this key? {}", found.is_some());
        Ok(found.map(|index| format!("charge {}", index + 1)))
    }

    fn count(&self) -> io::Result<usize> {
        Ok(fs::read_to_string(&self.charges)?.lines().count())
    }
}

/// The files that the processes share.
struct Files<'a>(&'a Path);

impl Files<'_> {
    async fn quell(&self) -> quell::Result<Quell> {
        Quell::open(&format!("sqlite://{}", self.0.join("app.db").display())).await
    }

    fn bank(&self) -> Bank {
        Bank { charges: self.0.join("bank.txt") }
    }
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => supervise().await,
        ["worker", folder, job] => work(&Files(folder.as_ref()), job.parse()?, false).await,
        ["dying-worker", folder, job] => work(&Files(folder.as_ref()), job.parse()?, true).await,
        _ => anyhow::bail!("run it without arguments: it starts its workers itself"),
    }
}

/// Triggers the task, and starts one worker process after the other.
async fn supervise() -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let files = Files(folder.path());
    let quell = files.quell().await?;
    let receipt = quell.trigger(Ship { order: 7, cents: 990 }).await?;
    let job = receipt.job().context("a trigger without a key makes a job")?;
    for worker in ["dying-worker", "worker"] {
        println!("A {worker} starts:");
        let mut process = Command::new(std::env::current_exe()?);
        process.arg(worker).arg(folder.path()).arg(job.to_string());
        let ended = process.status()?;
        println!("It ends: {}.", if ended.success() { "success" } else { "killed" });
    }
    let result = quell.result(job, Duration::ZERO).await?;
    let charges = files.bank().count()?;
    println!("Job {job} has {} with {charges} charge at the bank.", result.state);
    Ok(())
}

/// Runs a worker until the job has ended. After a worker has died, its job is released when its
/// lease expires: a short lease here, 30 s by default.
async fn work(files: &Files<'_>, job: u64, dies: bool) -> anyhow::Result<()> {
    let quell = files.quell().await?;
    let app = App { bank: files.bank(), dies };
    let worker = quell.worker(app).register(ship).lease(Duration::from_secs(1));
    worker.run_until(ended(&quell, JobId::new(job))).await?;
    Ok(())
}

async fn ended(quell: &Quell, job: JobId) {
    let wait = || quell.result(job, Duration::from_secs(60));
    while !wait().await.is_ok_and(|result: JobResult| result.is_ended()) {}
}
