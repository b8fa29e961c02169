//! What callers do inside their own transactions: trigger (R4) and settle (R22).

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use quell_conformance::Rig;
use quell_conformance::rig::{debounce, key, keyed, keyed_with, lease, plain, task, until};
use quell_conformance::suite::transactions::TwoStores;
use quell_core::dedup::Dedup;
use quell_core::{
    Batch, ErrorKind, Fold, JobState, Location, NewTrigger, Payload, QueueSettings, Store,
};
use quell_postgres::{settle_in, trigger_in};
use sqlx::Connection;

use crate::scene::{Caller, Scene, jobs};

async fn with_caller() -> (Rig, Caller) {
    let scene = Scene::new();
    (scene.rig().await, scene.caller().await)
}

quell_conformance::transaction_scenes!(with_caller());

/// A caller outside must neither wait for a transaction's key nor be a duplicate of what is rolled back.
#[tokio::test]
async fn r04_r16_a_dedup_key_in_an_open_transaction_is_free_for_others() {
    let scene = Scene::new();
    let rig = scene.rig().await;
    let mut db = scene.connect().await;
    let once = |name| NewTrigger { dedup: Some(Dedup::new(key(name))), ..plain("1") };
    let mut tx = db.begin().await.unwrap();
    let inside = Batch { triggers: vec![once("back"), once("done")], dedup: None };
    trigger_in(&mut tx, rig.store.location().unwrap(), &inside).await.unwrap();
    let outside = rig.trigger(once("back")).await;
    assert_eq!(outside.outcome(), "accepted");
    tx.rollback().await.unwrap();
    assert_eq!(rig.trigger(once("back")).await.outcome(), "duplicate");
    // One that commits meets the key that was taken meanwhile, and opens no second job.
    let mut tx = db.begin().await.unwrap();
    trigger_in(&mut tx, rig.store.location().unwrap(), &inside).await.unwrap();
    assert_eq!(rig.trigger(once("done")).await.outcome(), "accepted");
    tx.commit().await.unwrap();
    let started = rig.claim().await;
    assert_eq!(started.len(), 2, "one for each key: {started:?}");
}

#[tokio::test]
async fn r04_the_commit_wakes_workers_and_nothing_before_it_does() {
    let scene = Scene::new();
    let store = scene.store().await;
    let mut wakeups = store.wakeups();
    let mut db = scene.connect().await;
    let mut tx = db.begin().await.unwrap();
    trigger_in(&mut tx, store.location().unwrap(), &Batch::one(plain("1"))).await.unwrap();
    let early = tokio::time::timeout(Duration::from_millis(200), wakeups.next()).await;
    assert!(early.is_err(), "{early:?}");
    tx.commit().await.unwrap();
    let woken = tokio::time::timeout(Duration::from_secs(20), wakeups.next()).await;
    assert!(woken.unwrap().is_some());
}

/// Nothing waits for a caller's transaction, however long it stays open.
#[tokio::test]
async fn r04_an_open_transaction_holds_up_neither_triggers_nor_claims_of_its_key() {
    let scene = Scene::new();
    let mut rig = scene.rig().await;
    rig.trigger(keyed("k")).await;
    let mut db = scene.connect().await;
    let mut tx = db.begin().await.unwrap();
    trigger_in(&mut tx, rig.store.location().unwrap(), &Batch::one(keyed("k"))).await.unwrap();
    trigger_in(&mut tx, rig.store.location().unwrap(), &Batch::one(keyed("other"))).await.unwrap();
    assert_eq!(rig.at(3).trigger(keyed("k")).await.outcome(), "debounced");
    assert_eq!(rig.trigger(keyed("other")).await.outcome(), "accepted");
    let run = rig.at(13).claim().await;
    assert_eq!(run.iter().map(|job| job.triggers).collect::<Vec<_>>(), [2, 1]);
    rig.succeed(&run[0]).await;
    tx.commit().await.unwrap();
    rig.at(20).claim_none().await;
    assert_eq!(rig.at(30).claim_one().await.triggers, 1);
}

/// A call takes in what it can bear; the next one goes on.
#[tokio::test]
async fn r04_r39_a_fold_is_bounded_in_bytes_and_a_large_batch_is_taken_whole() {
    const MIB: usize = 1 << 20;
    let scene = Scene::new();
    let rig = scene.rig().await;
    let mut db = scene.connect().await;
    for size in [5, 5, 12, 1] {
        let payload = format!("\"{}\"", "x".repeat(size * MIB));
        let batch = Batch::one(plain(&payload));
        trigger_in(&mut db, rig.store.location().unwrap(), &batch).await.unwrap();
    }
    let mut left = Vec::new();
    let mut started = Vec::new();
    while left.last() != Some(&0) {
        assert!(left.len() < 9, "{left:?}");
        let runs = rig.claim().await;
        started.extend(runs.iter().map(|run| run.payload.as_str().len() / MIB));
        let count = scene.sql("select count(*) from quell.inbox");
        left.push(count.parse::<u64>().unwrap());
    }
    assert_eq!(left, [2, 1, 0]);
    started.extend(rig.claim().await.iter().map(|run| run.payload.as_str().len() / MIB));
    assert_eq!(started, [5, 5, 12, 1], "in their order");
}

#[tokio::test]
async fn an_inbox_row_that_is_not_quells_is_set_aside_and_holds_up_nobody() {
    let scene = Scene::new();
    let rig = scene.rig().await;
    scene.sql("insert into quell.inbox (triggers) values ('{\"no\": \"triggers\"}')");
    let mut db = scene.connect().await;
    trigger_in(&mut db, rig.store.location().unwrap(), &Batch::one(plain("1"))).await.unwrap();
    assert_eq!(rig.claim().await.len(), 1);
    assert_eq!(scene.sql("select count(*) from quell.inbox where refused is not null"), "1");
}

#[tokio::test]
async fn a_database_without_the_schema_says_so() {
    let scene = Scene::new();
    let mut db = scene.connect().await;
    let id = quell_core::StoreId::new("made-up").unwrap();
    let nowhere = Location { id, schema: Some(scene.schema().to_owned()) };
    let refused = trigger_in(&mut db, &nowhere, &Batch::one(plain("1"))).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Foreign, "{refused}");
}

#[tokio::test]
async fn r22_with_a_lost_lease_the_transaction_cannot_commit() {
    let scene = Scene::new();
    let mut rig = scene.rig().await;
    scene.sql("create table quell.ledger (job bigint)");
    rig.trigger(plain("1")).await;
    let run = rig.claim_one().await;
    rig.at(31).reap().await;
    let mut db = scene.connect().await;
    let mut tx = db.begin().await.unwrap();
    let effect = format!("insert into {}.ledger values (1)", scene.schema());
    sqlx::query(sqlx::AssertSqlSafe(effect)).execute(&mut *tx).await.unwrap();
    let lost =
        settle_in(&mut tx, rig.store.location().unwrap(), &lease(&run), Some(rig.now()), None)
            .await;
    assert_eq!(lost.unwrap_err().kind(), ErrorKind::IllegalMove);
    // Whatever it says, it is a rollback.
    let _any = tx.commit().await;
    assert_eq!(scene.sql("select count(*) from quell.ledger"), "0");
    assert_eq!(rig.job(run.id).await.state, JobState::Scheduled);
}

/// Two schemas of one database are two stores, though their jobs have the same ids and tokens.
#[tokio::test]
async fn r04_r22_a_transaction_of_another_store_is_refused_and_changes_nothing_there() {
    let (scene, other) = (Scene::new(), Scene::new());
    let stores = TwoStores::new(scene.rig().await, other.rig().await).await;
    let (lease, now) = (stores.lease, Some(stores.own.now()));
    let (own, there) = stores.locations();
    let mixed = Location { id: own.id.clone(), schema: there.schema.clone() };
    let before = stores.other.jobs().await;
    let mut db = scene.connect().await;
    let mut tx = db.begin().await.unwrap();
    let output = Payload::from_text("1").unwrap();
    let refusals = [
        trigger_in(&mut tx, &mixed, &Batch::one(plain("3"))).await,
        settle_in(&mut tx, &mixed, &lease, now, None).await,
        settle_in(&mut tx, &mixed, &lease, now, Some(&output)).await,
    ];
    stores.assert_refused(refusals);
    tx.commit().await.unwrap();
    assert_eq!(stores.other.jobs().await, before);
    assert_eq!(other.sql("select count(*) from quell.inbox"), "0");
    // The store's own transaction still settles.
    settle_in(&mut db, own, &lease, now, None).await.unwrap();
    assert_eq!(stores.own.job(lease.job).await.state, JobState::Succeeded);
}

/// While the transaction is open no other worker gets the job, though its lease expires.
#[tokio::test]
async fn r22_a_settlement_under_way_keeps_the_job_from_being_taken_back() {
    let scene = Scene::new();
    let mut rig = scene.rig().await;
    rig.trigger(keyed("k")).await;
    let run = rig.at(10).claim_one().await;
    rig.trigger(keyed("k")).await;
    let mut db = scene.connect().await;
    let mut tx = db.begin().await.unwrap();
    settle_in(&mut tx, rig.store.location().unwrap(), &lease(&run), Some(rig.now()), None)
        .await
        .unwrap();
    assert!(rig.at(60).reap().await.is_empty());
    rig.claim_none().await;
    tx.commit().await.unwrap();
    // R11: the window that waited for the key may start.
    assert_eq!(rig.claim_one().await.triggers, 1);
    assert_eq!(rig.job(run.id).await.state, JobState::Succeeded);
}

#[tokio::test]
async fn r31_a_settlement_in_a_transaction_frees_its_slot_and_says_so() {
    let scene = Scene::new();
    let (store, rig) = (scene.store().await, scene.rig().await);
    rig.set_queue(QueueSettings { concurrency: Some(1), ..QueueSettings::default() }).await;
    rig.trigger(plain("1")).await;
    rig.trigger(plain("2")).await;
    let run = rig.claim_one().await;
    rig.claim_none().await;
    let mut wakeups = store.wakeups();
    let mut db = scene.connect().await;
    settle_in(&mut db, rig.store.location().unwrap(), &lease(&run), Some(rig.now()), None)
        .await
        .unwrap();
    let woken = tokio::time::timeout(Duration::from_secs(20), wakeups.next()).await;
    assert!(woken.unwrap().is_some());
    assert_eq!(rig.claim().await.len(), 1);
}

/// The window behind the one whose attempt a transaction ends stays free until the commit.
#[tokio::test]
async fn r10_r22_a_transaction_that_ends_a_closed_window_holds_up_no_trigger_of_its_key() {
    let scene = Scene::new();
    let (store, rig) = (scene.store().await, scene.rig().await);
    let full = |payload| keyed_with("k", debounce(), Fold::Collect { cap: 1 }, payload);
    rig.trigger(full("1")).await;
    let open = rig.trigger(full("2")).await.job();
    let run = rig.claim_one().await;
    let mut db = scene.connect().await;
    let mut tx = db.begin().await.unwrap();
    let location = rig.store.location().unwrap();
    settle_in(&mut tx, location, &lease(&run), Some(rig.now()), None).await.unwrap();
    let (task, k) = (task("t"), key("k"));
    let flush = store.flush(Some(rig.now()), &task, &k);
    let flushed = tokio::time::timeout(Duration::from_secs(20), flush).await;
    assert_eq!(flushed.unwrap().unwrap(), open);
    let trigger = tokio::time::timeout(Duration::from_secs(20), rig.trigger(full("3"))).await;
    assert!(trigger.unwrap().trigger().is_some());
    rig.claim_none().await;
    tx.commit().await.unwrap();
    assert_eq!(Some(rig.claim_one().await.id), open);
}

#[tokio::test]
async fn many_transactions_at_once_lose_nothing() {
    let scene = Scene::new();
    let store = scene.store().await;
    let mut callers = tokio::task::JoinSet::new();
    for caller in 0..8 {
        let (url, store) = (scene.plain_url().to_owned(), Arc::clone(&store));
        callers.spawn(async move {
            let mut db = sqlx::PgConnection::connect(&url).await.unwrap();
            for n in 0..40 {
                let mut tx = db.begin().await.unwrap();
                let payload = format!("{}", caller * 100 + n);
                trigger_in(&mut tx, store.location().unwrap(), &Batch::one(plain(&payload)))
                    .await
                    .unwrap();
                if n % 4 == 3 {
                    tx.rollback().await.unwrap();
                } else {
                    tx.commit().await.unwrap();
                }
            }
        });
    }
    while callers.join_next().await.is_some() {
        // Folds meanwhile.
        store.enqueue(None, vec![Batch::one(keyed("meanwhile"))]).await.unwrap();
    }
    until("all are folded", || async {
        store.flush(None, &quell_conformance::rig::task("t"), &key("meanwhile")).await.unwrap();
        jobs(&*store).await == 8 * 30 + 1
    })
    .await;
}
