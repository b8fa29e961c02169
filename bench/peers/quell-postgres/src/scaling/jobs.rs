//! The tasks of all parts, a worker that can be stopped, and what a claim costs.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use pg_common::{median, quantile};
use quell::store::{Claim, Draw, Lease, Outcome, Settlement};
use quell::trigger::NewTrigger;
use quell::worker::WorkerId;
use quell::{Batch, Ctx, Payload, Policy, Quell, QueueName, Task, TaskError, TaskName};
use serde::{Deserialize, Serialize};
use sqlx::{Connection, PgConnection};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};

pub(crate) use quell_common::{Noop, Working};

/// Jobs that a worker runs at once, where a part says nothing else.
pub(crate) const CONCURRENCY: usize = 256;
/// The most that one call may hold.
const PER_COMMIT: usize = 10_000;
/// How long the next start may take before the part has failed.
const PATIENCE: Duration = Duration::from_secs(60);

/// Debounced into tomorrow.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct Meter {
    pub(crate) key: usize,
}

impl Task for Meter {
    const NAME: &'static str = "meter";
    type Output = ();

    fn policy() -> Policy {
        let day = Duration::from_secs(86_400);
        Policy::default().debounce(day..=2 * day)
    }

    fn debounce_key(&self) -> Option<String> {
        Some(format!("customer-{}", self.key))
    }
}

/// Triggers in large batches.
pub(crate) async fn fill<T: Task>(
    quell: &Quell,
    count: usize,
    task: impl Fn(usize) -> T,
) -> Result<()> {
    for first in (0..count).step_by(PER_COMMIT) {
        let batch = first..count.min(first + PER_COMMIT);
        quell.trigger_many(batch.map(&task)).await?;
    }
    Ok(())
}

/// The number of a job, and when its handler was called.
pub(crate) type Start = (usize, Instant);

async fn noop(Noop { n }: Noop, ctx: Ctx<UnboundedSender<Start>>) -> Result<(), TaskError> {
    let _unheard = ctx.state().send((n, Instant::now()));
    Ok(())
}

/// Starts a worker that runs this number of jobs at once.
pub(crate) fn start_worker(
    quell: &Quell,
    starts: UnboundedSender<Start>,
    concurrency: usize,
) -> Working {
    Working::start(quell.worker(starts).register(noop).concurrency(concurrency))
}

/// Waits for this number of starts.
pub(crate) async fn started(starts: &mut UnboundedReceiver<Start>, count: usize) -> Result<()> {
    for n in 0..count {
        let start = tokio::time::timeout(PATIENCE, starts.recv()).await;
        start
            .with_context(|| format!("nothing starts after {n} jobs"))?
            .context("the worker ended")?;
    }
    Ok(())
}

/// Waits until every job's end is committed. Asked once all have started, so that asking costs the
/// workers little.
pub(crate) async fn drained(db: &mut PgConnection) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    while sqlx::query_scalar("select exists (select from quell.job)").fetch_one(&mut *db).await? {
        ensure!(Instant::now() < deadline, "jobs are left over");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    Ok(())
}

pub(crate) async fn close(db: PgConnection) -> Result<()> {
    Ok(db.close().await?)
}

/// What claims cost, in milliseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cost {
    pub(crate) median: f64,
    pub(crate) p99: f64,
}

/// Jobs that a claim of [`claim_cost`] takes.
pub(crate) const LIMIT: usize = 100;

/// Claims a hundred jobs of a task again and again, ends them, and puts as many in their place, so
/// that what waits stays as long as it is. Only the claims are timed.
pub(crate) async fn claim_cost(quell: &Quell, task: &str, samples: usize) -> Result<Cost> {
    let (queue, name) = (QueueName::new("default")?, TaskName::new(task)?);
    let plain = NewTrigger::new(name, queue, Payload::encode(&Noop { n: 0 })?);
    quell.enqueue(Batch { triggers: vec![plain.clone(); LIMIT], dedup: None }).await?;
    claim_cost_of(quell, task, samples, |_| Ok(vec![plain.clone(); LIMIT])).await
}

/// The same, with these in the place of those of the claim of this number.
pub(crate) async fn claim_cost_of(
    quell: &Quell,
    task: &str,
    samples: usize,
    next: impl Fn(usize) -> Result<Vec<NewTrigger>>,
) -> Result<Cost> {
    const WARM_UP: usize = 5;
    let claim = Claim {
        queue: QueueName::new("default")?,
        tasks: Arc::from([TaskName::new(task)?]),
        worker: WorkerId::new("bench")?,
        limit: LIMIT,
        lease: Duration::from_secs(60),
        draw: Draw::MIN,
    };
    let mut took = Vec::with_capacity(samples);
    for sample in 0..samples + WARM_UP {
        let began = Instant::now();
        let claimed = quell.store().claim(None, &claim).await?;
        let cost = began.elapsed().as_secs_f64() * 1e3;
        if sample >= WARM_UP {
            took.push(cost);
        }
        ensure!(claimed.jobs.len() == LIMIT, "a claim brought {} jobs", claimed.jobs.len());
        let ended = claimed.jobs.iter().map(|job| {
            let lease = Lease { job: job.id, token: job.token };
            Settlement { lease, outcome: Outcome::succeeded() }
        });
        quell.store().settle(None, ended.collect()).await?;
        quell.enqueue(Batch { triggers: next(sample)?, dedup: None }).await?;
    }
    Ok(Cost { median: median(took.clone()), p99: quantile(took, 0.99) })
}
