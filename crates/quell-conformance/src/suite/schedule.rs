//! Schedules: each tick once, missed ticks as asked (R36).

use std::collections::BTreeSet;
use std::time::Duration;

use futures_util::future::join_all;
use futures_util::{FutureExt, StreamExt};
use quell_core::schedule::{
    CATCH_UP_STEP, CatchUp, ON_TIME, RECORD, RecordedTick, Schedule, ScheduleInfo, ScheduleState,
    Spec, TickedBy,
};
use quell_core::{
    ErrorKind, ExplainTarget, Fold, NewTrigger, Receipt, Retention, ScheduleName, Timestamp,
};

use crate::rig::{Rig, debounce, keyed_with, plain, secs};

/// A name by its text.
fn name(text: &str) -> ScheduleName {
    ScheduleName::new(text).expect("a valid name")
}

/// Every ten seconds from the start of the test.
fn every_ten(text: &str, catch_up: CatchUp) -> Schedule {
    let spec = Spec::every(secs(10), Rig::START).expect("a valid interval");
    Schedule { name: name(text), spec, catch_up, trigger: plain("1"), declared: None }
}

async fn set(rig: &Rig, schedule: &Schedule) {
    rig.store.set_schedule(Some(rig.now()), schedule).await.expect("the store sets schedules");
}

async fn switch(rig: &Rig, text: &str, state: ScheduleState) {
    let switched = rig.store.set_schedule_state(Some(rig.now()), &name(text), state).await;
    switched.expect("the store pauses and resumes");
}

/// Makes all ticks that are due; returns their seconds.
async fn tick(rig: &Rig) -> Vec<u64> {
    let mut seconds = Vec::new();
    loop {
        let ticked = rig.store.tick(Some(rig.now()), 1_000).await.expect("the store ticks");
        assert_eq!(ticked.now, rig.now());
        seconds.extend(ticked.fired.iter().map(|fired| Rig::second(fired.tick)));
        if ticked.next.is_none_or(|next| next > ticked.now) {
            return seconds;
        }
    }
}

async fn backfill(rig: &Rig, from: u64, to: u64) -> quell_core::Result<u64> {
    let (from, to) = (Rig::START + secs(from), Rig::START + secs(to));
    rig.store.backfill(Some(rig.now()), &name("s"), from, to).await
}

async fn info(rig: &Rig) -> ScheduleInfo {
    let mut known = rig.store.schedules().await.expect("the store lists schedules");
    assert_eq!(known.len(), 1, "{known:#?}");
    known.remove(0)
}

/// A tick is a trigger at its time: due, counted and run like any other.
pub async fn r36_a_tick_is_a_trigger_at_its_time(mut rig: Rig) {
    let far = every_ten("far", CatchUp::Latest);
    let far = Schedule { spec: Spec::cron("0 0 1 7 *", "UTC").expect("valid"), ..far };
    set(&rig, &far).await;
    set(&rig, &every_ten("s", CatchUp::Latest)).await;
    assert_eq!(tick(&rig).await, [0; 0], "the moment of setting is no tick");
    let almost = Rig::START + secs(10).saturating_sub(Duration::from_micros(1));
    assert_eq!(tick(rig.at_time(almost)).await, [0; 0]);
    rig.at(10);
    let ticked = rig.store.tick(Some(rig.now()), 10).await.expect("ticks");
    let fired: Vec<_> = ticked.fired.iter().map(|f| (f.schedule.as_str(), f.tick)).collect();
    assert_eq!(fired, [("s", rig.now())]);
    assert_eq!(ticked.next, Some(Rig::START + secs(20)));
    let job = rig.claim_one().await;
    let Receipt::Accepted { job: accepted, due, .. } = ticked.fired[0].receipt else {
        panic!("{:?}", ticked.fired)
    };
    assert_eq!((job.id, job.payload.as_str(), due), (accepted, "1", rig.now()));
    rig.claim_none().await;
}

/// However many workers ask, and however often, a tick of a schedule fires once.
pub async fn r36_ticks_that_race_fire_once(mut rig: Rig) {
    set(&rig, &every_ten("a", CatchUp::All)).await;
    set(&rig, &every_ten("b", CatchUp::Latest)).await;
    for second in [10, 20, 45] {
        rig.at(second);
        let (store, now) = (&rig.store, Some(rig.now()));
        let answers = join_all((0..6).map(|_| store.tick(now, 100))).await;
        let fired = answers.into_iter().flat_map(|ticked| ticked.expect("ticks").fired);
        let mut fired: Vec<_> = fired.map(|f| (f.schedule, Rig::second(f.tick))).collect();
        fired.sort_unstable();
        let expected: &[(&str, u64)] = match second {
            45 => &[("a", 30), ("a", 40), ("b", 40)],
            once => &[("a", once), ("b", once)],
        };
        let expected: Vec<_> = expected.iter().map(|(text, tick)| (name(text), *tick)).collect();
        assert_eq!(fired, expected);
    }
    assert_eq!(rig.claim().await.len(), 7);
}

/// `none` lets missed ticks go, `latest` makes the newest of them, `all` makes each, in order.
pub async fn r36_missed_ticks_follow_catch_up(mut rig: Rig) {
    for catch_up in CatchUp::ALL {
        set(&rig, &every_ten(catch_up.name(), catch_up)).await;
    }
    rig.at(35);
    let ticked = rig.store.tick(Some(rig.now()), 100).await.expect("ticks");
    let shown = |of: &str| -> Vec<u64> {
        let fired = ticked.fired.iter().filter(|fired| fired.schedule.as_str() == of);
        fired.map(|fired| Rig::second(fired.tick)).collect()
    };
    assert_eq!((shown("all"), shown("latest")), (vec![10, 20, 30], vec![30]));
    assert_eq!(shown("none"), [30], "late by five seconds is on time");
    // A tick of long ago: `none` lets it go.
    for catch_up in CatchUp::ALL {
        let spec = Spec::every(secs(1_000), Rig::START).expect("valid");
        set(&rig, &Schedule { spec, ..every_ten(catch_up.name(), catch_up) }).await;
    }
    rig.at_time(Rig::START + secs(1_000) + ON_TIME + Duration::from_micros(1));
    let ticked = rig.store.tick(Some(rig.now()), 100).await.expect("ticks");
    let fired: BTreeSet<_> = ticked.fired.iter().map(|fired| fired.schedule.as_str()).collect();
    assert_eq!(fired, BTreeSet::from(["all", "latest"]));
    assert_eq!(ticked.next, Some(Rig::START + secs(2_000)));
}

/// One step makes no more ticks than asked for; the schedule that waited longest goes first.
pub async fn r36_a_step_of_ticks_is_bounded(mut rig: Rig) {
    set(&rig, &every_ten("a", CatchUp::All)).await;
    set(rig.at(15), &every_ten("b", CatchUp::All)).await;
    rig.at(35);
    let mut steps = Vec::new();
    for _ in 0..4 {
        let ticked = rig.store.tick(Some(rig.now()), 2).await.expect("ticks");
        let shown = |f: &quell_core::schedule::Fired| (f.schedule.to_string(), Rig::second(f.tick));
        steps.push(ticked.fired.iter().map(shown).collect::<Vec<_>>());
    }
    let step = |of: &[(&str, u64)]| -> Vec<(String, u64)> {
        of.iter().map(|(text, tick)| ((*text).to_owned(), *tick)).collect()
    };
    let expected = [
        step(&[("a", 10), ("a", 20)]),
        step(&[("b", 20), ("b", 30)]),
        step(&[("a", 30)]),
        step(&[]),
    ];
    assert_eq!(steps, expected);
    rig.at(45);
    let ticked = rig.store.tick(Some(rig.now()), 0).await.expect("ticks");
    assert_eq!((ticked.fired.len(), ticked.next), (0, Some(Rig::START + secs(40))));
    rig.at(20_000);
    let ticked = rig.store.tick(Some(rig.now()), 1_000).await.expect("ticks");
    assert_eq!(ticked.fired.len(), 2 * CATCH_UP_STEP, "this number of each");
}

/// A pause lets ticks pass by, for good; a resume goes on with the next one.
pub async fn r36_a_paused_schedule_fires_nothing_and_catches_up_nothing(mut rig: Rig) {
    set(&rig, &every_ten("s", CatchUp::All)).await;
    assert_eq!(tick(rig.at(10)).await, [10]);
    switch(&rig, "s", ScheduleState::Paused).await;
    assert_eq!(tick(rig.at(25)).await, [0; 0]);
    let paused = info(&rig).await;
    let ten = Some(Rig::START + secs(10));
    assert_eq!((paused.state, paused.next, paused.last), (ScheduleState::Paused, None, ten));
    // Code that declares its schedules at each start does not resume them.
    set(&rig, &every_ten("s", CatchUp::All)).await;
    assert_eq!(info(&rig).await.state, ScheduleState::Paused);
    switch(&rig, "s", ScheduleState::Active).await;
    assert_eq!(tick(&rig).await, [0; 0]);
    assert_eq!(tick(rig.at(40)).await, [30, 40]);
}

/// An equal schedule changes nothing, another trigger holds from the next tick on, and another plan
/// counts from now; what fired stays known.
pub async fn r36_a_schedule_is_set_again(mut rig: Rig) {
    set(&rig, &every_ten("s", CatchUp::All)).await;
    rig.at(15);
    set(&rig, &every_ten("s", CatchUp::All)).await;
    assert_eq!(tick(&rig).await, [10], "a tick that is due is not lost by setting it again");
    let other = Schedule { trigger: plain("2"), ..every_ten("s", CatchUp::All) };
    set(&rig, &other).await;
    assert_eq!(tick(rig.at(20)).await, [20]);
    let payloads: Vec<_> =
        rig.claim().await.iter().map(|job| job.payload.as_str().to_owned()).collect();
    assert_eq!(payloads, ["1", "2"]);
    // R32: a declaration stays on record beside what is set by hand.
    let declared = Some("one".to_owned());
    set(&rig, &Schedule { declared: declared.clone(), ..other.clone() }).await;
    set(&rig, &other).await;
    assert_eq!(info(&rig).await.schedule, Schedule { declared, ..other.clone() });

    let spec = Spec::every(secs(5), Rig::START).expect("valid");
    set(rig.at(31), &Schedule { spec, ..other }).await;
    assert_eq!(tick(rig.at(36)).await, [35], "of the new plan, and only from 31 on");
    // 5, 15, 25 and 30 have not fired; 10 and 20 have, by the plan before.
    assert_eq!(backfill(&rig, 1, 35).await.expect("fires"), 4);
    assert_eq!(info(&rig).await.last, Some(Rig::START + secs(35)));
}

/// A run outside the plan is one trigger, and the plan goes on as if nothing had been.
pub async fn r36_a_run_is_outside_the_plan(mut rig: Rig) {
    set(&rig, &every_ten("s", CatchUp::All)).await;
    rig.at(5);
    let receipt = rig.store.run_schedule(Some(rig.now()), &name("s")).await.expect("runs");
    assert_eq!(rig.claim_one().await.id, receipt.job().expect("a job"));
    let before = info(&rig).await;
    assert_eq!((before.last, before.next), (None, Some(Rig::START + secs(10))));
    assert_eq!(tick(rig.at(10)).await, [10]);
}

/// Ticks that have not fired fire; those that have, by plan or by a backfill, do not.
pub async fn r36_a_backfill_fires_each_tick_at_most_once(mut rig: Rig) {
    set(&rig, &every_ten("s", CatchUp::Latest)).await;
    assert_eq!(tick(rig.at(35)).await, [30]);
    assert_eq!(backfill(&rig, 10, 30).await.expect("fires"), 2);
    assert_eq!(backfill(&rig, 0, 35).await.expect("fires"), 1, "the tick of the start");
    assert_eq!(backfill(&rig, 0, 35).await.expect("fires"), 0);
    assert_eq!(rig.claim().await.len(), 4);
    // Ticks that are due and have not fired: the plan leaves out what a backfill made.
    let patient = Schedule { catch_up: CatchUp::All, ..every_ten("s", CatchUp::All) };
    set(&rig, &patient).await;
    assert_eq!(backfill(rig.at(62), 45, 55).await.expect("fires"), 1);
    assert_eq!(tick(&rig).await, [40, 60]);
    switch(&rig, "s", ScheduleState::Paused).await;
    assert_eq!(backfill(rig.at(75), 60, 75).await.expect("a pause is for the plan"), 1);
}

/// What fired is on record by its time, however it fired; a read has bounds.
pub async fn r36_the_record_of_ticks_is_read_by_time(mut rig: Rig) {
    set(&rig, &every_ten("s", CatchUp::All)).await;
    set(&rig, &every_ten("other", CatchUp::All)).await;
    tick(rig.at(35)).await;
    assert_eq!(backfill(&rig, 0, 5).await.expect("fires"), 1);
    rig.store.run_schedule(Some(rig.now()), &name("s")).await.expect("runs");
    let read = async |from: u64, to: u64, limit: usize| {
        let (from, to) = (Rig::START + secs(from), Rig::START + secs(to));
        rig.store.ticks(&name("s"), from, to, limit).await.expect("reads the record")
    };
    let all = read(0, 100, 10).await;
    let seconds = |ticks: &[RecordedTick]| -> Vec<u64> {
        ticks.iter().map(|tick| Rig::second(tick.tick)).collect()
    };
    assert_eq!(seconds(&all), [0, 10, 20, 30], "a run by hand is no tick");
    // A store may keep when ticks fired and no more. What it says of the rest is right.
    for (tick, expected) in all.iter().zip([TickedBy::Backfill, TickedBy::Plan]) {
        assert!(tick.by.is_none_or(|by| by == expected), "{tick:?}");
    }
    for tick in &all {
        let Some(job) = tick.job else { continue };
        let shown = rig.explain(&ExplainTarget::Job(job)).await.expect("is known");
        let ticks: Vec<_> = shown.ticks.iter().map(|tick| (tick.tick, Some(tick.by))).collect();
        assert_eq!(ticks, [(tick.tick, tick.by)]);
    }
    assert_eq!(seconds(&read(10, 20, 10).await), [10, 20], "both ends are included");
    assert_eq!(seconds(&read(0, 100, 2).await), [0, 10], "the first of them");
    assert_eq!(seconds(&read(0, 100, 0).await), [0; 0]);
    assert_eq!(seconds(&read(21, 29, 10).await), [0; 0]);
    assert_eq!(seconds(&read(30, 20, 10).await), [0; 0]);
    assert_eq!(seconds(&read(0, 100, usize::MAX).await), [0, 10, 20, 30]);
    let unknown =
        rig.store.ticks(&name("none"), Rig::START, rig.now(), 1).await.expect_err("unknown");
    assert_eq!(unknown.kind(), ErrorKind::NotFound);
}

/// A backfill that is too large, or not of the past, is refused with the field, and fires nothing.
pub async fn r36_r40_a_backfill_is_bounded(mut rig: Rig) {
    set(&rig, &every_ten("s", CatchUp::Latest)).await;
    rig.at(1_000_000);
    for (from, to, field) in [(1, 999_999, "from"), (20, 10, "from"), (999_990, 1_000_001, "to")] {
        let error = backfill(&rig, from, to).await.expect_err("refused");
        assert_eq!((error.kind(), error.field()), (ErrorKind::Invalid, Some(field)), "{from} {to}");
    }
    let old = rig.now().before(RECORD + secs(1));
    let refused = rig.store.backfill(Some(rig.now()), &name("s"), old, rig.now()).await;
    assert_eq!(refused.expect_err("refused").field(), Some("from"));
    assert_eq!(info(&rig).await.last, None);
    rig.claim_none().await;
}

/// An explanation names the schedule and the ticks that a job came from.
pub async fn r15_r36_a_job_tells_the_ticks_it_came_from(mut rig: Rig) {
    let keyed = keyed_with("a", debounce(), Fold::Last, "1");
    set(&rig, &Schedule { trigger: keyed, ..every_ten("s", CatchUp::All) }).await;
    assert_eq!(tick(rig.at(35)).await, [10, 20, 30]);
    assert_eq!(backfill(&rig, 0, 5).await.expect("fires"), 1);
    let job = rig.at(45).claim_one().await;
    assert_eq!(job.triggers, 4, "ticks of one key share a window");
    let shown = rig.explain(&ExplainTarget::Job(job.id)).await.expect("is known");
    let ticks: Vec<_> = shown.ticks.iter().map(|tick| (Rig::second(tick.tick), tick.by)).collect();
    let plan = TickedBy::Plan;
    assert_eq!(ticks, [(0, TickedBy::Backfill), (10, plan), (20, plan), (30, plan)]);
    assert!(shown.to_string().contains("schedule   s, its tick of 2026-01-01T00:00:10"), "{shown}");
    let alone = rig.trigger(NewTrigger { priority: 1, ..plain("2") }).await.job().expect("a job");
    let shown = rig.explain(&ExplainTarget::Job(alone)).await.expect("is known");
    assert_eq!(shown.ticks, []);
}

/// A removed schedule fires nothing, and one that is unknown is said to be.
pub async fn r36_r40_an_unknown_schedule_is_said_to_be(mut rig: Rig) {
    set(&rig, &every_ten("s", CatchUp::All)).await;
    assert_eq!(tick(rig.at(10)).await, [10]);
    let now = Some(rig.at(15).now());
    rig.store.delete_schedule(now, &name("s")).await.expect("removes");
    assert_eq!(tick(rig.at(25)).await, [0; 0]);
    assert_eq!(rig.store.schedules().await.expect("lists"), []);
    let store = &rig.store;
    let unknown = [
        store.delete_schedule(now, &name("s")).await.expect_err("unknown"),
        store.run_schedule(now, &name("s")).await.expect_err("unknown"),
        store
            .set_schedule_state(now, &name("s"), ScheduleState::Paused)
            .await
            .expect_err("unknown"),
        backfill(&rig, 0, 5).await.expect_err("unknown"),
    ];
    for error in unknown {
        assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    }
    // Set again, it begins again.
    set(&rig, &every_ten("s", CatchUp::All)).await;
    assert_eq!((info(&rig).await.last, tick(rig.at(30)).await), (None, vec![30]));
}

/// It is known for a year which ticks fired, whatever became of their jobs.
pub async fn r36_r37_what_fired_is_known_for_a_year(mut rig: Rig) {
    set(&rig, &every_ten("s", CatchUp::Latest)).await;
    assert_eq!(tick(rig.at(30)).await, [30]);
    let job = rig.claim_one().await;
    rig.succeed(&job).await;
    let year = RECORD.as_secs();
    assert_eq!(rig.prune(year, &Retention::default(), 99).await, 1);
    rig.at(year + 30);
    assert_eq!(backfill(&rig, 30, 30).await.expect("is within reach"), 0);
    rig.prune(year + 31, &Retention::default(), 99).await;
    assert_eq!(backfill(rig.at(year + 31), 31, 45).await.expect("is within reach"), 1);
}

/// Workers sleep until the next tick: an earlier one wakes them.
pub async fn r34_r36_a_new_tick_is_told(mut rig: Rig) {
    let mut wakeups = rig.store.wakeups();
    let mut shown = async || -> Option<Timestamp> {
        let mut earliest = None;
        while let Some(Some(hint)) = wakeups.next().now_or_never() {
            earliest = earliest.into_iter().chain([hint.due]).min();
        }
        earliest
    };
    shown().await;
    set(&rig, &every_ten("s", CatchUp::All)).await;
    assert!(shown().await.is_some_and(|due| due <= Rig::START + secs(10)));
    switch(rig.at(5), "s", ScheduleState::Paused).await;
    switch(&rig, "s", ScheduleState::Active).await;
    assert!(shown().await.is_some_and(|due| due <= Rig::START + secs(10)));
    let spec = Spec::every(secs(3), Rig::START).expect("valid");
    set(&rig, &Schedule { spec, ..every_ten("s", CatchUp::All) }).await;
    assert!(shown().await.is_some_and(|due| due <= Rig::START + secs(6)));
}
