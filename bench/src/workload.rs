//! What Quell is measured at, through its public API. Every trigger is durable before it counts.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use quell::trigger::{Dedup, NewTrigger};
use quell::worker::Retention;
use quell::{
    Batch, Ctx, HoldUntil, JobState, Key, Payload, Policy, Quell, QueueName, Task, TaskError,
    TaskName,
};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::task::JoinSet;

use crate::cpu;
use crate::place::Place;
use crate::working::Working;

/// How much of each.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    pub(crate) rounds: usize,
    pub(crate) batch: usize,
    pub(crate) drain: usize,
    pub(crate) single: usize,
    pub(crate) debounced: usize,
    pub(crate) latency: usize,
    pub(crate) idle: Duration,
}

impl Sizes {
    pub(crate) const FULL: Sizes = Sizes {
        rounds: 3,
        batch: 100_000,
        drain: 100_000,
        single: 32_000,
        debounced: 300_000,
        latency: 400,
        idle: Duration::from_secs(60),
    };
    pub(crate) const QUICK: Sizes = Sizes {
        rounds: 1,
        batch: 50_000,
        drain: 50_000,
        single: 9_600,
        debounced: 100_000,
        latency: 200,
        idle: Duration::from_secs(5),
    };
}

#[derive(serde::Serialize, serde::Deserialize)]
struct Noop {
    n: usize,
}

impl Task for Noop {
    const NAME: &'static str = "noop";
    type Output = ();
}

#[derive(serde::Serialize, serde::Deserialize)]
struct Meter {
    key: usize,
}

impl Task for Meter {
    const NAME: &'static str = "meter";
    type Output = ();

    fn policy() -> Policy {
        Policy::default().debounce(Duration::from_secs(100)..=Duration::from_secs(600))
    }

    fn debounce_key(&self) -> Option<String> {
        Some(format!("customer-{}", self.key))
    }
}

type Starts = UnboundedSender<Instant>;

async fn noop(_: Noop, ctx: Ctx<Starts>) -> Result<(), TaskError> {
    // Workloads that do not listen have dropped the other end.
    let _unheard = ctx.state().send(Instant::now());
    Ok(())
}

/// Starts a worker whose handlers report when they started.
fn start(quell: &Quell) -> Working<Instant> {
    Working::start(quell, |worker| worker.register(noop))
}

fn per_second(count: usize, since: Instant) -> f64 {
    count as f64 / since.elapsed().as_secs_f64()
}

/// Batches as large as the place takes, one after the other.
pub(crate) async fn batch(place: &Place, count: usize) -> anyhow::Result<f64> {
    let (quell, _guard) = place.open().await?;
    fill(&quell, place.batch(), count).await
}

/// The same on a store that is open.
pub(crate) async fn fill(quell: &Quell, batch: usize, count: usize) -> anyhow::Result<f64> {
    let began = Instant::now();
    for start in (0..count).step_by(batch) {
        quell.trigger_many((start..start + batch).map(|n| Noop { n })).await?;
    }
    Ok(per_second(count, began))
}

/// Until every settlement is committed: the store counts them, not the handlers.
pub(crate) async fn drain(place: &Place, count: usize) -> anyhow::Result<f64> {
    let (quell, _guard) = place.open().await?;
    fill(&quell, place.batch(), count).await?;
    work_off(&quell, count).await
}

/// Works off what waits, `count` jobs, where no job has ended before.
pub(crate) async fn work_off(quell: &Quell, count: usize) -> anyhow::Result<f64> {
    let (sender, receiver) = unbounded_channel();
    drop(receiver);
    let began = Instant::now();
    let store = Arc::clone(quell.store());
    let (queue, tasks) = (QueueName::new("default")?, [TaskName::new(Noop::NAME)?]);
    let all_settled = async {
        loop {
            tokio::time::sleep(Duration::from_millis(5)).await;
            // Nothing waits and no lease is held: every settlement is committed.
            let next = store.next_due(None, &queue, &tasks).await;
            if next.is_ok_and(|next| next.due.is_none() && next.expiry.is_none()) {
                return;
            }
        }
    };
    quell.worker(sender).concurrency(256).register(noop).run_until(all_settled).await?;
    let rate = per_second(count, began);
    let counts = store.counts().await?;
    let succeeded = counts.iter().filter(|row| row.state == JobState::Succeeded);
    anyhow::ensure!(succeeded.map(|row| row.jobs).sum::<u64>() == count as u64, "jobs are missing");
    Ok(rate)
}

/// Callers at once, each waiting for its own durable trigger.
async fn callers<F, Fut>(callers: usize, count: usize, call: F) -> anyhow::Result<f64>
where
    F: Fn(usize) -> Fut + Clone + Send + 'static,
    Fut: Future<Output = quell::Result<()>> + Send,
{
    let began = Instant::now();
    let mut tasks: JoinSet<quell::Result<()>> = JoinSet::new();
    for caller in 0..callers {
        let call = call.clone();
        tasks.spawn(async move {
            for n in 0..count / callers {
                call(caller * 7_919 + n * 104_729).await?;
            }
            Ok(())
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended??;
    }
    Ok(per_second(count, began))
}

pub(crate) async fn single(place: &Place, at_once: usize, count: usize) -> anyhow::Result<f64> {
    let (quell, _guard) = place.open().await?;
    callers(at_once, count, move |n| {
        let quell = quell.clone();
        async move { quell.trigger(Noop { n }).await.map(drop) }
    })
    .await
}

pub(crate) async fn debounced(
    place: &Place,
    at_once: usize,
    keys: usize,
    count: usize,
) -> anyhow::Result<f64> {
    let (quell, _guard) = place.open().await?;
    callers(at_once, count, move |n| {
        let quell = quell.clone();
        async move { quell.trigger(Meter { key: n % keys }).await.map(drop) }
    })
    .await
}

/// How many expired dedup keys a second upkeep removes, in calls as large as a worker's.
pub(crate) async fn expire(place: &Place, count: usize) -> anyhow::Result<f64> {
    let (quell, _guard) = place.open().await?;
    let (task, queue) = (TaskName::new(Noop::NAME)?, QueueName::new("default")?);
    let trigger = |n: usize| -> anyhow::Result<NewTrigger> {
        let payload = Payload::encode(&Noop { n })?;
        let until = HoldUntil::Elapsed(Duration::from_micros(1));
        let dedup = Some(Dedup { key: Key::new(format!("event-{n}"))?, until });
        Ok(NewTrigger { dedup, ..NewTrigger::new(task.clone(), queue.clone(), payload) })
    };
    for start in (0..count).step_by(1_000) {
        let triggers = (start..start + 1_000).map(trigger).collect::<anyhow::Result<_>>()?;
        quell.enqueue(Batch { triggers, dedup: None }).await?;
    }
    let (store, retention) = (quell.store(), Retention::default());
    let (began, mut removed) = (Instant::now(), 0);
    loop {
        let pruned = store.prune(None, &retention, 1_000).await?;
        removed += pruned.expired;
        if !pruned.more {
            break;
        }
    }
    let rate = per_second(count, began);
    anyhow::ensure!(removed >= count as u64, "only {removed} of {count} expired keys are gone");
    Ok(rate)
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

pub(crate) fn quantile(mut waits: Vec<f64>, quantile: f64) -> f64 {
    waits.sort_by(f64::total_cmp);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a share of a small length"
    )]
    let place = ((waits.len().saturating_sub(1)) as f64 * quantile).round() as usize;
    waits.get(place).copied().unwrap_or(f64::NAN)
}

/// From the call of trigger to the handler's first line, one job at a time.
pub(crate) async fn latency(place: &Place, count: usize, at: f64) -> anyhow::Result<f64> {
    let (quell, _guard) = place.open().await?;
    let mut working = start(&quell);
    let mut waits = Vec::with_capacity(count);
    for n in 0..count {
        let began = Instant::now();
        quell.trigger(Noop { n }).await?;
        waits.push(millis(working.started().await?.duration_since(began)));
        tokio::time::sleep(Duration::from_millis(3)).await;
    }
    working.stop().await?;
    Ok(quantile(waits, at))
}

/// How late a delayed job starts.
pub(crate) async fn lateness(place: &Place, count: usize) -> anyhow::Result<f64> {
    let (quell, _guard) = place.open().await?;
    let mut working = start(&quell);
    let mut waits = Vec::with_capacity(count);
    for n in 0..count {
        let delay = Duration::from_millis(40);
        let began = Instant::now();
        quell.trigger(Noop { n }).delay(delay).await?;
        let accepted = began.elapsed();
        let waited = working.started().await?.duration_since(began);
        // Due lies between the call and its answer; the earlier one makes it look later.
        waits.push(millis(waited.saturating_sub(delay).min(waited.saturating_sub(accepted))));
    }
    working.stop().await?;
    Ok(quantile(waits, 0.99))
}

/// Nothing for a while, then one job.
pub(crate) async fn after_idle(place: &Place, idle: Duration) -> anyhow::Result<f64> {
    let (quell, _guard) = place.open().await?;
    let mut working = start(&quell);
    tokio::time::sleep(idle).await;
    let began = Instant::now();
    quell.trigger(Noop { n: 0 }).await?;
    let waited = working.started().await?.duration_since(began);
    working.stop().await?;
    Ok(millis(waited))
}

/// The share of a core that a waiting worker takes, and the bytes that this process wrote.
pub(crate) async fn idle(place: &Place, length: Duration) -> anyhow::Result<(f64, u64)> {
    let (quell, _guard) = place.open().await?;
    let working = start(&quell);
    tokio::time::sleep(Duration::from_secs(1)).await;
    let length = length.min(Duration::from_secs(20));
    let (before, written) = (cpu::of_this_process()?, bytes_written()?);
    tokio::time::sleep(length).await;
    let ticks = cpu::of_this_process()?.saturating_sub(before);
    let written = bytes_written()?.saturating_sub(written);
    working.stop().await?;
    Ok((ticks as f64 / cpu::TICKS * 100.0 / length.as_secs_f64(), written))
}

/// Bytes that this process caused to be written to disks.
pub(crate) fn bytes_written() -> anyhow::Result<u64> {
    let io = std::fs::read_to_string("/proc/self/io")?;
    let line = io.lines().find_map(|line| line.strip_prefix("write_bytes: "));
    line.and_then(|bytes| bytes.parse().ok()).context("/proc/self/io")
}
