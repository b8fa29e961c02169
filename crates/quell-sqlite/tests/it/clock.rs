//! A host whose clock is wrong by years does not move the store's (R38).

use std::sync::Arc;
use std::sync::atomic::Ordering;

use quell_conformance::rig::plain;
use quell_core::{Batch, ErrorKind, Result, Store, Timestamp};
use quell_sqlite::{ClockOffset, SqliteOptions, SqliteStore};

use crate::scene::{Scene, trigger};

const DAY: i64 = 86_400_000_000;
const YEAR: i64 = 366 * DAY;

/// A scene with a store that was used just now, and a host whose clock can be moved.
async fn host() -> (Scene, ClockOffset) {
    let scene = Scene::new();
    trigger(&scene.open().await, plain("1")).await;
    (scene, ClockOffset::default())
}

async fn open(options: SqliteOptions, offset: &ClockOffset) -> SqliteStore {
    options.offset_clock(Arc::clone(offset)).open().await.unwrap()
}

async fn write(store: &SqliteStore) -> Result<()> {
    store.enqueue(None, vec![Batch::one(plain("1"))]).await.map(drop)
}

async fn mark(store: &SqliteStore) -> Timestamp {
    store.checkup().await.unwrap().clock.mark
}

#[tokio::test]
async fn r38_a_host_that_is_years_ahead_is_refused_and_moves_nothing() {
    let (scene, offset) = host().await;
    // It jumps while a process runs, and then another process begins.
    for _ in 0..2 {
        let store = open(scene.options(), &offset).await;
        let before = mark(&store).await;
        offset.store(73 * YEAR, Ordering::Relaxed);
        let refused = write(&store).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Unavailable, "{refused}");
        assert!(refused.is_retryable(), "the host's clock may be set right");
        for part in ["host's clock (", &format!("({before})"), "1830 days", "?clock_jump=accept"] {
            assert!(refused.to_string().contains(part), "{refused}");
        }
        store.overview(None).await.unwrap_err();
        assert_eq!(mark(&store).await, before);
    }
    offset.store(0, Ordering::Relaxed);
    let store = open(scene.options(), &offset).await;
    write(&store).await.unwrap();
    assert_eq!(store.checkup().await.unwrap().problems().count(), 0);
}

#[tokio::test]
async fn r38_a_store_that_rested_goes_on_however_many_days() {
    for rest in [2 * DAY, 40 * DAY, YEAR, 4 * YEAR] {
        let (scene, offset) = host().await;
        // The host slept while a process ran.
        let store = open(scene.options(), &offset).await;
        write(&store).await.unwrap();
        offset.store(rest, Ordering::Relaxed);
        write(&store).await.unwrap();
        drop(store);
        // No process opened the file meanwhile.
        offset.store(2 * rest, Ordering::Relaxed);
        let store = open(scene.options(), &offset).await;
        write(&store).await.unwrap();
        let ahead = store.checkup().await.unwrap().clock.ahead().as_micros();
        assert!(ahead > u128::try_from(2 * rest - DAY).unwrap(), "{ahead}");
    }
}

#[tokio::test]
async fn r38_a_store_that_never_rests_refuses_a_jump_of_more_than_a_day_where_told_so() {
    let (scene, offset) = host().await;
    let strict = SqliteOptions::from_url(&format!("{}?clock_jump=1", scene.url())).unwrap();
    let store = open(strict, &offset).await;
    offset.store(DAY / 2, Ordering::Relaxed);
    write(&store).await.unwrap();
    offset.store(2 * DAY, Ordering::Relaxed);
    let refused = write(&store).await.unwrap_err();
    assert!(refused.to_string().contains("more than 1 days past"), "{refused}");
    for wrong in ["clock_jump=0", "clock_jump=x", "clock_jump="] {
        SqliteOptions::from_url(&format!("{}?{wrong}", scene.url())).unwrap_err();
    }
}

#[tokio::test]
async fn r38_a_jump_of_years_is_taken_where_the_operator_says_so_and_from_a_clock_without_a_date() {
    let (scene, offset) = host().await;
    offset.store(9 * YEAR, Ordering::Relaxed);
    let accepting = SqliteOptions::from_url(&format!("{}?clock_jump=accept", scene.url())).unwrap();
    write(&open(accepting, &offset).await).await.unwrap();
    // From here on it is the store's time.
    write(&open(scene.options(), &offset).await).await.unwrap();

    let scene = Scene::new();
    let now = Some(Timestamp::from_secs(3_600));
    let store = open(scene.options(), &offset).await;
    store.enqueue(now, vec![Batch::one(plain("1"))]).await.unwrap()[0].as_ref().unwrap();
    write(&store).await.unwrap();
}
