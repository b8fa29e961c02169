//! Rows that cannot be decoded (R25).

use quell_conformance::rig::{keyed, lease, secs};
use std::sync::Arc;

use quell_core::{
    DeadJobs, JobId, JobState, Outcome, Retention, Settlement, Steps, UnreadableJobs,
    UnreadablePage,
};
use quell_portable::{Change, Condition, MemoryTable, Table};

use crate::between::{at, damage, enqueue, names, plains, start, two};
use crate::counted::expect_exact;

fn cut(text: &str) -> String {
    text[..text.len() / 2].to_owned()
}

#[tokio::test]
async fn r25_an_unreadable_window_can_be_discarded() {
    let two = two();
    let store = &*two.second;
    let id = enqueue(store, 0, keyed("k")).await.job().unwrap();
    damage(&two.table, id, |text| text.replace("\"priority\":0", "\"priority\":\"?\"")).await;
    assert_eq!(start(store, 10, 1).await.len(), 0);
    let listed = store.unreadable(&UnreadablePage::default()).await.unwrap();
    assert_eq!(listed.len(), 1);
    assert_eq!(store.discard(at(11), &[id], "gone").await.unwrap(), [id]);
    expect_exact(&two.table).await;
}

#[tokio::test]
async fn r25_a_row_that_is_no_json_holds_up_no_other() {
    let two = two();
    let store = &*two.second;
    let ids = plains(store, 2).await;
    damage(&two.table, ids[0], cut).await;
    let started = start(store, 1, 2).await;
    assert_eq!(started.len(), 1, "the other one starts");
    expect_exact(&two.table).await;
}

#[tokio::test]
async fn r25_a_row_that_is_no_json_is_listed_and_can_be_discarded() {
    let two = two();
    let store = &*two.second;
    let ids = plains(store, 1).await;
    damage(&two.table, ids[0], cut).await;
    let _claimed = store.claim(at(1), &crate::between::claim("w", 1)).await;
    let listed = store.unreadable(&UnreadablePage::default()).await.unwrap();
    assert_eq!(listed.iter().map(|job| job.id).collect::<Vec<_>>(), ids);
    assert_eq!(store.discard(at(2), &ids, "gone").await.unwrap(), ids);
    assert_eq!(names(&two.table, "u:").await, [""; 0]);
    expect_exact(&two.table).await;
}

#[tokio::test]
async fn r25_a_job_whose_due_time_cannot_be_decoded_holds_up_no_other() {
    let two = two();
    let store = &*two.second;
    let ids = plains(store, 2).await;
    damage(&two.table, ids[0], |text| text.replace("\"due_at\":", "\"due_at_then\":")).await;
    let started = start(store, 1, 2).await;
    assert_eq!(started.len(), 1, "the other one starts");
    expect_exact(&two.table).await;
}

#[tokio::test]
async fn r21_r25_rows_of_running_jobs_that_are_no_json_hold_up_no_expiry() {
    let two = two();
    let store = &*two.second;
    let ids = plains(store, 20).await;
    start(store, 0, 20).await;
    for id in &ids[..19] {
        damage(&two.table, *id, cut).await;
    }
    let _reaped = store.reap(at(100), 100).await;
    let job = store.job(ids[19]).await.unwrap().unwrap();
    assert_eq!(job.state, JobState::Scheduled, "its lease expired long ago");
    expect_exact(&two.table).await;
}

#[tokio::test]
async fn r25_r37_rows_of_ended_jobs_that_are_no_json_hold_up_no_prune() {
    let two = two();
    let store = &*two.second;
    let ids = plains(store, 20).await;
    let runs = start(store, 0, 20).await;
    let well = |run| Settlement { lease: lease(run), outcome: Outcome::Succeeded { output: None } };
    store.settle(at(1), runs.iter().map(well).collect()).await.unwrap();
    for id in &ids[..19] {
        damage(&two.table, *id, cut).await;
    }
    let retention = Retention { succeeded: Some(secs(60)), dead: None };
    // Without end where the places of the others stay.
    store.prune(at(1_000), &retention, 100).await.unwrap();
    assert!(store.job(ids[19]).await.unwrap().is_none(), "it ended long ago");
    expect_exact(&two.table).await;
}

/// What was cut off a row is there again, as for a newer process.
async fn mend(table: &MemoryTable, id: JobId, value: Arc<[u8]>) {
    let (row, condition) = (format!("u:{:016x}", !id.get()), Condition::Any);
    let change = Change { row, condition, value: Some(value) };
    table.commit("p", vec![change]).await.unwrap();
}

#[tokio::test]
async fn r25_jobs_of_which_nothing_was_known_are_put_back() {
    let two = two();
    let store = &*two.second;
    let plain = plains(store, 1).await[0];
    let runs = enqueue(store, 0, keyed("runs")).await.job().unwrap();
    assert_eq!(start(store, 10, 2).await.len(), 2);
    let waits = enqueue(store, 11, keyed("runs")).await.job().unwrap();
    let open = enqueue(store, 0, keyed("open")).await.job().unwrap();
    let ids = [runs, open, plain];
    let mut values = Vec::new();
    for id in ids {
        let name = format!("j:{:016x}", !id.get());
        values.push(two.table.get("p", &[name]).await.unwrap().pop().unwrap().unwrap().value);
        damage(&two.table, id, cut).await;
    }
    store.reap(at(100), 10).await.unwrap();
    start(store, 100, 1).await;
    assert_eq!(store.unreadable(&UnreadablePage::default()).await.unwrap().len(), 3);
    for (id, value) in ids.into_iter().zip(values) {
        mend(&two.table, id, value).await;
    }
    assert_eq!(store.restore(at(101), &ids).await.unwrap(), ids);
    assert_eq!(store.job(runs).await.unwrap().unwrap().absorbed_by, Some(waits));
    assert_eq!(start(store, 200, 10).await.len(), 3);
    expect_exact(&two.table).await;
}
