//! The checker's own tests: every seeded bug is caught by the property that is there for it, a store
//! without a bug is not accused, and a history survives its way through a file.

use std::collections::BTreeSet;
use std::sync::Arc;

use quell_conformance::bugs::{Bug, Buggy};
use quell_conformance::check::{Line, PROPERTIES, Report, check, merge, parse};
use quell_conformance::effort::cases;
use quell_conformance::sim::{self, Plan, START};

/// Seeds within which each bug must show.
const SEEDS: u64 = 600;
/// How many more seeds must show that no other property catches a bug, in a usual run and in a long one.
const ALONE: (u64, u64) = (8, 200);

fn judged(seed: u64, bug: &'static Bug) -> (Vec<Line>, Report) {
    let lines = sim::run(&Plan::draw(seed), |sink| Arc::new(Buggy::new(bug, START, sink)));
    let report = check(&lines);
    (lines, report)
}

/// Runs `judge` on each bug, on two threads, and fails with everything that it finds.
fn on_each(bugs: &[&'static Bug], judge: impl Fn(&'static Bug) -> Option<String> + Copy + Send) {
    let found: Vec<String> = std::thread::scope(|scope| {
        let halves = bugs.chunks(bugs.len().div_ceil(2));
        let runs: Vec<_> = halves
            .map(|half| scope.spawn(move || half.iter().filter_map(|bug| judge(bug)).collect()))
            .collect();
        runs.into_iter().flat_map(|run| -> Vec<String> { run.join().unwrap() }).collect()
    });
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn checker_catches_each_bug_by_a_property_that_is_there_for_it() {
    let bugs: Vec<_> = Bug::all().filter(|bug| !bug.checker.is_empty()).collect();
    on_each(&bugs, |bug| {
        let caught = (0..SEEDS).any(|seed| {
            let report = judged(seed, bug).1;
            bug.checker.iter().any(|property| report.broke(property))
        });
        (!caught).then(|| {
            format!("no seed of {SEEDS} shows {bug:?} as a violation of {:?}", bug.checker)
        })
    });
}

/// Each of these bugs would go unseen without its property.
#[test]
fn every_property_has_a_bug_that_it_alone_catches() {
    let bugs: Vec<_> = Bug::all().filter(|bug| bug.alone).collect();
    let own: BTreeSet<&str> = bugs.iter().map(|bug| bug.checker[0]).collect();
    assert_eq!(own, BTreeSet::from(PROPERTIES));
    let more = usize::try_from(cases(ALONE.0, ALONE.1)).unwrap();
    on_each(&bugs, |bug| {
        let mut seeds = (0..SEEDS).map(|seed| judged(seed, bug).1);
        let Some(first) = seeds.find(|report| !report.violations.is_empty()) else {
            return Some(format!("no seed of {SEEDS} shows {bug:?}"));
        };
        for report in std::iter::once(first).chain(seeds.take(more)) {
            let mut others = report.violations.iter().map(|violation| violation.property);
            if others.any(|other| other != bug.checker[0]) {
                let own = bug.checker[0];
                return Some(format!("{bug:?} is {own}'s own: {:?}", report.violations));
            }
        }
        None
    });
}

#[test]
fn checker_accuses_no_store_that_is_right() {
    for seed in 0..cases(SEEDS / 2, 10_000) {
        let (lines, report) = judged(seed, &Bug::NONE);
        assert!(report.violations.is_empty(), "seed {seed}\n{}", report.text(&lines));
    }
}

#[test]
fn checker_says_the_same_of_a_history_that_was_a_file() {
    let bugs = ["NoExclusion", "AcksBeforeWrite"].map(|name| Bug::named(name).unwrap());
    for bug in [&Bug::NONE, bugs[0], bugs[1]] {
        for seed in 0..20 {
            let (lines, report) = judged(seed, bug);
            // One file per process, as processes write them.
            let mut files = std::collections::BTreeMap::<&str, String>::new();
            for line in &lines {
                files.entry(&line.p).or_default().push_str(&format!("{line}\n"));
            }
            let parsed = files.iter().map(|(name, text)| parse(name, text).unwrap()).collect();
            let again = merge(parsed);
            assert_eq!(again, lines, "{bug:?} {seed}");
            assert_eq!(check(&again).violations, report.violations, "{bug:?} {seed}");
        }
    }
}

#[test]
fn checker_leaves_out_a_torn_last_line_and_refuses_any_other() {
    let whole = r#"{"event":"stamp_ok","op":1}"#;
    assert_eq!(parse("a", &format!("{whole}\n{}", &whole[..9])).unwrap().len(), 1);
    let error = parse("a.jsonl", &format!("{}\n{whole}\n", &whole[..9])).unwrap_err();
    assert_eq!((error.line, error.name.as_str()), (1, "a.jsonl"));
    // Whole, as its newline says, but no event.
    assert!(parse("a", "{\"event\":\"nonsense\"}\n").is_err());
}

#[test]
fn stamps_alone_show_a_lost_trigger_of_any_queue() {
    let story = |reads: &str| {
        let text = format!(
            "{{\"event\":\"stamp\",\"op\":1,\"key\":\"a\",\"value\":1}}\n\
             {{\"event\":\"stamp_ok\",\"op\":1}}\n\
             {{\"event\":\"stamp\",\"op\":2,\"key\":\"a\",\"value\":2}}\n\
             {{\"event\":\"stamp_ok\",\"op\":2}}\n{reads}"
        );
        check(&parse("queue", &text).unwrap())
    };
    let read = |run: u64, value: u64, ok: bool| {
        let ok =
            if ok { format!("{{\"event\":\"read_ok\",\"run\":{run}}}\n") } else { String::new() };
        format!("{{\"event\":\"read\",\"run\":{run},\"key\":\"a\",\"value\":{value}}}\n{ok}")
    };
    assert!(story(&read(1, 2, true)).violations.is_empty());
    assert!(story(&(read(1, 1, true) + &read(2, 2, true))).violations.is_empty());
    assert!(story(&read(1, 1, true)).broke("P2"), "the second stamp was never read");
    assert!(story(&read(1, 2, false)).broke("P2"), "a run that failed covers nothing");
    assert!(story("").broke("P2"));
}
