//! Two stores on one file, as two processes would have them.

use std::time::Duration;

use futures_util::StreamExt;
use quell_conformance::Rig;
use quell_conformance::rig::{debounce, key, keyed, plain, queue, task};
use quell_core::{
    Batch, Claim, ErrorKind, NewTrigger, QueueName, QueueSettings, Rate, Receipt, Store,
    TaskSettings, Timestamp,
};

use crate::scene::{Scene, trigger};

#[tokio::test]
async fn r34_a_trigger_of_one_wakes_a_worker_of_the_other() {
    let scene = Scene::new();
    let (ours, theirs) = (scene.open().await, scene.open().await);
    let mut wakeups = ours.wakeups();
    // The first hint may be about what happened before.
    let first = tokio::time::timeout(Duration::from_millis(200), wakeups.next()).await;
    drop(first);
    trigger(&theirs, plain("1")).await;
    let hint = tokio::time::timeout(Duration::from_secs(5), wakeups.next()).await.unwrap();
    assert_eq!(hint.unwrap().due, Timestamp::MIN);
    assert_eq!(ours.claim(None, &Rig::claim_of(9)).await.unwrap().jobs.len(), 1);
    assert!(theirs.claim(None, &Rig::claim_of(9)).await.unwrap().jobs.is_empty());
}

#[tokio::test]
async fn names_that_the_other_added_are_known() {
    let scene = Scene::new();
    let (ours, theirs) = (scene.rig().await, scene.rig().await);
    ours.trigger(plain("1")).await;
    // Another order of queues, tasks and priorities on each side.
    for (index, name) in ["b", "c", "d"].into_iter().enumerate() {
        let priority = i16::try_from(index).unwrap();
        let fresh = NewTrigger { task: task(name), priority, ..plain("2") };
        let moved = NewTrigger { queue: QueueName::new(name).unwrap(), ..fresh.clone() };
        theirs.trigger(moved).await;
        ours.trigger(fresh).await;
        theirs.trigger(NewTrigger { task: task(name), ..plain("3") }).await;
    }
    let tasks = ["b", "c", "d"].map(task).to_vec();
    let claim = Claim { tasks: tasks.into(), ..Rig::claim_of(99) };
    let claimed = ours.claim_with(&claim).await;
    assert_eq!(claimed.len(), 6);
    for job in &claimed {
        theirs.succeed(job).await;
    }
    assert_eq!(ours.dump().await, theirs.dump().await);
}

#[tokio::test]
async fn r07_both_join_the_same_window() {
    let scene = Scene::new();
    let (mut ours, mut theirs) = (scene.rig().await, scene.rig().await);
    let first = ours.trigger(keyed("k")).await;
    let second = theirs.at(3).trigger(keyed("k")).await;
    let third = ours.at(5).trigger(keyed("k")).await;
    assert_eq!((first.job(), second.job()), (second.job(), third.job()));
    assert!(matches!(third, Receipt::Debounced { triggers: 3, .. }), "{third:?}");
    let due = theirs.at(5).next_due().await.due.unwrap();
    assert_eq!(due, Rig::START + Duration::from_secs(5) + debounce().thresholds.min());
}

#[tokio::test]
async fn r31_a_limit_holds_for_both_together() {
    let scene = Scene::new();
    let (ours, theirs) = (scene.rig().await, scene.rig().await);
    let limit = QueueSettings { concurrency: Some(3), ..QueueSettings::default() };
    ours.set_queue(limit).await;
    for _ in 0..5 {
        theirs.trigger(plain("1")).await;
    }
    let got =
        [ours.claim_with(&Rig::claim_of(2)).await, theirs.claim_with(&Rig::claim_of(9)).await];
    assert_eq!(got.map(|jobs| jobs.len()), [2, 1]);
    assert!(ours.claim().await.is_empty());
}

#[tokio::test]
async fn r31_partitions_and_rates_hold_for_both_together() {
    let scene = Scene::new();
    let (mut ours, mut theirs) = (scene.rig().await, scene.rig().await);
    let rate = Some(Rate { limit: 3, period: Duration::from_secs(10) });
    let settings =
        QueueSettings { partition_concurrency: Some(1), rate, ..QueueSettings::default() };
    ours.set_queue(settings).await;
    let within = |name: &str| NewTrigger { partition: Some(key(name)), ..plain("1") };
    for name in ["a", "b", "c", "d"] {
        for rig in [&ours, &theirs] {
            rig.trigger(within(name)).await;
        }
    }
    let first = ours.claim_with(&Rig::claim_of(2)).await;
    let second = theirs.claim_with(&Rig::claim_of(9)).await;
    assert_eq!((first.len(), second.len()), (2, 1), "the third start within the period");
    theirs.at(10).succeed(&first[0]).await;
    let third = ours.at(10).claim().await;
    let mut partitions = Vec::new();
    for job in &third {
        partitions.push(ours.job(job.id).await.partition.unwrap().to_string());
    }
    assert_eq!(partitions, ["a", "d"], "b and c are full");
    assert_eq!(theirs.next_due().await.due, None);
}

#[tokio::test]
async fn r33_a_task_that_one_pauses_waits_for_the_other_too() {
    let scene = Scene::new();
    let (ours, theirs) = (scene.rig().await, scene.rig().await);
    theirs.trigger(plain("1")).await;
    let pause = |paused| TaskSettings::default().paused(paused);
    ours.store.set_task(Some(ours.now()), &task("t"), &pause(true)).await.unwrap();
    theirs.claim_none().await;
    ours.store.set_task(Some(ours.now()), &task("t"), &pause(false)).await.unwrap();
    theirs.claim_one().await;
    assert!(ours.store.delete_queue(Some(ours.now()), &queue()).await.unwrap());
    theirs.trigger(plain("1")).await;
    theirs.claim_none().await;
}

#[tokio::test]
async fn r32_settings_of_one_hold_for_the_other_at_once() {
    let scene = Scene::new();
    let (ours, theirs) = (scene.rig().await, scene.rig().await);
    ours.trigger(plain("1")).await;
    assert_eq!(theirs.next_due().await.due, Some(Rig::START));
    ours.set_queue(QueueSettings { paused: true, ..QueueSettings::default() }).await;
    theirs.claim_none().await;
    ours.set_queue(QueueSettings::default()).await;
    theirs.claim_one().await;
}

#[tokio::test]
async fn r32_settings_of_a_queue_that_both_know_hold_at_once_too() {
    let scene = Scene::new();
    let (ours, theirs) = (scene.rig().await, scene.rig().await);
    for rig in [&ours, &theirs] {
        rig.trigger(plain("1")).await;
        rig.claim_one().await;
    }
    let paused = |paused| QueueSettings { paused, ..QueueSettings::default() };
    for now in [true, false, true] {
        theirs.set_queue(paused(now)).await;
        ours.trigger(plain("2")).await;
        assert_eq!(ours.claim().await.is_empty(), now, "paused: {now}");
    }
}

#[tokio::test]
async fn r38_time_of_the_other_is_not_gone_behind() {
    let scene = Scene::new();
    let (mut ours, theirs) = (scene.rig().await, scene.rig().await);
    ours.at(500).trigger(plain("1")).await;
    assert_eq!(theirs.next_due().await.now, Rig::START + Duration::from_secs(500));
    let Receipt::Accepted { due, .. } = theirs.trigger(plain("2")).await else { panic!() };
    assert_eq!(due, Rig::START + Duration::from_secs(500));
}

#[tokio::test]
async fn r35_a_held_write_lock_is_contention_and_passes() {
    let scene = Scene::new();
    let store = scene.options().busy_timeout(Duration::from_millis(20)).open().await.unwrap();
    let mut other = scene.connect().await;
    sqlx::query("begin immediate").execute(&mut other).await.unwrap();
    let error = store.enqueue(None, vec![Batch::one(plain("1"))]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Contention, "{error}");
    // Looking needs no lock.
    assert_eq!(store.next_due(None, &queue(), &[task("t")]).await.unwrap().due, None);
    sqlx::query("rollback").execute(&mut other).await.unwrap();
    trigger(&store, plain("1")).await;
}

#[tokio::test]
async fn ids_are_never_given_twice_even_when_the_newest_job_was_removed() {
    let scene = Scene::new();
    let (ours, mut theirs) = (scene.rig().await, scene.rig().await);
    let first = ours.trigger(plain("1")).await.job().unwrap();
    let job = theirs.claim_one().await;
    theirs.succeed(&job).await;
    assert_eq!(theirs.at(0).prune(9_999, &quell_core::Retention::default(), 9).await, 1);
    assert!(ours.jobs().await.is_empty());
    assert!(ours.trigger(plain("2")).await.job().unwrap() > first);
}
