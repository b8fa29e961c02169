//! `quell replay`: its table, its flags and what it refuses.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use quell_testkit::Files;

use crate::commands::{json, replay, simulate};

const KEY: [&str; 2] = ["--key", "{{ key }}"];
const SHARED: [&str; 6] =
    ["triggers", "runs", "covered", "delay_p50_s", "delay_p99_s", "delay_max_s"];

#[test]
fn r08_the_numbers_are_those_of_simulate_on_sqlite_and_in_memory() {
    let files = Files::new();
    let file = files.csv("events.csv", &[(0.0, "k"), (3.0, "k"), (7.0, "k"), (90.0, "")]);
    let rule = ["--min", "10s", "--max", "60s", "--max-triggers", "2", "--json"];
    let predicted = json(simulate(&[&[&*file], &KEY[..], &rule[..]].concat()));
    let sqlite = format!("sqlite://{}/q.db", files.path().display());
    for store in ["memory:", &sqlite] {
        let store = ["--store", store];
        let seen = json(replay(&[&[&*file], &KEY[..], &rule[..], &store[..]].concat()));
        for name in SHARED {
            assert_eq!(seen[name], predicted[name], "{name} on {store:?}: {seen}");
        }
        assert_eq!((&seen["predicted_runs"], &seen["lateness_max_s"]), (&3.into(), &0.0.into()));
    }
}

#[test]
fn r02_at_real_speed_delays_are_in_the_time_of_the_trace() {
    let files = Files::new();
    let file = files.csv("events.csv", &[(0.0, "k"), (3.0, "k"), (7.0, "k"), (90.0, "")]);
    let rule = ["--min", "10s", "--max", "60s", "--speed", "500", "--json"];
    let seen = json(replay(&[&[&*file], &KEY[..], &rule[..]].concat()));
    assert_eq!((&seen["triggers"], &seen["covered"]), (&4.into(), &4.into()));
    assert!(seen["delay_max_s"].as_f64().unwrap() >= 10.0, "{seen}");
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
    for (flags, parts) in table {
        let error = replay(&[&[&*file], &KEY[..], flags].concat()).unwrap_err();
        for part in parts {
            assert!(error.contains(part), "{flags:?}: {error:?} lacks {part:?}");
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
