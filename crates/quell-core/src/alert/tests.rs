//! Raised once, cleared once; counted and notified within bounds.

use super::*;

fn alert(on: Measure, above: u64, clear: u64) -> Alert {
    let sinks = ["a", "b"].map(str::to_owned).into();
    Alert { name: AlertName::new("x").unwrap(), on, queue: None, task: None, above, clear, sinks }
}

fn rate(window: u64, min_attempts: u64) -> Measure {
    Measure::FailureRate { window: Duration::from_secs(window), min_attempts }
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_secs(second)
}

#[test]
fn r27_an_alert_is_raised_once_when_crossed_and_cleared_once_when_over() {
    let alert = alert(Measure::Dead, 10, 4);
    let mut state = AlertState::default();
    let measured = [0, 10, 11, 50, 11, 10, 5, 4, 3, 10, 11, 0];
    let changed: Vec<bool> = measured
        .iter()
        .zip(0..)
        .map(|(value, second)| state.observe(&alert, *value, at(second)))
        .collect();
    let changes: Vec<u64> =
        measured.into_iter().zip(changed).filter(|(_, changed)| *changed).map(|(v, _)| v).collect();
    assert_eq!(changes, [11, 4, 11, 0]);
    assert_eq!((state.raised, state.changes, state.since), (false, 4, Some(at(11))));
    let notified: Vec<_> =
        state.notices.iter().map(|one| (&*one.sink, one.change, one.raised)).collect();
    let expected: Vec<_> =
        (1..=4).flat_map(|change| ["a", "b"].map(|sink| (sink, change, change % 2 == 1))).collect();
    assert_eq!(notified, expected);
}

#[test]
fn r27_each_alert_measures_its_own_part() {
    let lane = |queue: &str, task: &str, dead, first_due: Option<i64>| LaneOverview {
        queue: QueueName::new(queue).unwrap(),
        task: TaskName::new(task).unwrap(),
        dead,
        unreadable: 0,
        first_due: first_due.map(at),
    };
    let lanes =
        vec![lane("q", "t", 1, Some(70)), lane("q", "u", 20, Some(200)), lane("p", "t", 300, None)];
    let overview = Overview { now: at(100), lanes, unreadable: 0 };
    let of = |on, queue: Option<&str>, task: Option<&str>| {
        let queue = queue.map(|queue| QueueName::new(queue).unwrap());
        let task = task.map(|task| TaskName::new(task).unwrap());
        let alert = Alert { queue, task, ..alert(on, 0, 0) };
        alert.measure(&overview, &AlertState::default())
    };
    let second = 1_000_000;
    let table = [
        (of(Measure::Dead, None, None), 321),
        (of(Measure::Dead, Some("q"), None), 21),
        (of(Measure::Dead, None, Some("t")), 301),
        (of(Measure::Dead, Some("p"), Some("u")), 0),
        (of(Measure::Lateness, None, None), 30 * second),
        (of(Measure::Lateness, None, Some("u")), 0),
        (of(Measure::Lateness, Some("p"), None), 0),
        (of(rate(60, 0), None, None), 0),
    ];
    for (index, (measured, expected)) in table.into_iter().enumerate() {
        assert_eq!(measured, expected, "row {index}");
    }
}

#[test]
fn r27_a_failure_rate_is_of_the_window_and_of_enough_attempts() {
    let window = Duration::from_secs(60);
    let mut state = AlertState::default();
    state.count(at(0), window, 3, 1);
    assert_eq!(state.rate(at(0), window, 4), 250_000);
    assert_eq!(state.rate(at(0), window, 5), 0, "too few to judge by");
    state.count(at(1), window, 0, 4);
    assert_eq!(state.counted.len(), 1, "one bucket for two seconds");
    state.count(at(30), window, 8, 0);
    assert_eq!(state.rate(at(59), window, 1), 5 * MILLION / 16);
    assert_eq!(state.rate(at(60), window, 1), 0, "the first bucket is out");
    assert_eq!(state.rate(at(90), window, 1), 0, "nothing ended");
    for second in 0..10_000 {
        state.count(at(100 + second), window, 1, 0);
    }
    assert!(state.counted.len() <= 31, "{}", state.counted.len());
}

#[test]
fn r27_a_notice_stays_until_its_sink_has_taken_it() {
    let alert = alert(Measure::Dead, 0, 0);
    let mut state = AlertState::default();
    state.observe(&alert, 1, at(0));
    state.observe(&alert, 0, at(1));
    let taken = state.take(at(1));
    let of = |taken: &[Notice]| -> Vec<(String, u64)> {
        taken.iter().map(|one| (one.sink.clone(), one.change)).collect()
    };
    assert_eq!(of(&taken), [("a".to_owned(), 1), ("b".to_owned(), 1)], "the oldest of each");
    assert_eq!(state.take(at(60)), [], "they are someone's");
    state.delivered(&taken[0]);
    state.undelivered(&taken[1], at(2));
    assert_eq!(of(&state.take(at(6))), [("a".to_owned(), 2)]);
    let again = state.take(at(7));
    assert_eq!((of(&again), again[0].tries), (vec![("b".to_owned(), 1)], 2));
    // Its server died on the way: another one tries.
    assert_eq!(of(&state.take(at(67))), [("b".to_owned(), 1), ("a".to_owned(), 2)]);
}

#[test]
fn r27_what_waits_for_a_sink_is_bounded() {
    let mut alert = alert(Measure::Dead, 0, 0);
    let mut state = AlertState::default();
    for change in 0..100 {
        state.observe(&alert, u64::from(change % 2 == 0), at(change));
    }
    assert_eq!(state.notices.len(), 40);
    assert_eq!(state.notices[0].change, 81, "the newest stay");
    alert.sinks = ["b".to_owned()].into();
    state.observe(&alert, 1, at(200));
    assert!(
        state.notices.iter().all(|one| one.sink == "b"),
        "a sink that is gone receives nothing"
    );
}

#[test]
fn r27_r40_alerts_that_cannot_be_meant_are_refused() {
    let table = [
        (alert(Measure::Dead, 3, 3), None),
        (alert(Measure::Dead, 3, 4), Some("clear")),
        (alert(rate(30, 1), MILLION - 1, 0), None),
        (alert(rate(30, 1), MILLION, 0), Some("threshold")),
        (alert(rate(29, 1), 3, 0), Some("window")),
    ];
    for (alert, field) in table {
        let refused = alert.validate().err();
        assert_eq!(refused.as_ref().and_then(Error::field), field, "{alert:?}: {refused:?}");
    }
}

#[test]
fn r27_measures_are_told_in_words() {
    assert_eq!(rate(60, 1).describe(123_456), "12.34 % of attempts failed");
    assert_eq!(Measure::Dead.describe(1), "1 dead job");
    assert_eq!(Measure::Lateness.describe(1_500_000), "1.5s late");
}

#[test]
fn r27_the_state_of_an_older_quell_is_read() {
    let old = r#"{"raised":true,"value":3,"changes":1}"#;
    let state: AlertState = serde_json::from_str(old).unwrap();
    assert_eq!((state.raised, state.changes, state.notices.len()), (true, 1, 0));
    assert_eq!(serde_json::from_str::<AlertState>("{}").unwrap(), AlertState::default());
}

fn lane(queue: &str, dead: u64, unreadable: u64) -> LaneOverview {
    LaneOverview {
        queue: QueueName::new(queue).unwrap(),
        task: TaskName::new("t").unwrap(),
        dead,
        unreadable,
        first_due: None,
    }
}

#[test]
fn r27_a_loud_queue_hides_no_quiet_one_and_holds_no_alert() {
    let alert = Alert { queue: QueueName::new("q").ok(), ..alert(Measure::Dead, 10, 2) };
    let overview =
        |dead| Overview { now: at(0), lanes: vec![lane("p", 90_000, 0), dead], unreadable: 0 };
    let mut state = AlertState::default();
    let quiet = alert.measure(&overview(lane("q", 11, 0)), &state);
    assert!(state.observe(&alert, quiet, at(0)), "{quiet}");
    let over = alert.measure(&overview(lane("q", 2, 0)), &state);
    assert!(state.observe(&alert, over, at(1)) && !state.raised, "{over}");
}

#[test]
fn r25_r27_unreadable_jobs_are_a_measure_of_their_own() {
    let lanes = vec![lane("p", 7, 1), lane("q", 8, 2)];
    // Of two of them queue and task are unknown.
    let overview = Overview { now: at(0), lanes, unreadable: 5 };
    let state = AlertState::default();
    let of_q = |on| Alert { queue: QueueName::new("q").ok(), ..alert(on, 0, 0) };
    let measured = [
        alert(Measure::Dead, 0, 0),
        alert(Measure::Unreadable, 0, 0),
        of_q(Measure::Dead),
        of_q(Measure::Unreadable),
    ];
    assert_eq!(measured.map(|alert| alert.measure(&overview, &state)), [15, 5, 8, 2]);
    assert_eq!(Measure::Unreadable.describe(1), "1 unreadable job");
    assert_eq!(Measure::Unreadable.describe(5), "5 unreadable jobs");
}

#[test]
fn r40_more_dead_jobs_than_are_counted_are_no_threshold() {
    let most = Overview::MOST;
    for on in [Measure::Dead, Measure::Unreadable] {
        assert!(alert(on, most - 1, 0).validate().is_ok());
        let error = alert(on, most, 0).validate().unwrap_err();
        assert_eq!(error.field(), Some("threshold"));
    }
    assert!(alert(Measure::Lateness, most, 0).validate().is_ok());
}
