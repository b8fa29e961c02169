//! Closed windows of one key (R10) while several processes move its jobs at the same time.

use std::sync::Arc;

use futures_util::future::join_all;
use quell_conformance::rig::{debounce, fails, keyed_with, lease, secs};
use quell_conformance::{Opened, Rig};
use quell_core::{Fold, JobId, Redrive, Store};

use crate::place::Place;

/// Redriven jobs come before the key's first windows while others of them are cancelled.
/// No step may free a window that is not the next one by then, or leave the next one waiting.
#[tokio::test]
async fn r10_r11_r26_windows_that_come_and_go_at_once_run_in_their_order() {
    for round in 0..6 {
        let place = Place::shared();
        let stores = [place.open().await, place.open().await, place.open().await];
        let store = Arc::new(place.open().await);
        let mut rig = Rig::new(Opened { store, guard: Box::new(()) });
        let collects =
            |n: u64| keyed_with("a", debounce(), Fold::Collect { cap: 1 }, &n.to_string());
        let mut dead: Vec<JobId> = Vec::new();
        for number in 0..15 {
            dead.push(rig.trigger(collects(number)).await.job().unwrap());
            let run = rig.at(10 * (number + 1)).claim_one().await;
            rig.settle(lease(&run), fails(secs(1), true)).await;
        }
        let mut windows = Vec::new();
        for number in 15..18 {
            windows.push(rig.trigger(collects(number)).await.job().unwrap());
        }
        let now = Some(rig.now());
        fastrand::seed(round);
        fastrand::shuffle(&mut dead);
        let moves = dead.iter().zip(stores.iter().cycle()).map(|(id, store)| async move {
            store.redrive(now, &Redrive { id: *id, payload: None }).await.unwrap();
            if id.get() % 2 == 0 {
                store.cancel(now, *id, "no").await.unwrap();
            }
        });
        join_all(moves).await;
        let mut expected: Vec<JobId> = dead.into_iter().filter(|id| id.get() % 2 > 0).collect();
        expected.sort_unstable();
        expected.append(&mut windows);
        let mut ran = Vec::new();
        rig.at(1_000);
        while let [run] = &rig.claim().await[..] {
            ran.push(run.id);
            rig.succeed(run).await;
        }
        assert_eq!(ran, expected, "in round {round}");
    }
}

/// A job is redriven between the first two windows of a key while the first one is cancelled: it runs
/// before the second one.
#[tokio::test]
async fn r10_r11_r26_a_window_that_comes_between_two_runs_between_them() {
    let place = Place::shared();
    let (cancels, redrives) = (place.open().await, place.open().await);
    let store = Arc::new(place.open().await);
    let mut rig = Rig::new(Opened { store, guard: Box::new(()) });
    for round in 0..60_u64 {
        let name = format!("k{round}");
        let collects = || keyed_with(&name, debounce(), Fold::Collect { cap: 1 }, "1");
        let mut jobs = Vec::new();
        for number in 0..3 {
            jobs.push(rig.trigger(collects()).await.job().unwrap());
            let run = rig.at(1_000 * round + 10 * (number + 1)).claim_one().await;
            rig.settle(lease(&run), fails(secs(1), true)).await;
        }
        let open = rig.trigger(collects()).await.job().unwrap();
        for job in [jobs[0], jobs[2]] {
            rig.redrive(job).await.unwrap();
        }
        let now = Some(rig.now());
        // One begins up to seven trips after the other.
        let (first, second) = (round % 8, (round / 8) % 2);
        let late = async |store: &dyn Store, is_late: bool| {
            for _ in 0..if is_late { first } else { 0 } {
                store.job(open).await.unwrap();
            }
        };
        let cancel = async {
            late(&cancels, second == 0).await;
            cancels.cancel(now, jobs[0], "no").await.unwrap();
        };
        let redrive = async {
            late(&redrives, second == 1).await;
            redrives.redrive(now, &Redrive { id: jobs[1], payload: None }).await.unwrap();
        };
        tokio::join!(cancel, redrive);
        rig.at(1_000 * round + 900);
        for job in [jobs[1], jobs[2], open] {
            let run = rig.claim_one().await;
            assert_eq!(run.id, job, "in round {round}");
            rig.succeed(&run).await;
        }
    }
}
