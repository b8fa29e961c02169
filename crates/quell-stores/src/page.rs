//! The page: one row per test of the suite, one column per store, then what no store shows alone.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::Path;

use anyhow::Context;
use quell_conformance::Report;
use quell_conformance::registry::{RuleTest, all};

use crate::promises::{Built, Promise, promises, tested_in};

/// Where the page stands, below the workspace's root.
pub const PLACE: &str = "docs/conformance.md";

const HEAD: &str = "\
<!-- Written by `cargo xtask conformance`. A test fails when this is not what it would write. -->

# Conformance: each test of the suite, on each store

Every store runs the same suite, in virtual time, on a fresh store per test. One row is one test; \
the sentence is the first of its documentation, the name below it says where to find it. The rules \
are those of [the promises](semantics.md). Beside these tests each store is driven with random \
operations, and every answer and row is compared with the model's (`cargo xtask soak` does that \
for as long as you like).
";

/// Writes the page for these reports.
///
/// # Errors
/// When a document or source of the workspace cannot be read.
pub fn page(root: &Path, reports: &[Report]) -> anyhow::Result<String> {
    let semantics = root.join("docs/semantics.md");
    let text =
        std::fs::read_to_string(&semantics).with_context(|| semantics.display().to_string())?;
    let promises = promises(&text)?;
    let mut page = HEAD.to_owned();
    page.push_str(&tests(&promises, reports));
    page.push_str(&elsewhere(&promises, &tested_in(root)?));
    page.push_str(&missing(&promises));
    Ok(page)
}

/// The table of tests, in the order of the rules.
fn tests(promises: &[Promise], reports: &[Report]) -> String {
    let titles: BTreeMap<u8, &str> =
        promises.iter().map(|one| (one.rule, one.title.as_str())).collect();
    let stores: Vec<&str> = reports.iter().map(|report| report.store.as_str()).collect();
    let mut out = format!("\n| rule | what was tried | {} |\n", stores.join(" | "));
    out.push_str(&format!("| --- | --- |{}\n", " --- |".repeat(stores.len())));
    let mut sorted: Vec<&RuleTest> = all().iter().collect();
    // What belongs to no rule comes last; within a rule the list's order stays.
    sorted.sort_by_key(|test| (test.rules().is_empty(), test.rules().first().copied()));
    for test in sorted {
        let rules = test.rules().into_iter();
        let named = rules.map(|rule| match titles.get(&rule) {
            Some(title) => format!("R{rule} {title}"),
            None => format!("R{rule}"),
        });
        let rule = named.collect::<Vec<_>>().join("<br>");
        let tried = format!("{}<br>`{:?}`", test.tried().replace('|', "\\|"), test);
        let came = |report: &Report| {
            let verdict = report.verdict(test.name).map(ToString::to_string);
            verdict.unwrap_or_default().replace('|', "\\|")
        };
        let verdicts: Vec<String> = reports.iter().map(came).collect();
        let rule = if rule.is_empty() { "beside the rules" } else { &rule };
        let _ = writeln!(out, "| {rule} | {tried} | {} |", verdicts.join(" | "));
    }
    out
}

/// The rules that are built and that no test of the suite names.
fn elsewhere(promises: &[Promise], tested: &BTreeMap<u8, BTreeSet<String>>) -> String {
    let suite: BTreeSet<u8> = all().iter().flat_map(RuleTest::rules).collect();
    let mut out = "\n## Rules that no store shows alone\n\n\
        They are a matter of the client, the worker or one engine; tests that name them are in \
        these crates.\n\n| rule | proven in |\n| --- | --- |\n"
        .to_owned();
    let alone = |one: &&Promise| one.built != Built::NotYet && !suite.contains(&one.rule);
    for one in promises.iter().filter(alone) {
        let crates = tested.get(&one.rule).into_iter().flatten();
        let crates: Vec<String> = crates.map(|name| format!("`{name}`")).collect();
        let _ = writeln!(out, "| R{} {} | {} |", one.rule, one.title, crates.join(", "));
    }
    out
}

/// What the promises say is not there, or not all of it; empty where they are kept.
fn missing(promises: &[Promise]) -> String {
    if promises.iter().all(|one| one.built == Built::Whole) {
        return String::new();
    }
    let mut out = "\n## Not built yet\n\nIn the words of the promises.\n\n".to_owned();
    out.push_str("| rule | how far it is |\n| --- | --- |\n");
    for one in promises {
        let what = match &one.built {
            Built::Whole => continue,
            Built::Partly(what) => format!("partly built: {what}"),
            Built::NotYet => "not built yet".to_owned(),
        };
        let _ = writeln!(out, "| R{} {} | {what} |", one.rule, one.title);
    }
    out
}
