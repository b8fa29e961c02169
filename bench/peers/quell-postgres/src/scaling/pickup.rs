//! How long a job waits for its start at a fixed rate, before and while a snapshot is open.
//!
//! Triggers come at their times whatever became of those before them, so what waits for a slow call
//! counts in full.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use pg_common::quantile;
use quell::Quell;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::task::JoinSet;

use crate::jobs::{CONCURRENCY, Noop, Start, close, start_worker};
use crate::part::{Part, at_most};
use crate::snapshot::open;

/// In how many pieces the time is looked at.
const PIECES: u32 = 5;
/// Of the median of the last piece, in milliseconds.
const GOAL: f64 = 5.0;

pub(crate) async fn measure(url: &str, seconds: u64, rate: u32) -> Result<()> {
    let database = crate::database(url).await?;
    let quell = Quell::open(database.url()).await?;
    let mut part = Part::new(&["p50, ms", "p99, ms"])?;
    let (sender, starts) = unbounded_channel();
    let worker = start_worker(&quell, sender, CONCURRENCY);
    let piece = Duration::from_secs(seconds) / PIECES;
    let mut open_loop = OpenLoop { quell: &quell, starts, began: Instant::now(), rate };
    // The first is for the caches.
    open_loop.waits(piece.min(Duration::from_secs(3))).await?;
    part.add("before it", quantiles(open_loop.waits(piece).await?))?;
    let mut report = database.inside().await?;
    open(&mut report).await?;
    for n in 1..=PIECES {
        let case =
            format!("open for {} to {} s", (piece * (n - 1)).as_secs(), (piece * n).as_secs());
        part.add(&case, quantiles(open_loop.waits(piece).await?))?;
    }
    worker.stop().await?;
    close(report).await?;
    drop(quell);
    database.drop().await?;
    let last = part.last(0);
    let verdict = format!(
        "{rate} triggers a second, each a call of its own; from the time at which it was to be made \
         to the start of the handler; p50 at the end {last:.1} ms, goal {GOAL} ms: {}",
        at_most(last, GOAL)
    );
    part.conclude(&verdict)
}

fn quantiles(waits: Vec<f64>) -> [f64; 2] {
    [quantile(waits.clone(), 0.5), quantile(waits, 0.99)]
}

struct OpenLoop<'q> {
    quell: &'q Quell,
    /// The numbers are when triggers were to be made, in microseconds since the beginning.
    starts: UnboundedReceiver<Start>,
    began: Instant,
    rate: u32,
}

impl OpenLoop<'_> {
    /// The waits of the jobs that are triggered for so long, in milliseconds.
    async fn waits(&mut self, length: Duration) -> Result<Vec<f64>> {
        let from = Instant::now();
        let step = Duration::from_secs(1) / self.rate;
        let count = u32::try_from(length.as_nanos() / step.as_nanos()).context("--rate")?;
        let mut calls = JoinSet::new();
        let mut waits = Vec::new();
        for n in 0..count {
            let at = from + step * n;
            tokio::time::sleep_until(at.into()).await;
            let (quell, began) = (self.quell.clone(), self.began);
            calls.spawn(async move {
                let n = usize::try_from((at - began).as_micros()).unwrap_or(usize::MAX);
                quell.trigger(Noop { n }).await
            });
            while let Some(called) = calls.try_join_next() {
                called??;
            }
            while let Ok(start) = self.starts.try_recv() {
                waits.push(self.wait_of(start));
            }
        }
        while let Some(called) = calls.join_next().await {
            called??;
        }
        while waits.len() < count as usize {
            let start = tokio::time::timeout(Duration::from_secs(60), self.starts.recv()).await;
            let start = start.context("nothing starts")?.context("the worker ended")?;
            waits.push(self.wait_of(start));
        }
        Ok(waits)
    }

    fn wait_of(&self, (due, at): Start) -> f64 {
        (at - self.began).as_secs_f64() * 1e3 - due as f64 / 1e3
    }
}
