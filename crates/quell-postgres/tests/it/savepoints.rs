//! Settling beside savepoints (R22): PostgreSQL forgets an error that a savepoint took with it, and the
//! fence is an error.

use quell_conformance::Rig;
use quell_conformance::rig::{lease, plain};
use quell_core::{ErrorKind, JobState};
use quell_postgres::settle_in;
use sqlx::{Connection, PgConnection};

use crate::scene::Scene;

/// Writes a row that commits or does not.
async fn effect(scene: &Scene, db: &mut PgConnection) {
    run(db, &format!("insert into {}.ledger values (1)", scene.schema())).await;
}

fn effects(scene: &Scene) -> String {
    scene.sql("select count(*) from quell.ledger")
}

async fn run(db: &mut PgConnection, sql: &str) {
    sqlx::query(sqlx::AssertSqlSafe(sql.to_owned())).execute(db).await.unwrap();
}

/// A job that runs, whose lease is lost or not.
async fn running(scene: &Scene, is_lost: bool) -> (Rig, quell_core::ClaimedJob) {
    let mut rig = scene.rig().await;
    scene.sql("create table quell.ledger (job bigint)");
    rig.trigger(plain("1")).await;
    let run = rig.claim_one().await;
    if is_lost {
        rig.at(31).reap().await;
    }
    (rig, run)
}

#[tokio::test]
async fn r22_a_settlement_inside_a_nested_transaction_is_refused() {
    let scene = Scene::new();
    let (rig, job) = running(&scene, true).await;
    let mut db = scene.connect().await;
    let mut tx = db.begin().await.unwrap();
    let mut nested = tx.begin().await.unwrap();
    let store = rig.store.location().unwrap();
    let refused =
        settle_in(&mut nested, store, &lease(&job), Some(rig.now()), None).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused}");
    nested.rollback().await.unwrap();
    // In the outermost transaction the fence holds.
    let lost = settle_in(&mut tx, store, &lease(&job), Some(rig.now()), None).await.unwrap_err();
    assert_eq!(lost.kind(), ErrorKind::IllegalMove, "{lost}");
}

/// Savepoints that the driver does not know of.
#[tokio::test]
async fn r22_a_settlement_inside_a_savepoint_of_the_callers_own_is_refused() {
    for is_lost in [false, true] {
        let scene = Scene::new();
        let (rig, job) = running(&scene, is_lost).await;
        let before = rig.job(job.id).await;
        let store = rig.store.location().unwrap();
        let mut db = scene.connect().await;
        let mut tx = db.begin().await.unwrap();
        effect(&scene, &mut tx).await;
        run(&mut tx, "savepoint mine").await;
        // One that the driver leaves open is above it, and released.
        tx.begin().await.unwrap().rollback().await.unwrap();
        let refused =
            settle_in(&mut tx, store, &lease(&job), Some(rig.now()), None).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused}");
        run(&mut tx, "rollback to savepoint mine").await;
        assert_eq!(rig.job(job.id).await, before);
        // Rolled back, it is open still.
        let refused =
            settle_in(&mut tx, store, &lease(&job), Some(rig.now()), None).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused}");
        run(&mut tx, "rollback to savepoint mine").await;
        run(&mut tx, "release savepoint mine").await;
        let settled = settle_in(&mut tx, store, &lease(&job), Some(rig.now()), None).await;
        let _any = tx.commit().await;
        if is_lost {
            assert_eq!(settled.unwrap_err().kind(), ErrorKind::IllegalMove);
            assert_eq!((effects(&scene).as_str(), rig.job(job.id).await), ("0", before));
        } else {
            settled.unwrap();
            assert_eq!(effects(&scene), "1");
            assert_eq!(rig.job(job.id).await.state, JobState::Succeeded);
        }
    }
}

/// The driver keeps the savepoint of a nested transaction that it rolled back.
#[tokio::test]
async fn r22_nested_transactions_that_were_rolled_back_hinder_no_settlement() {
    let scene = Scene::new();
    let (rig, job) = running(&scene, false).await;
    let mut db = scene.connect().await;
    let mut tx = db.begin().await.unwrap();
    for commits in [false, true, false] {
        let mut nested = tx.begin().await.unwrap();
        effect(&scene, &mut nested).await;
        if commits {
            nested.commit().await.unwrap();
        } else {
            nested.rollback().await.unwrap();
        }
        effect(&scene, &mut tx).await;
    }
    let store = rig.store.location().unwrap();
    settle_in(&mut tx, store, &lease(&job), Some(rig.now()), None).await.unwrap();
    // A savepoint that comes later does no harm.
    let mut nested = tx.begin().await.unwrap();
    effect(&scene, &mut nested).await;
    nested.rollback().await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(effects(&scene), "4");
    assert_eq!(rig.job(job.id).await.state, JobState::Succeeded);
    assert_eq!(scene.sql("select count(*) from quell.probe"), "0");
}
