//! The load of one case: a client that triggers at a fixed rate beside a worker that runs the jobs,
//! both in this process, and what the two observe.
//!
//! The loop is open: each trigger has its time, whether or not those before it were answered. So a
//! store that falls behind shows it in the waits and in the rate that it accepted.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use quell::{Ctx, JobState, Policy, Quell, Task, TaskError};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc::UnboundedSender;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::cpu;
use crate::server::{Counts, Server};
use crate::working::Working;

/// Bytes of a payload.
const PAYLOAD: usize = 100;
/// Triggers that become one run.
pub(crate) const BURST: u64 = 10;
/// A burst runs after this time without a trigger of its key.
const QUIET: Duration = Duration::from_millis(500);
/// Between two triggers of a burst.
const APART_MS: u64 = 50;
/// Calls that may be without an answer; above it the client leaves triggers out.
const MOST_OPEN: usize = 20_000;
/// Jobs of one call where jobs are only to be there.
const BATCH: usize = 1_000;
/// How long jobs may take to end where the case is not about rates.
const PATIENCE: Duration = Duration::from_secs(300);

/// What triggers ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// Each trigger is a job.
    Plain,
    /// Ten triggers of a key, debounced, are one job.
    Bursts,
}

impl Shape {
    pub(crate) const ALL: [Shape; 2] = [Shape::Plain, Shape::Bursts];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Shape::Plain => "plain",
            Shape::Bursts => "bursts",
        }
    }

    /// From a trigger's time until its job is due.
    fn delay(self) -> Duration {
        match self {
            Shape::Plain => Duration::ZERO,
            Shape::Bursts => QUIET,
        }
    }
}

/// How much of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    pub(crate) shape: Shape,
    /// Triggers a second.
    pub(crate) rate: u64,
    /// Before counting begins.
    pub(crate) warm_up: Duration,
    /// While counting.
    pub(crate) length: Duration,
}

impl Load {
    /// When a trigger is due, from the beginning on.
    fn at(self, n: u64) -> Duration {
        Duration::from_micros(n.saturating_mul(1_000_000) / self.rate.max(1))
    }

    /// The key of a trigger. Bursts of several keys run side by side, so that the triggers of one
    /// key are as far apart at every rate.
    fn key(self, n: u64) -> u64 {
        let side_by_side = (self.rate * APART_MS / 1_000).max(1);
        n / (side_by_side * BURST) * side_by_side + n % side_by_side
    }

    fn is_over(self, began: Instant) -> bool {
        began.elapsed() > self.warm_up + self.length
    }
}

/// The payload, [`PAYLOAD`] bytes of JSON.
#[derive(Debug, Serialize, Deserialize)]
struct Body {
    /// When it was due to be triggered, in microseconds from the beginning on.
    at: u64,
    key: u64,
    padding: String,
}

impl Body {
    fn new(at: Duration, key: u64) -> anyhow::Result<Self> {
        let mut body = Body { at: u64::try_from(at.as_micros())?, key, padding: String::new() };
        let bare = serde_json::to_string(&body)?.len();
        body.padding = "x".repeat(PAYLOAD.saturating_sub(bare));
        Ok(body)
    }
}

#[derive(Debug, Serialize, Deserialize)]
struct Plain(Body);

impl Task for Plain {
    const NAME: &'static str = "plain";
    type Output = ();
}

#[derive(Debug, Serialize, Deserialize)]
struct Bursts(Body);

impl Task for Bursts {
    const NAME: &'static str = "bursts";
    type Output = ();

    fn policy() -> Policy {
        Policy::default().debounce(QUIET..=10 * QUIET)
    }

    fn debounce_key(&self) -> Option<String> {
        Some(format!("customer-{}", self.0.key))
    }
}

/// The start of a job: when, and the time of its last trigger.
type Started = (Instant, u64);

/// Starts a worker of both tasks.
fn start(quell: &Quell) -> Working<Started> {
    Working::start(quell, |worker| worker.register(plain).register(bursts))
}

async fn plain(Plain(body): Plain, ctx: Ctx<UnboundedSender<Started>>) -> Result<(), TaskError> {
    let _unheard = ctx.state().send((Instant::now(), body.at));
    Ok(())
}

async fn bursts(Bursts(body): Bursts, ctx: Ctx<UnboundedSender<Started>>) -> Result<(), TaskError> {
    let _unheard = ctx.state().send((Instant::now(), body.at));
    Ok(())
}

/// All counters at one moment. Reading them takes as long at the end as at the beginning, so the
/// time between two readings is that between their beginnings.
#[derive(Clone, Copy, Debug)]
struct Reading {
    at: Instant,
    own_cpu: f64,
    counts: Counts,
}

async fn read(server: &Arc<Server>) -> anyhow::Result<Reading> {
    let server = Arc::clone(server);
    let at = Instant::now();
    let reading = tokio::task::spawn_blocking(move || {
        let counts = server.counts()?;
        anyhow::Ok(Reading { at, own_cpu: cpu::of_this_process()? as f64, counts })
    });
    reading.await?
}

/// What one case found, while it was counting.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Found {
    /// Triggers that the store accepted, a second.
    pub(crate) accepted: f64,
    /// Jobs that started, a second.
    pub(crate) started: f64,
    /// Per cent of a core.
    pub(crate) client_cpu: f64,
    /// The same, where there is a server.
    pub(crate) server_cpu: Option<f64>,
    /// Transactions or commands for each trigger.
    pub(crate) calls: f64,
    /// Bytes written for each trigger.
    pub(crate) written: f64,
    /// From due to start, in milliseconds.
    pub(crate) waits: Option<Waits>,
    /// Why triggers failed, and how many did.
    pub(crate) failed: Option<String>,
}

#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Waits {
    pub(crate) p50: f64,
    pub(crate) p99: f64,
}

/// The answers of a client.
#[derive(Debug, Default)]
struct Answers {
    accepted: Vec<Instant>,
    failures: u64,
    last_failure: String,
}

impl Answers {
    fn note(&mut self, answer: quell::Result<Instant>) {
        match answer {
            Ok(at) => self.accepted.push(at),
            Err(error) => {
                self.failures += 1;
                self.last_failure = error.to_string();
            }
        }
    }
}

/// Runs one case on this server.
pub(crate) async fn measure(server: &Arc<Server>, load: Load) -> anyhow::Result<Found> {
    let quell = Quell::open(&server.url()).await?;
    let working = start(&quell);
    let began = Instant::now();
    let ends = async {
        tokio::time::sleep_until(began + load.warm_up).await;
        let first = read(server).await?;
        tokio::time::sleep_until(began + load.warm_up + load.length).await;
        anyhow::Ok((first, read(server).await?))
    };
    let (ends, answers) = tokio::join!(ends, trigger(&quell, load, began));
    let (first, last) = ends?;
    let starts = working.stop().await?;
    Ok(found(load, began, [first, last], &answers?, &starts))
}

/// Triggers until the case is over. Calls that have no answer by then are given up.
async fn trigger(quell: &Quell, load: Load, began: Instant) -> anyhow::Result<Answers> {
    let (mut calls, mut answers) = (JoinSet::new(), Answers::default());
    let mut n = 0;
    while !load.is_over(began) {
        let at = load.at(n);
        tokio::time::sleep_until(began + at).await;
        if calls.len() < MOST_OPEN {
            let (quell, body) = (quell.clone(), Body::new(at, load.key(n))?);
            calls.spawn(async move {
                match load.shape {
                    Shape::Plain => drop(quell.trigger(Plain(body)).await?),
                    Shape::Bursts => drop(quell.trigger(Bursts(body)).await?),
                }
                Ok(Instant::now())
            });
        }
        n += 1;
        while let Some(answer) = calls.try_join_next() {
            answers.note(answer?);
        }
    }
    calls.abort_all();
    Ok(answers)
}

fn found(
    load: Load,
    began: Instant,
    [first, last]: [Reading; 2],
    answers: &Answers,
    starts: &[Started],
) -> Found {
    let counted = first.at..last.at;
    let seconds = last.at.duration_since(first.at).as_secs_f64();
    let accepted = answers.accepted.iter().filter(|at| counted.contains(at)).count() as f64;
    let waits: Vec<f64> = starts
        .iter()
        .filter(|(start, _)| counted.contains(start))
        .map(|(start, at)| {
            let due = began + Duration::from_micros(*at) + load.shape.delay();
            start.saturating_duration_since(due).as_secs_f64() * 1e3
        })
        .collect();
    let percent = |first: f64, last: f64| (last - first) / cpu::TICKS / seconds * 100.0;
    let each = |of: fn(&Counts) -> f64| (of(&last.counts) - of(&first.counts)) / accepted;
    let failures = answers.failures;
    Found {
        accepted: accepted / seconds,
        started: waits.len() as f64 / seconds,
        client_cpu: percent(first.own_cpu, last.own_cpu),
        server_cpu: first.counts.cpu.zip(last.counts.cpu).map(|(a, b)| percent(a, b)),
        calls: each(|counts| counts.calls),
        written: each(|counts| counts.written),
        waits: (!waits.is_empty()).then(|| Waits {
            p50: crate::workload::quantile(waits.clone(), 0.5),
            p99: crate::workload::quantile(waits, 0.99),
        }),
        failed: (failures > 0).then(|| format!("{failures} failed: {}", answers.last_failure)),
    }
}

/// Bytes that a job holds.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Held {
    pub(crate) waiting: f64,
    pub(crate) ended: f64,
}

/// Bytes that each of `jobs` takes while it waits, and after its end.
pub(crate) async fn held(server: &Server, jobs: usize) -> anyhow::Result<Held> {
    let quell = Quell::open(&server.url()).await?;
    let empty = server.held().await?;
    for first in (0..jobs).step_by(BATCH) {
        let bodies = (first..jobs.min(first + BATCH))
            .map(|n| Body::new(Duration::ZERO, n as u64).map(Plain))
            .collect::<anyhow::Result<Vec<_>>>()?;
        quell.trigger_many(bodies).await?;
    }
    let waiting = server.held().await?;
    let working = start(&quell);
    let all = ended(&quell, jobs);
    tokio::time::timeout(PATIENCE, all).await.context("the jobs do not end")??;
    working.stop().await?;
    let ended = server.held().await?;
    let each = |bytes: f64| (bytes - empty) / jobs as f64;
    Ok(Held { waiting: each(waiting), ended: each(ended) })
}

/// Waits until the store counts this number of jobs as succeeded.
async fn ended(quell: &Quell, jobs: usize) -> anyhow::Result<()> {
    loop {
        let counts = quell.store().counts().await?;
        let succeeded = counts.iter().filter(|row| row.state == JobState::Succeeded);
        if succeeded.map(|row| row.jobs).sum::<u64>() >= jobs as u64 {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(rate: u64) -> Load {
        let second = Duration::from_secs(1);
        Load { shape: Shape::Bursts, rate, warm_up: second, length: second }
    }

    #[test]
    fn ten_triggers_share_a_key_and_come_a_twentieth_of_a_second_apart() {
        for rate in [1, 100, 5_000] {
            let of_one: Vec<u64> = (0..rate * 2 + 10).filter(|n| load(rate).key(*n) == 0).collect();
            assert_eq!(of_one.len() as u64, BURST, "at {rate}");
            if rate > 1 {
                let apart = load(rate).at(of_one[1]) - load(rate).at(of_one[0]);
                assert_eq!(apart, Duration::from_millis(APART_MS), "at {rate}");
            }
        }
    }

    #[test]
    fn a_payload_has_a_hundred_bytes() {
        for (at, key) in [(0, 0), (9_999_999, 12_345)] {
            let body = Body::new(Duration::from_micros(at), key).unwrap();
            assert_eq!(serde_json::to_string(&Plain(body)).unwrap().len(), PAYLOAD);
        }
    }
}
