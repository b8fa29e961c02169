//! The replay: a real store and worker run exactly what the rules predict.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use quell::Quell;
use quell_core::Fold;
use quell_lab::Rule;
use quell_lab::replay::{Replay, Replayed, Speed};
use quell_lab::simulate::Simulation;
use quell_lab::trace::Trace;
use quell_testkit::Files;

use crate::files::{rule, trace};

/// Seconds and keys.
type Events<'a> = &'a [(f64, &'a str)];

/// A replay on a new SQLite file.
async fn on_sqlite(files: &Files, rule: Rule) -> Replay {
    let file = files.path().join(format!("{:016x}.db", fastrand::u64(..)));
    let quell = Quell::open(&format!("sqlite://{}", file.display())).await.unwrap();
    Replay::on(Arc::clone(quell.store()), rule)
}

/// Replays in virtual time on both stores, and compares every number with the simulation's.
async fn same_as_simulated(trace: &Trace, rule: &Rule) -> Replayed {
    let files = Files::new();
    let simulated = Simulation::new(trace).run(rule).summary;
    let stores = [Replay::in_memory(rule.clone()), on_sqlite(&files, rule.clone()).await];
    let mut last = None;
    for replay in stores {
        let replayed = replay.run(trace).await.unwrap();
        assert_eq!(replayed.summary, simulated, "{replay:?}");
        assert_eq!(replayed.summary.covered, replayed.summary.triggers);
        assert!(replayed.complete && replayed.lateness.max.is_zero(), "{replayed:?}");
        last = Some(replayed);
    }
    last.unwrap()
}

/// Many events of a few keys, often several in one instant; the same at every run.
fn noise(events: usize) -> Trace {
    let mut random = fastrand::Rng::with_seed(7);
    let mut at = 1_000_000.0;
    let rows: Vec<(f64, &str)> = (0..events)
        .map(|_| {
            at += [0.0, 0.0, 0.5, 1.0, 5.0, 10.0][random.usize(..6)];
            (at, ["a", "b", "c", "d", ""][random.usize(..5)])
        })
        .collect();
    trace(&rows)
}

#[tokio::test]
async fn r08_every_published_scenario_runs_as_simulated_on_sqlite_and_in_memory() {
    let every_five: Vec<(f64, &str)> = (0..=60).map(|n| (f64::from(n) * 5.0, "k")).collect();
    let table: [(Events<'_>, Rule, u64); 4] = [
        (&[(0.0, "k"), (3.0, "k"), (7.0, "k")], rule(10, 60), 1),
        (&every_five, rule(10, 60), 6),
        (&[(0.0, "k"), (25.0, "k")], rule(10, 60), 2),
        (&[(19_800.0, "k"), (19_860.0, "k")], rule(300, 300), 1),
    ];
    for (events, rule, runs) in table {
        let replayed = same_as_simulated(&trace(events), &rule).await;
        assert_eq!(replayed.summary.runs, runs, "{events:?}");
    }
}

#[tokio::test]
async fn r07_r10_counts_and_folds_run_as_simulated() {
    let (trace, plain) = (noise(400), rule(5, 20));
    let fields = ["ids".to_owned()].into();
    let rules = [
        Rule { max_triggers: Some(2), ..plain.clone() },
        Rule { max_triggers: Some(1), ..plain.clone() },
        Rule { fold: Fold::Collect { cap: 3 }, ..plain.clone() },
        Rule { fold: Fold::Accumulate { fields }, ..plain.clone() },
        Rule { fold: Fold::Merge, ..plain },
    ];
    for rule in rules {
        same_as_simulated(&trace, &rule).await;
    }
}

#[tokio::test]
async fn r02_at_real_speed_every_trigger_is_covered() {
    let (files, trace) = (Files::new(), noise(60));
    let replay = on_sqlite(&files, rule(5, 20)).await;
    let sent = Arc::new(AtomicU64::new(0));
    let last = Arc::clone(&sent);
    let replay = replay
        .speed(Speed::times(500.0).unwrap())
        .on_progress(move |progress| last.store(progress.triggers as u64, Relaxed));
    let replayed = replay.run(&trace).await.unwrap();
    let summary = &replayed.summary;
    assert_eq!((summary.triggers, summary.covered, sent.load(Relaxed)), (60, 60, 60));
    assert!((1..=60).contains(&summary.runs), "{replayed:?}");
}

#[tokio::test]
async fn a_stop_ends_a_replay_in_order_with_the_numbers_so_far() {
    let trace = trace(&[(0.0, "k"), (0.0, ""), (3_600.0, "k")]);
    let (started, starts) = tokio::sync::watch::channel(0);
    let replay = Replay::in_memory(rule(10, 60)).speed(Speed::times(1.0).unwrap());
    let replay = replay.on_progress(move |progress| _ = started.send(progress.triggers));
    let mut starts = starts;
    let stop = async move { _ = starts.wait_for(|triggers| *triggers == 2).await };
    let replayed = replay.run_until(&trace, stop).await.unwrap();
    assert!(!replayed.complete);
    assert_eq!(replayed.summary.triggers, 2);
}

#[tokio::test]
async fn r40_a_store_with_jobs_and_a_speed_without_a_quiet_period_are_refused() {
    let (files, trace) = (Files::new(), trace(&[(0.0, "k")]));
    let replay = on_sqlite(&files, rule(10, 60)).await;
    replay.run(&trace).await.unwrap();
    let error = replay.run(&trace).await.unwrap_err();
    assert_eq!(error.field(), Some("store"), "{error}");
    assert!(error.to_string().contains("holds 1 jobs"), "{error}");
    let replay = Replay::in_memory(rule(10, 60)).speed(Speed::times(1e8).unwrap());
    let error = replay.run(&trace).await.unwrap_err();
    assert_eq!(error.field(), Some("speed"), "{error}");
}

#[test]
fn a_replay_can_run_on_any_thread() {
    fn check(_: impl Send) {}
    let (replay, trace) = (Replay::in_memory(rule(10, 60)), trace(&[(0.0, "k")]));
    check(replay.run(&trace));
}
