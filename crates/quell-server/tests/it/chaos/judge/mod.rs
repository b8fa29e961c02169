//! The verdict on a chaos run: each judge has one promise, and looks at the store's rows, at every
//! process's history and record, and at the tables beside the store. `quell check` judges all
//! histories as well.

mod booked;
mod coverage;
mod deaths;
pub(super) mod history;
mod leases;
mod limits;
mod made;
mod orders;
mod pauses;

use std::collections::BTreeMap;
use std::path::Path;

use quell::JobId;
use serde_json::Value;

pub(super) use booked::Tables;
pub(super) use coverage::each_tick_is_one_job;
pub(super) use history::{Story, events, files};
pub(super) use limits::SLOTS_REACHED;
pub(super) use pauses::Pause;

use super::seen::Counts;
use crate::binary::quell;

/// Judges a run that has come to rest; returns how much each judge saw.
pub(super) fn judge(
    story: &Story,
    outputs: &BTreeMap<JobId, String>,
    tables: Option<&Tables>,
) -> Result<Counts, String> {
    let Story { events, entries, pauses, jobs, .. } = story;
    let mut counts = Counts::default();
    coverage::none_lost(events, jobs, &mut counts)?;
    leases::each_attempt_once(events)?;
    leases::one_lease_at_a_time(events, &mut counts)?;
    leases::one_body_at_a_time(events, entries, &mut counts)?;
    limits::slots(events, jobs, &mut counts)?;
    limits::rates(events, entries, jobs, &mut counts)?;
    pauses::nothing_starts_in_a_pause(events, pauses, &mut counts)?;
    pauses::workers_know_their_tasks(events, &mut counts)?;
    orders::each_key_has_one_job(entries, jobs, outputs, &mut counts)?;
    if let Some(tables) = tables {
        booked::effects_and_triggers_are_atomic(tables, jobs, entries, &mut counts)?;
    }
    deaths::deaths_are_by_crashes(story, &mut counts)?;
    Ok(counts)
}

/// How close a run that goes on has come to its limits on what runs at once.
pub(super) fn limits_reached(folder: &Path) -> Counts {
    limits::reached(&events(folder))
}

/// What the judges of a whole run must have judged.
pub(super) fn needs(has_books: bool) -> Vec<(&'static str, usize)> {
    let mut needs = vec![
        ("accepted triggers found in their jobs", 200),
        ("leases of one key compared", 100),
        ("bodies compared", 40),
        ("leases under concurrency limits", 10),
        ("claims under rates", 10),
        ("handler starts under rates", 8),
        ("pauses of a queue", 1),
        ("pauses of a task", 1),
        ("claims and starts at workers that registered the task", 200),
        ("answers compared with their job", 10),
        ("answers that named an existing job", 5),
        ("answers with an output", 3),
        ("orders answered after calls without an answer", 2),
        ("other payloads refused", 5),
    ];
    needs.extend(SLOTS_REACHED);
    if has_books {
        needs.extend([
            ("orders committed with their trigger", 10),
            ("jobs settled with their effect", 10),
            ("orders rolled back and not there", 5),
        ]);
    }
    needs
}

/// What a run must give the checker to judge; docs/testing.md says why not the others.
pub(super) const JUDGED: &[&str] = &[
    "P1", "P2", "P3", "P4", "P5", "P6", "P7a", "P8", "P8b", "P9", "P10", "P11", "P12", "P13",
    "P14", "P16", "P17", "P21", "P23", "P24", "P25", "P26", "P27", "P32", "P33",
];

/// The violations that `quell check` printed: the property, and the last event that shows it.
fn violations(printed: &str) -> Vec<(&str, &str)> {
    let mut found: Vec<(&str, &str)> = Vec::new();
    for line in printed.lines() {
        let head = line.split_once(": ").map(|(head, _)| head);
        let is_property = |head: &&str| {
            let mut rest = head.strip_prefix('P').unwrap_or_default().chars();
            rest.next().is_some_and(|c| c.is_ascii_digit()) && rest.all(char::is_alphanumeric)
        };
        match (head.filter(is_property), found.last_mut()) {
            (Some(property), _) => found.push((property, "")),
            (None, Some((_, event))) if line.trim_start().starts_with('{') => *event = line.trim(),
            _ => {}
        }
    }
    found
}

/// All that the histories have of the jobs of violations, in the order in which it was written, with the
/// calls around them that failed or had no answer: what came later explains most violations.
fn all_about(folder: &Path, printed: &str) -> String {
    /// How many lines are shown.
    const MOST: usize = 200;
    /// How close such a call is.
    const NEAR: u64 = 5_000_000;
    let parsed = |text: &str| -> Vec<Value> {
        text.lines().filter_map(|line| serde_json::from_str(line.trim()).ok()).collect()
    };
    let shown = parsed(printed);
    let is_about = |line: &Value| {
        let is_call = matches!(line["event"].as_str(), Some("unanswered" | "call_failed"));
        shown.iter().any(|shown| match is_call {
            true => shown["w"]
                .as_i64()
                .zip(line["w"].as_i64())
                .is_some_and(|(shown, line)| shown.abs_diff(line) < NEAR),
            false => !line["job"].is_null() && line["job"] == shown["job"],
        })
    };
    let texts =
        files(folder, "jsonl").into_iter().map(|path| std::fs::read_to_string(path).unwrap());
    let mut lines: Vec<Value> = texts.flat_map(|text| parsed(&text)).filter(is_about).collect();
    lines.sort_by_key(|line| line["w"].as_i64());
    let lines: Vec<String> = lines.iter().rev().take(MOST).rev().map(Value::to_string).collect();
    lines.join("\n")
}

/// Asks `quell check` about all histories and the store's rows: it finds nothing, and judged a case
/// of each of these properties. Returns what it printed.
pub(crate) fn checked(folder: &Path, url: &str, properties: &[&str]) -> String {
    checked_except(folder, url, properties, |_, _| false)
}

/// The same, except for violations that are excused: `is_excused` gets the property and the last event that
/// shows it.
pub(crate) fn checked_except(
    folder: &Path,
    url: &str,
    properties: &[&str],
    is_excused: impl Fn(&str, &str) -> bool,
) -> String {
    let mut command = quell(&["check", "--store", url]);
    let checked = command.args(files(folder, "jsonl")).output().unwrap();
    let printed = [checked.stdout, checked.stderr].concat();
    let printed = String::from_utf8_lossy(&printed).into_owned();
    let found = violations(&printed);
    let all_excused = || found.iter().all(|(property, event)| is_excused(property, event));
    let is_fine = match found.is_empty() {
        true => checked.status.success() && printed.contains(" 0 violations"),
        false => all_excused(),
    };
    assert!(is_fine, "{printed}\n{}", all_about(folder, &printed));
    let judged = |property: &&&str| {
        let mut lines = printed.lines().map(str::split_whitespace);
        let found = lines.find_map(|mut words| {
            words.next().filter(|word| word == *property)?;
            words.next()?.parse::<u64>().ok()
        });
        found.is_some_and(|judged| judged > 0)
    };
    let idle: Vec<&&str> = properties.iter().filter(|property| !judged(property)).collect();
    assert!(idle.is_empty(), "nothing was judged of {idle:?}:\n{printed}");
    printed
}
