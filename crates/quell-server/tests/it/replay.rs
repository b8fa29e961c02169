//! `quell replay`: a real store and worker run exactly what the rules predict.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::commands::{Files, json, replay, simulate};

/// Seconds and keys.
type Events<'a> = &'a [(f64, &'a str)];

const KEY: [&str; 2] = ["--key", "{{ key }}"];
const SHARED: [&str; 6] =
    ["triggers", "runs", "covered", "delay_p50_s", "delay_p99_s", "delay_max_s"];

/// Replays at full speed on this store, and compares every number with the simulator's.
fn same_as_simulated(file: &str, rule: &[&str], store: &str) -> Value {
    let predicted = json(simulate(&[&[file, "--json"], &KEY[..], rule].concat()));
    let store = ["--store", store];
    let seen = json(replay(&[&[file, "--json"], &KEY[..], rule, &store[..]].concat()));
    for name in SHARED {
        assert_eq!(seen[name], predicted[name], "{name} of {rule:?} on {store:?}: {seen}");
    }
    assert_eq!(seen["covered"], seen["triggers"]);
    assert_eq!(seen["lateness_max_s"], 0.0);
    seen
}

/// Many events of a few keys, often several in one instant; the same at every run.
fn noise(files: &Files, events: usize) -> String {
    let mut random = fastrand::Rng::with_seed(7);
    let mut at = 1_000_000.0;
    let rows: Vec<(f64, &str)> = (0..events)
        .map(|_| {
            at += [0.0, 0.0, 0.5, 1.0, 5.0, 10.0][random.usize(..6)];
            (at, ["a", "b", "c", "d", ""][random.usize(..5)])
        })
        .collect();
    files.csv("noise.csv", &rows)
}

#[test]
fn r08_every_published_scenario_runs_as_simulated_on_sqlite_and_in_memory() {
    let files = Files::new();
    let every_five: Vec<(f64, &str)> = (0..=60).map(|n| (f64::from(n) * 5.0, "k")).collect();
    let table: [(Events<'_>, [&str; 4], u64); 4] = [
        (&[(0.0, "k"), (3.0, "k"), (7.0, "k")], ["--min", "10s", "--max", "60s"], 1),
        (&every_five, ["--min", "10s", "--max", "60s"], 6),
        (&[(0.0, "k"), (25.0, "k")], ["--min", "10s", "--max", "60s"], 2),
        (&[(19_800.0, "k"), (19_860.0, "k")], ["--min", "5m", "--max", "5m"], 1),
    ];
    for (number, (events, rule, runs)) in table.into_iter().enumerate() {
        let file = files.csv("events.csv", events);
        let sqlite = format!("sqlite://{}/{number}.db", files.path().display());
        for store in ["memory:", &sqlite] {
            assert_eq!(same_as_simulated(&file, &rule, store)["runs"], runs, "row {number}");
        }
    }
}

#[test]
fn r07_r10_counts_and_folds_run_as_simulated() {
    let files = Files::new();
    let file = noise(&files, 400);
    let rules: [&[&str]; 5] = [
        &["--max-triggers", "2"],
        &["--max-triggers", "1"],
        &["--payload", "collect:3"],
        &["--payload", "accumulate:ids"],
        &["--payload", "merge"],
    ];
    for (number, rule) in rules.into_iter().enumerate() {
        let rule = [rule, &["--min", "5s", "--max", "20s"]].concat();
        let sqlite = format!("sqlite://{}/{number}.db", files.path().display());
        same_as_simulated(&file, &rule, "memory:");
        same_as_simulated(&file, &rule, &sqlite);
    }
}

#[test]
fn r02_at_real_speed_every_trigger_is_covered() {
    let files = Files::new();
    let file = noise(&files, 60);
    let rule = ["--min", "5s", "--max", "20s", "--speed", "500", "--json"];
    let seen = json(replay(&[&[&*file], &KEY[..], &rule[..]].concat()));
    assert_eq!((&seen["triggers"], &seen["covered"]), (&60.into(), &60.into()));
    let runs = seen["runs"].as_u64().unwrap();
    assert!((1..=60).contains(&runs), "{seen}");
}

#[test]
fn the_table_says_what_was_measured() {
    let files = Files::new();
    let file = files.csv("events.csv", &[(0.0, "k"), (3.0, "k"), (7.0, "k"), (90.0, "")]);
    let rule = ["--min", "10s", "--max", "60s"];
    let printed = replay(&[&[&*file], &KEY[..], &rule[..]].concat()).unwrap();
    let (_, rest) = printed.split_once(", min").unwrap();
    insta::assert_snapshot!(rest);
}

#[test]
fn r40_a_replay_needs_sound_thresholds_and_a_store_of_its_own() {
    let files = Files::new();
    let file = files.csv("events.csv", &[(0.0, "k")]);
    let used = format!("sqlite://{}/used.db", files.path().display());
    let sound = ["--min", "10s", "--max", "60s"];
    replay(&[&[&*file, "--store", &used], &KEY[..], &sound[..]].concat()).unwrap();
    let table: [(&[&str], &[&str]); 8] = [
        (&["--min", "60s", "--max", "10s"], &["min (60s) is longer than max (10s)"]),
        (&["--min", "0s", "--max", "10s"], &["--min", "zero"]),
        (&["--min", "10s"], &["--max"]),
        (&["--min", "10s", "--max", "60s", "--speed", "0"], &["--speed"]),
        (&["--min", "10s", "--max", "60s", "--speed", "1e8"], &["--speed", "slower"]),
        (&["--min", "10s", "--max", "60s", "--store", &used], &["--store", "holds 1 jobs"]),
        (&["--min", "10s", "--max", "60s", "--store", "mysql://x"], &["--store", "mysql"]),
        (&["--min", "10s", "--max", "60s", "--time", "when"], &["--time", "when"]),
    ];
    for (wish, parts) in table {
        let error = replay(&[&[&*file], &KEY[..], wish].concat()).unwrap_err();
        for part in parts {
            assert!(error.contains(part), "{wish:?}: {error:?} lacks {part:?}");
        }
    }
}

#[test]
fn an_interrupt_ends_a_replay_in_order_and_leaves_nothing_behind() {
    let files = Files::new();
    let file = files.csv("events.csv", &[(0.0, "k"), (0.0, ""), (3_600.0, "k")]);
    let scratch = files.path().join("scratch");
    std::fs::create_dir(&scratch).unwrap();
    let child = Command::new(env!("CARGO_BIN_EXE_quell"))
        .args(["replay", &file, "--min", "10s", "--max", "60s", "--speed", "1"])
        .args(KEY)
        .env("TMPDIR", &scratch)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let store_exists = || {
        std::fs::read_dir(&scratch)
            .unwrap()
            .any(|dir| dir.unwrap().path().join("replay.db-wal").exists())
    };
    let deadline = Instant::now() + Duration::from_secs(30);
    while !store_exists() {
        assert!(Instant::now() < deadline, "no store appeared");
        std::thread::yield_now();
    }
    let interrupt = ["-INT".to_owned(), child.id().to_string()];
    assert!(Command::new("kill").args(interrupt).status().unwrap().success());
    let ended = child.wait_with_output().unwrap();
    assert!(!ended.status.success());
    let said = String::from_utf8(ended.stderr).unwrap();
    assert!(said.contains("interrupted after"), "{said}");
    assert_eq!(std::fs::read_dir(&scratch).unwrap().count(), 0, "the scratch store is left");
}
