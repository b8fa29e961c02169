//! Stores with one bug each: the suite must say which rule is broken, or it proves nothing.
//!
//! The table is `quell_conformance::bugs`. A bug that no test notices is a gap in the suite, not in it.

use std::collections::BTreeSet;

use quell_conformance::bugs::{Bug, Buggy};
use quell_conformance::registry::{RuleTest, all};
use quell_conformance::report::{self, Verdict};
use quell_conformance::{Opened, Report, Rig};

async fn suite_on(bug: &'static Bug) -> Report {
    report::run(bug.name, || async move { open(bug) }).await
}

fn open(bug: &'static Bug) -> Opened {
    super::opened(Buggy::unrecorded(bug, Rig::START))
}

#[tokio::test]
async fn each_bug_is_reported_under_the_rule_that_it_breaks() {
    let mut unnoticed = Vec::new();
    for bug in Bug::all().filter(|bug| !bug.suite.is_empty()) {
        let report = report::run_some(bug.name, bug.suite, || async move { open(bug) }).await;
        let broken = report.broken_rules();
        for name in bug.suite {
            let test = named(name);
            let failed = matches!(report.verdict(name), Some(Verdict::Failed(_)));
            if !failed || !test.rules().iter().all(|rule| broken.contains(rule)) {
                let failing: Vec<_> = report.failures().map(|row| row.test.name).collect();
                unnoticed.push(format!("{bug:?} passes {name}; it fails {failing:#?}"));
            }
        }
    }
    assert!(unnoticed.is_empty(), "{}", unnoticed.join("\n"));
}

/// Each bug meets the whole suite here.
mod long {
    use super::*;

    #[tokio::test]
    async fn every_test_of_the_suite_fails_on_some_bug() {
        let plain = all().iter().filter(|test| !test.is_recorded());
        let mut never_failed: BTreeSet<_> = plain.map(|test| test.name).collect();
        for bug in Bug::all().filter(|bug| !bug.suite.is_empty()) {
            for row in suite_on(bug).await.failures() {
                never_failed.remove(row.test.name);
            }
        }
        assert!(never_failed.is_empty(), "no bug makes these fail: {never_failed:#?}");
    }
}

#[tokio::test]
async fn a_store_without_a_bug_passes_behind_the_same_wrapper() {
    let report = suite_on(&Bug::NONE).await;
    assert_eq!(report.failures().count(), 0, "{report}");
}

/// A rule that no bug breaks might have tests that cannot fail.
#[test]
fn every_rule_of_the_suite_is_broken_by_some_bug() {
    let plain = all().iter().filter(|test| !test.is_recorded());
    let tried: BTreeSet<u8> = plain.flat_map(RuleTest::rules).collect();
    let names = Bug::all().flat_map(|bug| bug.suite);
    let broken: BTreeSet<u8> = names.flat_map(|name| named(name).rules()).collect();
    assert_eq!(tried.difference(&broken).collect::<Vec<_>>(), Vec::<&u8>::new());
}

/// A bug that neither the suite nor the checker must catch would test nothing.
#[test]
fn each_bug_has_a_name_and_something_that_must_catch_it() {
    let mut names = BTreeSet::new();
    for bug in Bug::all() {
        assert!(names.insert(bug.name), "two bugs are called {bug:?}");
        assert!(!bug.suite.is_empty() || !bug.checker.is_empty(), "nothing must catch {bug:?}");
        let is_of_rule = |name: &&str| named(name).rules().contains(&bug.rule);
        assert!(
            bug.suite.is_empty() || bug.suite.iter().any(is_of_rule),
            "{bug:?} breaks rule {}, and its tests are of other rules",
            bug.rule
        );
    }
}

fn named(name: &str) -> &'static RuleTest {
    all().iter().find(|test| test.name == name).unwrap_or_else(|| panic!("no test {name}"))
}
