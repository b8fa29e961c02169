//! One workload on `effectum`, measured the way `bench` measures Quell; prints operations per second
//! or milliseconds. It has a workspace of its own because it links another version of SQLite.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use effectum::{Job, JobRunner, Queue, RunningJob, Worker};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

#[derive(Debug)]
struct App {
    ended: AtomicUsize,
    started: UnboundedSender<Instant>,
}

async fn noop(_: RunningJob, app: Arc<App>) -> Result<(), effectum::Error> {
    app.ended.fetch_add(1, Ordering::Relaxed);
    let _unheard = app.started.send(Instant::now());
    Ok(())
}

fn job(n: usize) -> anyhow::Result<Job> {
    Ok(Job::builder("noop").json_payload(&serde_json::json!({ "n": n }))?.build())
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> anyhow::Result<()> {
    let args: Vec<String> = std::env::args().collect();
    let (Some(workload), Some(count), Some(folder)) = (args.get(1), args.get(2), args.get(3)) else {
        bail!("usage: effectum-peer WORKLOAD COUNT FOLDER");
    };
    let count: usize = count.parse().context("COUNT")?;
    let folder = tempfile::tempdir_in(Path::new(folder))?;
    let queue = Arc::new(Queue::new(&folder.path().join("peer.db")).await?);
    let measured = match workload.as_str() {
        "batch" => batch(&queue, count).await?,
        "single" => single(&queue, count).await?,
        "drain" => drain(&queue, count).await?,
        "latency" => latency(&queue, count).await?,
        other => bail!("no workload {other}"),
    };
    println!("{measured}");
    Ok(())
}

async fn batch(queue: &Queue, count: usize) -> anyhow::Result<f64> {
    let began = Instant::now();
    for start in (0..count).step_by(1_000) {
        let jobs = (start..start + 1_000).map(job).collect::<anyhow::Result<Vec<_>>>()?;
        queue.add_jobs(jobs).await?;
    }
    Ok(count as f64 / began.elapsed().as_secs_f64())
}

async fn single(queue: &Arc<Queue>, count: usize) -> anyhow::Result<f64> {
    const CALLERS: usize = 32;
    let began = Instant::now();
    let mut callers = tokio::task::JoinSet::new();
    for _ in 0..CALLERS {
        let queue = Arc::clone(queue);
        callers.spawn(async move {
            for n in 0..count / CALLERS {
                queue.add_job(job(n)?).await?;
            }
            anyhow::Ok(())
        });
    }
    while let Some(ended) = callers.join_next().await {
        ended??;
    }
    Ok(count as f64 / began.elapsed().as_secs_f64())
}

async fn worker(queue: &Queue) -> anyhow::Result<(Worker, Arc<App>, tokio::sync::mpsc::UnboundedReceiver<Instant>)> {
    let (started, starts) = unbounded_channel();
    let app = Arc::new(App { ended: AtomicUsize::new(0), started });
    let runner = JobRunner::builder("noop", noop).build();
    let worker = Worker::builder(queue, Arc::clone(&app))
        .min_concurrency(128)
        .max_concurrency(512)
        .jobs([runner])
        .build()
        .await?;
    Ok((worker, app, starts))
}

/// Until the worker says that it has finished them, which it does once they are settled.
async fn drain(queue: &Queue, count: usize) -> anyhow::Result<f64> {
    batch(queue, count).await?;
    let began = Instant::now();
    let (worker, _app, _starts) = worker(queue).await?;
    while worker.counts().finished < count as u64 {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    Ok(count as f64 / began.elapsed().as_secs_f64())
}

async fn latency(queue: &Queue, count: usize) -> anyhow::Result<f64> {
    let (_worker, _app, mut starts) = worker(queue).await?;
    let mut waits = Vec::with_capacity(count);
    for n in 0..count {
        let began = Instant::now();
        queue.add_job(job(n)?).await?;
        let started = starts.recv().await.context("the worker ended")?;
        waits.push(started.duration_since(began).as_secs_f64() * 1e3);
        tokio::time::sleep(Duration::from_millis(3)).await;
    }
    waits.sort_by(f64::total_cmp);
    Ok(waits[waits.len() / 2])
}
