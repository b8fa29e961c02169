//! What is too much for one batch, and upkeep that meets a limit.

use std::time::Duration;

use quell_conformance::rig::{Rig, debounce, fails, key, keyed, keyed_with, lease, plain, secs};
use quell_core::dedup::{Dedup, HoldUntil};
use quell_core::idempotency::Idempotency;
use quell_core::schedule::{CatchUp, Schedule, Spec};
use quell_core::window::Debounce;
use quell_core::{
    AttemptOutcome, Batch, EffectName, Error, ErrorKind, Failure, FailureKind, Fold, JobState,
    Lease, NewTrigger, Outcome, Payload, Renewal, Retention, ScheduleName, SettledAs, Settlement,
    Steps, Timestamp,
};
use quell_portable::{Bounds, MemoryTable};

use crate::between::{at, enqueue, names, plains, start, two, two_with};

fn retention() -> Retention {
    Retention { succeeded: Some(secs(60)), dead: None }
}

/// Jobs that end in another order than they came, the first of them with a dedup key that has
/// expired: a prune takes no more than it has loaded whole.
async fn prunes_a_job_that_a_dedup_key_names(first: NewTrigger) {
    let two = two();
    let store = &*two.second;
    let hold = Dedup { key: key("d"), until: HoldUntil::Elapsed(secs(30)) };
    let first =
        NewTrigger { dedup: Some(hold), idempotency: Some(Idempotency::new(key("i"))), ..first };
    let again = NewTrigger { dedup: None, ..first.clone() };
    let id = enqueue(store, 0, first).await.job().unwrap();
    plains(store, 30).await;
    let mut runs = start(store, 10, 31).await;
    runs.sort_by_key(|run| run.id);
    assert_eq!((runs.len(), runs[0].id), (31, id));
    // One fails once, so that it has an attempt on record.
    let slow = Settlement { lease: lease(&runs[0]), outcome: fails(secs(1), false) };
    store.settle(at(10), vec![slow]).await.unwrap();
    let well = |run| Settlement { lease: lease(run), outcome: Outcome::Succeeded { output: None } };
    store.settle(at(11), runs[1..].iter().map(well).collect()).await.unwrap();
    let slow = start(store, 12, 1).await;
    store.settle(at(13), vec![well(&slow[0])]).await.unwrap();
    let pruned = store.prune(at(100), &retention(), 1_000).await.unwrap();
    assert_eq!(pruned.jobs, 31);
    assert_eq!(names(&two.table, "h:").await.len(), 1, "but for what names the idempotency key");
    let receipt = enqueue(store, 101, again).await;
    assert!(matches!(receipt, quell_core::Receipt::Existing { .. }), "{receipt:?}");
}

#[tokio::test]
async fn r37_a_keyed_job_that_a_dedup_key_names_is_pruned_whole() {
    prunes_a_job_that_a_dedup_key_names(keyed("k")).await;
}

#[tokio::test]
async fn r19_r37_a_plain_job_that_a_dedup_key_names_is_pruned_whole() {
    prunes_a_job_that_a_dedup_key_names(plain("1")).await;
}

#[tokio::test]
async fn r21_many_leases_are_renewed() {
    let two = two();
    plains(&*two.second, 60).await;
    let runs = start(&*two.second, 0, 60).await;
    let leases: Vec<Lease> = runs.iter().map(lease).collect();
    let renewed = two.second.renew(at(9), &leases, Rig::LEASE).await.unwrap();
    assert_eq!(renewed, vec![Renewal::Held(at(39).unwrap()); 60]);
}

#[tokio::test]
async fn r21_leases_of_large_jobs_are_renewed() {
    let two = two();
    for _ in 0..6 {
        enqueue(&*two.second, 0, plain(&format!("\"{}\"", "x".repeat(1_000_000)))).await;
    }
    let mut leases = Vec::new();
    for _ in 0..6 {
        leases.extend(start(&*two.second, 0, 1).await.iter().map(lease));
    }
    let renewed = two.second.renew(at(9), &leases, Rig::LEASE).await.unwrap();
    assert_eq!(renewed, vec![Renewal::Held(at(39).unwrap()); 6]);
}

fn numbered(key_number: usize) -> NewTrigger {
    let id = Idempotency::new(key(&format!("i{key_number}")));
    NewTrigger { idempotency: Some(id), ..keyed("k") }
}

/// A window with as many idempotency keys as one batch cannot hand over.
#[tokio::test]
async fn r12_r19_a_failed_window_of_many_idempotency_keys_is_absorbed() {
    let two = two();
    let store = &*two.second;
    for number in 0..60 {
        enqueue(store, 0, numbered(number)).await;
    }
    let runs = start(store, 60, 1).await;
    enqueue(store, 61, numbered(100)).await;
    let failed = Settlement { lease: lease(&runs[0]), outcome: fails(secs(1), false) };
    store.settle(at(62), vec![failed]).await.unwrap();
}

/// A window that cannot be taken back in one batch, whose lease expired before that of another job.
#[tokio::test]
async fn r21_r25_a_lease_that_cannot_be_taken_back_holds_up_no_other() {
    let two = two();
    let store = &*two.second;
    for number in 0..60 {
        enqueue(store, 0, numbered(number)).await;
    }
    start(store, 60, 1).await;
    enqueue(store, 61, numbered(100)).await;
    let other = enqueue(store, 62, plain("1")).await.job().unwrap();
    start(store, 62, 1).await;
    let _reaped = store.reap(at(1_000), 100).await;
    let job = store.job(other).await.unwrap().unwrap();
    assert_eq!(job.state, JobState::Scheduled, "its lease expired long ago");
}

/// As many idempotency keys of one job as one batch cannot change.
#[tokio::test]
async fn r37_a_job_that_cannot_be_pruned_holds_up_no_other() {
    let two = two();
    let store = &*two.second;
    for number in 0..120 {
        enqueue(store, 0, numbered(number)).await;
    }
    let other = enqueue(store, 0, plain("1")).await.job().unwrap();
    let mut runs = start(store, 60, 10).await;
    runs.sort_by_key(|run| run.id);
    let well = |run| Settlement { lease: lease(run), outcome: Outcome::Succeeded { output: None } };
    store.settle(at(61), vec![well(&runs[0])]).await.unwrap();
    store.settle(at(62), vec![well(&runs[1])]).await.unwrap();
    let _pruned = store.prune(at(1_000), &retention(), 100).await;
    assert!(store.job(other).await.unwrap().is_none(), "it ended long ago");
}

fn narrow() -> MemoryTable {
    let bounds =
        Bounds { changes: 100, batch_bytes: 64 << 10, row_bytes: 16 << 10, name_bytes: 512 };
    MemoryTable::new(Rig::START).with_bounds(bounds)
}

fn text(length: usize) -> String {
    format!("\"{}\"", "x".repeat(length))
}

/// A trigger that just fits: its job has to start, fail and end, too.
#[tokio::test]
async fn r01_what_is_accepted_can_start_and_end() {
    let two = two_with(narrow());
    let store = &*two.second;
    let mut length = 60 << 10;
    loop {
        let batch = quell_core::Batch::one(plain(&text(length)));
        let accepted = store.enqueue(at(0), vec![batch]).await;
        if accepted.is_ok_and(|all| all.iter().all(Result::is_ok)) {
            break;
        }
        length -= 10;
    }
    let runs = store.claim(at(1), &crate::between::claim("w", 1)).await;
    assert!(runs.is_ok(), "accepted with {length} bytes: {runs:?}");
}

/// A window that fits into its successor by their bound, and not into a batch.
#[tokio::test]
async fn r12_r21_a_reclaimed_job_that_is_too_large_for_its_successor_holds_up_no_other() {
    let two = two_with(narrow());
    let store = &*two.second;
    let collect = |length| keyed_with("k", debounce(), Fold::Collect { cap: 100 }, &text(length));
    enqueue(store, 0, collect(30 << 10)).await;
    start(store, 10, 1).await;
    enqueue(store, 11, collect(30 << 10)).await;
    let other = enqueue(store, 12, plain("1")).await.job().unwrap();
    start(store, 12, 1).await;
    let _reaped = store.reap(at(1_000), 100).await;
    let job = store.job(other).await.unwrap().unwrap();
    assert_eq!(job.state, JobState::Scheduled, "its lease expired long ago");
}

/// A schedule whose trigger is refused, because its window has no room left in a row.
#[tokio::test]
async fn r36_a_schedule_that_cannot_fire_holds_up_no_other() {
    let two = two_with(narrow());
    let store = &*two.second;
    let collect = keyed_with("k", debounce(), Fold::Collect { cap: 100 }, &text(30 << 10));
    enqueue(store, 0, collect.clone()).await;
    for (name, trigger) in [("a", collect), ("b", plain("1"))] {
        let schedule = Schedule {
            name: ScheduleName::new(name).unwrap(),
            spec: Spec::every(Duration::from_secs(10), Timestamp::from_secs(0)).unwrap(),
            catch_up: CatchUp::Latest,
            trigger,
            declared: None,
        };
        store.set_schedule(at(0), &schedule).await.unwrap();
    }
    let _ticked = store.tick(at(10), 10).await;
    let all = store.schedules().await.unwrap();
    let last: Vec<_> = all.iter().map(|info| info.last).collect();
    assert_eq!(last[1], at(10), "b was due: {last:?}");
}

/// The effects of a job are one row, so a table with short batches takes fewer large results than other
/// stores: the one that is too much is refused with the limit, and the job goes on.
#[tokio::test]
async fn r23_results_beyond_the_longest_row_are_refused_with_the_limit() {
    let two = two();
    let store = &*two.second;
    plains(store, 1).await;
    let runs = start(store, 0, 1).await;
    let result = Payload::from_text(text(255 << 10)).unwrap();
    let mut kept = 0;
    let refused = loop {
        let name = EffectName::new(format!("e{kept}")).unwrap();
        store.begin_effect(at(1), &lease(&runs[0]), &name, &key("k")).await.unwrap();
        match store.end_effect(at(1), &lease(&runs[0]), &name, &result).await {
            Ok(()) => kept += 1,
            Err(refused) => break refused,
        }
    };
    assert!((10..100).contains(&kept), "{kept}");
    assert_eq!(refused.kind(), ErrorKind::Invalid);
    assert!(refused.to_string().contains("this store takes"), "{refused}");
    let small = Payload::from_text("1").unwrap();
    let name = EffectName::new(format!("e{kept}")).unwrap();
    store.end_effect(at(1), &lease(&runs[0]), &name, &small).await.unwrap();
    let settled = vec![Settlement { lease: lease(&runs[0]), outcome: Outcome::succeeded() }];
    assert_eq!(store.settle(at(1), settled).await.unwrap()[0].became, SettledAs::Succeeded);
}

/// A failed job and its successor, each of the usual bound, with errors on record.
#[tokio::test]
async fn r12_r24_jobs_of_the_usual_bounds_go_back() {
    // The bounds of Azure Table Storage.
    let bounds =
        Bounds { changes: 100, batch_bytes: 2_816 << 10, row_bytes: 960 << 10, name_bytes: 512 };
    let two = two_with(MemoryTable::new(Rig::START).with_bounds(bounds));
    let store = &*two.second;
    let trigger = || keyed_with("k", debounce(), Fold::Last, &text((1 << 20) - 2));
    enqueue(store, 0, trigger()).await;
    for second in 10..60 {
        let runs = start(store, second, 1).await;
        let failure = Failure {
            error: "x".repeat(16 << 10),
            ended: AttemptOutcome::Failed,
            kind: FailureKind::Transient { backoff: secs(1), last: false, asked: false },
        };
        let failed = Settlement { lease: lease(&runs[0]), outcome: Outcome::Failed(failure) };
        if second == 59 {
            enqueue(store, second, trigger()).await;
        }
        let settled = store.settle(at(second), vec![failed]).await;
        assert!(settled.is_ok(), "at {second}: {settled:?}");
    }
}

/// Callers whose triggers go in one call have nothing to do with each other.
#[tokio::test]
async fn r05_a_payload_that_is_too_long_refuses_its_own_batch_only() {
    let two = two_with(narrow());
    let batches = [10, 60 << 10, 10].map(|length| Batch::one(plain(&text(length))));
    let accepted = two.second.enqueue(at(0), batches.into()).await.unwrap();
    let kinds: Vec<_> = accepted.iter().map(|one| one.as_ref().err().map(Error::kind)).collect();
    assert_eq!(kinds, [None, Some(ErrorKind::Invalid), None]);
}

/// The bound of a window is larger than what a batch takes.
#[tokio::test]
async fn r10_a_window_closes_at_the_bound_of_the_store() {
    let two = two_with(narrow());
    let store = &*two.second;
    let wide = Debounce { max_bytes: Some(16 << 20), ..debounce() };
    let collect = || keyed_with("k", wide, Fold::Collect { cap: 100 }, &text(20 << 10));
    let first = enqueue(store, 0, collect()).await.job();
    let second = enqueue(store, 1, collect()).await.job();
    assert_ne!(first, second, "both do not fit into one");
}

/// A job with errors on record that leave no room for the record of an expired lease.
#[tokio::test]
async fn r21_a_lease_that_cannot_be_taken_back_at_all_holds_up_no_other() {
    let two = two_with(narrow());
    let store = &*two.second;
    enqueue(store, 0, plain(&text(31 << 10))).await;
    let failure = |length| Failure {
        error: "x".repeat(length),
        ended: AttemptOutcome::Failed,
        kind: FailureKind::Transient { backoff: secs(1), last: false, asked: false },
    };
    let (mut second, mut length) = (1, 8 << 10);
    let mut run = start(store, second, 1).await;
    while length > 0 {
        let outcome = Outcome::Failed(failure(length));
        let failed = Settlement { lease: lease(&run[0]), outcome };
        if store.settle(at(second), vec![failed]).await.is_ok() {
            second += 2;
            run = start(store, second, 1).await;
        } else {
            length /= 2;
        }
    }
    let other = enqueue(store, second, plain("1")).await.job().unwrap();
    start(store, second, 1).await;
    let expired = store.reap(at(1_000), 100).await.unwrap();
    assert_eq!(expired.iter().map(|one| one.lease.job).collect::<Vec<_>>(), [other]);
    assert!(store.reap(at(1_001), 100).await.is_err(), "the other one cannot be taken back");
}
