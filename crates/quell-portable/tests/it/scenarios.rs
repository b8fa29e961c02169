//! The published scenarios of windows, on a store whose workers messages wake: what runs when, what it
//! covers, and that there are never more messages than triggers while a worker is there and nothing fails.

use std::time::Duration;

use futures_util::future::join_all;
use quell_conformance::Rig;
use quell_conformance::rig::{debounce, keyed, keyed_with, secs};
use quell_core::window::{Debounce, Thresholds};
use quell_core::{Fold, JobState, Receipt};

use crate::timed::Scene;
use crate::world::{Runs, World};

/// A row of the tables: triggers of one key, and the runs that follow.
struct Case {
    name: &'static str,
    debounce: Debounce,
    /// When the key is triggered.
    triggers: Vec<u64>,
    /// From when on a worker is there.
    worker_from: u64,
    /// When runs start, and how many triggers each covers.
    runs: Vec<(u64, u64)>,
}

/// A window whose length nothing changes.
fn fixed(length: u64) -> Debounce {
    Debounce::new(Thresholds::new(secs(length), secs(length)).unwrap())
}

fn case(name: &'static str, triggers: &[u64], runs: &[(u64, u64)]) -> Case {
    let (triggers, runs) = (triggers.to_vec(), runs.to_vec());
    Case { name, debounce: debounce(), triggers, worker_from: 0, runs }
}

fn cases() -> Vec<Case> {
    let every_five: Vec<u64> = (0..=300).step_by(5).collect();
    let minutes = |(minutes, seconds): (u64, u64)| minutes * 60 + seconds;
    vec![
        case("one trigger: the key was quiet for 10 s", &[0], &[(10, 1)]),
        case("a burst: 7 + 10", &[0, 3, 7], &[(17, 3)]),
        Case {
            worker_from: 56,
            ..case("late workers do not close a window", &[0, 20, 40, 55, 65], &[(60, 4), (75, 1)])
        },
        case(
            "a key that is never quiet: 60 s after the first trigger of each window",
            &every_five,
            &[(60, 12), (120, 12), (180, 12), (240, 12), (300, 12), (310, 1)],
        ),
        case("the first window had run", &[0, 25], &[(10, 1), (35, 1)]),
        Case {
            debounce: fixed(300),
            ..case(
                "a fixed window: 05:30 and 05:31 run at 05:35",
                &[(0, 0), (1, 0)].map(minutes),
                &[(minutes((5, 0)), 2)],
            )
        },
        Case {
            debounce: fixed(300),
            ..case(
                "fixed windows follow one another",
                &[(0, 0), (4, 59), (5, 1), (8, 0)].map(minutes),
                &[(minutes((5, 0)), 2), (minutes((10, 1)), 2)],
            )
        },
        Case {
            debounce: Debounce { max_triggers: Some(3), ..debounce() },
            ..case("a window that is full is due at once", &[0, 1, 2, 30], &[(2, 3), (40, 1)])
        },
    ]
}

async fn run(case: Case, world: World) {
    let runs = Runs::default();
    let mut worker = match case.worker_from {
        0 => Some(world.worker(&runs, Duration::ZERO).await),
        _ => None,
    };
    for second in &case.triggers {
        if worker.is_none() && case.worker_from <= *second {
            world.at(secs(case.worker_from)).await;
            worker = Some(world.worker(&runs, Duration::ZERO).await);
        }
        world.at(secs(*second)).await;
        // At one instant, windows that are due are taken first.
        tokio::time::sleep(Duration::from_millis(20)).await;
        world.trigger(keyed_with("k", case.debounce, Fold::Last, "1")).await;
    }
    let worker = worker.unwrap();
    let last = case.runs.last().unwrap().0;
    world.at(secs(last + 30)).await;
    let started: Vec<(u64, u64)> =
        runs.lock().unwrap().iter().map(|run| (run.at.as_secs(), run.job.triggers)).collect();
    assert_eq!(started, case.runs, "{}", case.name);
    assert_eq!(world.timer.waiting(), [], "{}", case.name);
    let messages = usize::try_from(world.timer.scheduled()).unwrap();
    // Messages that wait for a worker are sent on, each once, where their window has moved.
    let waited = case.triggers.iter().filter(|second| **second < case.worker_from).count();
    let most = case.triggers.len() + waited;
    assert!(messages <= most, "{}: {messages} messages, of {most}", case.name);
    drop(worker);
}

#[tokio::test(start_paused = true)]
async fn r06_r07_r08_r34_published_scenarios_run_by_messages() {
    for case in cases() {
        run(case, World::new()).await;
    }
}

#[tokio::test(start_paused = true)]
async fn r06_r07_r08_r34_published_scenarios_run_by_messages_of_several_partitions() {
    for case in cases() {
        run(case, World::of_partitions()).await;
    }
}

/// Published: a conflict is retried. Two processes open the same window at one time.
#[tokio::test(start_paused = true)]
async fn r06_r34_processes_that_open_one_window_at_one_time_share_it() {
    let world = World::new();
    let stores = [world.store().await, world.store().await];
    for round in 0..20_u64 {
        let key = format!("k{round}");
        let before = world.timer.scheduled();
        let opens = stores
            .iter()
            .map(|store| store.enqueue(None, vec![quell_core::Batch::one(keyed(&key))]));
        let receipts: Vec<Receipt> = join_all(opens)
            .await
            .into_iter()
            .map(|answer| answer.unwrap().remove(0).unwrap().remove(0))
            .collect();
        assert_eq!(receipts[0].job(), receipts[1].job(), "one window");
        assert!(receipts.iter().any(|receipt| matches!(receipt, Receipt::Debounced { .. })));
        // The message of a try that lost may be left over.
        assert!((1..=2).contains(&(world.timer.scheduled() - before)));
    }
    let runs = Runs::default();
    let worker = world.worker(&runs, Duration::ZERO).await;
    world.at(secs(30)).await;
    let counts: Vec<u64> = runs.lock().unwrap().iter().map(|run| run.job.triggers).collect();
    assert_eq!(counts, vec![2; 20], "both triggers count, in one run");
    // What is left over waits for its row for a minute, and is ignored then.
    world.until("no message is left", || world.timer.waiting().is_empty()).await;
    assert_eq!((world.timer.dead(), runs.lock().unwrap().len()), (vec![], 20));
    drop(worker);
}

/// Published: a row is captured by a conditional update with holder and lock time.
#[tokio::test]
async fn r11_r21_of_processes_that_claim_a_job_at_one_moment_one_gets_it() {
    for _ in 0..20 {
        let scene = Scene::new();
        let (mut client, mut one, mut two) = (scene.client(), scene.client(), scene.client());
        let id = client.trigger(keyed("k")).await.job().unwrap();
        scene.at(10, &mut [&mut client, &mut one, &mut two]);
        let (of_one, of_two) = tokio::join!(one.claim(), two.claim());
        let got: Vec<_> = of_one.iter().chain(&of_two).collect();
        assert_eq!(got.len(), 1, "{got:?}");
        assert_eq!((got[0].id, got[0].lease_until), (id, Rig::START + secs(40)));
        assert_eq!(client.job(id).await.state, JobState::Running);
        let attempts = client.store.attempts(id).await.unwrap();
        assert_eq!(attempts.len(), 1);
        assert_eq!(attempts[0].worker, Rig::claim_of(1).worker, "its holder is on record");
    }
}
