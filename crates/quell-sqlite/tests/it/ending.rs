//! Settling inside a handler's own transaction (R22).

use std::time::Duration;

use futures_util::StreamExt;
use quell_conformance::Rig;
use quell_conformance::rig::{keyed, lease, plain};
use quell_conformance::suite::transactions::TwoStores;
use quell_core::{Batch, ErrorKind, JobState, Payload, QueueSettings, Store};
use quell_sqlite::{settle_in, trigger_in};
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{Connection, SqliteConnection};

use crate::scene::Scene;

async fn effect(db: &mut SqliteConnection) {
    sqlx::query("insert into ledger values (1)").execute(db).await.unwrap();
}

async fn effects(db: &mut SqliteConnection) -> i64 {
    sqlx::query_scalar("select count(*) from ledger").fetch_one(db).await.unwrap()
}

/// Whether or not the caller's connection checks references.
#[tokio::test]
async fn r22_with_a_lost_lease_the_transaction_cannot_commit() {
    for checks in [true, false] {
        let scene = Scene::new();
        let mut rig = scene.rig().await;
        scene.execute("create table ledger (job integer)").await;
        rig.trigger(plain("1")).await;
        let run = rig.claim_one().await;
        let options = SqliteConnectOptions::new().filename(scene.path()).foreign_keys(checks);
        let mut db = SqliteConnection::connect_with(&options).await.unwrap();
        rig.at(30);
        for reaped in [false, true] {
            if reaped {
                assert_eq!(rig.reap().await.len(), 1);
            }
            let before = rig.jobs().await;
            let mut tx = db.begin().await.unwrap();
            effect(&mut tx).await;
            let lost = settle_in(
                &mut tx,
                rig.store.location().unwrap(),
                &lease(&run),
                Some(rig.now()),
                None,
            )
            .await
            .unwrap_err();
            assert_eq!(lost.kind(), ErrorKind::IllegalMove);
            assert!(lost.to_string().contains("was lost"), "{lost}");
            // Rolled back already where references are not checked.
            assert_eq!(tx.commit().await.is_err(), checks);
            assert_eq!((effects(&mut db).await, rig.jobs().await), (0, before));
        }
        // The connection is as good as before.
        let again = rig.claim_one().await;
        let mut tx = db.begin().await.unwrap();
        effect(&mut tx).await;
        settle_in(&mut tx, rig.store.location().unwrap(), &lease(&again), Some(rig.now()), None)
            .await
            .unwrap();
        tx.commit().await.unwrap();
        assert_eq!(effects(&mut db).await, 1);
    }
}

#[tokio::test]
async fn r04_r22_a_transaction_on_another_stores_file_is_refused_and_changes_nothing_there() {
    let (scene, other) = (Scene::new(), Scene::new());
    let stores = TwoStores::new(scene.rig().await, other.rig().await).await;
    let (lease, now) = (stores.lease, Some(stores.own.now()));
    let (own, _) = stores.locations();
    let before = stores.other.jobs().await;
    let mut db = other.connect().await;
    let mut tx = db.begin().await.unwrap();
    let output = Payload::from_text("1").unwrap();
    let refusals = [
        trigger_in(&mut tx, own, &Batch::one(plain("3"))).await,
        settle_in(&mut tx, own, &lease, now, None).await,
        settle_in(&mut tx, own, &lease, now, Some(&output)).await,
    ];
    stores.assert_refused(refusals);
    tx.commit().await.unwrap();
    assert_eq!(stores.other.jobs().await, before);
    let waiting: i64 =
        sqlx::query_scalar("select count(*) from quell_inbox").fetch_one(&mut db).await.unwrap();
    assert_eq!(waiting, 0);
    // The store keeps its id, and its own transaction settles.
    assert_eq!(scene.open().await.location(), Some(own));
    settle_in(&mut scene.connect().await, own, &lease, now, None).await.unwrap();
    assert_eq!(stores.own.job(lease.job).await.state, JobState::Succeeded);
}

/// A savepoint that is rolled back alone would take the fence with it.
#[tokio::test]
async fn r22_a_settlement_inside_a_savepoint_is_refused() {
    let scene = Scene::new();
    let mut rig = scene.rig().await;
    scene.execute("create table ledger (job integer)").await;
    rig.trigger(plain("1")).await;
    let run = rig.claim_one().await;
    rig.at(31).reap().await;
    let mut db = scene.connect().await;
    let mut tx = db.begin().await.unwrap();
    effect(&mut tx).await;
    let mut nested = tx.begin().await.unwrap();
    let store = rig.store.location().unwrap();
    let refused =
        settle_in(&mut nested, store, &lease(&run), Some(rig.now()), None).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused}");
    nested.rollback().await.unwrap();
    // In the outermost transaction the fence holds.
    let lost = settle_in(&mut tx, store, &lease(&run), Some(rig.now()), None).await.unwrap_err();
    assert_eq!(lost.kind(), ErrorKind::IllegalMove, "{lost}");
    assert!(tx.commit().await.is_err());
    assert_eq!(effects(&mut db).await, 0);
}

#[tokio::test]
async fn r22_a_job_is_settled_once() {
    let scene = Scene::new();
    let rig = scene.rig().await;
    rig.trigger(plain("1")).await;
    let run = rig.claim_one().await;
    let mut db = scene.connect().await;
    settle_in(&mut db, rig.store.location().unwrap(), &lease(&run), Some(rig.now()), None)
        .await
        .unwrap();
    let again =
        settle_in(&mut db, rig.store.location().unwrap(), &lease(&run), Some(rig.now()), None)
            .await
            .unwrap_err();
    assert_eq!(again.kind(), ErrorKind::IllegalMove);
    assert_eq!(rig.job(run.id).await.state, JobState::Succeeded);
}

/// R11, R34: a window that waited for the key may start, and workers are notified.
#[tokio::test]
async fn r11_r22_a_settlement_in_a_transaction_frees_its_key_and_wakes_workers() {
    let scene = Scene::new();
    let mut rig = scene.rig().await;
    rig.trigger(keyed("k")).await;
    let run = rig.at(10).claim_one().await;
    rig.trigger(keyed("k")).await;
    rig.at(20).claim_none().await;
    let mut wakeups = rig.store.wakeups();
    let mut db = scene.connect().await;
    let mut tx = db.begin().await.unwrap();
    settle_in(&mut tx, rig.store.location().unwrap(), &lease(&run), Some(rig.now()), None)
        .await
        .unwrap();
    tx.commit().await.unwrap();
    let woken = tokio::time::timeout(Duration::from_secs(20), wakeups.next()).await;
    assert!(woken.unwrap().is_some());
    assert_eq!(rig.claim_one().await.triggers, 1);
}

#[tokio::test]
async fn r22_r31_a_settlement_in_a_transaction_frees_its_slot() {
    let scene = Scene::new();
    let rig = scene.rig().await;
    rig.set_queue(QueueSettings { concurrency: Some(1), ..QueueSettings::default() }).await;
    rig.trigger(plain("1")).await;
    rig.trigger(plain("2")).await;
    let run = rig.claim_one().await;
    rig.claim_none().await;
    settle_in(
        &mut scene.connect().await,
        rig.store.location().unwrap(),
        &lease(&run),
        Some(rig.now()),
        None,
    )
    .await
    .unwrap();
    assert_eq!(rig.claim().await.len(), 1);
}

/// R38: the highest time seen counts, whatever the handler's clock says.
#[tokio::test]
async fn r22_r38_a_lease_that_expired_by_the_stores_clock_is_lost() {
    let scene = Scene::new();
    let mut rig = scene.rig().await;
    rig.trigger(plain("1")).await;
    let run = rig.claim_one().await;
    rig.at(30).trigger(plain("2")).await;
    let mut db = scene.connect().await;
    let mut tx = db.begin().await.unwrap();
    let lost =
        settle_in(&mut tx, rig.store.location().unwrap(), &lease(&run), Some(Rig::START), None)
            .await
            .unwrap_err();
    assert_eq!(lost.kind(), ErrorKind::IllegalMove);
}

#[tokio::test]
async fn r22_a_database_without_quell_is_named_as_such() {
    let (scene, elsewhere) = (Scene::new(), Scene::new());
    let rig = scene.rig().await;
    rig.trigger(plain("1")).await;
    let run = rig.claim_one().await;
    let mut db = elsewhere.connect().await;
    let error = settle_in(&mut db, rig.store.location().unwrap(), &lease(&run), None, None)
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Foreign);
}
