//! Reading traces: the first bytes decide the format, and an error names the row.

use std::path::Path;
use std::process::Command;

use quell_core::Key;
use quell_lab::trace::{Source, Trace};
use quell_testkit::Files;
use serde_json::Value;

use crate::files::gzip;

type KeyOf = fn(&Value) -> quell_core::Result<Option<Key>>;

fn read(file: &str, key: KeyOf) -> Result<Trace, String> {
    let source = Source::new(file).key(key).payloads();
    Trace::read(&source).map_err(|error| format!("{error:#}"))
}

/// The column `key`.
fn plain(row: &Value) -> quell_core::Result<Option<Key>> {
    row["key"].as_str().map(Key::new).transpose()
}

/// Repository and top folder.
fn folder(row: &Value) -> quell_core::Result<Option<Key>> {
    let top = row["path"].as_str().unwrap().split('/').next().unwrap();
    Key::new(format!("{}/{top}", row["repo"].as_str().unwrap())).map(Some)
}

/// Author and path.
fn author(row: &Value) -> quell_core::Result<Option<Key>> {
    let text = |name: &str| row[name].as_str().unwrap().to_owned();
    Key::new(format!("{}:{}", text("author"), text("path"))).map(Some)
}

/// Seconds, key and payload of each event.
fn shown(trace: &Trace) -> Vec<String> {
    let shown = |event| {
        let key = trace.key(event).map_or("-", quell_core::Key::as_str);
        format!("{} {key} {}", event.at.as_micros(), trace.payload(event).unwrap().as_str())
    };
    trace.events().iter().map(shown).collect()
}

#[test]
fn a_file_is_read_by_its_first_bytes_and_not_by_its_name() {
    let files = Files::new();
    let csv = "timestamp,repo,path\n2,a,x/1\n1,b,\"y/\"\"2\"\"\"\n";
    let lines = "{\"timestamp\": 2, \"repo\": \"a\", \"path\": \"x/1\"}\n\n  \
                 {\"timestamp\":\"1970-01-01T00:00:01Z\",\"repo\":\"b\",\"path\":\"y/\\\"2\\\"\"}";
    let table = [
        files.write("a.gz", csv),
        files.write("b.csv", gzip(csv.as_bytes())),
        files.write("c.csv", lines),
        files.write("d", gzip(lines.as_bytes())),
    ];
    let mut all = table.iter().map(|file| {
        let trace = read(file, folder).unwrap();
        trace.events().iter().map(|event| (event.at, trace.key(event).cloned())).collect::<Vec<_>>()
    });
    let first = all.next().unwrap();
    assert_eq!(first.len(), 2);
    assert!(all.all(|other| other == first));
    let csv = read(&table[0], folder).unwrap();
    assert_eq!(
        shown(&csv),
        [
            r#"1000000 b/y {"path":"y/\"2\"","repo":"b","timestamp":"1"}"#,
            r#"2000000 a/x {"path":"x/1","repo":"a","timestamp":"2"}"#,
        ]
    );
}

#[test]
fn events_of_one_instant_keep_the_order_of_the_file() {
    let files = Files::new();
    let file = files.csv("e.csv", &[(5.0, "x"), (1.0, "b"), (1.0, "a"), (1.0, "b"), (0.5, "z")]);
    let trace = read(&file, plain).unwrap();
    let keys: Vec<_> = trace.events().iter().map(|e| trace.key(e).unwrap().as_str()).collect();
    assert_eq!(keys, ["z", "b", "a", "b", "x"]);
    assert_eq!(trace.keys().len(), 4);
}

fn git(repository: &Path, at: u32, args: &[&str]) {
    let date = format!("@{at} +0000");
    let status = Command::new("git")
        .arg("-C")
        .arg(repository)
        .args(["-c", "user.name=Ada L", "-c", "user.email=ada@example.org"])
        .args(["-c", "commit.gpgsign=false"])
        .args(args)
        .env("GIT_COMMITTER_DATE", &date)
        .env("GIT_AUTHOR_DATE", &date)
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .status()
        .unwrap();
    assert!(status.success(), "git {args:?}");
}

#[test]
fn the_history_of_a_git_repository_is_one_event_per_changed_file() {
    let files = Files::new();
    let repository = files.path().join("project");
    std::fs::create_dir_all(repository.join("src")).unwrap();
    git(&repository, 0, &["init", "--quiet", "."]);
    std::fs::write(repository.join("src/a.rs"), "1").unwrap();
    std::fs::write(repository.join("src/b c\nü.rs"), "1").unwrap();
    git(&repository, 1_000, &["add", "--all"]);
    git(&repository, 1_000, &["commit", "--quiet", "-m", "begin\n\nbody"]);
    git(&repository, 1_500, &["commit", "--quiet", "--allow-empty", "-m", "nothing"]);
    std::fs::write(repository.join("src/a.rs"), "2").unwrap();
    git(&repository, 2_000, &["commit", "--quiet", "--all", "-m", "more, \"quoted\""]);

    let trace = read(repository.to_str().unwrap(), author).unwrap();
    let seen: Vec<_> = trace
        .events()
        .iter()
        .map(|event| (event.at.as_micros() / 1_000_000, trace.key(event).unwrap().as_str()))
        .collect();
    let (a, b) = ("Ada L:src/a.rs", "Ada L:src/b c\nü.rs");
    assert_eq!(seen, [(1_000, a), (1_000, b), (2_000, a)]);
    let last = trace.payload(&trace.events()[2]).unwrap().as_str();
    assert!(last.contains(r#""subject":"more, \"quoted\"""#), "{last}");
    assert!(!last.contains("example.org"), "{last}");
}

#[test]
fn r40_a_source_that_cannot_be_read_is_refused_by_name_and_line() {
    let files = Files::new();
    let dir = files.path().to_str().unwrap().to_owned();
    let mut torn = std::fs::read(
        files.write("whole.gz", gzip(format!("timestamp,key\n{}", "1,k\n".repeat(99)).as_bytes())),
    )
    .unwrap();
    torn.truncate(torn.len() - 9);
    let huge = format!("{{\"timestamp\":1,\"x\":\"{}\"}}\n", "x".repeat(1 << 20));
    let table = [
        (format!("{dir}/nosuch.csv"), &["nosuch.csv", "cannot be opened"][..]),
        (files.write("empty.csv", ""), &["empty.csv", "is empty"]),
        (files.write("header.csv", "timestamp,key\n"), &["header.csv", "no events"]),
        (files.write("short.csv", "timestamp,key\n1,k\n2\n"), &["short.csv", "line 3", "1 fields"]),
        (
            files.write("time.csv", "timestamp,key\n1,k\nsoon,k\n"),
            &["line 3", "\"soon\"", "RFC 3339"],
        ),
        (files.write("utf8.csv", b"timestamp,key\n1,\xff\n"), &["utf8.csv", "line 2", "UTF-8"]),
        (files.write("torn.gz", torn), &["torn.gz", "cannot be read"]),
        (files.write("array", "[{}]"), &["array", "JSON lines"]),
        (files.write("a.jsonl", "{\"timestamp\":1,\"key\":1}\n{]\n"), &["line 2", "not JSON"]),
        (files.write("b.jsonl", "{\"timestamp\":1,\"key\":1}\n\n7\n"), &["line 3", "object"]),
        (files.write("c.jsonl", "{\"key\":1}\n"), &["line 1", "\"timestamp\"", "key"]),
        (files.write("d.jsonl", huge), &["line 1", "bytes"]),
        (dir, &["directory without .git"]),
    ];
    for (file, parts) in table {
        let error = read(&file, plain).unwrap_err();
        for part in parts {
            assert!(error.contains(part), "{file}: {error:?} lacks {part:?}");
        }
    }
    let long = files.write("long.csv", format!("timestamp,key\n1,{}\n", "k".repeat(600)));
    let error = read(&long, plain).unwrap_err();
    assert!(error.contains("line 2") && error.contains("600 bytes"), "{error}");
}

#[test]
fn r40_an_error_names_the_part_of_the_source_at_fault() {
    let files = Files::new();
    let file = files.csv("e.csv", &[(1.0, "k")]);
    let long: KeyOf = |_| Key::new("k".repeat(600)).map(Some);
    let table = [
        (Source::new(&file).time("when"), Some("time"), "no column \"when\""),
        (Source::new(&file).time("key"), Some("time"), "\"k\" is not a time"),
        (Source::new(&file).key(long), Some("key"), "600 bytes"),
        (Source::new(files.path().join("no.csv")), None, "cannot be opened"),
    ];
    for (source, field, part) in table {
        let error = Trace::read(&source).unwrap_err();
        assert_eq!(error.field(), field, "{error:#}");
        assert!(format!("{error:#}").contains(part), "{error:#}");
    }
}

#[test]
fn payloads_are_kept_where_the_source_says_so() {
    let files = Files::new();
    let file = files.csv("e.csv", &[(1.0, "k")]);
    let trace = Trace::read(&Source::new(&file)).unwrap();
    assert_eq!((trace.events().len(), trace.payload(&trace.events()[0])), (1, None));
    let trace = Trace::read(&Source::new(&file).payloads()).unwrap();
    assert!(trace.payload(&trace.events()[0]).is_some());
}
