//! `quell simulate`: the published scenarios, the shape of its answers, and what it refuses.

use crate::commands::{Files, json, simulate};

/// Runs, covered triggers, and the longest delay in seconds.
type Answer = (u64, u64, f64);
/// Words of a command line.
type Words<'a> = &'a [&'a str];

const KEY: [&str; 2] = ["--key", "{{ key }}"];

/// Runs and the longest delay of one key's triggers at these seconds.
fn one_key(times: &[f64], rule: &[&str]) -> Answer {
    let files = Files::new();
    let events: Vec<(f64, &str)> = times.iter().map(|at| (*at, "k")).collect();
    let file = files.csv("events.csv", &events);
    let answer = json(simulate(&[&[&*file, "--json"], &KEY[..], rule].concat()));
    let number = |name: &str| answer[name].as_u64().unwrap();
    assert_eq!(number("triggers"), times.len() as u64);
    (number("runs"), number("covered"), answer["delay_max_s"].as_f64().unwrap())
}

#[test]
fn r08_the_published_scenarios_run_as_their_table_says() {
    let every_five: Vec<f64> = (0..=60).map(|n| f64::from(n) * 5.0).collect();
    let (ten, fixed) = (["--min", "10s", "--max", "60s"], ["--pair", "5m:5m"]);
    let table: [(&[f64], Words<'_>, Answer); 6] = [
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
    let rule = ["--min", "10s", "--max", "60s"];
    assert_eq!(one_key(&[0.0, 10.0], &rule), (2, 2, 10.0));
    assert_eq!(one_key(&[0.0, 9.999_999], &rule), (1, 2, 19.999_999));
}

#[test]
fn r07_r10_enough_triggers_make_a_window_due_at_once() {
    let five = [0.0, 0.0, 0.0, 1.0, 1.0];
    let rule = ["--min", "10s", "--max", "60s"];
    let by_count = [&rule[..], &["--max-triggers", "2"]].concat();
    let by_collect = [&rule[..], &["--payload", "collect:2"]].concat();
    assert_eq!(one_key(&five, &by_count), (3, 5, 10.0));
    assert_eq!(one_key(&five, &by_collect), (3, 5, 10.0));
    assert_eq!(one_key(&five, &[&rule[..], &["--payload", "merge"]].concat()), (1, 5, 11.0));
}

#[test]
fn r09_an_event_without_a_key_is_a_run_of_its_own() {
    let files = Files::new();
    let file = files.csv("events.csv", &[(0.0, ""), (0.0, ""), (1.0, "k"), (2.0, "k")]);
    let answer = json(simulate(&[&[&*file, "--json", "--pair", "10s:60s"], &KEY[..]].concat()));
    assert_eq!((&answer["runs"], &answer["keys"]), (&3.into(), &1.into()));
    assert_eq!(answer["delay_p50_s"], 0.0);
}

#[test]
fn events_out_of_order_are_put_in_order() {
    assert_eq!(one_key(&[7.0, 0.0, 3.0], &["--pair", "10s:60s"]), (1, 3, 17.0));
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
    let wish = ["--min", "1s,10s", "--max", "10s,60s", "--svg", svg.to_str().unwrap()];
    simulate(&[&[&*bursts(&files)], &KEY[..], &wish[..]].concat()).unwrap();
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
    for (wish, parts) in table {
        let key = if wish.contains(&"--key") { &[][..] } else { &KEY[..] };
        let error = simulate(&[&[&*file], key, wish].concat()).unwrap_err();
        for part in parts {
            assert!(error.contains(part), "{wish:?}: {error:?} lacks {part:?}");
        }
    }
}
