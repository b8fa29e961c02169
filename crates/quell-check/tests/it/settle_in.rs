//! The checker on attempts that their handlers' own transactions end (R22): where the answer to the
//! commit is lost, the job may have succeeded or not, and nothing else is excused.

use quell_check::{Event, Line, Report};
use quell_core::{Draw, JobId, LeaseToken, SettledAs, Timestamp};
use serde_json::{Value, json};

use crate::processes::{claimed, ended, judged, process, window};

/// The attempt asks a transaction of its handler's own to end it.
fn settle_in(job: u64, token: u64) -> Value {
    json!({"event": "settle_in", "job": job.to_string(), "token": format!("{token}-7")})
}

fn settled(t: u64, job: u64, token: u64, outcome: &str, became: &str) -> Value {
    let mut event = ended(t, job, token, outcome, t);
    event["became"] = json!(became);
    event
}

fn expiry(t: u64, job: u64, token: u64) -> Value {
    let t = Timestamp::from_micros(t.cast_signed());
    let (job, token) = (JobId::new(job), LeaseToken::of(token, Draw::new(7)));
    let became = SettledAs::Scheduled { due: t };
    serde_json::to_value(Event::Expire { t, job, token, became, crash: false }).unwrap()
}

/// The row of the job at the end.
fn row(job: u64, state: &str) -> Value {
    json!({
        "event": "row", "job": job.to_string(), "task": "t", "key": "k", "state": state, "count": 1,
        "last": 10, "started": 20, "by": null,
    })
}

/// A whole record of a process, and the rows that the store has in the end.
fn run(events: &[Value], rows: &[Value]) -> (Report, String) {
    let rows: Vec<Line> = rows.iter().flat_map(|row| lines("rows", row)).collect();
    judged(&[process("one", true, events), rows])
}

fn lines(name: &str, event: &Value) -> Vec<Line> {
    quell_check::parse(name, &format!("{event}\n")).unwrap()
}

/// How many cases of a property were not judged because of the handler's transaction.
fn open(report: &Report, property: &str) -> u64 {
    let reasons = report.cases[property].unjudged.iter();
    reasons.filter(|(why, _)| why.contains("own transaction")).map(|(_, count)| count).sum()
}

const BEGUN: fn() -> [Value; 2] = || [window(10, 1, "quiet"), claimed(20, 1, 1, 1)];

#[test]
fn r22_a_commit_of_unknown_outcome_may_have_ended_the_job_or_not() {
    let asked = [&BEGUN()[..], &[settle_in(1, 1)]].concat();
    let (report, text) = run(&asked, &[row(1, "succeeded")]);
    assert!(report.violations.is_empty(), "it may have committed: {text}");
    assert_eq!(open(&report, "P11"), 1, "{}", report.table());
    // It did not commit: the lease expired, and the job ran again.
    let again = [
        expiry(1_020, 1, 1),
        window(1_020, 1, "quiet"),
        claimed(1_030, 1, 2, 1),
        settled(1_040, 1, 2, "succeeded", "succeeded"),
    ];
    let (report, text) = run(&[&asked[..], &again].concat(), &[row(1, "succeeded")]);
    assert!(report.violations.is_empty(), "it may not have: {text}");
    assert_eq!(open(&report, "P11"), 0, "{}", report.table());
}

#[test]
fn r22_what_no_commit_of_the_attempt_explains_is_found() {
    let asked = [&BEGUN()[..], &[settle_in(1, 1)]].concat();
    for state in ["dead", "cancelled", "scheduled", "running"] {
        let (report, text) = run(&asked, &[row(1, state)]);
        let property = if state == "running" { "P32" } else { "P11" };
        assert!(report.broke(property), "a commit leaves no job {state}: {text}");
    }
    let (report, _) = run(&BEGUN(), &[row(1, "succeeded")]);
    assert!(report.broke("P11"), "its handler asked no transaction");
    let another = [&BEGUN()[..], &[settle_in(1, 9)]].concat();
    let (report, _) = run(&another, &[row(1, "succeeded")]);
    assert!(report.broke("P11"), "it was another attempt that did");
    // A commit ends the job for good.
    let again = [&asked[..], &[claimed(30, 1, 2, 1)]].concat();
    let (report, _) = run(&again, &[]);
    assert!(report.broke("P11"), "it ran again, and no lease expired");
}

/// The store, asked afterwards, has seen no commit.
#[test]
fn r22_a_transaction_that_did_not_commit_excuses_nothing() {
    let other = |t| [window(t, 2, "quiet"), claimed(t + 1, 2, 1, 1)];
    let asked = [&BEGUN()[..], &[settle_in(1, 1)]].concat();
    let (report, text) = run(&[&asked[..], &other(30)].concat(), &[]);
    assert!(!report.broke("P9") && open(&report, "P9") == 1, "its key may be free: {text}");
    for refutation in [ended(40, 1, 1, "failed", 50), expiry(1_020, 1, 1)] {
        let events = [&asked[..], &other(30), &[refutation]].concat();
        let (report, text) = run(&events, &[]);
        assert!(report.broke("P9"), "two attempts of the key ran at once: {text}");
        let events = [&events[..], &[claimed(2_000, 1, 2, 1)]].concat();
        let (report, text) = run(&events, &[row(1, "succeeded"), row(2, "succeeded")]);
        assert!(report.broke("P11"), "the attempt that ran last asked for nothing: {text}");
    }
}

/// A handler that panics, or takes too long, after its commit reports something else.
#[test]
fn r21_r22_what_an_attempt_reports_after_its_commit_may_be_refused() {
    let refused = settled(40, 1, 1, "timed_out", "refused");
    let asked = [&BEGUN()[..], &[settle_in(1, 1), refused.clone()]].concat();
    let (report, text) = run(&asked, &[row(1, "succeeded")]);
    assert!(report.violations.is_empty(), "{text}");
    assert_eq!((open(&report, "P10"), open(&report, "P11")), (1, 1), "{}", report.table());
    let (report, _) = run(&[&BEGUN()[..], &[refused]].concat(), &[]);
    assert!(report.broke("P10"), "it had the right to report");
}
