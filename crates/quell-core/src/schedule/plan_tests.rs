//! Which ticks fire: tables, and what holds of every schedule and every way to cut time up.

use std::collections::BTreeSet;
use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::{JobId, Payload, QueueName, TaskName};

const SECOND: Duration = Duration::from_secs(1);

fn secs(secs: i64) -> Timestamp {
    Timestamp::from_secs(secs)
}

fn schedule(spec: Spec, catch_up: CatchUp) -> Schedule {
    let (task, queue) = (TaskName::new("t").unwrap(), QueueName::new("q").unwrap());
    let trigger = NewTrigger::new(task, queue, Payload::from_stored("1"));
    Schedule { name: ScheduleName::new("s").unwrap(), spec, catch_up, trigger, declared: None }
}

/// Every ten seconds from the start of time.
fn every_ten(catch_up: CatchUp) -> ScheduleInfo {
    let every = Every::new(SECOND * 10, secs(0)).unwrap();
    ScheduleInfo::new(schedule(Spec::Every(every), catch_up), secs(5))
}

/// What fires at each of these times, with nothing else fired.
fn fires(info: &mut ScheduleInfo, times: &[i64]) -> Vec<Vec<i64>> {
    let at = |time: &i64| {
        let ticks = info.due(secs(*time), 100, &BTreeSet::new());
        ticks.iter().map(|tick| tick.as_micros() / 1_000_000).collect()
    };
    times.iter().map(at).collect()
}

#[test]
fn r36_intervals_are_anchored_and_do_not_drift() {
    let micros = Timestamp::from_micros;
    let every =
        |interval, anchor| Every::new(Duration::from_micros(interval), micros(anchor)).unwrap();
    let table = [
        (every(10, 0), 0, Some(10), Some(0)),
        (every(10, 0), 9, Some(10), Some(0)),
        (every(10, 3), 12, Some(13), Some(3)),
        (every(10, 3), 13, Some(23), Some(13)),
        (every(10, 3), 2, Some(3), None),
        (every(10, -25), -20, Some(-15), Some(-25)),
        (every(1, i64::MAX - 1), i64::MAX - 1, Some(i64::MAX), Some(i64::MAX - 1)),
        (every(10, i64::MAX - 1), i64::MAX, None, Some(i64::MAX - 1)),
        (every(1, i64::MIN), i64::MAX, None, Some(i64::MAX)),
    ];
    for (every, moment, next, latest) in table {
        let spec = Spec::Every(every);
        let shown = (spec.next(micros(moment)), spec.latest(micros(moment)));
        assert_eq!(shown, (next.map(micros), latest.map(micros)), "{every:?} at {moment}");
    }
}

#[test]
fn r40_an_interval_that_cannot_be_meant_is_refused() {
    for interval in [Duration::ZERO, Duration::from_nanos(1_500)] {
        let error = Every::new(interval, secs(0)).unwrap_err();
        assert_eq!(error.field(), Some("interval"), "{interval:?}");
    }
    let stored = r#"{"interval":{"secs":0,"nanos":0},"anchor":0}"#;
    assert!(serde_json::from_str::<Every>(stored).is_err());
}

#[test]
fn r36_missed_ticks_follow_the_catch_up_setting() {
    let table: [(CatchUp, [&[i64]; 4]); 3] = [
        // On time, an outage of 100 s, late by 61 s after one tick, late by 60 s.
        (CatchUp::None, [&[10], &[110], &[], &[1_000]]),
        (CatchUp::Latest, [&[10], &[110], &[120], &[1_000]]),
        (CatchUp::All, [&[10], &[20, 30, 40, 50, 60, 70, 80, 90, 100, 110], &[120], &[1_000]]),
    ];
    for (catch_up, expected) in table {
        let mut info = every_ten(catch_up);
        let mut shown = fires(&mut info, &[10, 113]);
        // The next tick is the only one for a while.
        info.schedule.spec = Spec::Every(Every::new(SECOND * 880, secs(120)).unwrap());
        info.next = info.schedule.spec.next(info.handled);
        shown.extend(fires(&mut info, &[181, 1_060]));
        assert_eq!(shown, expected, "{catch_up:?}");
        assert_eq!(info.last, Some(secs(1_000)));
    }
}

#[test]
fn r36_a_step_is_bounded_and_the_next_goes_on() {
    let mut info = every_ten(CatchUp::All);
    let none = BTreeSet::new();
    assert_eq!(info.due(secs(10_000), 3, &none), [secs(10), secs(20), secs(30)]);
    assert_eq!((info.handled, info.next), (secs(30), Some(secs(40))));
    assert_eq!(info.due(secs(10_000), 0, &none), []);
    assert_eq!(info.due(secs(10_000), usize::MAX, &none).len(), CATCH_UP_STEP);
    assert_eq!(info.next, Some(secs(1_040)));
    // A step that just reaches the end has handled no more than it fired.
    let mut info = every_ten(CatchUp::All);
    assert_eq!(info.due(secs(35), 3, &none).len(), 3);
    assert_eq!((info.handled, info.next), (secs(30), Some(secs(40))));
}

#[test]
fn r36_what_a_backfill_fired_the_plan_does_not() {
    let mut info = every_ten(CatchUp::All);
    let fired = BTreeSet::from([secs(20), secs(30)]);
    assert_eq!(info.due(secs(45), 100, &fired), [secs(10), secs(40)]);
    let mut info = every_ten(CatchUp::Latest);
    assert_eq!(info.due(secs(35), 100, &fired), []);
    assert_eq!(info.next, Some(secs(40)));
}

#[test]
fn r36_a_pause_lets_ticks_pass_by() {
    for catch_up in CatchUp::ALL {
        let mut info = every_ten(catch_up);
        assert!(info.switch(ScheduleState::Paused, secs(12)));
        assert!(!info.switch(ScheduleState::Paused, secs(13)));
        assert_eq!((info.next, fires(&mut info, &[35])), (None, vec![vec![]]));
        assert!(info.switch(ScheduleState::Active, secs(35)));
        assert_eq!(info.next, Some(secs(40)));
        assert_eq!(fires(&mut info, &[39, 40]), [vec![], vec![40]], "{catch_up:?}");
    }
}

#[test]
fn r36_a_changed_plan_counts_from_now_and_an_equal_one_changes_nothing() {
    let mut info = every_ten(CatchUp::All);
    let same = info.schedule.clone();
    assert!(!info.set(&same, secs(99)));
    assert_eq!(info.next, Some(secs(10)));
    let patient = schedule(same.spec.clone(), CatchUp::Latest);
    assert!(info.set(&patient, secs(99)));
    assert_eq!((info.handled, info.next), (secs(5), Some(secs(10))), "the plan is the same");
    let spec = Spec::Every(Every::new(SECOND * 7, secs(0)).unwrap());
    assert!(info.set(&schedule(spec, CatchUp::All), secs(99)));
    assert_eq!((info.handled, info.next), (secs(99), Some(secs(105))));
    info.switch(ScheduleState::Paused, secs(100));
    info.set(&same, secs(101));
    assert_eq!((info.state, info.next), (ScheduleState::Paused, None));
}

#[test]
fn r36_a_backfill_is_bounded_and_fires_what_has_not_fired() {
    let mut info = every_ten(CatchUp::None);
    let now = secs(1_000_000_000);
    let fired = BTreeSet::from([secs(999_999_910)]);
    let mut backfill = |from: Timestamp, to: Timestamp| {
        info.backfill(from, to, now, &fired).map_err(|error| error.field().unwrap().to_owned())
    };
    // Both ends belong to it.
    let ticks = [999_999_900, 999_999_920].map(secs);
    assert_eq!(backfill(secs(999_999_900), secs(999_999_920)).unwrap(), ticks);
    assert_eq!(backfill(now, now + Duration::from_micros(1)), Err("to".to_owned()));
    assert_eq!(backfill(now, now.before(SECOND)), Err("from".to_owned()));
    let oldest = now.before(RECORD);
    assert_eq!(backfill(oldest.before(Duration::from_micros(1)), oldest), Err("from".to_owned()));
    assert!(backfill(oldest, oldest).is_ok());
    let most = SECOND * 10 * u32::try_from(MAX_BACKFILL).unwrap();
    assert_eq!(backfill(now.before(most), now), Err("from".to_owned()));
    assert_eq!(backfill(now.before(most - SECOND), now).unwrap().len(), MAX_BACKFILL - 1);
    assert_eq!(info.last, Some(now));
}

#[test]
fn r40_a_schedule_takes_no_moment_to_run_at() {
    let limits = Limits::default();
    let spec = Spec::Every(Every::new(SECOND, secs(0)).unwrap());
    let mut bad = schedule(spec, CatchUp::None);
    assert!(bad.validate(&limits).is_ok());
    bad.trigger.when = When::At(secs(5));
    assert_eq!(bad.validate(&limits).unwrap_err().field(), Some("run_at"));
    bad.trigger.when = When::After(Duration::ZERO);
    assert_eq!(bad.validate(&limits).unwrap_err().field(), Some("delay"));
    assert_eq!(ScheduleName::new("").unwrap_err().field(), Some("schedule"));
}

#[test]
fn r36_a_job_shows_its_newest_ticks() {
    let tick = |at: i64| Tick {
        schedule: ScheduleName::new("s").unwrap(),
        tick: secs(at),
        job: Some(JobId::new(1)),
        by: TickedBy::Plan,
    };
    let shown = Tick::newest((0..15).rev().map(tick).collect());
    assert_eq!(shown, (5..15).map(tick).collect::<Vec<_>>());
}

/// Schedules of all sorts, around the days on which clocks change.
fn specs() -> impl Strategy<Value = Spec> {
    const EXPRESSIONS: [&str; 5] =
        ["*/7 * * * *", "30 2 * * *", "15,45 1-3 * * *", "0 */6 * * 1,3", "*/20 2 * * *"];
    const ZONES: [&str; 4] = ["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe"];
    let cron = (proptest::sample::select(&EXPRESSIONS[..]), proptest::sample::select(&ZONES[..]));
    prop_oneof![
        cron.prop_map(|(expression, zone)| Spec::cron(expression, zone).unwrap()),
        (1_u64..200_000_000_000, 0_i64..2_000_000_000_000_000).prop_map(|(interval, anchor)| {
            let interval = Duration::from_micros(interval.max(40_000_000));
            Spec::Every(Every::new(interval, Timestamp::from_micros(anchor)).unwrap())
        }),
    ]
}

/// Days before a change of the clock in 2026, in seconds.
const CHANGES: [i64; 5] =
    [1_774_650_000, 1_792_800_000, 1_772_840_000, 1_793_400_000, 1_775_050_000];

proptest! {
    #[test]
    fn r36_ticks_grow_and_latest_is_the_inverse_of_next(
        spec in specs(),
        change in proptest::sample::select(&CHANGES[..]),
        offset in 0_i64..100_000_000_000,
    ) {
        let start = Timestamp::from_micros(change * 1_000_000 + offset);
        let mut before = start;
        for tick in spec.ticks(start).take(50) {
            prop_assert!(tick > before);
            prop_assert_eq!(spec.latest(tick), Some(tick));
            let just_before = tick.before(Duration::from_micros(1));
            prop_assert_eq!(spec.next(just_before), Some(tick));
            prop_assert!(spec.latest(just_before) <= Some(before.max(start)));
            before = tick;
        }
    }

    #[test]
    fn r36_all_misses_none_however_time_is_cut_up(
        spec in specs(),
        change in proptest::sample::select(&CHANGES[..]),
        steps in proptest::collection::vec((1_i64..20_000, 1_usize..20), 1..20),
    ) {
        let start = secs(change);
        let mut info = ScheduleInfo::new(schedule(spec.clone(), CatchUp::All), start);
        let mut now = start;
        let mut fired = Vec::new();
        for (step, limit) in steps {
            now = now + SECOND * u32::try_from(step).unwrap();
            fired.extend(info.due(now, limit, &BTreeSet::new()));
        }
        loop {
            let more = info.due(now, 100, &BTreeSet::new());
            if more.is_empty() {
                break;
            }
            fired.extend(more);
        }
        let whole: Vec<_> = spec.ticks(start).take_while(|tick| *tick <= now).collect();
        prop_assert_eq!(fired, whole);
        prop_assert_eq!(info.next, spec.next(now));
    }
}
