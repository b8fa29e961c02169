//! More workers: each has a store, a pool and a listener of its own, as another process would.

use std::time::Instant;

use anyhow::Result;
use quell::Quell;
use tokio::sync::mpsc::unbounded_channel;

use crate::jobs::{CONCURRENCY, Noop, Working, close, drained, fill, start_worker, started};
use crate::part::Part;

pub(crate) async fn measure(url: &str, crowds: &[usize], count: usize) -> Result<()> {
    let mut part = Part::new(&["jobs per second", "of the first"])?;
    for workers in crowds {
        let rate = drain(url, *workers, count).await?;
        let first = part.cell(0, 0);
        let ratio = if first.is_nan() { 1.0 } else { rate / first };
        part.add(&workers.to_string(), [rate, ratio])?;
    }
    let verdict = format!("{count} no-ops, 8 connections a worker, all in one process; no goal");
    part.conclude(&verdict)
}

/// From the first worker's start until every job is durably completed.
async fn drain(url: &str, workers: usize, count: usize) -> Result<f64> {
    let mut database = crate::database(url).await?;
    let mut stores = Vec::new();
    for _ in 0..workers {
        stores.push(Quell::open(database.url()).await?);
    }
    if let Some(first) = stores.first() {
        fill(first, count, |n| Noop { n }).await?;
    }
    database.checkpoint().await?;
    let mut db = database.inside().await?;
    let (sender, mut starts) = unbounded_channel();
    let began = Instant::now();
    let working: Vec<Working> =
        stores.iter().map(|store| start_worker(store, sender.clone(), CONCURRENCY)).collect();
    started(&mut starts, count).await?;
    drained(&mut db).await?;
    let rate = count as f64 / began.elapsed().as_secs_f64();
    for worker in working {
        worker.stop().await?;
    }
    drop(stores);
    close(db).await?;
    database.drop().await?;
    Ok(rate)
}
