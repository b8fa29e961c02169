//! `quell check` as a user runs it: on files, and on what a server wrote.

use quell_testkit::Files;

use crate::commands::check;

const LOST: &str = r#"{"event":"stamp","op":1,"key":"a","value":1}
{"event":"stamp_ok","op":1}
"#;
const RAN: &str = r#"{"event":"read","run":1,"key":"a","value":1}
{"event":"read_ok","run":1}
"#;

#[test]
fn a_history_that_keeps_the_promises_is_said_to() {
    let files = Files::new();
    let (callers, runs) = (files.write("callers.jsonl", LOST), files.write("runs.jsonl", RAN));
    let said = check(&[&callers, &runs]).unwrap();
    let last =
        "4 events, 0 triggers accepted, 0 attempts, 0 triggers that have not run: 0 violations\n";
    assert!(said.ends_with(last), "{said}");
    let judged = said.lines().find(|line| line.starts_with("P2 ")).unwrap();
    assert_eq!(judged.split_whitespace().collect::<Vec<_>>(), ["P2", "1", "judged"]);
    let idle = said.lines().find(|line| line.starts_with("P9 ")).unwrap();
    assert_eq!(idle.split_whitespace().nth(1), Some("0"), "{said}");
}

#[test]
fn r02_a_lost_trigger_is_shown_with_its_events() {
    let files = Files::new();
    let callers = files.write("callers.jsonl", LOST);
    let (said, error) = crate::commands::check_fails(&[&callers]);
    assert!(said.starts_with("P2: a was stamped 1, but no good run read more than 0\n"), "{said}");
    assert!(said.contains(r#""event":"stamp_ok","op":1"#), "{said}");
    assert_eq!(error, "the history breaks 1 promises");
}

/// What a process wrote before it was killed, and what the next one wrote behind it.
#[test]
fn a_process_that_did_not_end_its_record_is_named() {
    let files = Files::new();
    let path = files.write("one.jsonl", "");
    let path = std::path::Path::new(&path);
    let killed = quell_server::history::FileSink::append(path).unwrap();
    quell::history::History::record(&killed, &quell::history::Event::ReadOk { run: 7 });
    drop(killed);
    let text = std::fs::read_to_string(path).unwrap();
    std::fs::write(path, &text[..text.len() - 9]).unwrap();
    quell_server::history::FileSink::append(path).unwrap().end();
    let said = check(&[path.to_str().unwrap()]).unwrap();
    let incomplete = said.lines().filter(|line| line.contains("did not end its record"));
    assert_eq!(incomplete.count(), 1, "{said}");
    assert!(said.contains("3 events"), "begin, begin and end: {said}");
}

#[test]
fn what_is_no_history_is_refused_by_line_and_file() {
    let files = Files::new();
    let broken = files.write("broken.jsonl", format!("nonsense\n{RAN}"));
    let (_, error) = crate::commands::check_fails(&[&broken]);
    assert!(error.starts_with("line 1 of ") && error.contains("broken.jsonl"), "{error}");
    let (_, error) = crate::commands::check_fails(&["/nowhere/h.jsonl"]);
    assert!(error.contains("cannot read /nowhere/h.jsonl"), "{error}");
}
