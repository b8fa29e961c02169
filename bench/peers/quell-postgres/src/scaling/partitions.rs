//! More partitions in which a job waits, in a queue that limits them: looks and claims read the first
//! ones, and must not notice how many others there are.

use std::time::Instant;

use anyhow::Result;
use pg_common::{median, quantile};
use quell::queue::QueueSettings;
use quell::trigger::NewTrigger;
use quell::{Batch, Key, Payload, Quell, QueueName, Task, TaskName};

use crate::jobs::{LIMIT, Noop, claim_cost_of};
use crate::part::{Part, at_most};

/// Of each kind.
const SAMPLES: usize = 60;
const WARM_UP: usize = 3;
/// Triggers in one call.
const PER_COMMIT: usize = 5_000;
/// What a look beside the most partitions may take, in milliseconds.
const GOAL: f64 = 2.0;

pub(crate) async fn measure(url: &str, sizes: &[usize]) -> Result<()> {
    let mut part = Part::new(&["look, ms", "p99", "claim of 100, ms", "p99"])?;
    for partitions in sizes {
        part.add(&partitions.to_string(), beside(url, *partitions).await?)?;
    }
    let look = part.last(0);
    let verdict = format!(
        "a look beside the most takes {look:.2} ms; goal {GOAL} ms: {}",
        at_most(look, GOAL)
    );
    part.conclude(&verdict)
}

async fn beside(url: &str, partitions: usize) -> Result<[f64; 4]> {
    let mut database = crate::database(url).await?;
    let quell = Quell::open(database.url()).await?;
    let (queue, task) = (QueueName::new("default")?, TaskName::new(Noop::NAME)?);
    let settings = QueueSettings { partition_concurrency: Some(1), ..QueueSettings::default() };
    quell.store().set_queue(None, &queue, &settings).await?;
    let of = |n: usize| -> Result<NewTrigger> {
        let payload = Payload::encode(&Noop { n })?;
        let partition = Some(Key::new(format!("customer-{n}"))?);
        Ok(NewTrigger { partition, ..NewTrigger::new(task.clone(), queue.clone(), payload) })
    };
    for first in (0..partitions).step_by(PER_COMMIT) {
        let triggers =
            (first..partitions.min(first + PER_COMMIT)).map(of).collect::<Result<_>>()?;
        quell.enqueue(Batch { triggers, dedup: None }).await?;
    }
    database.checkpoint().await?;
    let mut looks = Vec::new();
    for sample in 0..SAMPLES + WARM_UP {
        let began = Instant::now();
        quell.store().next_due(None, &queue, &[task.clone()]).await?;
        if sample >= WARM_UP {
            looks.push(began.elapsed().as_secs_f64() * 1e3);
        }
    }
    // As many partitions wait as before.
    let next = |sample| {
        let first = sample * LIMIT;
        (first..first + LIMIT).map(|n| of(n % partitions)).collect()
    };
    let claims = claim_cost_of(&quell, Noop::NAME, SAMPLES, next).await?;
    drop(quell);
    database.drop().await?;
    let look = median(looks.clone());
    Ok([look, quantile(looks, 0.99), claims.median, claims.p99])
}
