//! What a claim takes, in which order and under which limits.

use std::sync::Arc;

use futures_util::future::join_all;
use quell_core::{Claim, JobState, Key, NewTrigger, Outcome, QueueName, QueueSettings, When};

use crate::rig::{Rig, every_end, keyed, lease, plain, queue, secs, task};

/// Only tasks that the worker knows, only of its queue.
pub async fn r28_unknown_tasks_are_left_alone(mut rig: Rig) {
    let elsewhere = QueueName::new("other").expect("a valid name");
    rig.trigger(NewTrigger { task: task("unknown"), priority: 9, ..plain("1") }).await;
    rig.trigger(NewTrigger { queue: elsewhere.clone(), priority: 9, ..plain("2") }).await;
    rig.trigger(plain("3")).await;
    assert_eq!(rig.claim_one().await.payload.as_str(), "3");
    rig.at(1_000).claim_none().await;
    let there = Claim { queue: elsewhere, ..Rig::claim_of(9) };
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
    let both = |limit| Claim { tasks: Arc::from([task("u"), task("t")]), ..Rig::claim_of(limit) };
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
    let first = rig.claim_with(&Rig::claim_of(2)).await;
    let second = rig.claim_with(&Rig::claim_of(9)).await;
    assert_eq!((first.len(), second.len()), (2, 1));
    rig.claim_none().await;
    rig.succeed(&first[0]).await;
    assert_eq!(rig.claim().await.len(), 1);
    // 0 is a limit too: nothing starts, however many ended.
    let held = QueueSettings { concurrency: Some(0), ..QueueSettings::default() };
    rig.trigger(plain("10")).await;
    rig.set_queue(held).await;
    rig.claim_none().await;
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

/// A smaller limit starts nothing until enough has ended; a queue's limit is its own.
pub async fn r31_limits_change_at_the_next_claim_and_are_each_queues_own(rig: Rig) {
    let limit = |n| QueueSettings { concurrency: Some(n), ..QueueSettings::default() };
    let elsewhere = QueueName::new("other").expect("a valid name");
    rig.set_queue(limit(3)).await;
    for n in 0..9 {
        rig.trigger(plain(&n.to_string())).await;
        rig.trigger(NewTrigger { queue: elsewhere.clone(), ..plain(&n.to_string()) }).await;
    }
    let mut running = rig.claim().await;
    assert_eq!(running.len(), 3);
    rig.set_queue(limit(1)).await;
    rig.claim_none().await;
    rig.succeed(&running.remove(0)).await;
    rig.succeed(&running.remove(0)).await;
    rig.claim_none().await;
    rig.succeed(&running.remove(0)).await;
    rig.claim_one().await;
    rig.set_queue(limit(0)).await;
    rig.claim_none().await;
    rig.set_queue(limit(4)).await;
    assert_eq!(rig.claim().await.len(), 3, "one runs already");
    let there = Claim { queue: elsewhere, ..Rig::claim_of(100) };
    assert_eq!(rig.claim_with(&there).await.len(), 9, "no limit there");
}

/// Whatever ends an attempt gives its slot back, once.
pub async fn r31_every_end_gives_the_slot_back(mut rig: Rig) {
    rig.set_queue(QueueSettings { concurrency: Some(1), ..QueueSettings::default() }).await;
    for n in 0..20 {
        rig.trigger(plain(&n.to_string())).await;
    }
    for outcome in every_end() {
        let job = rig.claim_one().await;
        rig.claim_none().await;
        rig.settle(lease(&job), outcome).await;
    }
    let job = rig.claim_one().await;
    rig.cancel(job.id).await.expect("cancels");
    rig.settle(lease(&job), Outcome::succeeded()).await;
    rig.claim_one().await;
    rig.claim_none().await;
    rig.at(30).reap().await;
    rig.claim_one().await;
    rig.claim_none().await;
}

/// Claims that race share the jobs, each one to one of them, and keep the limit together.
pub async fn r31_claims_that_race_hand_out_each_job_once(rig: Rig) {
    rig.set_queue(QueueSettings { concurrency: Some(30), ..QueueSettings::default() }).await;
    for n in 0..50 {
        rig.trigger(plain(&n.to_string())).await;
    }
    let asked = Rig::claim_of(6);
    let claims = join_all((0..8).map(|_| rig.claim_with(&asked))).await;
    let mut ids: Vec<_> = claims.iter().flatten().map(|job| job.id).collect();
    let count = ids.len();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!((ids.len(), count), (30, 30));
}

/// A paused queue takes triggers and lets attempts end.
pub async fn r33_a_paused_queue_starts_nothing_and_loses_nothing(mut rig: Rig) {
    rig.trigger(plain("1")).await;
    rig.trigger(plain("2")).await;
    let running = rig.claim_with(&Rig::claim_of(1)).await.remove(0);
    rig.set_queue(QueueSettings { paused: true, ..QueueSettings::default() }).await;
    rig.at(5).claim_none().await;
    rig.trigger(keyed("a")).await;
    assert!(rig.renew(lease(&running)).await.is_some());
    rig.succeed(&running).await;
    rig.at(100).claim_none().await;
    rig.set_queue(QueueSettings::default()).await;
    assert_eq!(rig.claim().await.len(), 2);
}

/// No worker has its task: it waits, and the counts show it.
pub async fn r28_a_job_of_an_unknown_task_waits_and_shows(mut rig: Rig) {
    rig.trigger(NewTrigger { task: task("unknown"), ..plain("1") }).await;
    rig.at(86_400).claim_none().await;
    let counts = rig.store.counts().await.expect("counts");
    let shown = counts.iter().map(|one| (one.task.as_str(), one.state, one.jobs));
    assert_eq!(shown.collect::<Vec<_>>(), [("unknown", JobState::Scheduled, 1)]);
    let knows = Claim { tasks: Arc::from([task("unknown")]), ..Rig::claim_of(9) };
    assert_eq!(rig.claim_with(&knows).await.len(), 1);
    let nothing = Claim { tasks: Arc::from([]), ..Rig::claim_of(9) };
    assert!(rig.claim_with(&nothing).await.is_empty());
}

/// From the lowest to the highest there is, and after a join raised one.
pub async fn r30_the_whole_range_of_priorities(mut rig: Rig) {
    let with = |k: &str, priority| NewTrigger { priority, ..keyed(k) };
    for (k, priority) in [("a", i16::MIN), ("b", -1), ("c", 0), ("d", 1), ("e", i16::MAX)] {
        rig.trigger(with(k, priority)).await;
    }
    rig.trigger(with("b", 7)).await;
    let jobs = rig.at(60).claim().await;
    let keys: Vec<_> = jobs.iter().filter_map(|job| job.key.as_ref().map(Key::as_str)).collect();
    assert_eq!(keys, ["e", "b", "d", "c", "a"]);
}

/// A known failure elsewhere: one poll claims the whole backlog.
pub async fn r31_a_claim_is_bounded(rig: Rig) {
    for n in 0..50 {
        rig.trigger(plain(&n.to_string())).await;
    }
    assert_eq!(rig.claim_with(&Rig::claim_of(7)).await.len(), 7);
    assert_eq!(rig.claim_with(&Rig::claim_of(0)).await.len(), 0);
    assert_eq!(rig.claim().await.len(), 43);
    let tasks = ["u", "v", "w"].map(task);
    for named in &tasks {
        for _ in 0..2 {
            rig.trigger(NewTrigger { task: named.clone(), ..plain("1") }).await;
        }
    }
    let of_all = |limit| Claim { tasks: tasks.to_vec().into(), ..Rig::claim_of(limit) };
    assert_eq!(rig.claim_with(&of_all(2)).await.len(), 2, "whatever the number of tasks");
    assert_eq!(rig.claim_with(&of_all(9)).await.len(), 4);
}
