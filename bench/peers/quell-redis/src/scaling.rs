//! Quell on a Cluster, one call for each step of a round: jobs are enqueued, then drained; or windows
//! are triggered. What each master did meanwhile is counted by `bench/src/redis/scaling.rs`.

use std::io::Write;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};
use quell::trigger::{Keyed, NewTrigger, Thresholds};
use quell::{
    Batch, Ctx, Debounce, JobState, Key, Payload, Policy, Quell, QueueName, TaskError, TaskName,
};
use serde::Serialize;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::task::JoinSet;

const CALLERS: usize = 32;
/// How long the next start, or the last end, may take before the step has failed.
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Debug, Parser)]
struct Cli {
    /// A Cluster, with the shards of its queues.
    #[arg(long, global = true, default_value = "redis-cluster://127.0.0.1:7000/")]
    url: String,
    /// Over how many queues the jobs are dealt out: `queue-0` and so on.
    #[arg(long, global = true, default_value_t = 1)]
    queues: usize,
    #[arg(long, global = true, default_value_t = 32_000)]
    count: usize,
    #[command(subcommand)]
    step: Step,
}

#[derive(Clone, Copy, Debug, Subcommand)]
enum Step {
    /// 32 callers, each enqueues one job at a time.
    Enqueue,
    /// One worker works off what is queued, which is `--count` jobs.
    Drain,
    /// 32 callers, each triggers one of a number of keys at a time.
    Debounced {
        #[arg(long, default_value_t = 1_000)]
        keys: usize,
    },
}

/// The line.
#[derive(Debug, Serialize)]
struct Measurement {
    jobs: usize,
    value: f64,
}

#[derive(Clone, Debug)]
struct Measured {
    quell: Quell,
    places: Vec<(TaskName, QueueName)>,
}

impl Measured {
    async fn open(cli: &Cli) -> Result<Self> {
        let place = |n: usize| {
            Ok((TaskName::new(format!("noop-{n}"))?, QueueName::new(format!("queue-{n}"))?))
        };
        let places = (0..cli.queues).map(place).collect::<Result<_>>()?;
        Ok(Measured { quell: Quell::open(&cli.url).await?, places })
    }

    fn trigger(&self, n: usize) -> Result<NewTrigger> {
        let place = self.places.get(n % self.places.len().max(1));
        let (task, queue) = place.context("--queues: at least 1")?.clone();
        Ok(NewTrigger::new(task, queue, Payload::encode(&serde_json::json!({ "n": n }))?))
    }

    async fn enqueue(&self, n: usize) -> Result<()> {
        self.send(self.trigger(n)?).await
    }

    /// Moves the window of a key, which is always in the same queue.
    async fn debounce(&self, key: usize) -> Result<()> {
        let hour = Duration::from_secs(3_600);
        let debounce = Debounce::new(Thresholds::new(hour, 2 * hour)?);
        let keyed = Keyed { key: Key::new(format!("customer-{key}"))?, debounce };
        self.send(NewTrigger { keyed: Some(keyed), ..self.trigger(key)? }).await
    }

    async fn send(&self, trigger: NewTrigger) -> Result<()> {
        self.quell.enqueue(Batch { triggers: vec![trigger], dedup: None }).await?;
        Ok(())
    }

    /// Callers at once, each waiting for its own answer.
    async fn callers(&self, step: Step, count: usize) -> Result<Measurement> {
        let began = Instant::now();
        let each = count.div_ceil(CALLERS);
        let mut tasks = JoinSet::new();
        for caller in 0..CALLERS {
            let measured = self.clone();
            tasks.spawn(async move {
                for n in 0..each {
                    match step {
                        Step::Debounced { keys } => {
                            measured.debounce((caller * 7_919 + n * 104_729) % keys).await?;
                        }
                        Step::Enqueue | Step::Drain => {
                            measured.enqueue(n * CALLERS + caller).await?;
                        }
                    }
                }
                anyhow::Ok(())
            });
        }
        while let Some(ended) = tasks.join_next().await {
            ended??;
        }
        Ok(rate(each * CALLERS, began))
    }

    /// From the start of a worker until every job is completed. Asked only after the last start, so
    /// that asking costs the servers little.
    async fn drain(&self, count: usize) -> Result<Measurement> {
        let (sender, mut starts) = unbounded_channel();
        let mut worker = self.quell.worker(sender).concurrency(256);
        for (task, queue) in &self.places {
            worker = worker.register_raw(task.clone(), &Policy::queue(queue.as_str()), noop);
        }
        let began = Instant::now();
        let done = async {
            for n in 0..count {
                let start = tokio::time::timeout(PATIENCE, starts.recv()).await;
                start.with_context(|| format!("nothing starts after {n} jobs"))?;
            }
            tokio::time::timeout(PATIENCE, self.ended(count))
                .await
                .context("jobs are left over")??;
            anyhow::Ok(rate(count, began))
        };
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let working = worker.run_until(async { drop(stopped.await) });
        let (ended, measurement) = tokio::join!(working, async {
            let measurement = done.await;
            drop(stop);
            measurement
        });
        ended?;
        measurement
    }

    async fn ended(&self, count: usize) -> Result<()> {
        loop {
            let counts = self.quell.store().counts().await?;
            let succeeded = counts.iter().filter(|row| row.state == JobState::Succeeded);
            if succeeded.map(|row| row.jobs).sum::<u64>() >= u64::try_from(count)? {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

async fn noop(_: Payload, ctx: Ctx<UnboundedSender<()>>) -> Result<(), TaskError> {
    let _unheard = ctx.state().send(());
    Ok(())
}

fn rate(jobs: usize, began: Instant) -> Measurement {
    Measurement { jobs, value: jobs as f64 / began.elapsed().as_secs_f64() }
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> Result<()> {
    let cli = Cli::parse();
    let measured = Measured::open(&cli).await?;
    let measurement = match cli.step {
        Step::Drain => measured.drain(cli.count).await?,
        step => measured.callers(step, cli.count).await?,
    };
    Ok(writeln!(std::io::stdout(), "{}", serde_json::to_string(&measurement)?)?)
}
