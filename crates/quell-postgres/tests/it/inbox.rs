//! What callers do inside their own transactions: trigger (R4) and settle (R22).

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use quell_conformance::Rig;
use quell_conformance::rig::{debounce, key, keyed, keyed_with, lease, plain, task, until};
use quell_core::dedup::{Dedup, HoldUntil};
use quell_core::window::Debounce;
use quell_core::{
    AttemptOutcome, Batch, ErrorKind, Failure, FailureKind, Fold, JobState, Location, NewTrigger,
    Outcome, Payload, QueueSettings, SettledAs, Settlement, Store, When,
};
use quell_postgres::{settle_in, settle_in_with, trigger_in};
use sqlx::Connection;

use crate::scene::{Scene, jobs};

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
async fn r04_triggers_are_folded_in_their_order_and_dedup_is_decided_then() {
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
        let refused = scene.sql("select refused from quell.inbox");
        assert!(refused.starts_with("triggers[1]: ") && refused.contains(field), "{refused}");
        scene.sql("delete from quell.inbox");
    }
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

fn in_transaction() -> Outcome {
    let kind =
        FailureKind::Transient { backoff: Duration::from_secs(1), last: false, asked: false };
    let (error, ended) = ("did not commit".to_owned(), AttemptOutcome::Failed);
    Outcome::InTransaction(Failure { error, ended, kind })
}

#[tokio::test]
async fn r22_effects_and_settlement_commit_together_or_not_at_all() {
    let scene = Scene::new();
    let mut rig = scene.rig().await;
    scene.sql("create table quell.ledger (job bigint)");
    let mut db = scene.connect().await;
    for commits in [false, true] {
        if !commits {
            rig.trigger(plain("1")).await;
        }
        let run = rig.at(if commits { 10 } else { 0 }).claim_one().await;
        let mut tx = db.begin().await.unwrap();
        let effect = format!("insert into {}.ledger values ($1)", scene.schema());
        let effect = sqlx::query(sqlx::AssertSqlSafe(effect)).bind(1_i64);
        effect.execute(&mut *tx).await.unwrap();
        settle_in(&mut tx, rig.store.location().unwrap(), &lease(&run), Some(rig.now()))
            .await
            .unwrap();
        if commits {
            tx.commit().await.unwrap();
        } else {
            tx.rollback().await.unwrap();
        }
        let told = Settlement { lease: lease(&run), outcome: in_transaction() };
        let settled = rig.store.settle(Some(rig.now()), vec![told]).await.unwrap();
        assert_eq!(settled[0].became == SettledAs::Succeeded, commits, "{settled:?}");
        assert_eq!(scene.sql("select count(*) from quell.ledger"), u8::from(commits).to_string());
        let state = rig.job(run.id).await.state;
        assert_eq!(state, if commits { JobState::Succeeded } else { JobState::Scheduled });
    }
}

#[tokio::test]
async fn r19_r22_an_output_and_the_end_of_its_job_commit_together_or_not_at_all() {
    let scene = Scene::new();
    let mut rig = scene.rig().await;
    let output = Payload::from_text(r#"{"n": "\u0000 é"}"#).unwrap();
    let job = rig.trigger(plain("1")).await.job().unwrap();
    let mut db = scene.connect().await;
    for commits in [false, true] {
        let run = rig.at(if commits { 10 } else { 0 }).claim_one().await;
        let (lease, now) = (lease(&run), Some(rig.now()));
        let mut tx = db.begin().await.unwrap();
        settle_in_with(&mut tx, rig.store.location().unwrap(), &lease, now, &output).await.unwrap();
        if commits {
            tx.commit().await.unwrap();
        } else {
            tx.rollback().await.unwrap();
        }
        let told = Settlement { lease, outcome: in_transaction() };
        rig.store.settle(now, vec![told]).await.unwrap();
        let result = rig.store.result(job).await.unwrap().unwrap();
        let state = if commits { JobState::Succeeded } else { JobState::Scheduled };
        assert_eq!((result.state, result.output), (state, commits.then(|| output.clone())));
    }
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
        settle_in(&mut tx, rig.store.location().unwrap(), &lease(&run), Some(rig.now())).await;
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
    let (rig, elsewhere) = (scene.rig().await, other.rig().await);
    rig.trigger(plain("1")).await;
    elsewhere.trigger(plain("2")).await;
    let (run, run_there) = (rig.claim_one().await, elsewhere.claim_one().await);
    assert_eq!(lease(&run), lease(&run_there), "else the test shows nothing");
    let (own, there) = (rig.store.location().unwrap(), elsewhere.store.location().unwrap());
    assert_ne!(own.id, there.id);
    let mixed = Location { id: own.id.clone(), schema: there.schema.clone() };
    let before = elsewhere.jobs().await;
    let mut db = scene.connect().await;
    let mut tx = db.begin().await.unwrap();
    let output = Payload::from_text("1").unwrap();
    let refusals = [
        trigger_in(&mut tx, &mixed, &Batch::one(plain("3"))).await,
        settle_in(&mut tx, &mixed, &lease(&run), Some(rig.now())).await,
        settle_in_with(&mut tx, &mixed, &lease(&run), Some(rig.now()), &output).await,
    ];
    for refused in refusals {
        let error = refused.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        let text = error.to_string();
        assert!(text.contains(own.id.as_str()) && text.contains(there.id.as_str()), "{text}");
    }
    tx.commit().await.unwrap();
    assert_eq!(elsewhere.jobs().await, before);
    assert_eq!(other.sql("select count(*) from quell.inbox"), "0");
    // The store's own transaction still settles.
    settle_in(&mut db, own, &lease(&run), Some(rig.now())).await.unwrap();
    assert_eq!(rig.job(run.id).await.state, JobState::Succeeded);
}

/// While the transaction is open the job is nobody else's, though its lease runs out.
#[tokio::test]
async fn r22_a_settlement_under_way_keeps_the_job_from_being_taken_back() {
    let scene = Scene::new();
    let mut rig = scene.rig().await;
    rig.trigger(keyed("k")).await;
    let run = rig.at(10).claim_one().await;
    rig.trigger(keyed("k")).await;
    let mut db = scene.connect().await;
    let mut tx = db.begin().await.unwrap();
    settle_in(&mut tx, rig.store.location().unwrap(), &lease(&run), Some(rig.now())).await.unwrap();
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
    settle_in(&mut db, rig.store.location().unwrap(), &lease(&run), Some(rig.now())).await.unwrap();
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
    settle_in(&mut tx, location, &lease(&run), Some(rig.now())).await.unwrap();
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
