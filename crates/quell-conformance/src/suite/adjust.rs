//! What operators change: jobs that wait, and settings that are still those that they read.

use quell_core::job::Adjustment;
use quell_core::window::{Debounce, DueReason};
use quell_core::{ErrorKind, Fold, JobId, NewTrigger, Outcome, QueueSettings, When};

use crate::rig::{Rig, fails, keyed, keyed_with, lease, plain, queue, secs};

const NOW: Adjustment = Adjustment { run_now: true, priority: None };

fn throttled() -> NewTrigger {
    let throttle = Debounce::throttle(secs(10)).expect("a period");
    keyed_with("a", throttle, Fold::Last, "1")
}

/// A quiet period, a delay, a backoff and a snooze: each is over at once, and on record.
pub async fn r15_run_now_ends_each_wait(mut rig: Rig) {
    for (case, wait) in ["quiet", "delay", "backoff", "snooze"].into_iter().enumerate() {
        let second = 1_000 * (1 + case as u64);
        let trigger = match wait {
            "quiet" => keyed("a"),
            "delay" => NewTrigger { when: When::After(secs(900)), ..plain("1") },
            _ => plain("1"),
        };
        let id = rig.at(second).trigger(trigger).await.job().expect("a job");
        let ends = match wait {
            "backoff" => Some(fails(secs(900), false)),
            "snooze" => Some(Outcome::Snoozed { delay: secs(900) }),
            _ => None,
        };
        if let Some(end) = ends {
            let run = rig.claim_one().await;
            rig.settle(lease(&run), end).await;
        }
        rig.at(second + 2).claim_none().await;
        let adjusted = rig.adjust(id, NOW).await.expect("it waits");
        assert_eq!((adjusted.due_at, adjusted.waits), (rig.now(), false), "{wait}");
        assert_eq!(rig.job(id).await.window.reason, DueReason::Flushed, "{wait}");
        let run = rig.claim_one().await;
        assert_eq!(run.id, id, "{wait}");
        rig.succeed(&run).await;
    }
}

/// A trigger that joins a window which was run now neither delays it nor is lost.
pub async fn r07_r15_a_join_does_not_undo_a_run_now(mut rig: Rig) {
    let id = rig.trigger(keyed("a")).await.job().expect("a job");
    rig.at(3).adjust(id, NOW).await.expect("it waits");
    rig.at(4).trigger(keyed("a")).await;
    let run = rig.claim_one().await;
    assert_eq!((run.id, run.triggers), (id, 2));
}

/// A running attempt of the key comes first.
pub async fn r11_run_now_waits_for_the_running_attempt(mut rig: Rig) {
    rig.trigger(keyed("a")).await;
    let run = rig.at(10).claim_one().await;
    let window = rig.at(11).trigger(keyed("a")).await.job().expect("a job");
    let adjusted = rig.adjust(window, NOW).await.expect("it waits");
    assert_eq!((adjusted.due_at, adjusted.waits), (rig.now(), true));
    rig.claim_none().await;
    rig.succeed(&run).await;
    assert_eq!(rig.claim_one().await.id, window);
}

/// The period protects others than the operator.
pub async fn r13_run_now_waits_for_the_throttles_period(mut rig: Rig) {
    rig.trigger(throttled()).await;
    let run = rig.claim_one().await;
    rig.succeed(&run).await;
    let window = rig.at(2).trigger(throttled()).await.job().expect("a job");
    let adjusted = rig.adjust(window, NOW).await.expect("it waits");
    assert_eq!(Rig::second(adjusted.due_at), 10);
    rig.at(9).claim_none().await;
    assert_eq!(rig.at(10).claim_one().await.id, window);
}

/// Up and down, and its due time stays.
pub async fn r15_r30_a_new_priority_moves_a_job_in_line(mut rig: Rig) {
    let mut jobs = Vec::new();
    for payload in ["1", "2", "3"] {
        jobs.push(rig.trigger(plain(payload)).await.job().expect("a job"));
    }
    let [first, second, third] = jobs[..] else { panic!("three jobs, not {jobs:?}") };
    rig.at(5);
    for (id, priority) in [(first, -7), (third, 7)] {
        let adjusted = rig.adjust(id, Adjustment::default().priority(priority)).await;
        let adjusted = adjusted.expect("it waits");
        assert_eq!((adjusted.priority, Rig::second(adjusted.due_at)), (priority, 0));
    }
    let claimed = rig.claim().await;
    let order: Vec<JobId> = claimed.iter().map(|job| job.id).collect();
    assert_eq!(order, [third, second, first]);
    let priorities: Vec<i16> = vec![rig.job(third).await.priority, rig.job(first).await.priority];
    assert_eq!(priorities, [7, -7]);
}

/// What runs, has ended or is unknown stays as it is.
pub async fn r15_only_jobs_that_wait_are_changed(rig: Rig) {
    let id = rig.trigger(plain("1")).await.job().expect("a job");
    let nothing = rig.adjust(id, Adjustment::default()).await.expect_err("asks for nothing");
    assert_eq!((nothing.kind(), nothing.field()), (ErrorKind::Invalid, Some("priority")));
    let run = rig.claim_one().await;
    for state in ["running", "succeeded"] {
        let before = rig.job(id).await;
        let refused = rig.adjust(id, NOW.priority(3)).await.expect_err(state);
        assert_eq!(refused.kind(), ErrorKind::IllegalMove, "{refused}");
        assert!(refused.to_string().contains(state), "{refused}");
        assert_eq!(rig.job(id).await, before);
        if state == "running" {
            rig.succeed(&run).await;
        }
    }
    let unknown = rig.adjust(JobId::new(9_999), NOW).await.expect_err("unknown");
    assert_eq!(unknown.kind(), ErrorKind::NotFound);
}

/// Of two operators who read the same settings, one replaces them and the other learns of it.
pub async fn r32_settings_are_replaced_by_who_knows_them(rig: Rig) {
    let paused = QueueSettings { paused: true, ..QueueSettings::default() };
    let open = QueueSettings::default();
    let replace = async |known: Option<&QueueSettings>, to: &QueueSettings| {
        rig.store.replace_queue(Some(rig.now()), &queue(), known, to).await.expect("compares")
    };
    let set = async || {
        let queues = rig.store.queues().await.expect("lists");
        queues.into_iter().find(|known| known.name == queue()).map(|known| known.settings)
    };
    assert!(!replace(Some(&open), &paused).await, "there is no such queue yet");
    assert_eq!(set().await, None);
    rig.trigger(plain("1")).await;
    assert!(!replace(None, &paused).await, "a trigger made it");
    assert!(replace(Some(&open), &paused).await);
    assert!(!replace(None, &open).await);
    // With the time of the pause (R33).
    let known = set().await;
    assert_eq!(known, Some(paused.kept(None, rig.now())));
    assert!(!replace(Some(&paused), &open).await, "it is paused at no other time");
    assert!(replace(known.as_ref(), &open).await);
    assert!(!replace(known.as_ref(), &paused).await, "it is not paused any more");
    assert_eq!(set().await, Some(open.clone()));
    assert!(rig.store.delete_queue(Some(rig.now()), &queue()).await.expect("deletes"));
    assert!(!replace(Some(&open), &paused).await, "it was deleted");
    assert!(replace(None, &open).await);
}
