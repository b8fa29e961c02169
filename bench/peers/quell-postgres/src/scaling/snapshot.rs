//! Jobs a second while a transaction keeps a snapshot open, as a report or a backup does: no vacuum
//! removes what has become dead since.
//!
//! A closed loop: as many jobs wait at any moment, and as many run at once.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use quell::Quell;
use sqlx::PgConnection;
use tokio::sync::mpsc::unbounded_channel;

use crate::jobs::{Noop, close, start_worker};
use crate::part::Part;

/// How many jobs wait.
const DEPTH: usize = 2_000;
/// Triggers of one call.
const BATCH: usize = 200;
/// Of the rate before the snapshot, what is left at its end.
const GOAL: f64 = 0.9;

/// Triggers jobs so that `DEPTH` of them wait, as far as they have not `started`.
async fn keep_full(quell: Quell, started: Arc<AtomicUsize>) -> Result<Infallible> {
    let mut triggered = 0;
    loop {
        if triggered - started.load(Ordering::Relaxed) >= DEPTH {
            tokio::time::sleep(Duration::from_millis(1)).await;
            continue;
        }
        triggered += BATCH;
        quell.trigger_many((0..BATCH).map(|n| Noop { n })).await?;
    }
}

/// Keeps a snapshot open until the connection is closed.
pub(crate) async fn open(db: &mut PgConnection) -> Result<()> {
    let begin = "begin isolation level repeatable read; select 1";
    sqlx::raw_sql(begin).execute(db).await.context("a snapshot").map(drop)
}

pub(crate) async fn measure(url: &str, seconds: u64, at_once: usize, held: bool) -> Result<()> {
    let span = Duration::from_secs((seconds / 4).max(1));
    let database = crate::database(url).await?;
    let quell = Quell::open(database.url()).await?;
    let mut part = Part::new(&["jobs per second", "of the first"])?;
    let (sender, mut starts) = unbounded_channel();
    let worker = start_worker(&quell, sender, at_once);
    let started = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&started);
    let counting = tokio::spawn(async move {
        while starts.recv().await.is_some() {
            count.fetch_add(1, Ordering::Relaxed);
        }
    });
    let filling = tokio::spawn(keep_full(quell.clone(), Arc::clone(&started)));
    tokio::time::sleep(Duration::from_secs(3)).await;
    let rate = async || {
        let (began, before) = (Instant::now(), started.load(Ordering::Relaxed));
        tokio::time::sleep(span).await;
        let done = started.load(Ordering::Relaxed) - before;
        done as f64 / began.elapsed().as_secs_f64()
    };
    let first = rate().await;
    part.add("before it", [first, 1.0])?;
    let mut report = database.inside().await?;
    if held {
        open(&mut report).await?;
    }
    for quarter in 1..=4 {
        let now = rate().await;
        let from = (quarter - 1) * span.as_secs();
        let what = if held { "open for" } else { "after" };
        let case = format!("{what} {from} to {} s", quarter * span.as_secs());
        part.add(&case, [now, now / first])?;
    }
    if filling.is_finished() {
        match filling.await?? {}
    }
    filling.abort();
    worker.stop().await?;
    counting.abort();
    close(report).await?;
    drop(quell);
    database.drop().await?;
    let left = part.last(1);
    let met = if left >= GOAL { "met" } else { "not met" };
    let verdict = format!(
        "{DEPTH} no-ops wait, {at_once} run at once; at its end {left:.2} x the rate before it, \
         goal {GOAL} x: {met}"
    );
    part.conclude(&verdict)
}
