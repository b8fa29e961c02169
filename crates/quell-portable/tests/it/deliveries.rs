//! Timers that put a message aside which was delivered too often, as Service Bus does: what it covers is
//! not lost, however many processes die that hold it.

use std::time::Duration;

use quell_conformance::Rig;
use quell_conformance::rig::{plain, secs};
use quell_core::{JobFilter, JobState};
use quell_portable::MemoryTimer;

use crate::world::{LOCK, Runs, World};

/// How often the timer delivers a message.
const MOST: u32 = 8;
const DEATHS: usize = 12;
const JOBS: usize = 20;

/// A busy process holds one message for its whole queue. Each of these starts one job of a backlog, dies,
/// and leaves the message to the next one.
#[tokio::test(start_paused = true)]
async fn r01_r21_r34_a_backlog_outlives_more_holders_than_a_message_has_deliveries() {
    let timer = MemoryTimer::new(Rig::START, LOCK).with_most_deliveries(MOST);
    let (world, runs) = (World::with_timer(timer), Runs::default());
    for payload in 0..JOBS {
        world.trigger(plain(&payload.to_string())).await;
    }
    for death in 1..=DEATHS {
        let dies = world.worker_with(1, &runs, secs(600)).await;
        world.until("a run", || runs.lock().unwrap().len() == death).await;
        drop(dies);
        tokio::time::sleep(secs(1)).await;
        // What was locked comes again, as where processes are replaced one after the other.
        world.timer.lose_locks();
    }
    let last = Runs::default();
    let worker = world.worker(&last, Duration::ZERO).await;
    world.until("a run of each job", || last.lock().unwrap().len() == JOBS).await;
    world.until("no message is left", || world.timer.waiting().is_empty()).await;
    assert_eq!(world.timer.dead(), []);
    let jobs = world.store().await.jobs(&JobFilter::default()).await.unwrap();
    assert!(jobs.iter().all(|job| job.state == JobState::Succeeded), "{jobs:#?}");
    drop(worker);
}
