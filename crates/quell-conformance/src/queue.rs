//! What a claim takes, in which order, under which limits, and when to look again.

use std::sync::Arc;
use std::time::Duration;

use futures_util::{FutureExt, StreamExt};
use quell_core::{Claim, NewTrigger, QueueName, QueueSettings, Timestamp, When};

use crate::rig::{Rig, keyed, plain, queue, secs, task};

/// Only tasks that the worker knows, only of its queue.
pub async fn r28_unknown_tasks_are_left_alone(mut rig: Rig) {
    let elsewhere = QueueName::new("other").expect("a valid name");
    rig.trigger(NewTrigger { task: task("unknown"), priority: 9, ..plain("1") }).await;
    rig.trigger(NewTrigger { queue: elsewhere.clone(), priority: 9, ..plain("2") }).await;
    rig.trigger(plain("3")).await;
    assert_eq!(rig.claim_one().await.payload.as_str(), "3");
    rig.at(1_000).claim_none().await;
    let there = Claim { queue: elsewhere, ..Rig::wish(9) };
    assert_eq!(rig.claim_with(&there).await[0].payload.as_str(), "2");
    let next = rig.store.next_due(Some(rig.now()), &queue(), &[task("t")]).await.expect("looks");
    assert_eq!(next.due, None);
}

/// Across tasks, and only among what is due.
pub async fn r30_priority_then_due_then_id(mut rig: Rig) {
    let with = |name: &str, priority, after, payload: &str| NewTrigger {
        task: task(name),
        priority,
        when: When::After(secs(after)),
        ..plain(payload)
    };
    let triggers = [
        with("t", 0, 5, "1"),
        with("u", 0, 3, "2"),
        with("t", 5, 9, "3"),
        with("u", 5, 8, "4"),
        with("t", -5, 1, "5"),
        with("u", 0, 3, "6"),
        with("t", 9, 50, "7"),
    ];
    for trigger in triggers {
        rig.trigger(trigger).await;
    }
    rig.at(20);
    let both = |limit| Claim { tasks: Arc::from([task("u"), task("t")]), ..Rig::wish(limit) };
    let mut order = Vec::new();
    for limit in [1, 2, 9] {
        let jobs = rig.claim_with(&both(limit)).await;
        order.extend(jobs.iter().map(|job| job.payload.as_str().to_owned()));
    }
    assert_eq!(order, ["4", "3", "2", "6", "1", "5"]);
}

/// Two workers, one limit; a settlement gives the slot back.
pub async fn r31_the_concurrency_of_a_queue_is_exact(rig: Rig) {
    let settings = QueueSettings { concurrency: Some(3), ..QueueSettings::default() };
    rig.set_queue(settings).await;
    for n in 0..10 {
        rig.trigger(plain(&n.to_string())).await;
    }
    let first = rig.claim_with(&Rig::wish(2)).await;
    let second = rig.claim_with(&Rig::wish(9)).await;
    assert_eq!((first.len(), second.len()), (2, 1));
    rig.claim_none().await;
    rig.succeed(&first[0]).await;
    assert_eq!(rig.claim().await.len(), 1);
}

/// Pause, resume, a new limit: at the next claim.
pub async fn r32_r33_settings_are_live(rig: Rig) {
    rig.trigger(plain("1")).await;
    rig.set_queue(QueueSettings { paused: true, ..QueueSettings::default() }).await;
    rig.claim_none().await;
    rig.set_queue(QueueSettings::default()).await;
    rig.claim_one().await;
    let known = rig.store.queues().await.expect("lists");
    assert_eq!(known.len(), 1);
    assert_eq!(known[0].settings, QueueSettings::default());
}

/// A trigger, a requeue and a freed key wake; the due time is told exactly.
pub async fn r34_new_work_wakes_and_next_due_is_exact(mut rig: Rig) {
    let mut wakeups = rig.store.wakeups();
    rig.trigger(keyed("a")).await;
    let hint = wakeups.next().await.expect("a hint");
    assert_eq!((hint.queue, Rig::second(hint.due)), (Some(queue()), 10));
    let next = rig.store.next_due(Some(rig.now()), &queue(), &[task("t")]).await.expect("looks");
    assert_eq!((next.due, next.lapse), (Some(Rig::START + secs(10)), None));

    rig.at_time(Rig::START + Duration::from_micros(10_000_000));
    let job = rig.claim_one().await;
    rig.trigger(keyed("a")).await;
    while wakeups.next().now_or_never().is_some() {}
    let next = rig.store.next_due(Some(rig.now()), &queue(), &[task("t")]).await.expect("looks");
    assert_eq!(next.due, None, "the window waits for the running attempt");
    assert_eq!(next.lapse, Some(rig.now() + Rig::LEASE));
    rig.succeed(&job).await;
    let hint = wakeups.next().await.expect("a hint");
    assert!(hint.due <= Rig::START + secs(20), "the key is free: {hint:?}");
    let foreign: Timestamp = hint.due;
    assert!(foreign <= Rig::START + secs(20));
}

/// A known failure elsewhere: one poll claims the whole backlog.
pub async fn a_claim_is_bounded(rig: Rig) {
    for n in 0..50 {
        rig.trigger(plain(&n.to_string())).await;
    }
    assert_eq!(rig.claim_with(&Rig::wish(7)).await.len(), 7);
    assert_eq!(rig.claim_with(&Rig::wish(0)).await.len(), 0);
    assert_eq!(rig.claim().await.len(), 43);
}
