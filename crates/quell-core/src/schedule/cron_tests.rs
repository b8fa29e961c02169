//! Cron expressions as moments: tables, around the days on which clocks change above all.

use super::*;

fn at(text: &str) -> Timestamp {
    from_jiff(text.parse().unwrap())
}

/// The ticks after a moment, as UTC without the date's year.
fn ticks(expression: &str, zone: &str, after: &str, count: usize) -> Vec<String> {
    let cron = Cron::new(expression, zone).unwrap();
    let next = |tick: &Timestamp| cron.next(*tick);
    let ticks = std::iter::successors(cron.next(at(after)), next).take(count);
    let text = |tick: Timestamp| tick.to_string().get(5..16).unwrap().replace('T', " ");
    ticks.map(text).collect()
}

#[test]
fn r36_cron_names_minutes_hours_days_and_seconds() {
    let table = [
        ("*/15 * * * *", "2026-01-01T00:07:00Z", ["01-01 00:15", "01-01 00:30"]),
        ("0 9 * * 1-5", "2026-01-02T09:00:00Z", ["01-05 09:00", "01-06 09:00"]),
        ("0 0 1 * *", "2026-01-31T23:59:59.999999Z", ["02-01 00:00", "03-01 00:00"]),
        // Both days are restricted: either may match.
        ("0 0 13 * FRI", "2026-01-09T00:00:00Z", ["01-13 00:00", "01-16 00:00"]),
        ("0 0 29 2 *", "2026-01-01T00:00:00Z", ["02-29 00:00", "02-29 00:00"]),
        ("0 0 * * 7", "2026-01-01T00:00:00Z", ["01-04 00:00", "01-11 00:00"]),
    ];
    for (expression, after, expected) in table {
        assert_eq!(ticks(expression, "UTC", after, 2), expected, "{expression} after {after}");
    }
    let cron = Cron::new("*/20 * * * * *", "UTC").unwrap();
    let start = Timestamp::from_secs(1_767_225_600);
    assert_eq!(cron.next(start), Some(start + std::time::Duration::from_secs(20)));
}

#[test]
fn r36_a_time_that_is_skipped_fires_once_when_the_clock_jumps() {
    // Berlin jumps from 02:00 to 03:00 on 2026-03-29 at 01:00 UTC, New York on 03-08 at 07:00.
    let table: [(&str, &str, &str, &[&str]); 5] = [
        ("30 2 * * *", "Europe/Berlin", "2026-03-28T12:00:00Z", &["03-29 01:00", "03-30 00:30"]),
        ("30 2 * * *", "America/New_York", "2026-03-07T12:00:00Z", &["03-08 07:00", "03-09 06:30"]),
        // Twelve skipped times are one tick.
        ("*/5 2 * * *", "Europe/Berlin", "2026-03-28T12:00:00Z", &["03-29 01:00", "03-30 00:00"]),
        // The jump is itself a tick: still one.
        ("0 2,3 * * *", "Europe/Berlin", "2026-03-28T12:00:00Z", &["03-29 01:00", "03-30 00:00"]),
        // Every hour: the clock never shows 02:30.
        ("30 * * * *", "Europe/Berlin", "2026-03-29T00:00:00Z", &["03-29 00:30", "03-29 01:30"]),
    ];
    for (expression, zone, after, expected) in table {
        assert_eq!(ticks(expression, zone, after, 2), expected, "{expression} in {zone}");
    }
}

#[test]
fn r36_a_time_that_comes_twice_fires_the_first_time() {
    // Berlin goes back from 03:00 to 02:00 on 2026-10-25 at 01:00 UTC, New York on 11-01 at
    // 06:00.
    let table: [(&str, &str, &str, &[&str]); 5] = [
        ("30 2 * * *", "Europe/Berlin", "2026-10-24T12:00:00Z", &["10-25 00:30", "10-26 01:30"]),
        ("30 1 * * *", "America/New_York", "2026-10-31T12:00:00Z", &["11-01 05:30", "11-02 06:30"]),
        (
            "0,30 2,3 * * *",
            "Europe/Berlin",
            "2026-10-25T00:00:00Z",
            &["10-25 00:30", "10-25 02:00"],
        ),
        // In the second 02:10, the first 02:30 has passed.
        ("30 2 * * *", "Europe/Berlin", "2026-10-25T01:10:00Z", &["10-26 01:30"]),
        // Every hour: the clock shows 02:30 twice.
        (
            "30 * * * *",
            "Europe/Berlin",
            "2026-10-25T00:00:00Z",
            &["10-25 00:30", "10-25 01:30", "10-25 02:30"],
        ),
    ];
    for (expression, zone, after, expected) in table {
        let shown = ticks(expression, zone, after, expected.len());
        assert_eq!(shown, expected, "{expression} in {zone}");
    }
}

#[test]
fn r36_every_hour_goes_with_the_clock_on_the_wall() {
    // Lord Howe goes back by half an hour from 02:00 on 2026-04-05, at 15:00 UTC the day before.
    let (zone, before) = ("Australia/Lord_Howe", "2026-04-04T14:00:00Z");
    let back = ["04-04 14:45", "04-04 15:15", "04-04 16:15"];
    assert_eq!(ticks("45 * * * *", zone, before, 3), back);
    // And forward again from 02:00 on 2026-10-04, at 15:30 UTC.
    let forth = ["10-03 15:15", "10-03 15:45", "10-03 16:45"];
    assert_eq!(ticks("45 * * * *", zone, "2026-10-03T14:30:00Z", 3), forth);
}

#[test]
fn r36_the_latest_tick_is_the_last_of_the_next_ones() {
    let starts = ["2026-03-28T22:00:00Z", "2026-10-24T22:00:00Z", "2026-01-01T00:00:00Z"];
    let expressions = ["*/20 * * * *", "*/20 2 * * *", "0 2,3 * * *", "30 2 * * *", "0 */2 * * *"];
    for (start, expression) in starts.iter().flat_map(|s| expressions.map(|e| (at(s), e))) {
        let cron = Cron::new(expression, "Europe/Berlin").unwrap();
        let first = cron.latest(start).unwrap();
        assert!(first <= start && cron.next(first).unwrap() > start, "{expression}");
        // Ten minutes and some at a time, over both changes of the clock.
        for step in 1..60 {
            let until = start + std::time::Duration::from_secs(step * 611);
            let walked = std::iter::successors(Some(first), |tick| cron.next(*tick));
            let last = walked.take_while(|tick| *tick <= until).last();
            assert_eq!(cron.latest(until), last, "{expression} until {until}");
        }
    }
}

#[test]
fn r40_a_schedule_that_cannot_be_meant_is_refused_by_field() {
    let long = format!("{} * * * *", "1,".repeat(200));
    let table = [
        ("", "UTC", "cron"),
        ("* * * *", "UTC", "cron"),
        ("0 0 0 1 1 * 2026", "UTC", "cron"),
        ("@daily", "UTC", "cron"),
        ("61 * * * *", "UTC", "cron"),
        ("1, * * * *", "UTC", "cron"),
        ("* , * * *", "UTC", "cron"),
        ("0 0 30 2 *", "UTC", "cron"),
        ("é * * * *", "UTC", "cron"),
        (&long, "UTC", "cron"),
        ("* * * * *", "Berlin", "zone"),
        ("* * * * *", "", "zone"),
        ("* * * * *", "../../etc/passwd", "zone"),
    ];
    for (expression, zone, field) in table {
        let error = Cron::new(expression, zone).unwrap_err();
        assert_eq!(error.field(), Some(field), "{expression:?} in {zone:?}: {error}");
    }
    assert!(serde_json::from_str::<Cron>(r#"{"expression":"0 0 30 2 *"}"#).is_err());
}

#[test]
fn a_cron_is_written_as_it_is_read() {
    let cron = Cron::new(" 0 9 * * MON ", "europe/berlin").unwrap();
    assert_eq!((cron.expression(), cron.zone()), ("0 9 * * MON", "Europe/Berlin"));
    let text = serde_json::to_string(&cron).unwrap();
    assert_eq!(text, r#"{"expression":"0 9 * * MON","zone":"Europe/Berlin"}"#);
    assert_eq!(serde_json::from_str::<Cron>(&text).unwrap(), cron);
    assert_eq!(
        serde_json::from_str::<Cron>(r#"{"expression":"0 9 * * MON"}"#).unwrap().zone(),
        "UTC"
    );
}

#[test]
fn r36_beyond_the_calendar_there_is_no_tick() {
    let cron = Cron::new("* * * * *", "UTC").unwrap();
    for moment in [Timestamp::MIN, Timestamp::MAX] {
        assert_eq!((cron.next(moment), cron.latest(moment)), (None, None));
    }
}
