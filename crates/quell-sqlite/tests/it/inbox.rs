//! Triggers inside a caller's own transaction (R4): the scenes of every store with transactions, and
//! what only a file has.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use quell_conformance::rig::{key, keyed, plain, until};
use quell_conformance::{Opened, Rig};
use quell_core::idempotency::Idempotency;
use quell_core::{Batch, ErrorKind, NewTrigger, Store};
use quell_sqlite::trigger_in;
use sqlx::Connection;

use crate::scene::{Caller, Scene};

async fn with_caller() -> (Rig, Caller) {
    let scene = Scene::new();
    let (store, caller) = (scene.open().await, scene.caller().await);
    (Rig::new(Opened { store: Arc::new(store), guard: Box::new(scene) }), caller)
}

quell_conformance::transaction_scenes!(with_caller());

#[tokio::test]
async fn r04_the_commit_wakes_workers() {
    let scene = Scene::new();
    let store = scene.open().await;
    let mut wakeups = store.wakeups();
    drop(tokio::time::timeout(Duration::from_millis(200), wakeups.next()).await);
    let mut db = scene.connect().await;
    trigger_in(&mut db, store.location().unwrap(), &Batch::one(plain("1"))).await.unwrap();
    tokio::time::timeout(Duration::from_secs(5), wakeups.next()).await.unwrap().unwrap();
    assert_eq!(store.claim(None, &Rig::claim_of(9)).await.unwrap().jobs.len(), 1);
}

#[tokio::test]
async fn r04_a_large_inbox_is_folded_piece_by_piece_until_it_is_empty() {
    let scene = Scene::new();
    let rig = scene.rig().await;
    let mut db = scene.connect().await;
    let mut tx = db.begin().await.unwrap();
    for _ in 0..2_500 {
        trigger_in(&mut tx, rig.store.location().unwrap(), &Batch::one(keyed("k"))).await.unwrap();
    }
    tx.commit().await.unwrap();
    let mut wakeups = rig.store.wakeups();
    rig.claim_none().await;
    wakeups.next().await.unwrap();
    until("all are folded", async || {
        rig.claim_none().await;
        rig.jobs().await.iter().any(|job| job.window.triggers == 2_500)
    })
    .await;
}

#[tokio::test]
async fn r04_a_database_without_quell_is_named_as_such() {
    let (scene, home) = (Scene::new(), Scene::new());
    let store = home.open().await;
    let mut db = scene.connect().await;
    let error =
        trigger_in(&mut db, store.location().unwrap(), &Batch::one(plain("1"))).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Foreign);
    assert!(error.to_string().contains("no Quell tables"), "{error}");
}

#[tokio::test]
async fn what_quell_never_wrote_is_set_aside_and_stops_nobody() {
    let scene = Scene::new();
    let rig = scene.rig().await;
    let mut db = scene.connect().await;
    scene.execute("insert into quell_inbox (triggers) values ('[[{}], null]'), ('oops')").await;
    trigger_in(&mut db, rig.store.location().unwrap(), &Batch::one(plain("1"))).await.unwrap();
    assert_eq!(rig.claim_one().await.payload.as_str(), "1");
    rig.claim_none().await;
    let kept: i64 =
        sqlx::query_scalar("select count(*) from quell_inbox where refused is not null")
            .fetch_one(&mut db)
            .await
            .unwrap();
    assert_eq!(kept, 2);
}

#[tokio::test]
async fn r04_r19_keys_are_met_at_the_fold_and_a_conflict_is_set_aside_with_its_reason() {
    let scene = Scene::new();
    let rig = scene.rig().await;
    let mut db = scene.connect().await;
    let with_key = |payload: &str| {
        let idempotency = Some(Idempotency::new(key("i")));
        Batch::one(NewTrigger { idempotency, ..plain(payload) })
    };
    let mut tx = db.begin().await.unwrap();
    trigger_in(&mut tx, rig.store.location().unwrap(), &with_key("1")).await.unwrap();
    tx.rollback().await.unwrap();
    for payload in ["2", "2", "3"] {
        trigger_in(&mut db, rig.store.location().unwrap(), &with_key(payload)).await.unwrap();
    }
    let job = rig.claim_one().await;
    assert_eq!(job.payload.as_str(), "2", "a rollback burns no key");
    rig.claim_none().await;
    let kept: Vec<(String, String)> = sqlx::query_as("select triggers, refused from quell_inbox")
        .fetch_all(&mut db)
        .await
        .unwrap();
    let [(triggers, refused)] = &kept[..] else { panic!("{kept:?}") };
    assert!(triggers.contains("\"payload\":3"), "{triggers}");
    assert!(refused.contains("idempotency key \"i\""), "{refused}");
    assert!(refused.contains(&format!("job {}", job.id)), "{refused}");
}
