//! The simulation: seeds that must hold, a kill at every step, a failure of every call.
//!
//! `cargo xtask sim` runs many more seeds; a seed that fails is shown with how to run it again.

use quell_conformance::bugs::{Bug, Buggy};
use quell_conformance::check::{Event, Line, check};
use quell_conformance::effort::cases;
use quell_conformance::sim::{self, BrokenCall, Call, Harm, Network, Plan, Planned, Step};
use quell_core::schedule::CatchUp;
use quell_core::{Receipt, Store};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Runs a plan and fails with everything that shows what is wrong.
fn holds(plan: &Plan, what: &str) -> Vec<Line> {
    let lines = sim::run(plan, sim::memory);
    let report = check(&lines);
    let seed = plan.seed;
    assert!(
        report.violations.is_empty(),
        "{what}\n{}\nagain: cargo xtask sim --seed {seed} --minimise --history FILE",
        report.text(&lines)
    );
    lines
}

fn seeds(from: u64) {
    for seed in from..from + cases(200, 20_000) {
        holds(&Plan::draw(seed), &format!("seed {seed}"));
    }
}

#[test]
fn r39_seeds_from_0_hold() {
    seeds(0);
}

#[test]
fn r39_seeds_from_100_000_hold() {
    seeds(100_000);
}

#[test]
fn r39_seeds_from_200_000_hold() {
    seeds(200_000);
}

/// If this fails, nothing else that the simulation says is worth anything.
#[test]
fn the_same_seed_tells_the_same_story() {
    for seed in 0..60 {
        let plan = Plan::draw(seed);
        assert_eq!(sim::run(&plan, sim::memory), sim::run(&plan, sim::memory), "seed {seed}");
    }
}

#[test]
fn another_seed_tells_another_story() {
    let [one, other] = [1, 2].map(|seed| sim::run(&Plan::draw(seed), sim::memory));
    assert_ne!(one, other);
}

/// A store that each process opens for itself is judged like one in memory.
#[test]
fn a_bug_shows_on_a_store_that_each_process_opens() {
    let broke = |seed: &u64| {
        let store = OnceLock::new();
        let place = sim::Place::new(move |sink| {
            let bug = Bug::named("JoinsRunning").unwrap();
            let make = || Arc::new(Buggy::new(bug, sim::START, sink));
            let opened: Arc<dyn Store> = store.get_or_init(make).clone();
            async move { opened }
        });
        sim::Judged::new(Plan::draw(*seed), &place)
    };
    let found = (0..60).map(|seed| broke(&seed)).find(|judged| !judged.holds());
    let found = found.expect("no seed shows the bug");
    assert!(found.report.broke("P2"), "{}", found.text("buggy"));
    assert!(found.text("buggy").contains("cargo xtask sim --store buggy --seed"));
}

/// A danger that is drawn and never happens proves nothing.
#[test]
fn plans_reach_what_they_are_drawn_for() {
    let mut seen = BTreeSet::new();
    for seed in 0..200 {
        let mut retries = BTreeMap::new();
        let mut asked: BTreeMap<(String, u64), String> = BTreeMap::new();
        for Line { p, event, .. } in sim::run(&Plan::draw(seed), sim::memory) {
            match event {
                Event::TriggerInvoke { op, idempotency: Some(idempotency), .. } => {
                    asked.insert((p, op), idempotency.key.to_string());
                }
                Event::TriggerOk { op, receipt: Receipt::Existing { output, .. } } => {
                    let key = asked.get(&(p, op)).expect("a call comes before its answer");
                    // A key of one call alone: see the plan.
                    let own = key.len() > 4;
                    seen.insert(if own { "repeated call" } else { "shared key" });
                    if output.is_some() {
                        seen.insert("output");
                    }
                }
                Event::TriggerFail { kind, .. } if kind == "IdempotencyConflict" => {
                    seen.insert("conflict");
                }
                Event::Worker { tasks, .. } => {
                    if tasks.len() < 8 {
                        seen.insert("unknown task");
                    }
                    for task in tasks {
                        let before = retries.insert(task.task, task.retry);
                        if before.is_some_and(|before| before != task.retry) {
                            seen.insert("deployed policy");
                        }
                    }
                }
                Event::TaskChanged { settings, .. } if settings.paused => {
                    seen.insert("paused task");
                }
                Event::Claimed { queue, .. } if queue.as_str() == "r" => {
                    seen.insert("second queue");
                }
                Event::Window { priority, .. } if priority != 0 => {
                    seen.insert("priority");
                }
                Event::Queue { settings, .. } if settings.rate.is_some() => {
                    seen.insert("rate");
                }
                Event::Queue { settings, .. } if settings.partition_concurrency.is_some() => {
                    seen.insert("partition limit");
                }
                Event::Queue { settings, .. } if settings.worker_concurrency.is_some() => {
                    seen.insert("worker limit");
                }
                Event::QueueDeleted { .. } => {
                    seen.insert("deleted queue");
                }
                Event::Prune { .. } => {
                    seen.insert("pruned row");
                }
                _ => {}
            }
        }
    }
    assert_eq!(seen.len(), 14, "{seen:?}");
}

/// A burst of two keys, one worker and one caller, and nothing that goes wrong.
fn calm() -> Plan {
    let ms = Duration::from_millis;
    let trigger = |at: u64, task: usize, key: u8| {
        let call = Call { task, key, dedup: Some((key, 0)), ..Call::default() };
        (
            ms(at),
            Step::Trigger {
                process: 1,
                calls: vec![Call { dedup: None, ..call.clone() }, call],
                insists: false,
            },
        )
    };
    Plan {
        seed: 5,
        workers: 1,
        callers: 1,
        concurrency: 2,
        lease: ms(600),
        poll: ms(1_000),
        work: ms(120),
        failing: 20,
        network: Network::default(),
        broken_call: None,
        queues: 1,
        strangers: Vec::new(),
        keeps: ms(2_000),
        schedules: Vec::new(),
        steps: vec![trigger(5, 0, 0), trigger(60, 0, 0), trigger(130, 1, 1), trigger(300, 0, 0)],
        heals: ms(1_500),
    }
}

/// The moments at which something happens in a run, in microseconds from its start.
fn moments(lines: &[Line]) -> Vec<u64> {
    let start = quell_core::Timestamp::from_secs(1_767_225_600);
    let mut moments: Vec<u64> = lines
        .iter()
        .filter_map(|line| match &line.event {
            Event::Window { t, .. }
            | Event::Claimed { t, .. }
            | Event::Start { t, .. }
            | Event::Renew { t, .. }
            | Event::Settle { t, .. } => u64::try_from(t.since(start).as_micros()).ok(),
            _ => None,
        })
        .collect();
    moments.dedup();
    moments
}

#[test]
fn r39_a_kill_at_every_step_of_a_run_loses_nothing() {
    let calm = calm();
    let moments = moments(&holds(&calm, "nothing goes wrong"));
    assert!(moments.len() > 10, "{moments:?}");
    let mut killed = 0;
    // A little before, and after each of the first steps that the moment leads to.
    for moment in moments.iter().flat_map(|at| [at.saturating_sub(1), at + 150, at + 700]) {
        for (process, after) in (0..2).flat_map(|process| (0..8).map(move |after| (process, after)))
        {
            let kill = Harm::Kill { process, after, back: Duration::from_millis(40) };
            let mut plan = calm.clone();
            plan.steps.push((Duration::from_micros(moment), Step::Harm(kill)));
            plan.steps.sort_by_key(|(at, _)| *at);
            holds(&plan, &format!("{kill:?} at {moment} µs"));
            killed += 1;
        }
    }
    assert!(killed > 500, "{killed}");
}

#[test]
fn r36_a_kill_at_every_step_misses_no_tick_and_fires_none_twice() {
    let every = Duration::from_millis(430);
    let planned = Planned { task: 6, key: 0, every, catch_up: CatchUp::All };
    let quiet = Plan { steps: Vec::new(), schedules: vec![planned], workers: 2, ..calm() };
    let moments = moments(&holds(&quiet, "nothing goes wrong"));
    let heals = u64::try_from(quiet.heals.as_micros()).unwrap();
    let moments: Vec<u64> = moments.into_iter().filter(|at| *at < heals).collect();
    assert!(moments.len() > 5, "{moments:?}");
    for moment in moments.iter().flat_map(|at| [at.saturating_sub(1), at + 300]) {
        for (process, after) in (0..2).flat_map(|process| (0..6).map(move |after| (process, after)))
        {
            let kill = Harm::Kill { process, after, back: Duration::from_millis(1_100) };
            let steps = vec![(Duration::from_micros(moment), Step::Harm(kill))];
            let lines =
                holds(&Plan { steps, ..quiet.clone() }, &format!("{kill:?} at {moment} µs"));
            let ticked = |line: &&Line| matches!(line.event, Event::Ticked { .. });
            assert!(lines.iter().filter(ticked).count() > 10);
        }
    }
}

/// Before the intent, after it, after the call, after the record, and at each step between.
#[test]
fn r23_a_kill_at_every_step_performs_no_effect_twice() {
    let ms = Duration::from_millis;
    let call = Call { task: 6, ..Call::default() };
    let trigger = (ms(5), Step::Trigger { process: 2, calls: vec![call], insists: false });
    let quiet = Plan { steps: vec![trigger.clone()], workers: 2, failing: 0, ..calm() };
    let performed = |lines: &[Line]| {
        lines.iter().filter(|line| matches!(line.event, Event::Performed { .. })).count()
    };
    assert_eq!(performed(&holds(&quiet, "nothing goes wrong")), 1);
    // The effect is over after some 25 ms.
    for micros in (5_000..40_000).step_by(500) {
        for (process, after) in (0..2).flat_map(|process| (0..4).map(move |after| (process, after)))
        {
            let kill = Harm::Kill { process, after, back: ms(40) };
            let harm = (Duration::from_micros(micros), Step::Harm(kill));
            let plan = Plan { steps: vec![trigger.clone(), harm], ..quiet.clone() };
            let lines = holds(&plan, &format!("{kill:?} at {micros} µs"));
            assert_eq!(performed(&lines), 1, "{kill:?} at {micros} µs");
        }
    }
}

#[test]
fn r01_every_call_may_fail_before_or_after_it_is_done() {
    for done in [false, true] {
        let mut number = 0;
        loop {
            let broken_call = Some(BrokenCall { number, done });
            let lines = holds(&Plan { broken_call, ..calm() }, &format!("{broken_call:?}"));
            let reached = lines.iter().any(|line| matches!(line.event, Event::Fault { .. }));
            if !reached {
                break;
            }
            number += 1;
        }
        assert!(number >= 15, "only {number} calls");
    }
}

#[test]
fn a_failing_plan_is_made_smaller_and_fails_still() {
    let bug = Bug::named("JoinsRunning").unwrap();
    let lost = |plan: &Plan| {
        let store = |sink| Arc::new(Buggy::new(bug, sim::START, sink)) as Arc<dyn Store>;
        check(&sim::run(plan, store)).broke("P2")
    };
    let plan = (0..).map(Plan::draw).find(|plan| lost(plan) && plan.steps.len() > 12).unwrap();
    let small = sim::minimise(&plan, lost);
    assert!(lost(&small));
    assert!(small.steps.len() <= 3, "{small:#?}");
}
