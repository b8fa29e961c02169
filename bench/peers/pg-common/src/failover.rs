//! What is measured with workers in processes of their own: one that was idle gets a job, one is
//! killed with jobs in hand, one is stopped and replaced.

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use peer_common::millis;

use crate::process::Process;
use crate::report::Found;
use crate::{PostgresPeer, Settings};

/// Without a start for this long, all jobs that can start have started.
const SETTLED: Duration = Duration::from_secs(2);

/// Where the processes work.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place<'p> {
    pub(crate) url: &'p str,
    pub(crate) settings: Settings,
}

impl Place<'_> {
    async fn worker(self, holds: bool) -> anyhow::Result<Process> {
        let mut worker = Process::start(self.url, self.settings, holds)?;
        worker.ready().await?;
        Ok(worker)
    }
}

/// From the call of enqueue until the job starts in another process, which had nothing to do for a
/// while.
pub(crate) async fn picked_up<P: PostgresPeer>(
    peer: &P,
    place: Place<'_>,
    idle: Duration,
    samples: usize,
) -> anyhow::Result<Found> {
    let mut worker = place.worker(false).await?;
    let mut waits = Vec::with_capacity(samples);
    for n in 0..samples {
        tokio::time::sleep(idle).await;
        let began = Instant::now();
        peer.enqueue(n).await?;
        waits.push(millis(worker.started().await?.duration_since(began)));
    }
    worker.stop().await?;
    Ok(Found::waits(waits))
}

/// From the kill of a worker with jobs in hand until each of them starts in another process, which
/// was idle before.
pub(crate) async fn killed<P: PostgresPeer>(
    peer: &P,
    place: Place<'_>,
    jobs: usize,
    budget: Duration,
) -> anyhow::Result<Found> {
    let mut holder = place.worker(true).await?;
    peer.enqueue_many(0, jobs).await?;
    let taken = starts(&mut holder, jobs).await?;
    ensure!(taken > 0, "the worker took no job");
    let mut other = place.worker(false).await?;
    // Those for which the first had no slot.
    let free = starts(&mut other, jobs).await?;
    ensure!(free < jobs, "all jobs ran although one worker had {taken} in hand");
    let killed = Instant::now();
    holder.kill().await?;
    let mut waits = Vec::with_capacity(jobs - free);
    let again = async {
        for _ in free..jobs {
            waits.push(millis(other.started().await?.duration_since(killed)));
        }
        anyhow::Ok(())
    };
    let seconds = budget.as_secs();
    let again = tokio::time::timeout(budget, again).await;
    again.with_context(|| format!("jobs in hand did not run again within {seconds} s"))??;
    other.stop().await?;
    Ok(Found::waits(waits))
}

/// How many jobs start until no more do.
async fn starts(worker: &mut Process, most: usize) -> anyhow::Result<usize> {
    let mut count = 0;
    while count < most {
        match tokio::time::timeout(SETTLED, worker.started()).await {
            Ok(started) => drop(started?),
            Err(_none) => break,
        }
        count += 1;
    }
    Ok(count)
}

/// From asking an idle worker's process to stop until the one that is started in its place, once it
/// has ended, starts a job that waits.
pub(crate) async fn restarted<P: PostgresPeer>(
    peer: &P,
    place: Place<'_>,
) -> anyhow::Result<Found> {
    let mut old = place.worker(false).await?;
    peer.enqueue(0).await?;
    old.started().await?;
    tokio::time::sleep(SETTLED).await;
    let asked = Instant::now();
    old.stop().await?;
    let stopping = asked.elapsed();
    peer.enqueue(1).await?;
    let began = Instant::now();
    let mut new = Process::start(place.url, place.settings, false)?;
    let starting = new.started().await?.duration_since(began);
    new.stop().await?;
    let found = Found::of(millis(stopping + starting), 1);
    Ok(Found { stopping: Some(millis(stopping)), ..found })
}
