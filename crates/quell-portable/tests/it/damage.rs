//! Rows that cannot be decoded (R25).

use quell_conformance::rig::{keyed, lease, secs};
use quell_core::{
    DeadLetters, JobState, Outcome, Retention, Settlement, Steps, UnreadableJobs, UnreadablePage,
};

use crate::between::{at, damage, enqueue, names, plains, start, two};

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
}

#[tokio::test]
async fn r25_a_row_that_is_no_json_holds_up_no_other() {
    let two = two();
    let store = &*two.second;
    let ids = plains(store, 2).await;
    damage(&two.table, ids[0], cut).await;
    let started = start(store, 1, 2).await;
    assert_eq!(started.len(), 1, "the other one starts");
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
}

#[tokio::test]
async fn r25_a_job_whose_due_time_cannot_be_decoded_holds_up_no_other() {
    let two = two();
    let store = &*two.second;
    let ids = plains(store, 2).await;
    damage(&two.table, ids[0], |text| text.replace("\"due_at\":", "\"due_at_then\":")).await;
    let started = start(store, 1, 2).await;
    assert_eq!(started.len(), 1, "the other one starts");
}

#[tokio::test]
async fn r21_r25_rows_of_running_jobs_that_are_no_json_hold_up_no_lapse() {
    let two = two();
    let store = &*two.second;
    let ids = plains(store, 20).await;
    start(store, 0, 20).await;
    for id in &ids[..19] {
        damage(&two.table, *id, cut).await;
    }
    let _reaped = store.reap(at(100), 100).await;
    let job = store.job(ids[19]).await.unwrap().unwrap();
    assert_eq!(job.state, JobState::Scheduled, "its lease lapsed long ago");
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
}
