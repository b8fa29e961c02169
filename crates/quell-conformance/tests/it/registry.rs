//! The list is whole, and says what its tests try.

use std::collections::BTreeSet;

use quell_conformance::registry::all;
use quell_conformance::report;

#[test]
fn every_test_says_what_it_tries_and_is_listed_once() {
    let mut names = BTreeSet::new();
    for test in all() {
        assert!(test.tried().ends_with('.'), "{test:?} says {:?}", test.tried());
        assert!(names.insert(test.name), "{test:?} is listed twice, or its name is taken");
    }
}

/// What other designs get wrong, and the test that would see it here.
#[test]
fn each_known_failure_of_other_designs_has_a_test_that_explains_it() {
    let tests = [
        "r02_r11_a_trigger_during_a_run_is_never_marked_done_by_it",
        "r01_r02_a_crash_between_key_and_message_cannot_exist",
        "r11_an_overdue_window_still_waits_for_the_running_attempt",
        "r02_a_backlog_outlives_every_ttl",
        "r08_max_is_a_timer_and_needs_no_message_to_come_by",
        "r08_r38_thresholds_are_not_whole_seconds_nor_on_callers_clocks",
        "r06_keys_of_different_tasks_and_parts_never_meet",
        "r16_a_call_that_was_cut_off_burns_no_key",
        "r21_an_expired_lease_is_taken_back_and_nothing_it_reports_counts",
        "r31_a_crashed_slot_comes_back",
        "r31_a_claim_is_bounded",
    ];
    let explained: BTreeSet<_> = all()
        .iter()
        .filter(|test| test.tried().starts_with("A known failure elsewhere: "))
        .map(|test| test.name)
        .collect();
    assert_eq!(explained, BTreeSet::from(tests));
}

/// A test that is written and not listed would never run.
#[test]
fn every_test_is_listed() {
    let listed: BTreeSet<_> = all().iter().map(|test| test.name).collect();
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/suite");
    for module in all().iter().map(|test| test.module).collect::<BTreeSet<_>>() {
        let text = std::fs::read_to_string(folder.join(format!("{module}.rs"))).unwrap();
        for rest in text.split("\npub async fn ").skip(1) {
            let name = rest.split('(').next().unwrap();
            assert!(listed.contains(name), "{module}::{name} is not in the list");
        }
    }
}

#[tokio::test]
async fn the_model_store_passes_and_the_report_says_so() {
    let report = report::run_recorded("memory", super::open, super::open_recorded).await;
    assert_eq!(report.failures().count(), 0, "{report}");
    assert_eq!(report.rows.len(), all().len());
    assert!(report.broken_rules().is_empty());
}
