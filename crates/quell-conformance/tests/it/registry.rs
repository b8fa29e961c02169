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

/// A test that is written and not listed would never run.
#[test]
fn every_test_is_listed() {
    let listed: BTreeSet<_> = all().iter().map(|test| test.name).collect();
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
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
