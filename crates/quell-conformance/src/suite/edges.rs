//! The edges of a burst (R13) where attempts fail, last long, or are rescheduled.

use quell_core::edge::Edge;
use quell_core::window::{Debounce, DueReason};
use quell_core::{ExplainTarget, Fold, NewTrigger, Outcome, Receipt};

use crate::rig::{Rig, debounce, fails, keyed_with, lease, secs};

fn with_edge(edge: Edge, payload: &str) -> NewTrigger {
    keyed_with("a", Debounce { edge, ..debounce() }, Fold::Last, payload)
}

fn throttled(payload: &str) -> NewTrigger {
    keyed_with("a", Debounce::throttle(secs(10)).expect("valid"), Fold::Last, payload)
}

/// Not run, by the leading edge's choice; each has an id, and the job that led says so.
pub async fn r13_suppressed_triggers_are_on_record(mut rig: Rig) {
    let lead = rig.trigger(with_edge(Edge::Leading, "1")).await.job().expect("a job");
    let run = rig.claim_one().await;
    let second = rig.at(3).trigger(with_edge(Edge::Leading, "2")).await;
    rig.succeed(&run).await;
    let third = rig.at(9).trigger(with_edge(Edge::Leading, "3")).await;
    for (receipt, seq) in [(&second, 2), (&third, 3)] {
        assert!(
            matches!(receipt, Receipt::Debounced { job, trigger, triggers, .. }
                if *job == lead && trigger.seq == seq && *triggers == seq),
            "{receipt:?}"
        );
    }
    rig.at(100).claim_none().await;
    let target = ExplainTarget::Trigger(third.trigger().expect("an id"));
    let shown = rig.explain(&target).await.expect("is known");
    assert_eq!((shown.job.id, shown.job.suppressed), (lead, 2));
    assert_eq!(shown.job.payload.as_str(), "1", "what ran is what the first trigger brought");
    assert!(shown.to_string().contains("by the leading edge's choice"), "{shown}");
}

/// A leading run that fails is retried, and triggers may join it meanwhile.
pub async fn r13_a_leading_run_that_fails_is_joined_and_retried(mut rig: Rig) {
    rig.trigger(with_edge(Edge::Leading, "1")).await;
    let run = rig.claim_one().await;
    rig.fail(&run, secs(5)).await;
    let joined = rig.at(2).trigger(with_edge(Edge::Leading, "2")).await;
    assert_eq!(joined.job(), Some(run.id), "{joined:?}");
    let again = rig.at(5).claim_one().await;
    assert_eq!((again.payload.as_str(), again.triggers), ("2", 2));
}

/// The trailing run of `both` waits for the leading one.
pub async fn r13_the_trailing_run_waits_for_the_leading_one(mut rig: Rig) {
    rig.trigger(with_edge(Edge::Both, "1")).await;
    let leading = rig.claim_one().await;
    rig.at(4).trigger(with_edge(Edge::Both, "2")).await;
    rig.at(8).trigger(with_edge(Edge::Both, "3")).await;
    rig.at(25).claim_none().await;
    rig.succeed(&leading).await;
    let trailing = rig.claim_one().await;
    assert_eq!((trailing.payload.as_str(), trailing.triggers), ("3", 2));
    assert_eq!(Rig::second(trailing.due_at), 18);
}

/// The triggers between two starts are one run with the last payload.
pub async fn r13_a_throttle_gathers_what_comes_between_two_starts(mut rig: Rig) {
    rig.trigger(throttled("1")).await;
    let first = rig.claim_one().await;
    rig.succeed(&first).await;
    for (second, payload) in [(2, "2"), (5, "3"), (9, "4")] {
        rig.at(second).trigger(throttled(payload)).await;
    }
    let due = rig.jobs().await[1].window;
    assert_eq!((Rig::second(due.due_at), due.reason), (10, DueReason::Throttled));
    rig.at(9).claim_none().await;
    let second = rig.at(10).claim_one().await;
    assert_eq!((second.payload.as_str(), second.triggers), ("4", 3));
}

/// A flush, a retry, a release and an expired lease: no start comes sooner than one period.
pub async fn r13_nothing_starts_a_throttled_key_twice_in_a_period(mut rig: Rig) {
    let mut starts = Vec::new();
    let mut second = 0;
    for how in ["retry", "release", "snooze", "flush", "end"] {
        rig.at(second).trigger(throttled("1")).await;
        let due = rig.next_due().await.due.expect("is due");
        second = Rig::second(due);
        let run = rig.at(second).claim_one().await;
        starts.push(second);
        match how {
            "retry" => drop(rig.fail(&run, secs(1)).await),
            "release" => drop(rig.settle(lease(&run), Outcome::Released).await),
            "snooze" => drop(rig.settle(lease(&run), Outcome::Snoozed { delay: secs(2) }).await),
            "flush" => {
                rig.succeed(&run).await;
                rig.at(second + 1).trigger(throttled("2")).await;
                rig.flush("a").await;
                rig.at(second + 9).claim_none().await;
            }
            _ => rig.succeed(&run).await,
        }
        second = Rig::second(rig.now());
    }
    assert_eq!(starts, [0, 10, 20, 30, 40]);
}

/// Another job of the key has started since the dead one did.
pub async fn r13_a_redriven_job_heeds_the_keys_last_start(mut rig: Rig) {
    rig.trigger(throttled("1")).await;
    let dead = rig.claim_one().await;
    rig.settle(lease(&dead), fails(secs(1), true)).await;
    rig.at(100).trigger(throttled("2")).await;
    let run = rig.claim_one().await;
    rig.at(101).succeed(&run).await;
    rig.redrive(dead.id).await.expect("redrives");
    rig.at(109).claim_none().await;
    assert_eq!(rig.at(110).claim_one().await.id, dead.id);
}

/// An edge is its key's own.
pub async fn r13_keys_do_not_share_their_edges(rig: Rig) {
    let of = |k: &str, edge| keyed_with(k, Debounce { edge, ..debounce() }, Fold::Last, "1");
    for edge in [Edge::Leading, Edge::Both] {
        for k in ["x", "y"] {
            rig.trigger(of(&format!("{edge:?}{k}"), edge)).await;
        }
    }
    assert_eq!(rig.claim().await.len(), 4);
}
