//! Two stores on one timer, as by mistake: neither takes the messages of the other.

use std::time::Duration;

use quell_conformance::Rig;
use quell_conformance::rig::{keyed, plain, secs};
use quell_core::schedule::{CatchUp, Schedule, Spec};
use quell_core::{JobId, ScheduleName};
use quell_portable::{Message, Timer};

use crate::world::{Runs, World};

/// Runs take no time.
const SHORT: Duration = Duration::ZERO;

/// How late a window may be whose message went a round by the other store.
const LATE: Duration = Duration::from_secs(2);

fn count(runs: &Runs) -> usize {
    runs.lock().unwrap().len()
}

/// Both stores have a job of this id: that of the store whose processes take the message has ended, or is
/// there, or was never made.
#[tokio::test(start_paused = true)]
async fn r01_r34_a_message_that_another_store_receives_is_not_lost() {
    for own_jobs in [0, 1, 2] {
        let (mine, others) = (World::new(), Runs::default());
        let other = mine.beside();
        let other_worker = other.worker(&others, SHORT).await;
        for _ in 0..own_jobs {
            other.trigger(plain("1")).await;
        }
        other.until("the other's jobs", || count(&others) == own_jobs).await;
        let first = mine.trigger(keyed("k")).await.job().unwrap();
        assert_eq!(first, JobId::new(1), "ids overlap");
        // Only the other store listens, for longer than a step may take to write its rows.
        mine.at(secs(120)).await;
        assert_eq!(count(&others), own_jobs);
        assert!(!mine.timer.waiting().is_empty(), "its message is there");
        drop(other_worker);
        let runs = Runs::default();
        let worker = mine.worker(&runs, SHORT).await;
        mine.until("the window's run", || count(&runs) == 1).await;
        mine.until("its end", || mine.timer.waiting().is_empty()).await;
        drop(worker);
    }
}

#[tokio::test(start_paused = true)]
async fn r08_r34_windows_of_two_stores_on_one_timer_run_on_time() {
    windows_run_on_time(World::new()).await;
}

#[tokio::test(start_paused = true)]
async fn r08_r34_windows_of_two_stores_of_several_partitions_run_on_time() {
    windows_run_on_time(World::of_partitions()).await;
}

async fn windows_run_on_time(one: World) {
    let two = one.beside();
    let (runs_of_one, runs_of_two) = (Runs::default(), Runs::default());
    let workers = [one.worker(&runs_of_one, SHORT).await, two.worker(&runs_of_two, SHORT).await];
    for round in 0..10 {
        let begin = secs(round * 40);
        one.at(begin).await;
        two.at(begin).await;
        let ids = [one.trigger(keyed("k")).await, two.trigger(keyed("k")).await];
        assert_eq!(ids[0].job(), ids[1].job(), "ids overlap");
        one.at(begin + secs(30)).await;
        for runs in [&runs_of_one, &runs_of_two] {
            let runs = runs.lock().unwrap();
            assert_eq!(runs.len() as u64, round + 1, "{runs:?}");
            let last = runs.last().unwrap();
            assert_eq!(Some(last.job.id), ids[0].job());
            let late = last.at.checked_sub(begin + secs(10)).unwrap();
            assert!(late <= LATE, "{late:?}");
        }
    }
    one.until("no message is left", || one.timer.waiting().is_empty()).await;
    drop(workers);
}

/// A message for a tick names no queue.
#[tokio::test(start_paused = true)]
async fn r34_r36_a_tick_of_another_store_is_sent_on() {
    let mine = World::new();
    let other = mine.beside();
    let (runs, others) = (Runs::default(), Runs::default());
    let other_worker = other.worker(&others, SHORT).await;
    let schedule = Schedule {
        name: ScheduleName::new("s").unwrap(),
        spec: Spec::every(secs(100), Rig::START).unwrap(),
        catch_up: CatchUp::All,
        trigger: plain("1"),
        declared: None,
    };
    mine.store().await.set_schedule(None, &schedule).await.unwrap();
    mine.at(secs(150)).await;
    drop(other_worker);
    let worker = mine.worker(&runs, SHORT).await;
    mine.until("the tick's run", || count(&runs) == 1).await;
    assert!(mine.elapsed() < secs(200), "{:?}", mine.elapsed());
    drop(worker);
}

/// Messages of a build that knew no other stores.
#[tokio::test(start_paused = true)]
async fn r34_a_message_that_names_no_store_is_its_receivers() {
    let (world, runs) = (World::new(), Runs::default());
    let made = world.trigger(keyed("k")).await.job().unwrap();
    let taken = world.timer.receive(1, secs(60)).await.unwrap().remove(0);
    world.timer.complete(&taken.delivery).await.unwrap();
    let due = (Rig::START + secs(10)).as_micros();
    let body = format!(
        r#"{{"v":1,"queue":"q","at":{due},"sent":{},"jobs":["{made}"]}}"#,
        Rig::START.as_micros()
    );
    let message = Message { body: body.into_bytes(), name: None };
    world.timer.schedule(&message, Rig::START, Rig::START + secs(10)).await.unwrap();
    let worker = world.worker(&runs, SHORT).await;
    world.until("its run", || count(&runs) == 1).await;
    world.until("its end", || world.timer.waiting().is_empty()).await;
    drop(worker);
}
