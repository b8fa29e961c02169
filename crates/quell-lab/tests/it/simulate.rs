//! The simulation: the published scenarios, and what makes a window due.

use quell_core::Fold;
use quell_lab::Rule;
use quell_lab::simulate::Simulation;

use crate::files::{rule, trace};

/// Runs, covered triggers, and the longest delay in seconds.
type Result = (u64, u64, f64);

/// The result of one key's triggers at these seconds.
fn one_key(times: &[f64], rule: &Rule) -> Result {
    let events: Vec<(f64, &str)> = times.iter().map(|at| (*at, "k")).collect();
    let summary = Simulation::new(&trace(&events)).run(rule).summary;
    assert_eq!(summary.triggers, times.len() as u64);
    (summary.runs, summary.covered, summary.delay.max.as_secs_f64())
}

#[test]
fn r08_the_published_scenarios_run_as_their_table_says() {
    let every_five: Vec<f64> = (0..=60).map(|n| f64::from(n) * 5.0).collect();
    let (ten, fixed) = (rule(10, 60), rule(300, 300));
    let table: [(&[f64], &Rule, Result); 6] = [
        (&[0.0], &ten, (1, 1, 10.0)),
        (&[0.0, 3.0, 7.0], &ten, (1, 3, 17.0)),
        (&[0.0, 20.0, 40.0, 55.0, 65.0], &ten, (5, 5, 10.0)),
        (&every_five, &ten, (6, 61, 60.0)),
        (&[0.0, 25.0], &ten, (2, 2, 10.0)),
        (&[19_800.0, 19_860.0], &fixed, (1, 2, 300.0)),
    ];
    for (times, rule, expected) in table {
        assert_eq!(one_key(times, rule), expected, "{times:?} {rule:?}");
    }
}

#[test]
fn r07_a_window_that_is_due_is_taken_before_a_trigger_of_the_same_instant_joins() {
    assert_eq!(one_key(&[0.0, 10.0], &rule(10, 60)), (2, 2, 10.0));
    assert_eq!(one_key(&[0.0, 9.999_999], &rule(10, 60)), (1, 2, 19.999_999));
}

#[test]
fn r07_r10_enough_triggers_make_a_window_due_at_once() {
    let five = [0.0, 0.0, 0.0, 1.0, 1.0];
    let by_count = Rule { max_triggers: Some(2), ..rule(10, 60) };
    let by_collect = Rule { fold: Fold::Collect { cap: 2 }, ..rule(10, 60) };
    assert_eq!(one_key(&five, &by_count), (3, 5, 10.0));
    assert_eq!(one_key(&five, &by_collect), (3, 5, 10.0));
    assert_eq!(one_key(&five, &Rule { fold: Fold::Merge, ..rule(10, 60) }), (1, 5, 11.0));
}

#[test]
fn r09_an_event_without_a_key_is_a_run_of_its_own() {
    let trace = trace(&[(0.0, ""), (0.0, ""), (1.0, "k"), (2.0, "k")]);
    let summary = Simulation::new(&trace).run(&rule(10, 60)).summary;
    assert_eq!((summary.runs, trace.keys().len()), (3, 1));
    assert!(summary.delay.p50.is_zero());
}

#[test]
fn events_out_of_order_are_put_in_order() {
    assert_eq!(one_key(&[7.0, 0.0, 3.0], &rule(10, 60)), (1, 3, 17.0));
}
