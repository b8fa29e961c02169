//! The checker on jobs that a window absorbs (R12).

use quell_check::Event;
use quell_core::{Draw, JobId, LeaseToken, SettledAs, Timestamp};
use serde_json::{Value, json};

use crate::processes::{claimed, judged, process, window};

/// The lease of job 1 expires, and job 2 takes its triggers.
fn expired(t: u64) -> Value {
    let t = Timestamp::from_micros(t.cast_signed());
    let became = SettledAs::Absorbed { by: JobId::new(2), due: t };
    let token = LeaseToken::of(1, Draw::new(7));
    serde_json::to_value(Event::Expire { t, job: JobId::new(1), token, became, crash: false })
        .unwrap()
}

/// Job 2 as it is once it has absorbed job 1, with this number of triggers.
fn counted(t: u64, count: u64) -> Value {
    let mut window = window(t, 2, "quiet");
    window["count"] = json!(count);
    window
}

/// A call whose outcome is unknown.
fn called(key: &str) -> Value {
    json!({
        "event": "trigger_invoke", "op": 1, "task": "t", "key": key, "dedup": null,
        "payload": null, "fold": {"fold": "last"},
    })
}

fn breaks_p14(count: u64, call: Option<&str>) -> bool {
    let events = [
        window(10, 1, "quiet"),
        claimed(20, 1, 1, 1),
        window(30, 2, "quiet"),
        expired(1_020),
        counted(1_020, count),
    ];
    let calls: Vec<Value> = call.map(called).into_iter().collect();
    let (report, text) = judged(&[process("caller", true, &calls), process("one", true, &events)]);
    let (broke, cases) = (report.broke("P14"), &report.cases["P14"]);
    assert!(cases.judged + cases.unjudged.values().sum::<u64>() > 0, "{text}");
    broke
}

/// A server that was silent takes a call when it goes on, after its caller has given up.
#[test]
fn r12_r39_a_join_of_unknown_outcome_hides_what_a_window_absorbed() {
    assert!(!breaks_p14(2, None), "its own trigger, and that of job 1");
    assert!(breaks_p14(1, None), "it did not take the trigger");
    assert!(breaks_p14(3, None), "a trigger that came from nowhere");
    assert!(!breaks_p14(3, Some("k")), "the call may have joined");
    assert!(breaks_p14(3, Some("other")), "the call had another key");
}
