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

/// Such a call may have joined a window: then its job has a payload and contexts of more triggers than
/// are on record.
#[test]
fn r10_r42_a_join_of_unknown_outcome_explains_payloads_and_contexts() {
    let context = |n: u64| format!("00-{n:032x}-{n:016x}-01");
    let call = |op: u64, key: &str| {
        json!({
            "event": "trigger_invoke", "op": op, "task": "t", "key": key, "dedup": null,
            "payload": op.to_string(), "fold": {"fold": "last"},
            "trace": {"traceparent": context(op)},
        })
    };
    let receipt = json!({"receipt": "accepted", "job": "1", "trigger": "1.1", "due": 10});
    let ok = json!({"event": "trigger_ok", "op": 1, "receipt": receipt});
    let start = json!({
        "event": "start", "t": 21, "job": "1", "token": "1-7", "task": "t", "key": "k", "worker": "w1",
        "count": 2, "due": 10, "attempt": 1, "until": 1_020, "payload": "2",
        "traces": format!("{}\n{}", context(1), context(2)),
    });
    let mut claim = claimed(20, 1, 1, 1);
    claim["count"] = json!(2);
    let mut fewer = claim.clone();
    fewer["count"] = json!(0);
    let cases = [
        (&claim, None, true),
        (&claim, Some("other"), true),
        (&claim, Some("k"), false),
        (&fewer, Some("k"), true),
    ];
    for (claim, key, broke) in cases {
        let calls =
            [vec![call(1, "k"), ok.clone()], key.map(|key| call(2, key)).into_iter().collect()];
        let events = [window(10, 1, "quiet"), claim.clone(), start.clone()];
        let (report, text) =
            judged(&[process("caller", true, &calls.concat()), process("one", true, &events)]);
        for property in ["P5", "P33"] {
            let cases = &report.cases[property];
            assert_eq!(cases.judged + cases.unjudged.values().sum::<u64>(), 1, "{text}");
            assert_eq!(report.broke(property), broke, "{property} with {key:?}: {text}");
        }
    }
}
