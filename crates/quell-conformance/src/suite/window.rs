//! Windows in odd hours: at the microsecond, while an attempt runs, after a change of policy.

use std::time::Duration;

use futures_util::future::join_all;
use quell_core::window::{Debounce, DueReason, Thresholds};
use quell_core::{Fold, JobState, NewTrigger, Outcome, QueueName, Receipt, Timestamp, When};

use crate::rig::{Rig, debounce, fails, key, keyed, keyed_with, lease, secs, task};

const MICROSECOND: Duration = Duration::from_micros(1);

/// Nothing may start a microsecond before `due`, and one job at `due`.
async fn starts_exactly_at(rig: &mut Rig, due: Timestamp) {
    rig.at_time(due.before(MICROSECOND)).claim_none().await;
    let job = rig.at_time(due).claim_one().await;
    assert_eq!(job.due_at, due);
    rig.succeed(&job).await;
}

/// Quiet period, bound and backoff, from times and durations that are not whole seconds.
pub async fn r08_quiet_period_bound_and_backoff_hold_to_the_microsecond(mut rig: Rig) {
    let micros = Duration::from_micros;
    let odd = Thresholds::new(micros(1_000_003), micros(2_500_009)).expect("valid");
    let trigger = || keyed_with("a", Debounce::new(odd), Fold::Last, "1");
    let start = Rig::START + micros(7);
    rig.at_time(start).trigger(trigger()).await;
    starts_exactly_at(&mut rig, start + micros(1_000_003)).await;

    let first = Rig::START + micros(50_000_001);
    for step in 0..4 {
        rig.at_time(first + micros(step * 800_000)).trigger(trigger()).await;
    }
    starts_exactly_at(&mut rig, first + micros(2_500_009)).await;

    let begin = Rig::START + micros(90_000_005);
    rig.at_time(begin).trigger(trigger()).await;
    let due = begin + micros(1_000_003);
    let job = rig.at_time(due).claim_one().await;
    rig.fail(&job, micros(3_333_333)).await;
    starts_exactly_at(&mut rig, due + micros(3_333_333)).await;
}

/// A known failure elsewhere: thresholds count in whole seconds, on the clocks of callers who
/// disagree. Here a moment that a caller names moves nothing past the bound, or before now.
pub async fn r08_r38_thresholds_are_not_whole_seconds_nor_on_callers_clocks(mut rig: Rig) {
    let micros = Duration::from_micros;
    let odd = Thresholds::new(micros(1_500_001), micros(4_000_003)).expect("valid");
    let at = |moment| NewTrigger {
        when: When::At(moment),
        ..keyed_with("a", Debounce::new(odd), Fold::Last, "1")
    };
    let day = secs(86_400);
    let first = Rig::START + micros(700_007);
    rig.at_time(first).trigger(at(first.before(day))).await;
    starts_exactly_at(&mut rig, first + micros(1_500_001)).await;

    let first = rig.now() + micros(300_011);
    rig.at_time(first).trigger(at(first.before(day))).await;
    rig.at_time(first + micros(900_000)).trigger(at(first + micros(4_900_003))).await;
    rig.at_time(first.before(day)).trigger(at(first.before(day))).await;
    starts_exactly_at(&mut rig, first + micros(4_000_003)).await;
}

/// `min` counts for the trigger's own step, `max` from the window's first; a bound never grows.
pub async fn r07_a_trigger_may_bring_its_own_thresholds(mut rig: Rig) {
    let with = |min, max| {
        let thresholds = Thresholds::new(secs(min), secs(max)).expect("valid");
        keyed_with("a", Debounce::new(thresholds), Fold::Last, "1")
    };
    let due = |receipt: Receipt| match receipt {
        Receipt::Accepted { due, .. } | Receipt::Debounced { due, .. } => Rig::second(due),
        other => panic!("{other:?}"),
    };
    assert_eq!(due(rig.trigger(with(10, 60)).await), 10);
    assert_eq!(due(rig.at(2).trigger(with(30, 90)).await), 32);
    assert_eq!(due(rig.at(3).trigger(with(1, 100)).await), 4, "its own quiet period");
    assert_eq!(due(rig.trigger(with(80, 100)).await), 60, "the bound of the first holds");
    assert_eq!(due(rig.trigger(with(20, 40)).await), 23);
    assert_eq!(due(rig.trigger(with(40, 40)).await), 40, "from the window's first");
    assert_eq!(due(rig.trigger(with(50, 60)).await), 40, "a bound that shrank stays");
}

/// At most one open window, however many callers trigger at once.
pub async fn r06_triggers_that_race_share_one_window(mut rig: Rig) {
    let receipts = join_all((0..32).map(|_| rig.trigger(keyed("a")))).await;
    let outcomes = |word| receipts.iter().filter(|receipt| receipt.outcome() == word).count();
    assert_eq!((outcomes("accepted"), outcomes("debounced")), (1, 31));
    let mut seqs: Vec<_> = receipts.iter().filter_map(|r| Some(r.trigger()?.seq)).collect();
    seqs.sort_unstable();
    assert_eq!(seqs, (1..=32).collect::<Vec<u64>>(), "each trigger has an id of its own");
    assert_eq!(rig.at(10).claim_one().await.triggers, 32);
}

/// Its queue, payload and priority are the last trigger's, or the higher one.
pub async fn r07_a_join_moves_the_window_to_the_triggers_queue(mut rig: Rig) {
    let other = QueueName::new("other").expect("a valid name");
    rig.trigger(keyed("a")).await;
    rig.trigger(NewTrigger { queue: other.clone(), ..keyed("a") }).await;
    rig.at(10).claim_none().await;
    let there = quell_core::Claim { queue: other.clone(), ..Rig::claim_of(9) };
    let jobs = rig.claim_with(&there).await;
    assert_eq!((jobs.len(), jobs[0].triggers), (1, 2));
    let known = rig.store.queues().await.expect("lists");
    assert!(known.iter().any(|queue| queue.name == other), "{known:?}");
}

/// A flush makes a waiting window due, and its end comes no sooner than the attempt's.
pub async fn r07_a_flush_during_a_run_waits_for_its_end(mut rig: Rig) {
    rig.trigger(keyed("a")).await;
    let first = rig.at(10).claim_one().await;
    let window = rig.at(12).trigger(keyed("a")).await.job();
    assert_eq!(rig.flush("a").await, window);
    rig.claim_none().await;
    rig.at(14).trigger(keyed("a")).await;
    rig.at(15).succeed(&first).await;
    let second = rig.claim_one().await;
    assert_eq!((Some(second.id), second.triggers), (window, 2));
    assert_eq!(Rig::second(second.due_at), 12, "a join does not undo a flush");
}

/// Only the open window; what runs goes on, and the next trigger opens a new one.
pub async fn r07_a_cancel_by_key_ends_only_the_window(mut rig: Rig) {
    let cancel = async |rig: &Rig| {
        rig.store.cancel_key(Some(rig.now()), &task("t"), &key("a")).await.expect("cancels")
    };
    assert_eq!(cancel(&rig).await, None);
    rig.trigger(keyed("a")).await;
    let running = rig.at(10).claim_one().await;
    assert_eq!(cancel(&rig).await, None, "a running job is no window");
    let window = rig.trigger(keyed("a")).await.job();
    assert_eq!(cancel(&rig).await, window);
    rig.succeed(&running).await;
    rig.at(100).claim_none().await;
    assert_eq!(rig.states().await, [JobState::Succeeded, JobState::Cancelled]);
    assert_eq!(rig.trigger(keyed("a")).await.outcome(), "accepted");
}

/// A known failure elsewhere: past the bound, several messages of one key run at once.
pub async fn r11_an_overdue_window_still_waits_for_the_running_attempt(mut rig: Rig) {
    rig.trigger(keyed("a")).await;
    let slow = rig.at(10).claim_one().await;
    for second in (11..200).step_by(5) {
        rig.at(second);
        assert!(rig.renew(lease(&slow)).await.is_some());
        rig.trigger(keyed("a")).await;
        rig.claim_none().await;
    }
    rig.at(200).succeed(&slow).await;
    let next = rig.claim_one().await;
    assert_eq!((next.triggers, Rig::second(next.due_at)), (38, 71));
    rig.claim_none().await;
}

/// However an attempt ends, its key is free at that moment, and no sooner.
pub async fn r11_every_end_of_an_attempt_frees_its_key(mut rig: Rig) {
    let ends = ["success", "failure", "death", "snooze", "release", "own end", "cancel", "expiry"];
    for (round, how) in ends.into_iter().enumerate() {
        let begin = round as u64 * 1_000;
        rig.at(begin).trigger(keyed(how)).await;
        let job = rig.at(begin + 10).claim_one().await;
        let window = rig.trigger(keyed(how)).await.job().expect("a job");
        rig.at(begin + 39).claim_none().await;
        let end = match how {
            "success" => Some(Outcome::succeeded()),
            "failure" => Some(fails(secs(1), false)),
            "death" => Some(Outcome::Failed(quell_core::Failure {
                error: "no".to_owned(),
                ended: quell_core::AttemptOutcome::Failed,
                kind: quell_core::FailureKind::Permanent,
            })),
            "snooze" => Some(Outcome::Snoozed { delay: secs(1) }),
            "release" => Some(Outcome::Released),
            "own end" => Some(Outcome::Cancelled { reason: "enough".to_owned() }),
            _ => None,
        };
        match end {
            Some(outcome) => drop(rig.settle(lease(&job), outcome).await),
            None if how == "cancel" => rig.cancel(job.id).await.expect("cancels"),
            None => drop(rig.at(begin + 40).reap().await),
        }
        assert!(!rig.job(window).await.waits, "{how}");
        let next = rig.at(begin + 41).claim_one().await;
        assert_eq!(next.id, window, "{how}");
        rig.succeed(&next).await;
    }
}

/// A deploy that turns `overlap` off holds from the first trigger that brings it.
pub async fn r11_a_join_that_forbids_overlap_waits_for_the_running_attempt(mut rig: Rig) {
    let overlapping = Debounce { overlap: true, ..debounce() };
    let old = || keyed_with("a", overlapping, Fold::Last, "1");
    rig.trigger(old()).await;
    let first = rig.at(10).claim_one().await;
    rig.trigger(old()).await;
    rig.at(11).trigger(keyed("a")).await;
    rig.at(39).claim_none().await;
    rig.succeed(&first).await;
    let second = rig.claim_one().await;
    assert_eq!(second.triggers, 2);

    // And the other way round.
    rig.trigger(keyed("a")).await;
    rig.trigger(old()).await;
    rig.at(60).claim_one().await;
}

/// An attempt that began beside it, by a policy that allowed that, ends first.
pub async fn r11_a_failed_run_that_forbids_overlap_waits_for_the_one_beside_it(mut rig: Rig) {
    let overlapping = Debounce { overlap: true, ..debounce() };
    rig.trigger(keyed("a")).await;
    let first = rig.at(10).claim_one().await;
    rig.trigger(keyed_with("a", overlapping, Fold::Last, "1")).await;
    let beside = rig.at(20).claim_one().await;
    rig.fail(&first, secs(1)).await;
    rig.at(30).claim_none().await;
    rig.succeed(&beside).await;
    assert_eq!(rig.claim_one().await.id, first.id);
}

/// Why it was due is on record, whatever made it so.
pub async fn r15_the_reason_of_a_due_time_is_on_record(mut rig: Rig) {
    let three = Debounce { max_triggers: Some(3), ..debounce() };
    let after = |k: &str, delay| NewTrigger { when: When::After(secs(delay)), ..keyed(k) };
    rig.trigger(keyed("quiet")).await;
    for second in (0..60).step_by(9) {
        rig.at(second).trigger(keyed("max")).await;
    }
    for _ in 0..3 {
        rig.trigger(keyed_with("cap", three, Fold::Last, "1")).await;
        rig.trigger(keyed_with("full", debounce(), Fold::Collect { cap: 3 }, "1")).await;
    }
    rig.trigger(after("delay", 40)).await;
    rig.trigger(keyed("flush")).await;
    rig.flush("flush").await;
    let expected = [
        ("quiet", DueReason::Quiet),
        ("max", DueReason::Max),
        ("cap", DueReason::MaxTriggers),
        ("full", DueReason::CollectFull),
        ("delay", DueReason::Delayed),
        ("flush", DueReason::Flushed),
    ];
    for (job, (k, reason)) in rig.jobs().await.iter().zip(expected) {
        assert_eq!((job.key.as_ref(), job.window.reason), (Some(&key(k)), reason));
    }
}
