//! Trace contexts, from triggers to the attempts that cover them (R42).

use quell_core::edge::Edge;
use quell_core::trace::{TraceContext, Traces};
use quell_core::window::Debounce;
use quell_core::{Batch, ExplainTarget, Fold, Lease, NewTrigger, Outcome, Result};

use crate::rig::{Rig, debounce, fails, key, keyed, keyed_with, lease, plain, secs, traced};

/// The contexts that `traced` makes of these numbers.
fn contexts(numbers: impl IntoIterator<Item = u64>) -> Traces {
    let contexts: Vec<TraceContext> =
        numbers.into_iter().filter_map(|number| traced(number, plain("1")).trace).collect();
    contexts.iter().collect()
}

fn collecting(number: u64, key: &str) -> NewTrigger {
    traced(number, keyed_with(key, debounce(), Fold::Collect { cap: 99 }, "1"))
}

/// A burst's triggers with and without one, by both ways to fold, and again on the next attempt.
pub async fn r42_an_attempt_is_given_the_traces_of_its_triggers(mut rig: Rig) {
    let fold: [fn(u64) -> NewTrigger; 2] =
        [|number| traced(number, keyed("a")), |number| collecting(number, "a")];
    for make in fold {
        rig.trigger(make(1)).await;
        rig.trigger(keyed("b")).await;
        rig.trigger(NewTrigger { trace: None, ..make(0) }).await;
        rig.trigger(make(2)).await;
        let job = rig.trigger(make(3)).await.job().expect("a job");
        let second = Rig::second(rig.now());
        let mut runs = rig.at(second + 20).claim().await;
        runs.sort_by_key(|run| run.key.clone());
        let [run, other] = runs.as_slice() else { panic!("two are due: {runs:?}") };
        assert_eq!((run.triggers, &run.traces), (4, &contexts([1, 2, 3])));
        assert!(other.traces.is_empty(), "{other:?}");
        let shown = rig.explain(&ExplainTarget::Job(job)).await.expect("is known");
        assert_eq!(shown.job.traces, contexts([1, 2, 3]));

        rig.succeed(other).await;
        rig.fail(run, secs(5)).await;
        let again = rig.at(second + 25).claim_one().await;
        assert_eq!((again.attempt, again.traces.clone()), (2, contexts([1, 2, 3])));
        rig.succeed(&again).await;
        let shown = rig.explain(&ExplainTarget::Job(job)).await.expect("is known");
        assert_eq!(shown.job.traces, contexts([1, 2, 3]));
    }
}

/// At once, later, in an array, and in a partition.
pub async fn r42_a_job_without_a_key_has_the_trace_of_its_trigger(mut rig: Rig) {
    let later = quell_core::When::After(secs(2));
    let collected = NewTrigger { fold: Fold::Collect { cap: 9 }, ..plain("4") };
    let triggers = vec![
        traced(1, plain("1")),
        plain("2"),
        traced(3, NewTrigger { when: later, ..plain("3") }),
        traced(4, collected),
        traced(5, NewTrigger { partition: Some(key("p")), ..plain("5") }),
    ];
    rig.trigger_batch(Batch { triggers, dedup: None }).await;
    let mut runs = rig.at(3).claim().await;
    runs.sort_by_key(|run| run.id);
    let given: Vec<Traces> = runs.into_iter().map(|run| run.traces).collect();
    assert_eq!(
        given,
        [contexts([1]), Traces::default(), contexts([3]), contexts([4]), contexts([5])]
    );
}

/// Triggers as single batches of one call, as concurrent callers make them.
async fn together(rig: &Rig, triggers: Vec<NewTrigger>) {
    let batches = triggers.into_iter().map(Batch::one).collect();
    let answers = rig.store.enqueue(Some(rig.now()), batches).await.expect("is accepted");
    assert!(answers.iter().all(Result::is_ok), "{answers:?}");
}

/// Whether triggers come one by one, together, or both; the last ones are counted and not linked.
pub async fn r42_the_first_sixteen_traces_are_kept(mut rig: Rig) {
    for number in 1..=10 {
        rig.trigger(traced(number, keyed("a"))).await;
    }
    let batch = |numbers: std::ops::RangeInclusive<u64>, key: &str| {
        let triggers = numbers.map(|number| traced(number, keyed(key))).collect();
        Batch { triggers, dedup: None }
    };
    rig.trigger_batch(batch(11..=14, "a")).await;
    rig.trigger_batch(batch(15..=30, "a")).await;
    rig.trigger(traced(31, keyed("a"))).await;
    rig.trigger_batch(batch(1..=40, "b")).await;
    // Windows that are there already, with room for some of what comes in one call.
    for name in ["c", "d"] {
        rig.trigger_batch(batch(1..=14, name)).await;
        let at_once = (14..=20).map(|number| traced(number, keyed(name))).collect();
        together(&rig, at_once).await;
    }
    let mut runs = rig.at(10).claim().await;
    runs.sort_by_key(|run| run.key.clone());
    let given: Vec<(u64, Traces)> =
        runs.into_iter().map(|run| (run.triggers, run.traces)).collect();
    let first = contexts(1..=16);
    let counts = [31, 40, 21, 21];
    assert_eq!(given, counts.map(|count| (count, first.clone())));
}

/// As where one request sends a batch, or repeats a call.
pub async fn r42_the_same_trace_in_a_row_is_kept_once(mut rig: Rig) {
    let batch = |numbers: &[u64]| {
        let triggers = numbers.iter().map(|number| traced(*number, keyed("a"))).collect();
        Batch { triggers, dedup: None }
    };
    rig.trigger_batch(batch(&[1, 1, 1])).await;
    rig.trigger_batch(batch(&[1])).await;
    rig.trigger_batch(batch(&[1, 2, 1])).await;
    let again = [1, 1, 3, 3, 2].map(|number| traced(number, keyed("a")));
    together(&rig, again.into()).await;
    let run = rig.at(10).claim_one().await;
    assert_eq!((run.triggers, run.traces), (12, contexts([1, 2, 1, 3, 2])));
}

/// The job that failed came first, and so do its triggers.
pub async fn r42_a_window_that_absorbs_a_job_has_its_traces_first(mut rig: Rig) {
    for number in 1..=3 {
        rig.trigger(traced(number, keyed("a"))).await;
    }
    let run = rig.at(10).claim_one().await;
    for number in 4..=5 {
        rig.trigger(traced(number, keyed("a"))).await;
    }
    rig.fail(&run, secs(1)).await;
    rig.trigger(traced(6, keyed("a"))).await;
    let both = rig.at(20).claim_one().await;
    assert_eq!((both.triggers, both.traces), (6, contexts(1..=6)));
}

/// Death, its export and import, and the way back keep them.
pub async fn r26_r42_a_dead_job_keeps_its_traces(mut rig: Rig) {
    rig.trigger(traced(1, keyed("a"))).await;
    let run = rig.at(10).claim_one().await;
    rig.settle(lease(&run), fails(secs(1), true)).await;
    let exports = rig.store.exports(&[run.id]).await.expect("the store exports");
    assert_eq!(exports[0].job.traces, contexts([1]));
    let mut foreign = exports[0].clone();
    (foreign.job.id, foreign.job.key) = (quell_core::JobId::new(4_000), None);
    let came = rig.store.import_dead(Some(rig.now()), &[foreign]).await.expect("imports")[0];
    for id in [run.id, came.id] {
        rig.redrive(id).await.expect("is dead");
        let again = rig.claim_one().await;
        assert_eq!((again.id, again.traces.clone()), (id, contexts([1])));
        rig.succeed(&again).await;
    }
}

/// A trigger that a leading edge does not run is not what the run is for.
pub async fn r13_r42_a_suppressed_trigger_adds_no_trace(mut rig: Rig) {
    let leading = |number| {
        let debounce = Debounce { edge: Edge::Leading, ..debounce() };
        traced(number, keyed_with("a", debounce, Fold::Last, "1"))
    };
    let lead = rig.trigger(leading(1)).await.job().expect("a job");
    let run = rig.claim_one().await;
    rig.at(3).trigger(leading(2)).await;
    assert_eq!((run.id, run.traces.clone()), (lead, contexts([1])));
    rig.succeed(&run).await;
    rig.at(5).trigger(leading(3)).await;
    assert_eq!(rig.job(lead).await.traces, contexts([1]));
}

/// A snooze, a release and an expired lease are no new trigger.
pub async fn r42_traces_outlast_every_way_back(mut rig: Rig) {
    rig.trigger(traced(1, plain("1"))).await;
    let back: [fn() -> Outcome; 2] = [|| Outcome::Snoozed { delay: secs(1) }, || Outcome::Released];
    for (second, make) in (0..).step_by(5).zip(back) {
        let run = rig.at(second).claim_one().await;
        assert_eq!(run.traces, contexts([1]));
        rig.settle(Lease { job: run.id, token: run.token }, make()).await;
    }
    let run = rig.at(20).claim_one().await;
    rig.at(20 + Rig::LEASE.as_secs() + 1).reap().await;
    let again = rig.claim_one().await;
    assert_eq!((again.id, again.traces), (run.id, contexts([1])));
}
