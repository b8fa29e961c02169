//! A longer backlog: a claim reads the head of the line and must cost the same, however long it is.

use std::time::Instant;

use anyhow::Result;
use quell::{Quell, Task};
use tokio::sync::mpsc::unbounded_channel;

use crate::jobs::{CONCURRENCY, Noop, claim_cost, fill, start_worker, started};
use crate::part::{Part, at_most, power};

const CLAIMS: usize = 300;
/// How many jobs are worked off at each length, where there are as many.
const HEAD: usize = 20_000;
/// How much more a claim may cost before the longest backlog.
const FLAT: f64 = 1.5;
/// Shorter backlogs say little: a claim takes a good part of them.
const SHORT: usize = 10_000;

pub(crate) async fn measure(url: &str, backlogs: &[usize]) -> Result<()> {
    let mut database = crate::database(url).await?;
    let quell = Quell::open(database.url()).await?;
    let mut part = Part::new(&["claim of 100, ms", "p99", "first 20,000 jobs, per second"])?;
    let (mut waiting, mut base) = (0, None);
    for (row, backlog) in backlogs.iter().enumerate() {
        fill(&quell, backlog.saturating_sub(waiting), |n| Noop { n }).await?;
        database.checkpoint().await?;
        let cost = claim_cost(&quell, Noop::NAME, CLAIMS).await?;
        let rate = if *backlog >= HEAD { Some(work_off(&quell, HEAD).await?) } else { None };
        part.add(&power(*backlog), [Some(cost.median), Some(cost.p99), rate])?;
        waiting = if rate.is_some() { backlog - HEAD } else { *backlog };
        base = base.or((*backlog >= SHORT).then_some(row));
    }
    let base = base.unwrap_or(0);
    let ratio = part.last(0) / part.cell(base, 0);
    let name = backlogs.get(base).map_or_else(String::new, |backlog| power(*backlog));
    drop(quell);
    database.drop().await?;
    let verdict =
        format!("the longest costs {ratio:.2} x {name}; goal {FLAT} x: {}", at_most(ratio, FLAT));
    part.conclude(&verdict)
}

/// How fast a worker starts the first `count` jobs.
async fn work_off(quell: &Quell, count: usize) -> Result<f64> {
    let (sender, mut starts) = unbounded_channel();
    let began = Instant::now();
    let worker = start_worker(quell, sender, CONCURRENCY);
    started(&mut starts, count).await?;
    let rate = count as f64 / began.elapsed().as_secs_f64();
    worker.stop().await?;
    Ok(rate)
}
