//! Timers that put a message aside which was delivered too often, as Service Bus does: what it covers is
//! not lost, however many processes die that hold it.

use std::time::Duration;

use quell_conformance::Rig;
use quell_conformance::rig::{plain, secs};
use quell_core::{JobFilter, JobState};
use quell_portable::{MemoryTimer, Timer};

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

/// A lock that ends unnoticed lets the message come to its holder again, which then dies.
#[tokio::test(start_paused = true)]
async fn r21_r34_a_message_that_came_back_to_its_holder_outlives_it() {
    let (world, runs) = (World::new(), Runs::default());
    world.trigger(plain("1")).await;
    let dies = world.worker(&runs, secs(600)).await;
    world.until("its run", || runs.lock().unwrap().len() == 1).await;
    world.at(secs(5)).await;
    world.timer.lose_locks();
    // Before it renews its lock, and so learns that it was lost.
    world.at(secs(6)).await;
    drop(dies);
    let last = Runs::default();
    let worker = world.worker(&last, Duration::ZERO).await;
    world.at(secs(60)).await;
    assert_eq!(last.lock().unwrap().len(), 1);
    world.until("no message is left", || world.timer.waiting().is_empty()).await;
    drop(worker);
}

/// What is sent because a process died is no reason to send more, while another one is busy.
#[tokio::test(start_paused = true)]
async fn r34_messages_that_come_again_cost_few_others_however_long_a_run() {
    let (world, runs) = (World::new(), Runs::default());
    for payload in 0..JOBS {
        world.trigger(plain(&payload.to_string())).await;
    }
    let received = world.timer.receive(JOBS, Duration::ZERO).await.unwrap();
    assert_eq!(received.len(), JOBS);
    world.timer.lose_locks();
    let worker = world.worker(&runs, secs(3_000)).await;
    world.at(secs(100)).await;
    let before = world.timer.scheduled();
    assert_eq!(runs.lock().unwrap().len(), JOBS);
    world.at(secs(2_900)).await;
    assert_eq!(world.timer.scheduled(), before);
    world.until("no message is left", || world.timer.waiting().is_empty()).await;
    assert_eq!(runs.lock().unwrap().len(), JOBS);
    drop(worker);
}
