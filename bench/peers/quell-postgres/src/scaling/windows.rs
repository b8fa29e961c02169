//! More open windows: triggers that join one or open another, and claims of what is due beside
//! them, must not notice how many others wait.

use std::time::Instant;

use anyhow::Result;
use quell::{Quell, Task};
use tokio::task::JoinSet;

use crate::jobs::{Meter, claim_cost, fill};
use crate::part::{Part, at_most, power};

const CALLERS: usize = 32;
const CALLS: usize = 9_600;
const CLAIMS: usize = 300;
/// How much more each may cost beside the most windows.
const FLAT: f64 = 1.5;

pub(crate) async fn measure(url: &str, sizes: &[usize]) -> Result<()> {
    let mut part = Part::new(&[
        "opened in batches, per second",
        "joins, per second",
        "new windows, per second",
        "claim of 100 due jobs, ms",
        "p99",
    ])?;
    for windows in sizes {
        part.add(&power(*windows), beside(url, *windows).await?)?;
    }
    let joins = part.cell(0, 1) / part.last(1);
    let opens = part.cell(0, 2) / part.last(2);
    let claims = part.last(3) / part.cell(0, 3);
    let worst = joins.max(opens).max(claims);
    let verdict = format!(
        "beside the most, a join costs {joins:.2} x, a new window {opens:.2} x, a claim \
         {claims:.2} x; {CALLERS} callers; goal {FLAT} x: {}",
        at_most(worst, FLAT)
    );
    part.conclude(&verdict)
}

async fn beside(url: &str, windows: usize) -> Result<[f64; 5]> {
    let mut database = crate::database(url).await?;
    let quell = Quell::open(database.url()).await?;
    let began = Instant::now();
    fill(&quell, windows, |key| Meter { key }).await?;
    let opened = windows as f64 / began.elapsed().as_secs_f64();
    database.checkpoint().await?;
    let joins = call(&quell, move |n| n * 104_729 % windows).await?;
    let opens = call(&quell, move |n| windows + n).await?;
    // They stand in the lane of the windows, before them.
    let cost = claim_cost(&quell, Meter::NAME, CLAIMS).await?;
    drop(quell);
    database.drop().await?;
    Ok([opened, joins, opens, cost.median, cost.p99])
}

/// Callers at once, each waiting for its own commit.
async fn call(quell: &Quell, key: impl Fn(usize) -> usize + Copy + Send + 'static) -> Result<f64> {
    let mut callers: JoinSet<quell::Result<()>> = JoinSet::new();
    let began = Instant::now();
    for caller in 0..CALLERS {
        let quell = quell.clone();
        callers.spawn(async move {
            for n in (caller..CALLS).step_by(CALLERS) {
                quell.trigger(Meter { key: key(n) }).await?;
            }
            Ok(())
        });
    }
    while let Some(ended) = callers.join_next().await {
        ended??;
    }
    Ok(CALLS as f64 / began.elapsed().as_secs_f64())
}
