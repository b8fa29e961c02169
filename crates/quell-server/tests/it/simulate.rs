//! `quell simulate`: the shape of its results, and what it refuses.

use quell_testkit::Files;

use crate::commands::{json, simulate};

/// Words of a command line.
type Words<'a> = &'a [&'a str];

const KEY: [&str; 2] = ["--key", "{{ key }}"];

#[test]
fn the_flags_of_the_rule_reach_the_simulation() {
    let files = Files::new();
    let events = [(0.0, "k"), (0.0, "k"), (0.0, "k"), (1.0, "k"), (1.0, "k"), (2.0, "")];
    let file = files.csv("events.csv", &events);
    let table: [(Words<'_>, u64); 4] = [
        (&[], 2),
        (&["--max-triggers", "2"], 4),
        (&["--payload", "collect:2"], 4),
        (&["--payload", "merge"], 2),
    ];
    for (flags, runs) in table {
        let pair = ["--json", "--pair", "10s:60s"];
        let printed = json(simulate(&[&[&*file], &KEY[..], &pair[..], flags].concat()));
        assert_eq!((&printed["runs"], &printed["covered"]), (&runs.into(), &6.into()), "{flags:?}");
        assert_eq!((&printed["triggers"], &printed["keys"]), (&6.into(), &1.into()));
    }
}

#[test]
fn several_pairs_are_the_product_and_the_named_ones_each_once() {
    let files = Files::new();
    let file = files.csv("events.csv", &[(0.0, "k"), (30.0, "k")]);
    let asked = ["--min", "10s,60s", "--max", "20s,60s", "--pair", "1m:1m", "--pair", "1s:2s"];
    let answer = json(simulate(&[&[&*file, "--json"], &KEY[..], &asked[..]].concat()));
    let pairs = answer["pairs"].as_array().unwrap().iter();
    let found: Vec<_> = pairs
        .map(|pair| ["min_s", "max_s", "runs"].map(|name| pair[name].as_f64().unwrap()))
        .collect();
    let expected = [[60.0, 60.0, 1.0], [1.0, 2.0, 2.0], [10.0, 20.0, 2.0], [10.0, 60.0, 2.0]];
    assert_eq!(found, expected);
    assert_eq!(answer.get("runs"), None, "several pairs have no one answer");
}

/// A few bursts of three keys, and one event without a key.
fn bursts(files: &Files) -> String {
    let mut events = Vec::new();
    for burst in 0..20_u32 {
        for step in 0..=burst {
            let at = f64::from(burst) * 300.0 + f64::from(step * step) * 0.7;
            events.push((at, ["a", "b", "c"][(burst % 3) as usize]));
        }
    }
    events.push((9_000.0, ""));
    files.csv("events.csv", &events)
}

#[test]
fn the_table_and_the_chart_are_readable() {
    let files = Files::new();
    let printed = simulate(&[&[&*bursts(&files)], &KEY[..]].concat()).unwrap();
    insta::assert_snapshot!(printed);
}

#[test]
fn the_svg_is_one_self_contained_file() {
    let files = Files::new();
    let svg = files.path().join("out.svg");
    let flags = ["--min", "1s,10s", "--max", "10s,60s", "--svg", svg.to_str().unwrap()];
    simulate(&[&[&*bursts(&files)], &KEY[..], &flags[..]].concat()).unwrap();
    let drawn = std::fs::read_to_string(svg).unwrap();
    assert!(!drawn.replace("http://www.w3.org/2000/svg", "").contains("http"), "{drawn}");
    assert!(drawn.contains("prefers-color-scheme:dark"));
    insta::assert_snapshot!(drawn);
}

#[test]
fn r40_what_cannot_be_meant_is_refused_with_its_field() {
    let files = Files::new();
    let file = files.csv("events.csv", &[(0.0, "k")]);
    let no_dir = files.path().join("no/such.svg");
    let table: [(Words<'_>, Words<'_>); 14] = [
        (&["--pair", "60s:10s"], &["--pair", "min (60s) is longer than max (10s)"]),
        (&["--min", "60s", "--max", "10s"], &["min (60s) is longer than max (10s)"]),
        (&["--min", "0s", "--max", "10s"], &["--min", "zero"]),
        (&["--min=-1s", "--max", "10s"], &["--min", "negative"]),
        (&["--min", "1s", "--max", "10"], &["--max", "unit"]),
        (&["--min", "1s"], &["--max"]),
        (&["--pair", "10s"], &["--pair", "60s:10m"]),
        (&["--max-triggers", "0"], &["--max-triggers"]),
        (&["--payload", "collect:0"], &["--payload", "above zero"]),
        (&["--payload", "sum"], &["--payload", "unknown"]),
        (&["--time", "when"], &["--time", "\"when\"", "timestamp, key"]),
        (&["--key", "{{ key"], &["--key", "column"]),
        (&["--key", "{{ repo }}"], &["line 2", "--key", "`repo` is undefined", "key, timestamp"]),
        (&["--svg", no_dir.to_str().unwrap()], &["--svg", "such.svg"]),
    ];
    for (flags, parts) in table {
        let key = if flags.contains(&"--key") { &[][..] } else { &KEY[..] };
        let error = simulate(&[&[&*file], key, flags].concat()).unwrap_err();
        for part in parts {
            assert!(error.contains(part), "{flags:?}: {error:?} lacks {part:?}");
        }
    }
}
