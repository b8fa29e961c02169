//! Triggers inside a caller's own transaction (R4).

use std::time::Duration;

use futures_util::StreamExt;
use quell_conformance::Rig;
use quell_conformance::rig::{debounce, key, keyed, keyed_with, plain, until};
use quell_core::dedup::{Dedup, HoldUntil};
use quell_core::idempotency::Idempotency;
use quell_core::window::Debounce;
use quell_core::{Batch, ErrorKind, Fold, NewTrigger, Payload, Store, When};
use quell_sqlite::trigger_in;
use sqlx::Connection;

use crate::scene::Scene;

#[tokio::test]
async fn r04_a_trigger_counts_from_the_commit() {
    let scene = Scene::new();
    let mut rig = scene.rig().await;
    let mut db = scene.connect().await;
    let mut tx = db.begin().await.unwrap();
    trigger_in(&mut tx, rig.store.location().unwrap(), &Batch::one(keyed("k"))).await.unwrap();
    rig.at(4).claim_none().await;
    tx.commit().await.unwrap();
    // The next call folds it, whatever the call is.
    rig.at(20).claim_none().await;
    let job = rig.jobs().await.pop().unwrap();
    assert_eq!(Rig::second(job.window.first_at), 20);
    assert_eq!(rig.at(30).claim_one().await.triggers, 1);
}

#[tokio::test]
async fn r04_a_rollback_leaves_no_trace_and_burns_no_key() {
    let scene = Scene::new();
    let rig = scene.rig().await;
    let mut db = scene.connect().await;
    let once = NewTrigger { dedup: Some(Dedup::new(key("d"))), ..plain("1") };
    let mut tx = db.begin().await.unwrap();
    trigger_in(&mut tx, rig.store.location().unwrap(), &Batch::one(once.clone())).await.unwrap();
    tx.rollback().await.unwrap();
    rig.claim_none().await;
    assert_eq!(rig.trigger(once).await.outcome(), "accepted");
}

#[tokio::test]
async fn r04_triggers_are_folded_in_the_order_of_their_commits_and_dedup_is_decided_then() {
    let scene = Scene::new();
    let rig = scene.rig().await;
    let mut db = scene.connect().await;
    let once = |payload| NewTrigger { dedup: Some(Dedup::new(key("d"))), ..plain(payload) };
    for payload in ["1", "2", "3"] {
        trigger_in(&mut db, rig.store.location().unwrap(), &Batch::one(plain(payload)))
            .await
            .unwrap();
        trigger_in(&mut db, rig.store.location().unwrap(), &Batch::one(once("9"))).await.unwrap();
    }
    let started = rig.claim().await;
    let payloads: Vec<&str> = started.iter().map(|job| job.payload.as_str()).collect();
    assert_eq!(payloads, ["1", "9", "2", "3"]);
}

#[tokio::test]
async fn r04_the_commit_wakes_workers() {
    let scene = Scene::new();
    let store = scene.open().await;
    let mut wakeups = store.wakeups();
    drop(tokio::time::timeout(Duration::from_millis(200), wakeups.next()).await);
    let mut db = scene.connect().await;
    trigger_in(&mut db, store.location().unwrap(), &Batch::one(plain("1"))).await.unwrap();
    tokio::time::timeout(Duration::from_secs(5), wakeups.next()).await.unwrap().unwrap();
    assert_eq!(store.claim(None, &Rig::wish(9)).await.unwrap().jobs.len(), 1);
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

/// What no client sends, but anyone may write who may trigger.
#[tokio::test]
async fn r40_triggers_that_cannot_be_meant_are_set_aside_with_the_field() {
    let scene = Scene::new();
    let rig = scene.rig().await;
    let mut db = scene.connect().await;
    let elapsed = HoldUntil::Elapsed(Duration::ZERO);
    let no_triggers = Debounce { max_triggers: Some(0), ..debounce() };
    let bad = [
        ("delay", NewTrigger { when: When::After(Duration::ZERO), ..plain("2") }),
        ("collect", NewTrigger { fold: Fold::Collect { cap: 0 }, ..plain("2") }),
        ("max_triggers", keyed_with("k", no_triggers, Fold::Last, "2")),
        ("ttl", NewTrigger { dedup: Some(Dedup { key: key("d"), until: elapsed }), ..plain("2") }),
    ];
    for (field, trigger) in bad {
        let batch = Batch { triggers: vec![plain("1"), trigger], dedup: None };
        trigger_in(&mut db, rig.store.location().unwrap(), &batch).await.unwrap();
        rig.claim_none().await;
        let kept: Vec<String> =
            sqlx::query_scalar("select refused from quell_inbox").fetch_all(&mut db).await.unwrap();
        let [refused] = &kept[..] else { panic!("{field}: {kept:?}") };
        assert!(refused.starts_with("triggers[1]: ") && refused.contains(field), "{refused}");
        scene.execute("delete from quell_inbox").await;
    }
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

/// More than one fold takes at once.
#[tokio::test]
async fn r04_r10_no_trigger_overtakes_one_of_its_key_however_many_wait() {
    let scene = Scene::new();
    let mut rig = scene.rig().await;
    let mut db = scene.connect().await;
    let of_key = |payload| NewTrigger { payload: Payload::from_stored(payload), ..keyed("k") };
    let mut tx = db.begin().await.unwrap();
    for payload in ["\"other\""; 2_100] {
        trigger_in(&mut tx, rig.store.location().unwrap(), &Batch::one(plain(payload)))
            .await
            .unwrap();
    }
    let first = Batch::one(of_key("\"first\""));
    trigger_in(&mut tx, rig.store.location().unwrap(), &first).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(rig.trigger(of_key("\"second\"")).await.outcome(), "debounced");
    rig.at(10);
    while let [others @ .., last] = &*rig.claim().await {
        if last.key.is_some() {
            assert_eq!((last.triggers, last.payload.as_str()), (2, "\"second\""));
            assert!(others.iter().all(|job| job.key.is_none()));
            return;
        }
    }
    panic!("the window is gone");
}
