//! Windows: when they open, what joins them, when they are due, and what failure does to them.

use std::time::Duration;

use quell_core::edge::Edge;
use quell_core::window::{Debounce, DueReason, Thresholds};
use quell_core::{
    Fold, JobState, NewTrigger, Outcome, QueueSettings, Receipt, SettledAs, TaskInfo, TaskName,
    TaskSettings, When,
};

use crate::rig::{Rig, debounce, fails, key, keyed, keyed_with, lease, queue, secs, task};

/// When jobs ran, in seconds, and how many triggers each covered.
type Runs<'t> = &'t [(u64, u64)];

/// The scenarios that the specification publishes, exact to the second.
pub async fn r06_r08_the_published_scenarios_are_exact(mut rig: Rig) {
    let fixed = Debounce::new(Thresholds::new(secs(300), secs(300)).expect("valid"));
    let every_five: Vec<u64> = (0..=300).step_by(5).collect();
    let later: [(u64, u64); 6] = [(60, 12), (120, 12), (180, 12), (240, 12), (300, 12), (310, 1)];
    let table: [(Debounce, &[u64], u64, Runs<'_>); 6] = [
        (debounce(), &[0], 0, &[(10, 1)]),
        (debounce(), &[0, 3, 7], 0, &[(17, 3)]),
        (debounce(), &[0, 20, 40, 55, 65], 56, &[(60, 4), (75, 1)]),
        (debounce(), &every_five, 0, &later),
        (debounce(), &[0, 25], 0, &[(10, 1), (35, 1)]),
        (fixed, &[30, 90], 0, &[(330, 2)]),
    ];
    for (row, (policy, triggers, free_from, expected)) in table.into_iter().enumerate() {
        let (k, begin) = (format!("k{row}"), row as u64 * 1_000);
        let mut runs = Vec::new();
        for second in 0..700 {
            rig.at(begin + second);
            // At one instant, windows that are due are taken before a trigger joins.
            if second >= free_from {
                for job in rig.claim().await {
                    runs.push((second, job.triggers));
                    rig.succeed(&job).await;
                }
            }
            if triggers.contains(&second) {
                rig.trigger(keyed_with(&k, policy, Fold::Last, "1")).await;
            }
        }
        assert_eq!(runs, expected, "triggers at {triggers:?}");
    }
}

/// Joins, `max_triggers`, own thresholds; due to the microsecond.
pub async fn r07_joins_move_due_but_never_past_max(mut rig: Rig) {
    let job = rig.trigger(keyed("a")).await.job().expect("a job");
    for second in [5, 14, 22, 31, 39, 48, 56] {
        rig.at(second).trigger(keyed("a")).await;
    }
    let window = rig.job(job).await.window;
    assert_eq!((Rig::second(window.due_at), window.reason), (60, DueReason::Max));
    let due = window.due_at;
    rig.at_time(due.before(Duration::from_micros(1))).claim_none().await;
    assert_eq!(rig.at_time(due).claim_one().await.triggers, 8);

    let three = Debounce { max_triggers: Some(3), ..debounce() };
    let b = || keyed_with("b", three, Fold::Last, "1");
    for second in [100, 101, 102, 103] {
        rig.at(second).trigger(b()).await;
    }
    let job = rig.claim_one().await;
    assert_eq!((Rig::second(job.due_at), job.triggers), (102, 4));
}

/// The higher priority, the later delay, never past the bound.
pub async fn r07_a_join_keeps_the_higher_priority_and_the_later_delay(mut rig: Rig) {
    let with = |priority, when| NewTrigger { priority, when, ..keyed("a") };
    let job = rig.trigger(with(3, When::After(secs(30)))).await.job().expect("a job");
    rig.at(1).trigger(with(7, When::After(secs(5)))).await;
    rig.at(2).trigger(with(-2, When::Now)).await;
    let row = rig.job(job).await;
    assert_eq!((row.priority, Rig::second(row.window.due_at)), (7, 30));
    rig.at(3).trigger(with(0, When::After(secs(59)))).await;
    assert_eq!(Rig::second(rig.job(job).await.window.due_at), 60);
}

/// Flush makes it due now, cancel ends it; both by task and key.
pub async fn r07_a_window_is_flushed_and_cancelled_by_key(mut rig: Rig) {
    rig.trigger(keyed("a")).await;
    rig.at(3);
    let flushed = rig.store.flush(Some(rig.now()), &task("t"), &key("a")).await.expect("flushes");
    let job = rig.claim_one().await;
    assert_eq!((Some(job.id), Rig::second(job.due_at)), (flushed, 3));
    let none = rig.store.flush(Some(rig.now()), &task("t"), &key("a")).await.expect("flushes");
    assert_eq!(none, None, "a running job is no window");

    let b = rig.trigger(keyed("b")).await.job();
    let gone = rig.store.cancel_key(Some(rig.now()), &task("t"), &key("b")).await.expect("cancels");
    assert_eq!(gone, b);
    rig.at(100).claim_none().await;
    let again = rig.trigger(keyed("b")).await;
    assert!(matches!(again, Receipt::Accepted { .. }), "the key is free again: {again:?}");
}

/// Each fold over three payloads; `collect` is due at its cap.
pub async fn r10_payloads_fold_as_the_policy_says(mut rig: Rig) {
    let lists = Fold::Accumulate { fields: ["ids".to_owned()].into() };
    let one = r#"{"ids":[1],"a":1}"#;
    let two = r#"{"ids":[2],"b":2}"#;
    let table: [(Fold, &str); 5] = [
        (Fold::Last, two),
        (Fold::First, one),
        (Fold::Merge, r#"{"a":1,"b":2,"ids":[2]}"#),
        (Fold::Collect { cap: 9 }, r#"[{"ids":[1],"a":1},{"ids":[2],"b":2}]"#),
        (lists, r#"{"b":2,"ids":[1,2]}"#),
    ];
    for (row, (fold, expected)) in table.into_iter().enumerate() {
        let begin = row as u64 * 100;
        for (second, payload) in [(0, one), (4, two)] {
            rig.at(begin + second);
            rig.trigger(keyed_with("a", debounce(), fold.clone(), payload)).await;
        }
        let job = rig.at(begin + 14).claim_one().await;
        let parse = |text: &str| serde_json::from_str::<serde_json::Value>(text).expect("JSON");
        assert_eq!(parse(job.payload.as_str()), parse(expected), "{fold:?}");
        rig.succeed(&job).await;
    }
    rig.at(900);
    for payload in ["1", "2"] {
        rig.trigger(keyed_with("c", debounce(), Fold::Collect { cap: 2 }, payload)).await;
    }
    assert_eq!(rig.claim_one().await.payload.as_str(), "[1,2]");
    rig.trigger(keyed_with("d", debounce(), Fold::Collect { cap: 9 }, "1")).await;
    assert_eq!(rig.at(910).claim_one().await.payload.as_str(), "[1]", "an array of one");
}

/// A trigger during a run opens the next window, which waits for the run's end.
pub async fn r11_one_attempt_of_a_key_at_a_time(mut rig: Rig) {
    rig.trigger(keyed("a")).await;
    let first = rig.at(10).claim_one().await;
    let next = rig.at(12).trigger(keyed("a")).await;
    assert!(matches!(next, Receipt::Accepted { .. }), "{next:?}");
    rig.at(25).claim_none().await;
    assert!(rig.job(next.job().expect("a job")).await.waits);
    rig.succeed(&first).await;
    assert_eq!(Some(rig.claim_one().await.id), next.job());
}

/// `overlap` turns R11 off.
pub async fn r11_overlap_lets_attempts_of_a_key_run_together(mut rig: Rig) {
    let both = Debounce { overlap: true, ..debounce() };
    rig.trigger(keyed_with("a", both, Fold::Last, "1")).await;
    let first = rig.at(10).claim_one().await;
    rig.trigger(keyed_with("a", both, Fold::Last, "2")).await;
    let second = rig.at(20).claim_one().await;
    rig.succeed(&second).await;
    rig.succeed(&first).await;
}

/// The failed job joins the newer window: payload as older, triggers added, backoff kept.
pub async fn r12_a_failed_run_is_absorbed_by_the_newer_window(mut rig: Rig) {
    let collect = |payload| keyed_with("a", debounce(), Fold::Collect { cap: 9 }, payload);
    rig.trigger(collect("1")).await;
    let failed = rig.at(10).claim_one().await;
    rig.at(12);
    let successor = rig.trigger(collect("2")).await.job().expect("a job");
    let became = rig.at(14).settle(lease(&failed), fails(secs(40), true)).await;
    assert_eq!(became, SettledAs::Absorbed { by: successor, due: Rig::START + secs(54) });
    let row = rig.job(failed.id).await;
    assert_eq!((row.state, row.absorbed_by), (JobState::Absorbed, Some(successor)));
    let window = rig.job(successor).await.window;
    assert_eq!((Rig::second(window.first_at), window.triggers), (12, 2));

    rig.at(53).claim_none().await;
    let run = rig.at(54).claim_one().await;
    assert_eq!((run.payload.as_str(), run.attempt, run.failures), ("[1,2]", 1, 1));
}

/// It can be joined again; a join gives fresh attempts, the backoff still holds.
pub async fn r12_without_a_newer_window_it_becomes_the_open_window_again(mut rig: Rig) {
    rig.trigger(keyed("a")).await;
    let failed = rig.at(10).claim_one().await;
    let due = Rig::START + secs(110);
    assert_eq!(rig.fail(&failed, secs(100)).await, SettledAs::Scheduled { due });
    let joined = rig.at(50).trigger(keyed("a")).await;
    assert_eq!(joined.job(), Some(failed.id), "{joined:?}");
    rig.at(109).claim_none().await;
    let again = rig.at(110).claim_one().await;
    assert_eq!((again.triggers, again.attempt, again.failures), (2, 1, 1));
    assert_eq!(rig.fail(&again, secs(5)).await, SettledAs::Scheduled { due: rig.now() + secs(5) });
    let third = rig.at(115).claim_one().await;
    assert_eq!((third.attempt, third.failures), (2, 2));
    rig.succeed(&third).await;
    assert_eq!(rig.job(third.id).await.failures, 0);
}

/// There is only ever one open window of a key, whatever brings the older job back.
pub async fn r12_snoozed_released_and_reclaimed_jobs_join_the_newer_window_too(mut rig: Rig) {
    for (round, how) in ["snooze", "release", "expiry"].into_iter().enumerate() {
        let begin = round as u64 * 1_000;
        rig.at(begin).trigger(keyed(how)).await;
        let old = rig.at(begin + 10).claim_one().await;
        let successor = rig.at(begin + 12).trigger(keyed(how)).await.job().expect("a job");
        let became = match how {
            "snooze" => rig.settle(lease(&old), Outcome::Snoozed { delay: secs(30) }).await,
            "release" => rig.settle(lease(&old), Outcome::Released).await,
            _ => {
                rig.at(begin + 40);
                rig.store.reap(Some(rig.now()), 9).await.expect("reaps")[0].became
            }
        };
        let SettledAs::Absorbed { by, .. } = became else { panic!("{how}: {became:?}") };
        assert_eq!(by, successor, "{how}");
        rig.at(begin + 41).claim_none_or_one().await;
        rig.at(begin + 42);
        for job in rig.claim().await {
            rig.succeed(&job).await;
        }
    }
    let covered: u64 = rig
        .jobs()
        .await
        .iter()
        .filter(|job| job.state == JobState::Succeeded)
        .map(|job| job.window.triggers)
        .sum();
    assert_eq!(covered, 6, "{}", rig.dump().await);
}

impl Rig {
    /// Claims and ends well what is due, if anything.
    async fn claim_none_or_one(&self) {
        for job in self.claim().await {
            self.succeed(&job).await;
        }
    }
}

/// Leading, both, and what is on record of the triggers that do not run.
pub async fn r13_edges_run_what_they_say(mut rig: Rig) {
    let table: [(Edge, &[u64], Runs<'_>); 5] = [
        (Edge::Leading, &[0, 5, 12], &[(0, 1)]),
        (Edge::Leading, &[0, 5, 20], &[(0, 1), (20, 1)]),
        (Edge::Both, &[0], &[(0, 1)]),
        (Edge::Both, &[0, 5, 8], &[(0, 1), (18, 2)]),
        (Edge::Both, &[0, 5, 40], &[(0, 1), (15, 1), (40, 1)]),
    ];
    for (row, (edge, triggers, expected)) in table.into_iter().enumerate() {
        let (k, begin) = (format!("k{row}"), row as u64 * 1_000);
        let policy = Debounce { edge, ..debounce() };
        let mut runs = Vec::new();
        for second in 0..200 {
            rig.at(begin + second);
            if triggers.contains(&second) {
                rig.trigger(keyed_with(&k, policy, Fold::Last, "1")).await;
            }
            for job in rig.claim().await {
                runs.push((second, job.triggers));
                rig.succeed(&job).await;
            }
        }
        assert_eq!(runs, expected, "{edge:?} with triggers at {triggers:?}");
    }
    let leading = &rig.jobs().await[0];
    assert_eq!((leading.window.triggers, leading.suppressed), (3, 2));
}

/// Retries among the starts.
pub async fn r13_a_throttled_key_starts_once_per_period(mut rig: Rig) {
    let policy = Debounce::throttle(secs(10)).expect("valid");
    let mut starts = Vec::new();
    for second in 0..60 {
        rig.at(second);
        for job in rig.claim().await {
            starts.push(second);
            if second == 20 {
                rig.fail(&job, secs(1)).await;
            } else {
                rig.succeed(&job).await;
            }
        }
        if [0, 3, 5, 12, 50].contains(&second) {
            rig.trigger(keyed_with("a", policy, Fold::Last, "1")).await;
            if second == 0 || second == 50 {
                for job in rig.claim().await {
                    starts.push(second);
                    rig.succeed(&job).await;
                }
            }
        }
    }
    assert_eq!(starts, [0, 10, 20, 30, 50]);
}

/// A task that names no thresholds gets its queue's.
pub async fn r14_thresholds_come_from_the_queue(rig: Rig) {
    let policy = Debounce { from_default: true, ..debounce() };
    let due = |receipt: Receipt| match receipt {
        Receipt::Accepted { due, .. } => Rig::second(due),
        other => panic!("{other:?}"),
    };
    let trigger = |k| rig.trigger(keyed_with(k, policy, Fold::Last, "1"));
    assert_eq!(due(trigger("a").await), 10);
    let debounce = Some(Thresholds::new(secs(2), secs(4)).expect("valid"));
    let settings = QueueSettings { debounce, ..QueueSettings::default() };
    rig.set_queue(settings).await;
    assert_eq!(due(trigger("b").await), 2);
    let own = rig.trigger(keyed("c")).await;
    assert_eq!(due(own), 10, "a task's own thresholds stay");
}

/// What an operator set for a task stays until it is cleared, whether the task is paused or not; clients
/// read it, and replace only what they have read.
pub async fn r14_r33_thresholds_of_a_task_are_kept_beside_its_pause(rig: Rig) {
    let thresholds = |min| Thresholds::new(secs(min), secs(60)).expect("valid");
    let (t, u) = (task("t"), task("u"));
    let read = async |name: &TaskName| {
        let both = rig.store.task_settings(&[u.clone(), t.clone()]).await.expect("reads");
        assert_eq!(both.iter().map(|info| &info.name).collect::<Vec<_>>(), [&u, &t]);
        let found = both.into_iter().find(|info| info.name == *name);
        found.expect("it was asked for").settings
    };
    assert_eq!(rig.store.task_settings(&[]).await.expect("reads"), []);
    assert_eq!(read(&t).await, TaskSettings::default(), "there is no such task");
    let set = TaskSettings::default().debounce(thresholds(5));
    rig.store.set_task(Some(rig.now()), &t, &set).await.expect("sets");
    assert_eq!((read(&t).await, read(&u).await), (set.clone(), TaskSettings::default()));
    let all = rig.store.tasks().await.expect("lists");
    assert_eq!(all, [TaskInfo::new(t.clone(), set.clone())], "it is not paused");

    rig.trigger(keyed("a")).await;
    assert_eq!(read(&t).await, set, "a trigger leaves it as it is");
    let replace = async |name: &TaskName, known: &TaskSettings, to: &TaskSettings| {
        rig.store.replace_task(Some(rig.now()), name, known, to).await.expect("compares")
    };
    assert!(!replace(&t, &TaskSettings::default(), &set.clone().paused(true)).await, "not known");
    assert_eq!(read(&t).await, set);
    assert!(replace(&t, &set, &set.clone().paused(true).paused_by("ann".to_owned())).await);
    let paused = read(&t).await;
    let shown = (paused.debounce, paused.paused, paused.paused_by.as_deref());
    assert_eq!(shown, (Some(thresholds(5)), true, Some("ann")));
    let other = paused.clone().debounce(thresholds(7));
    assert!(replace(&t, &paused, &other).await);
    assert_eq!(read(&t).await, other, "the pause stays");
    assert!(replace(&t, &other, &TaskSettings { paused: false, ..other.clone() }).await);
    let open = TaskSettings::default().debounce(thresholds(7));
    assert_eq!(read(&t).await, open, "the thresholds stay");
    assert!(replace(&t, &open, &TaskSettings::default()).await);
    assert_eq!(read(&t).await, TaskSettings::default());

    assert!(replace(&u, &TaskSettings::default(), &set).await, "no job need be there");
    assert_eq!(read(&u).await, set);
    let long = set.clone().paused(true).paused_by("x".repeat(256));
    let refused =
        rig.store.replace_task(Some(rig.now()), &u, &set, &long).await.expect_err("refused");
    assert_eq!(refused.field(), Some("paused_by"));
}

/// A known failure elsewhere: the finishing run marks the newer trigger done, and it never runs.
pub async fn r02_r11_a_trigger_during_a_run_is_never_marked_done_by_it(mut rig: Rig) {
    rig.trigger(keyed("a")).await;
    let first = rig.at(10).claim_one().await;
    let late = rig.at(10).trigger(keyed("a")).await.job().expect("a job");
    rig.succeed(&first).await;
    assert_eq!(rig.job(late).await.state, JobState::Scheduled);
    let second = rig.at(20).claim_one().await;
    assert_eq!(second.id, late);
}

/// A known failure elsewhere: the bound is only seen when another message happens to arrive.
pub async fn r08_max_is_a_timer_and_needs_no_message_to_come_by(mut rig: Rig) {
    for second in [0, 9, 18, 27, 36, 45, 54] {
        rig.at(second).trigger(keyed("a")).await;
    }
    rig.at(60);
    let next = rig.store.next_due(Some(rig.now()), &queue(), &[task("t")]).await.expect("looks");
    assert_eq!(next.due.map(Rig::second), Some(60));
    rig.claim_one().await;
}

/// A known failure elsewhere: in a backlog the key's TTL runs out, and every queued message runs.
pub async fn r02_a_backlog_outlives_every_ttl(mut rig: Rig) {
    let year = 366 * 86_400;
    for second in 0..5 {
        rig.at(second).trigger(keyed("a")).await;
    }
    rig.at(year);
    rig.store.prune(Some(rig.now()), &quell_core::Retention::default(), 999).await.expect("prunes");
    rig.trigger(keyed("a")).await;
    rig.at(year + 10);
    assert_eq!(rig.claim_one().await.triggers, 6);
    rig.claim_none().await;
}
