//! The checker's own tests: every seeded bug is caught by the property that is there for it, nobody
//! who is right is accused, and a history survives its way through a file.

use std::sync::Arc;

use quell_conformance::check::{Line, PROPERTIES, Report, check, merge, parse};
use quell_conformance::sim::{self, Bug, Buggy, Plan};
use quell_core::Timestamp;

/// Seeds within which each bug must show.
const SEEDS: u64 = 600;
/// How many more seeds must show that no other property catches a bug.
const ALONE: usize = 40;
/// When simulated runs begin.
const START: Timestamp = Timestamp::from_secs(1_767_225_600);

fn judged(seed: u64, bug: Bug) -> (Vec<Line>, Report) {
    let lines = sim::run(&Plan::draw(seed), |sink| Arc::new(Buggy::new(bug, START, sink)));
    let report = check(&lines);
    (lines, report)
}

fn catches(bug: Bug) {
    let (_, properties) = Bug::ALL.into_iter().find(|(known, _)| *known == bug).unwrap();
    let caught = (0..SEEDS).any(|seed| {
        let (_, report) = judged(seed, bug);
        properties.iter().any(|property| report.broke(property))
    });
    assert!(caught, "no seed of {SEEDS} shows {bug:?} as a violation of {properties:?}");
}

macro_rules! catches {
    ($($test:ident: $bug:ident,)*) => {
        $(
            #[test]
            fn $test() {
                catches(Bug::$bug);
            }
        )*

        /// A bug that is added to the list and not to the tests is no bug that is tested.
        #[test]
        fn every_seeded_bug_has_its_test() {
            let tested = [$(Bug::$bug),*];
            assert!(Bug::ALL.iter().all(|(bug, _)| tested.contains(bug)));
        }
    };
}

catches! {
    checker_catches_a_run_that_closes_the_newer_window: ClosesNewerWindow,
    checker_catches_a_trigger_that_joins_the_running_job: JoinsRunning,
    checker_catches_a_due_time_without_a_cap: NeverCapped,
    checker_catches_a_cap_that_only_a_join_notices: CapNoticedOnJoin,
    checker_catches_a_start_before_the_key_was_quiet: StartsEarly,
    checker_catches_attempts_of_one_key_at_once: NoExclusion,
    checker_catches_a_settlement_without_a_fence: NoFence,
    checker_catches_a_job_lost_by_a_crash: CrashLosesJob,
    checker_catches_a_lease_never_taken_back: NeverReaps,
    checker_catches_a_dedup_key_burned_by_a_failure: BurnsKey,
    checker_catches_an_idempotency_key_that_is_not_kept: ForgetsIdempotency,
    checker_catches_a_dropped_dead_letter: DropsDead,
    checker_catches_an_effect_that_is_performed_twice: ForgetsIntents,
    checker_catches_an_absorbed_job_whose_triggers_are_gone: AbsorbsNothing,
    checker_catches_a_slot_leaked_by_a_crash: LeaksSlot,
    checker_catches_a_second_run_after_success: RunsTwice,
    checker_catches_a_second_open_window: SecondWindow,
    checker_catches_an_answer_before_the_write: AcksBeforeWrite,
    checker_catches_lost_wake_ups: LosesWakeups,
    checker_catches_an_absorption_that_tells_nobody: AbsorbDisarms,
    checker_catches_an_effect_outside_the_settlement: EffectOutside,
    checker_catches_a_worker_that_never_renews: NeverRenews,
    checker_catches_a_tick_that_fires_twice: TicksTwice,
    checker_catches_missed_ticks_that_are_not_caught_up: MissesTicks,
    checker_catches_a_paused_schedule_that_ticks: TicksOn,
    checker_catches_a_tick_without_its_trigger: TicksInVain,
    checker_catches_a_job_that_is_gone: Vanishes,
    checker_catches_a_trailing_trigger_that_is_suppressed: SuppressesTrailing,
    checker_catches_a_refused_trigger_that_runs: RunsRefused,
    checker_catches_a_trigger_id_that_is_given_out_twice: SameTrigger,
    checker_catches_a_payload_that_is_no_fold: MangledPayload,
    checker_catches_a_window_that_gathers_past_its_limit: NeverFull,
    checker_catches_a_leading_edge_that_trails: LeadsLate,
    checker_catches_a_cancelled_job_that_had_ended: CancelsEnded,
    checker_catches_a_lapse_that_spends_an_attempt: ChargesLapses,
    checker_catches_a_backoff_that_is_forgotten: ForgetsBackoff,
    checker_catches_an_absorption_by_another_job: AbsorbsElsewhere,
    checker_catches_a_dedup_key_that_is_taken_twice: TakesKeyTwice,
    checker_catches_limits_that_are_not_heeded: OverLimits,
    checker_catches_a_job_that_jumps_the_queue: OutOfOrder,
    checker_catches_a_start_in_a_paused_queue: StartsPaused,
}

/// Each of these bugs would go unseen without the property that it is named with.
#[test]
fn every_property_has_a_bug_that_it_alone_catches() {
    let listed: Vec<&str> = Bug::OWN.into_iter().map(|(property, _)| property).collect();
    assert_eq!(listed, PROPERTIES);
    let caught = |(property, bug): (&'static str, Bug)| {
        let mut seeds = (0..SEEDS).map(|seed| judged(seed, bug).1);
        let first = seeds.find(|report| !report.violations.is_empty());
        let first = first.unwrap_or_else(|| panic!("no seed of {SEEDS} shows {bug:?}"));
        for report in std::iter::once(first).chain(seeds.take(ALONE)) {
            let mut others = report.violations.iter().map(|violation| violation.property);
            let other = others.find(|other| *other != property);
            assert_eq!(other, None, "{bug:?} is {property}'s own: {:?}", report.violations);
        }
    };
    std::thread::scope(|scope| {
        let halves = Bug::OWN.chunks(Bug::OWN.len().div_ceil(2));
        let runs: Vec<_> =
            halves.map(|half| scope.spawn(move || half.iter().copied().for_each(caught))).collect();
        runs.into_iter().for_each(|run| run.join().unwrap());
    });
}

#[test]
fn checker_accuses_no_store_that_is_right() {
    for seed in 0..SEEDS {
        let (lines, report) = judged(seed, Bug::None);
        assert!(report.violations.is_empty(), "seed {seed}\n{}", report.text(&lines));
    }
}

#[test]
fn checker_says_the_same_of_a_history_that_was_a_file() {
    for bug in [Bug::None, Bug::NoExclusion, Bug::AcksBeforeWrite] {
        for seed in 0..20 {
            let (lines, report) = judged(seed, bug);
            // One file per process, as processes write them.
            let mut files = std::collections::BTreeMap::<&str, String>::new();
            for line in &lines {
                files.entry(&line.p).or_default().push_str(&format!("{line}\n"));
            }
            let parsed = files.iter().map(|(name, text)| parse(name, text).unwrap()).collect();
            let again = merge(parsed);
            assert_eq!(again, lines, "{bug:?} {seed}");
            assert_eq!(check(&again).violations, report.violations, "{bug:?} {seed}");
        }
    }
}

#[test]
fn checker_leaves_out_a_torn_last_line_and_refuses_any_other() {
    let whole = r#"{"event":"stamp_ok","op":1}"#;
    assert_eq!(parse("a", &format!("{whole}\n{}", &whole[..9])).unwrap().len(), 1);
    let error = parse("a.jsonl", &format!("{}\n{whole}\n", &whole[..9])).unwrap_err();
    assert_eq!((error.line, error.name.as_str()), (1, "a.jsonl"));
    // Whole, as its newline says, but no event.
    assert!(parse("a", "{\"event\":\"nonsense\"}\n").is_err());
}

#[test]
fn stamps_alone_show_a_lost_trigger_of_any_queue() {
    let story = |reads: &str| {
        let text = format!(
            "{{\"event\":\"stamp\",\"op\":1,\"key\":\"a\",\"value\":1}}\n\
             {{\"event\":\"stamp_ok\",\"op\":1}}\n\
             {{\"event\":\"stamp\",\"op\":2,\"key\":\"a\",\"value\":2}}\n\
             {{\"event\":\"stamp_ok\",\"op\":2}}\n{reads}"
        );
        check(&parse("queue", &text).unwrap())
    };
    let read = |run: u64, value: u64, ok: bool| {
        let ok =
            if ok { format!("{{\"event\":\"read_ok\",\"run\":{run}}}\n") } else { String::new() };
        format!("{{\"event\":\"read\",\"run\":{run},\"key\":\"a\",\"value\":{value}}}\n{ok}")
    };
    assert!(story(&read(1, 2, true)).violations.is_empty());
    assert!(story(&(read(1, 1, true) + &read(2, 2, true))).violations.is_empty());
    assert!(story(&read(1, 1, true)).broke("P2"), "the second stamp was never read");
    assert!(story(&read(1, 2, false)).broke("P2"), "a run that failed covers nothing");
    assert!(story("").broke("P2"));
}
