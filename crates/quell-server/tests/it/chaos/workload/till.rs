//! A worker that charges orders at a payment service, each once (R23), and kills itself at every
//! point at which that could go wrong.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::Context as _;
use quell::worker::WorkerId;
use quell::{Ctx, Key, Payload, Policy, Quell, TaskError, TaskName};
use reqwest::{Client, Response, StatusCode};

use quell_server::signal;

/// The task that charges.
pub(crate) const PAY: &str = "pay";
/// The points at which an order may kill its process: of eight orders, four do so once, each at
/// another one.
pub(crate) const POINTS: [&str; 4] =
    ["before the intent", "after the intent", "after the call", "after the record"];

/// What the handlers share.
struct Till {
    client: Client,
    /// Where the payment service is.
    payments: String,
    /// The folder in which each death is a file, named by its point and order.
    deaths: PathBuf,
}

/// Works until the process ends.
pub(super) async fn work(quell: &Quell, payments: &str, deaths: &Path) -> anyhow::Result<()> {
    let client = Client::builder().no_proxy().timeout(Duration::from_secs(5)).build()?;
    let till = Till { client, payments: payments.to_owned(), deaths: deaths.to_owned() };
    let worker = quell
        .worker(till)
        .register_raw(TaskName::new(PAY)?, &policy(), pay)
        .lease(Duration::from_millis(300))
        .grace(Duration::from_secs(1))
        .concurrency(4)
        .name(WorkerId::new(format!("till-{}", std::process::id()))?);
    worker.run_until(signal::shutdown()?).await.context("the worker")
}

/// How orders are tried.
pub(crate) fn policy() -> Policy {
    let backoff = Duration::from_millis(5);
    // Tills are killed on purpose, however often in a row.
    let policy = Policy::queue(PAY).attempts(10_000).max_crashes(u32::MAX);
    policy.min_backoff(backoff).max_backoff(backoff)
}

async fn pay(order: Payload, ctx: Ctx<Till>) -> Result<(), TaskError> {
    let till = ctx.state();
    till.may_die(0, &order);
    let charge = ctx.effect("charge").verify(|key| till.find(key));
    let charge: u64 = charge.run(|key| till.charge(key, &order)).await?;
    till.may_die(3, &order);
    if charge == 0 {
        return Err(TaskError::permanent("charges are counted from 1"));
    }
    Ok(())
}

impl Till {
    async fn charge(&self, key: Key, order: &Payload) -> Result<u64, TaskError> {
        self.may_die(1, order);
        let url = self.url(&key);
        let answer = self.client.post(url).body(order.as_str().to_owned()).send().await?;
        self.may_die(2, order);
        number(answer.error_for_status()?).await
    }

    async fn find(&self, key: Key) -> Result<Option<u64>, TaskError> {
        let answer = self.client.get(self.url(&key)).send().await?;
        if answer.status() == StatusCode::NOT_FOUND {
            return Ok(None);
        }
        number(answer.error_for_status()?).await.map(Some)
    }

    fn url(&self, key: &Key) -> String {
        format!("{}/charges/{key}", self.payments)
    }

    fn may_die(&self, point: usize, order: &Payload) {
        let is_deadly = order.as_str().parse().is_ok_and(|order: usize| order % 8 == point);
        let Some(point) = POINTS.get(point).filter(|_| is_deadly) else { return };
        // The process that creates the file dies; one that finds it goes on.
        if File::create_new(self.deaths.join(format!("{point} {}", order.as_str()))).is_err() {
            return;
        }
        let process = std::process::id().to_string();
        // SIGKILL: nothing is tidied up.
        let _killed = Command::new("kill").args(["-KILL", &process]).status();
    }
}

async fn number(answer: Response) -> Result<u64, TaskError> {
    Ok(answer.text().await?.parse()?)
}
