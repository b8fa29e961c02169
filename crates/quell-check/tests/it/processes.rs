//! The checker on what real processes write: each says when it began and that it ended, and what one
//! that was killed may have taken with it excuses what it may explain, and nothing else.

use quell_check::{Clocks, Event, Line, Report, check, check_by, elsewhere, merge, parse};
use quell_core::Timestamp;
use serde_json::{Value, json};

pub(crate) fn window(t: u64, job: u64, reason: &str) -> Value {
    json!({
        "event": "window", "t": t, "job": job.to_string(), "task": "t", "queue": "q", "key": "k",
        "priority": 0, "first": 10, "last": 10, "count": 1, "suppressed": 0, "due": t, "bound": t,
        "nb": t, "reason": reason,
        "shape": {"fold": {"fold": "last"}, "edge": "trailing"},
    })
}

/// The same of another key, and of this priority.
fn keyed(mut window: Value, key: &str, priority: i16) -> Value {
    (window["key"], window["priority"]) = (json!(key), json!(priority));
    window
}

pub(crate) fn claimed(t: u64, job: u64, token: u64, attempt: u32) -> Value {
    json!({
        "event": "claimed", "t": t, "job": job.to_string(), "token": format!("{token}-7"), "task": "t",
        "queue": "q", "key": "k", "worker": format!("w{token}"), "count": 1, "due": t,
        "attempt": attempt, "until": t + 1_000,
    })
}

pub(crate) fn ended(t: u64, job: u64, token: u64, outcome: &str, due: u64) -> Value {
    json!({
        "event": "settle", "t": t, "job": job.to_string(), "token": format!("{token}-7"), "outcome": outcome,
        "became": {"scheduled": {"due": due}},
    })
}

fn worker(token: u64) -> Value {
    let secs = |secs: u64| json!({"secs": secs, "nanos": 0});
    let retry = json!({
        "max_attempts": 5, "min_backoff": secs(30), "max_backoff": secs(60), "jitter": "none",
    });
    let task = json!({"task": "t", "queue": "q", "retry": retry});
    json!({"event": "worker", "worker": format!("w{token}"), "tasks": [task]})
}

/// What a process wrote, from its begin, and to its end where it had one.
pub(crate) fn process(name: &str, ends: bool, events: &[Value]) -> Vec<Line> {
    let begin = json!({"event": "begin", "t": 0});
    let end = json!({"event": "end"});
    let lines = std::iter::once(&begin).chain(events).chain(ends.then_some(&end));
    parse(name, &lines.map(|line| format!("{line}\n")).collect::<String>()).unwrap()
}

pub(crate) fn judged(files: &[Vec<Line>]) -> (Report, String) {
    let lines = merge(files.to_vec());
    let report = check(&lines);
    let text = report.text(&lines);
    (report, text)
}

fn fault(t: i64, whom: &str) -> Line {
    let t = Timestamp::from_micros(t);
    let (what, whom) = ("kill".to_owned(), whom.to_owned());
    Line::new("the test", Event::Fault { t, what, whom })
}

/// Two open windows of a key, two attempts of it under valid leases, a wrong number of an attempt,
/// and a retry within its backoff: all in a record as a server writes it.
#[test]
fn the_history_of_a_real_store_shows_what_it_breaks() {
    let second = 1_000_000;
    let events = [
        worker(1),
        window(10, 1, "quiet"),
        window(11, 2, "quiet"),
        claimed(20, 1, 1, 1),
        claimed(21, 2, 1, 9),
        ended(30, 1, 1, "failed", 30 + second),
        window(30, 1, "backoff"),
    ];
    let (report, text) = judged(&[process("serve", true, &events)]);
    for property in ["P8", "P9", "P12", "P13"] {
        assert!(report.broke(property), "{property} is missing:\n{text}");
    }
    report.require(&["P6", "P8", "P9", "P10", "P11", "P12", "P13", "P24"]).unwrap();
    assert_eq!((report.processes, report.incomplete.len()), (1, 0));
}

#[test]
fn a_property_without_a_case_is_named_with_its_reasons() {
    let (report, _) = judged(&[process("serve", true, &[window(10, 1, "quiet")])]);
    let why = report.require(&["P8", "P1", "P19"]).unwrap_err();
    assert!(why.starts_with("P1 ") && why.contains("rows"), "{why}");
    assert!(why.contains("P19"), "{why}");
}

#[test]
fn checker_finds_an_order_for_two_processes_that_commit_at_one_moment() {
    let one = [
        window(10, 1, "quiet"),
        claimed(20, 1, 1, 1),
        ended(30, 1, 1, "released", 30),
        window(30, 1, "released"),
    ];
    for second_claim in [30, 29] {
        let one = process("one", true, &one);
        let two = process("two", true, &[claimed(second_claim, 1, 2, 1)]);
        for files in [[one.clone(), two.clone()], [two.clone(), one.clone()]] {
            let (report, text) = judged(&files);
            assert_eq!(report.broke("P9"), second_claim == 29, "{text}");
        }
    }
}

/// On SQLite a claim may carry the time of the trigger that made its job, or of the end of the
/// attempt before it: it waited for the lock.
#[test]
fn checker_puts_a_claim_of_the_same_moment_behind_what_it_saw() {
    let caller = [window(10, 1, "quiet"), window(21, 2, "quiet")];
    for (second_claim, first_claim) in [(30, 10), (29, 11), (31, 9)] {
        let caller = process("caller", true, &caller);
        let first = [claimed(first_claim, 1, 1, 1), ended(30, 1, 1, "succeeded", 30)];
        let first = process("first", true, &first);
        let second = process("second", true, &[claimed(second_claim, 2, 1, 1)]);
        let files = [caller, first, second];
        for order in [[0, 1, 2], [2, 1, 0], [1, 2, 0], [1, 0, 2]] {
            let (report, text) = judged(&order.map(|at| files[at].clone()));
            assert_eq!(report.broke("P9"), second_claim == 29, "{text}");
            assert_eq!(report.broke("P11"), first_claim == 9, "{text}");
        }
    }
}

/// An event of a call that was made and written at these times.
fn by_call(called: u64, written: u64, mut event: Value) -> Value {
    (event["c"], event["w"]) = (json!(called), json!(written));
    event
}

/// A call that took long may be written after one of the same process that came to its time later.
#[test]
fn checker_puts_a_slow_call_before_what_others_saw_of_it() {
    for (called, legal) in [(890, true), (1_006, false)] {
        let one = [
            by_call(980, 1_005, keyed(window(1_000, 2, "quiet"), "other", 0)),
            by_call(called, 1_018, window(902, 1, "quiet")),
        ];
        let one = process("one", true, &one);
        let two = process("two", true, &[by_call(994, 1_003, claimed(996, 1, 1, 1))]);
        for files in [[one.clone(), two.clone()], [two.clone(), one.clone()]] {
            let (report, text) = judged(&files);
            assert_eq!(report.broke("P11"), !legal, "{text}");
        }
    }
}

/// What a process wrote of one job is in the order of its commits, whatever times the calls read.
#[test]
fn checker_keeps_the_order_in_which_a_process_wrote_of_a_job() {
    let changed = json!({"event": "adjust", "t": 25, "job": "1", "priority": 3});
    let events = [
        by_call(5, 11, window(10, 1, "quiet")),
        by_call(21, 41, changed),
        by_call(22, 42, claimed(24, 1, 1, 1)),
    ];
    let (report, text) = judged(&[process("one", true, &events)]);
    assert!(!report.broke("P11"), "{text}");
    report.require(&["P11"]).unwrap();
}

/// Claims of one moment wait for the windows that another process wrote late; what a handler read is
/// still recorded before its end.
#[test]
fn checker_keeps_the_order_of_a_process_among_others_at_one_moment() {
    let at = |w: u64, mut event: Value| {
        event["w"] = json!(w);
        event
    };
    let stamped = [
        at(1, json!({"event": "stamp", "op": 1, "key": "k", "value": 1})),
        at(2, json!({"event": "stamp_ok", "op": 1})),
    ];
    let reader = [
        at(3, claimed(10, 1, 1, 1)),
        at(4, json!({"event": "read", "run": 1, "key": "k", "value": 1})),
        at(6, json!({"event": "read_ok", "run": 1})),
    ];
    let other = [at(5, claimed(10, 2, 1, 1))];
    let caller = [at(7, window(10, 1, "quiet")), at(8, keyed(window(10, 2, "quiet"), "other", 0))];
    let (report, text) = judged(&[
        process("stamps", true, &stamped),
        process("reader", true, &reader),
        process("other", true, &other),
        process("caller", true, &caller),
    ]);
    assert!(report.cases["P2"].judged > 0 && !report.broke("P2"), "{text}");
}

/// A process that was killed before it recorded what it released.
#[test]
fn checker_excuses_only_what_a_killed_process_may_have_lost() {
    let silent = [window(10, 1, "quiet"), claimed(20, 1, 1, 1)];
    let after = |next: Value| [silent[0].clone(), silent[1].clone(), next];
    let two = process("two", true, &[claimed(29, 1, 2, 1)]);
    let broke = |one: Vec<Line>, more: Vec<Line>| {
        let (report, text) = judged(&[one, two.clone(), more]);
        assert!(report.broke("P9") || report.cases["P9"].unjudged.len() == 1, "{text}");
        report.broke("P9")
    };
    let killed = process("one", false, &silent);
    assert!(!broke(killed.clone(), Vec::new()));
    assert!(!broke(killed, vec![fault(25, "one")]), "it lived until 25");
    assert!(broke(process("one", true, &silent), Vec::new()), "it ended, and lost nothing");
    let spoke = process("one", false, &after(ended(30, 1, 1, "released", 30)));
    assert!(broke(spoke, Vec::new()), "it recorded what it did at 30, so it lost nothing before");
    assert!(!broke(process("one", true, &silent), vec![elsewhere()]), "another may have done it");
}

/// A trigger reads the clock, waits for a lock that holds up everyone, and commits: a claim at that
/// moment passes over its job.
#[test]
fn checker_asks_of_a_claim_what_was_committed_before_it() {
    let second = 1_000_000;
    let broke = |written: Option<u64>, called: Option<u64>| {
        let first = process("first", true, &[window(10, 1, "quiet")]);
        let mut late = process("late", true, &[keyed(window(second, 2, "quiet"), "other", 1)]);
        for line in &mut late {
            line.w = written.map(|w| i64::try_from(w).unwrap()).map(Timestamp::from_micros);
        }
        let claims = [worker(1), claimed(20 * second, 1, 1, 1)];
        let mut worker = process("worker", true, &claims);
        worker[2].c = called.map(|c| i64::try_from(c).unwrap()).map(Timestamp::from_micros);
        let (report, text) = judged(&[first, late, worker]);
        let took_long = written == Some(11 * second);
        assert_eq!(report.cases["P23"].judged, u64::from(!took_long), "{text}");
        report.broke("P23")
    };
    assert!(broke(None, None));
    assert!(broke(Some(2 * second), None));
    assert!(broke(Some(second), Some(3 * second)));
    assert!(!broke(Some(20 * second), None));
    assert!(!broke(Some(2 * second), Some(second)), "it may have looked before it took its time");
    assert!(!broke(Some(11 * second), None), "it took long, and its notification may be lost");
}

/// Of two processes that estimate the time, one may give a start an earlier time than the other gave the
/// end before it.
#[test]
fn checker_knows_that_processes_may_estimate_the_time() {
    let settings = json!({"concurrency": 1});
    let limit = json!({"event": "queue", "t": -5_000_000, "queue": "q", "settings": settings});
    let end = json!({
        "event": "settle", "t": 60, "job": "1", "token": "1-7", "outcome": "succeeded",
        "became": "succeeded",
    });
    let first = [limit, window(10, 1, "quiet"), claimed(20, 1, 1, 1), end];
    for (property, key) in [("P9", "k"), ("P21", "other")] {
        let broke = |clocks: Clocks, ended_from: i64| {
            let mut ends = process("ends", true, &first);
            ends[4].c = Some(Timestamp::from_micros(ended_from));
            let mut claim = claimed(50, 2, 2, 1);
            claim["key"] = json!(key);
            let mut starts =
                process("starts", true, &[keyed(window(30, 2, "quiet"), key, 0), claim]);
            starts[2].w = Some(Timestamp::from_micros(70));
            let lines = merge(vec![ends, starts]);
            let report = check_by(clocks, &lines);
            let unjudged = report.cases[property].unjudged.len();
            assert!(report.broke(property) || unjudged == 1, "{}", report.text(&lines));
            report.broke(property)
        };
        assert!(broke(Clocks::One, 55), "{property}: all times are of one clock");
        assert!(!broke(Clocks::Estimated, 55), "{property}: the end may have come first");
        assert!(broke(Clocks::Estimated, 71), "{property}: the end was asked for after the claim");
    }
}

/// A process may write the end of an attempt after a line with a later time: its own time counts.
#[test]
fn checker_orders_ends_and_claims_by_store_time() {
    let broke = |ended_at: u64| {
        let mut end = ended(ended_at, 1, 1, "succeeded", 0);
        end["became"] = json!("succeeded");
        let later = keyed(window(70, 3, "quiet"), "other", 0);
        let ends = [window(10, 1, "quiet"), claimed(20, 1, 1, 1), later, end];
        let starts = [window(30, 2, "quiet"), claimed(60, 2, 2, 1)];
        let (report, text) =
            judged(&[process("ends", true, &ends), process("starts", true, &starts)]);
        assert_eq!(report.cases["P9"].judged, 2, "{text}");
        report.broke("P9")
    };
    assert!(broke(65), "it ended after the claim");
    assert!(!broke(50));
}

/// A failed attempt makes its job the open window again, which a trigger does not see before that has
/// committed; it opens another one once the job has started again.
#[test]
fn checker_knows_when_a_call_may_have_missed_the_open_window() {
    let broke = |called: i64| {
        let failed = ended(30, 1, 1, "failed", 30);
        let one = [window(10, 1, "quiet"), claimed(20, 1, 1, 1), failed, window(30, 1, "backoff")];
        let mut one = process("one", true, &[&one[..], &[claimed(80, 1, 2, 2)]].concat());
        one[4].w = Some(Timestamp::from_micros(60));
        let mut two = process("two", true, &[window(70, 2, "quiet")]);
        two[1].c = Some(Timestamp::from_micros(called));
        let (report, text) = judged(&[one, two]);
        assert!(report.broke("P8") || report.cases["P8"].unjudged.len() == 1, "{text}");
        report.broke("P8")
    };
    assert!(broke(65), "the window was there before");
    assert!(!broke(50));
}

/// A trigger that joins a window holds its row from before it takes its time, and a claim at that moment
/// passes over it.
#[test]
fn checker_knows_when_a_call_may_have_held_what_a_claim_passed_over() {
    let second = 1_000_000;
    let broke = |called: Option<u64>| {
        let first = keyed(window(10, 1, "quiet"), "other", 1);
        let mut join = first.clone();
        (join["t"], join["count"]) = (json!(9 * second), json!(2));
        let mut trigger = process("trigger", true, &[first, join]);
        trigger[2].c = called.map(|c| i64::try_from(c).unwrap()).map(Timestamp::from_micros);
        let two = process("two", true, &[window(20, 2, "quiet")]);
        let claims = [worker(2), claimed(4 * second, 2, 2, 1)];
        let (report, text) = judged(&[trigger, two, process("worker", true, &claims)]);
        let cases = &report.cases["P23"];
        assert_eq!(cases.judged + cases.unjudged.values().sum::<u64>(), 1, "{text}");
        report.broke("P23")
    };
    assert!(broke(None));
    assert!(broke(Some(6 * second)), "the claim was over before");
    assert!(broke(Some(4 * second + 1)));
    assert!(!broke(Some(3 * second)));
}

/// A call that fails holds rows until the store gives it up, and a claim passes them over.
#[test]
fn checker_knows_when_a_call_that_failed_may_have_held_what_a_claim_passed_over() {
    let broke = |failed: Option<(u64, u64)>| {
        let first = keyed(window(10, 1, "quiet"), "other", 1);
        let windows = [first, window(20, 2, "quiet")];
        let call =
            |(since, t)| json!({"event": "call_failed", "since": since, "t": t, "call": "claim"});
        let failed: Vec<Value> = failed.map(call).into_iter().collect();
        let mut claims = process("worker", true, &[worker(2), claimed(14_000_000, 2, 2, 1)]);
        claims[2].c = Some(Timestamp::from_micros(13_000_000));
        let files = [process("two", true, &windows), process("fails", true, &failed), claims];
        let (report, text) = judged(&files);
        let cases = &report.cases["P23"];
        assert_eq!(cases.judged + cases.unjudged.values().sum::<u64>(), 1, "{text}");
        report.broke("P23")
    };
    assert!(broke(None));
    assert!(broke(Some((2_000_000, 7_900_000))), "it failed long before the claim");
    assert!(broke(Some((14_100_000, 15_000_000))), "the claim was over before");
    assert!(!broke(Some((2_000_000, 8_100_000))), "its client may have been silent");
    assert!(!broke(Some((13_900_000, 15_000_000))));
}

/// A claim reads the clock, and another process is refused a dedup key before it commits.
#[test]
fn checker_takes_a_dedup_key_as_held_until_its_end_was_committed() {
    let call = |op: u64, key: &str| {
        json!({
            "event": "trigger_invoke", "op": op, "task": "t", "key": key, "dedup": "d",
            "hold": "started",
        })
    };
    let accepted = json!({
        "receipt": "accepted", "job": "1", "trigger": "1.1", "due": 10,
    });
    let ok = |receipt: Value| json!({"event": "trigger_ok", "op": 1, "receipt": receipt});
    let broke = |committed: Option<i64>| {
        let one =
            process("one", true, &[call(1, "k"), window(10, 1, "quiet"), ok(accepted.clone())]);
        let mut worker = process("worker", true, &[claimed(20, 1, 1, 1)]);
        worker[1].w = committed.map(Timestamp::from_micros);
        let other = keyed(window(30, 2, "quiet"), "other", 0);
        let refused = ok(json!({"receipt": "duplicate", "job": "1"}));
        let two = process("two", true, &[other, call(1, "k2"), refused]);
        let (report, text) = judged(&[one, worker, two]);
        assert!(report.broke("P17") || report.cases["P17"].judged == 1, "{text}");
        report.broke("P17")
    };
    assert!(broke(Some(25)), "it was over before the call");
    assert!(!broke(Some(35)));
}

/// A renewal in flight does not see that the same attempt is being settled.
#[test]
fn checker_takes_an_attempt_as_running_until_its_end_was_committed() {
    let renewed = json!({"event": "renew", "t": 40, "job": "1", "token": "1-7", "until": 1_040});
    let broke = |committed: Option<i64>, renewed_from: Option<i64>| {
        let end = ended(30, 1, 1, "released", 30);
        let events = [window(10, 1, "quiet"), claimed(20, 1, 1, 1), end, renewed.clone()];
        let mut one = process("one", true, &events);
        one[3].w = committed.map(Timestamp::from_micros);
        one[4].c = renewed_from.map(Timestamp::from_micros);
        let (report, text) = judged(&[one]);
        assert!(report.violations.len() <= 1, "{text}");
        report.broke("P10")
    };
    assert!(broke(None, None));
    assert!(broke(Some(35), None), "it had ended before");
    assert!(broke(Some(35), Some(36)), "it had ended before the renewal was asked for");
    assert!(!broke(Some(45), None));
    assert!(!broke(Some(35), Some(34)), "it may have looked before it took its time");
}

/// The store's word that a window was flushed is none: someone must have asked for it.
#[test]
fn checker_believes_a_flush_only_of_a_caller() {
    let debounce = json!({
        "thresholds": {"min": {"secs": 100, "nanos": 0}, "max": {"secs": 200, "nanos": 0}},
        "from_default": false, "max_triggers": null, "edge": "trailing", "overlap": false,
    });
    let call = json!({
        "event": "trigger_invoke", "op": 1, "task": "t", "key": "k", "dedup": null,
        "debounce": debounce,
    });
    let receipt = json!({"receipt": "accepted", "job": "1", "trigger": "1.1", "due": 10});
    let ok = json!({"event": "trigger_ok", "op": 1, "receipt": receipt});
    let flush = json!({"event": "flush_invoke", "task": "t", "key": "k"});
    for asked in [false, true] {
        let more = if asked { vec![flush.clone()] } else { Vec::new() };
        let events = [call.clone(), window(10, 1, "flushed"), ok.clone(), claimed(20, 1, 1, 1)];
        let (report, text) = judged(&[process("one", true, &[&more[..], &events].concat())]);
        assert_eq!(report.broke("P6"), !asked, "{text}");
    }
}

/// A settlement without an answer may have ended the attempt before the next claim, while the call
/// was in flight or a little later.
#[test]
fn checker_excuses_only_what_a_call_without_an_answer_may_have_done() {
    let second = 1_000_000;
    let unanswered = |call: &str, since: u64, t: u64| json!({"event": "unanswered", "t": t, "since": since, "call": call});
    let two = process("two", true, &[claimed(20 * second, 1, 2, 1)]);
    let broke = |call: Value| {
        let one = [window(10, 1, "quiet"), claimed(8 * second, 1, 1, 1), call];
        let (report, text) = judged(&[process("one", true, &one), two.clone()]);
        assert!(report.broke("P11") || report.cases["P11"].unjudged.len() == 1, "{text}");
        report.broke("P11")
    };
    assert!(!broke(unanswered("settle", 12 * second, 13 * second)));
    assert!(!broke(unanswered("settle", 5 * second, 30 * second)));
    assert!(broke(unanswered("settle", 21 * second, 30 * second)), "it came later");
    assert!(broke(unanswered("settle", second, 2 * second)), "it came before");
    assert!(broke(unanswered("heartbeat", 12 * second, 13 * second)), "it ends no attempt");
}

/// A recorder that numbers the lines of all processes also records commits whose answers were lost.
#[test]
fn checker_excuses_nothing_where_one_recorder_wrote_all() {
    let call = json!({"event": "unanswered", "t": 30, "since": 20, "call": "settle"});
    let events = [window(10, 1, "quiet"), claimed(20, 1, 1, 1), call, claimed(40, 1, 2, 1)];
    let mut lines = process("one", true, &events);
    for (n, line) in (0..).zip(&mut lines) {
        line.n = Some(n);
    }
    let (report, text) = judged(&[lines]);
    assert!(report.broke("P11"), "{text}");
}

/// Long after its death nothing that a process may have lost is an excuse.
#[test]
fn checker_judges_what_happened_after_a_kill() {
    let minute = 60_000_000;
    let killed = process("killed", false, &[claimed(20, 9, 1, 1)]);
    let kill = vec![fault(30, "killed")];
    let late = [
        window(minute, 1, "quiet"),
        window(minute + 1, 2, "quiet"),
        claimed(minute + 20, 1, 1, 1),
        claimed(minute + 21, 2, 1, 1),
    ];
    let (report, text) = judged(&[killed.clone(), process("one", true, &late), kill]);
    assert!(report.broke("P8") && report.broke("P9"), "{text}");
    let (report, text) = judged(&[killed, process("one", true, &late)]);
    assert!(!report.broke("P8") && !report.broke("P9"), "its time of death is unknown: {text}");
}

#[test]
fn a_torn_line_before_the_begin_of_another_process_is_what_a_kill_left() {
    let begin = json!({"event": "begin", "t": 0}).to_string();
    let torn = &window(10, 1, "quiet").to_string()[..40];
    let lines = parse("a", &format!("{begin}\n{torn}\n{begin}\n")).unwrap();
    assert_eq!(lines.len(), 2);
    assert!(parse("a", &format!("{begin}\n{torn}\n{torn}\n")).is_err());
}
