//! What becomes of a failed run whose key has a newer window (R12).

use quell_core::window::{Debounce, DueReason};
use quell_core::{Fold, JobState, NewTrigger, SettledAs};

use crate::rig::{Rig, debounce, fails, keyed, keyed_with, lease, secs};

/// The failed payload is the older one, for each fold.
pub async fn r12_the_failed_payload_is_folded_in_as_older(mut rig: Rig) {
    let lists = Fold::Accumulate { fields: ["ids".to_owned()].into() };
    let one = r#"{"a":1,"ids":[1]}"#;
    let two = r#"{"b":2,"ids":[2]}"#;
    let table: [(Fold, &str); 5] = [
        (Fold::Last, two),
        (Fold::First, one),
        (Fold::Merge, r#"{"a":1,"b":2,"ids":[2]}"#),
        (Fold::Collect { cap: 9 }, r#"[{"a":1,"ids":[1]},{"b":2,"ids":[2]}]"#),
        (lists, r#"{"b":2,"ids":[1,2]}"#),
    ];
    for (row, (fold, expected)) in table.into_iter().enumerate() {
        let (k, begin) = (format!("k{row}"), row as u64 * 100);
        let trigger = |payload| keyed_with(&k, debounce(), fold.clone(), payload);
        rig.at(begin).trigger(trigger(one)).await;
        let failed = rig.at(begin + 10).claim_one().await;
        rig.trigger(trigger(two)).await;
        rig.fail(&failed, secs(1)).await;
        let successor = rig.at(begin + 20).claim_one().await;
        let parse = |text: &str| serde_json::from_str::<serde_json::Value>(text).expect("JSON");
        assert_eq!(parse(successor.payload.as_str()), parse(expected), "{fold:?}");
        rig.succeed(&successor).await;
    }
}

/// The successor has attempts of its own, so an old failure never buries a new trigger; the run of
/// failures goes on, so an outage is not hammered.
pub async fn r12_the_run_of_failures_goes_on_in_the_successor_and_buries_nobody(mut rig: Rig) {
    rig.trigger(keyed("a")).await;
    let mut run = rig.at(10).claim_one().await;
    for failures in 0..6 {
        assert_eq!((run.attempt, run.failures), (1, failures));
        let successor = rig.trigger(keyed("a")).await.job().expect("a job");
        let became = rig.settle(lease(&run), fails(secs(20), true)).await;
        let due = rig.now() + secs(20);
        assert_eq!(
            became,
            SettledAs::Absorbed { by: successor, due },
            "not dead: others wait for it"
        );
        run = rig.at_time(due).claim_one().await;
        assert_eq!((run.id, run.triggers), (successor, u64::from(failures) + 2));
    }
    assert_eq!(rig.settle(lease(&run), fails(secs(20), true)).await, SettledAs::Dead);
    let states = rig.states().await;
    assert_eq!(states.iter().filter(|state| **state == JobState::Absorbed).count(), 6);

    rig.trigger(keyed("a")).await;
    let fresh = rig.at_time(rig.now() + secs(10)).claim_one().await;
    assert_eq!(fresh.failures, 0, "a buried job takes its run of failures with it");
}

/// The later of the window's own time and the backoff, the window's own first, the higher priority.
pub async fn r12_the_successor_keeps_its_times_but_heeds_the_backoff(mut rig: Rig) {
    let urgent = NewTrigger { priority: 5, ..keyed("a") };
    rig.trigger(urgent).await;
    let failed = rig.at(10).claim_one().await;
    let successor = rig.at(12).trigger(keyed("a")).await.job().expect("a job");
    rig.at(13).fail(&failed, secs(2)).await;
    let row = rig.job(successor).await;
    assert_eq!((Rig::second(row.window.first_at), Rig::second(row.window.due_at)), (12, 22));
    assert_eq!((row.priority, row.window.reason), (5, DueReason::Quiet));

    let run = rig.at(22).claim_one().await;
    let last = rig.at(23).trigger(keyed("a")).await.job().expect("a job");
    rig.at(24).fail(&run, secs(100)).await;
    assert_eq!(rig.job(last).await.window.reason, DueReason::Backoff);
    rig.flush("a").await;
    for second in [30, 90] {
        rig.at(second).trigger(keyed("a")).await;
    }
    rig.at(123).claim_none().await;
    let run = rig.at(124).claim_one().await;
    assert_eq!((run.id, run.triggers), (last, 5));
}

/// `max_triggers` makes it due, and no sooner than the backoff allows.
pub async fn r12_no_count_undercuts_a_backoff(mut rig: Rig) {
    let two = Debounce { max_triggers: Some(2), ..debounce() };
    let trigger = || keyed_with("a", two, Fold::Last, "1");
    rig.trigger(trigger()).await;
    let failed = rig.at(10).claim_one().await;
    rig.fail(&failed, secs(50)).await;
    for second in [11, 12, 13] {
        rig.at(second).trigger(trigger()).await;
    }
    rig.at(59).claim_none().await;
    assert_eq!(rig.at(60).claim_one().await.triggers, 4);
}

/// Only a failure is absorbed: after a success the newer window runs by itself, on time.
pub async fn r12_a_success_leaves_the_newer_window_as_it_is(mut rig: Rig) {
    rig.trigger(keyed("a")).await;
    let run = rig.at(10).claim_one().await;
    let next = rig.at(12).trigger(keyed("a")).await.job().expect("a job");
    let before = rig.job(next).await.window;
    rig.at(15).succeed(&run).await;
    assert_eq!(rig.job(next).await.window, before);
    let run = rig.at(22).claim_one().await;
    assert_eq!((run.id, run.triggers, run.failures), (next, 1, 0));
}

/// A deploy that changes how payloads are folded holds from the first trigger that brings it.
pub async fn r10_r12_a_join_brings_the_fold_of_what_follows(mut rig: Rig) {
    let folded = |fold, payload| keyed_with("a", debounce(), fold, payload);
    rig.trigger(folded(Fold::Last, r#"{"a":1}"#)).await;
    rig.trigger(folded(Fold::Merge, r#"{"b":2}"#)).await;
    let run = rig.at(10).claim_one().await;
    rig.trigger(folded(Fold::Last, r#"{"c":3}"#)).await;
    rig.trigger(folded(Fold::Merge, r#"{"d":4}"#)).await;
    rig.fail(&run, secs(1)).await;
    let successor = rig.at(20).claim_one().await;
    assert_eq!(successor.payload.as_str(), r#"{"a":1,"b":2,"c":3,"d":4}"#);
}
