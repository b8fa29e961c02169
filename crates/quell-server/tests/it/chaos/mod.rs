//! Processes that are killed, stopped, locked out and starved at any moment lose nothing and run
//! nothing twice at once: rounds of faults on workers and callers that share one file or server, and
//! on the server itself, judged by the store's rows, by every process's history and by the stamp
//! witness.
//!
//! `cargo xtask chaos --store postgres --rounds N --seed S` runs more of it.

mod away;
mod crew;
mod crowd;
mod ground;
mod judge;
mod payments;
mod plan;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use quell::{ScheduleName, ScheduleState, Store};

use crew::{BEAT, Crew};
use ground::Ground;
use judge::Verdict;
use plan::{Fault, plan, plan_on_redis, plan_on_server};

/// Rounds in every test run.
const ROUNDS: usize = 120;

fn setting(name: &str, default: usize) -> usize {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

#[tokio::test]
async fn r01_r02_r11_r21_r29_r36_hold_through_rounds_of_chaos_on_sqlite() {
    let folder = tempfile::tempdir().unwrap();
    let ground = Ground::sqlite(folder.path()).await;
    hold(folder.path(), ground, plan, ROUNDS).await;
}

#[tokio::test]
async fn r01_r02_r11_r21_r29_r36_r39_hold_through_rounds_of_chaos_on_postgres() {
    let folder = tempfile::tempdir().unwrap();
    hold(folder.path(), Ground::postgres(), plan_on_server, ROUNDS / 2).await;
}

#[tokio::test]
async fn r01_r02_r11_r21_r29_r36_r39_hold_through_rounds_of_chaos_on_redis() {
    let folder = tempfile::tempdir().unwrap();
    hold(folder.path(), Ground::redis(), plan_on_redis, ROUNDS / 2).await;
}

async fn hold(
    folder: &Path,
    mut ground: Ground,
    plan: fn(u64, usize) -> Vec<(Duration, Fault)>,
    rounds: usize,
) {
    let rounds = setting("QUELL_CHAOS_ROUNDS", rounds);
    let seed = setting("QUELL_CHAOS_SEED", 11);
    let url = ground.url();
    let mut crew = Crew::start(folder, &url);
    let (mut done, mut revived) = (BTreeMap::new(), 0);
    for (round, (wait, fault)) in plan(seed as u64, rounds).into_iter().enumerate() {
        tokio::time::sleep(wait).await;
        ground.harm(&mut crew, fault).await;
        revived += crew.revive();
        *done.entry(fault.name()).or_insert(0) += 1;
        if (round + 1) % 100 == 0 {
            eprintln!("{} of {rounds} rounds", round + 1);
        }
    }
    let (verdict, beats) = rest(folder, &mut ground, &mut crew).await;
    eprintln!("seed {seed}, {rounds} rounds: {done:?}, {revived} gave up and were started again");
    eprintln!("{verdict}, {beats} ticks, 0 violations");
    assert!(verdict.accepted > 4 * rounds, "too few triggers to mean anything: {verdict:?}");
    assert!(verdict.stamped > rounds, "too few stamps to mean anything: {verdict:?}");
    assert!(verdict.lapsed > rounds / 12, "too few lost leases to mean anything: {verdict:?}");
}

/// Lets everything come to rest, and judges it; says how often the schedule ticked.
async fn rest(folder: &Path, ground: &mut Ground, crew: &mut Crew) -> (Verdict, usize) {
    crew.hush();
    let store = ground.store().await;
    pause_schedule(&*store).await;
    let deadline = Instant::now() + Duration::from_secs(60);
    let jobs = loop {
        crew.revive_workers();
        let jobs = judge::all_jobs(&*store).await;
        if jobs.values().all(|job| job.state.is_ended()) {
            break jobs;
        }
        assert!(Instant::now() < deadline, "it does not come to rest: {jobs:#?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    crew.dismiss().await;
    let verdict = judge::judge(folder, &ground.url(), &jobs);
    let beats = judge::each_tick_is_one_job(&*store, &jobs).await;
    ground.check().await;
    (verdict, beats)
}

/// Nothing comes to rest while the clock triggers.
async fn pause_schedule(store: &dyn Store) {
    let name = ScheduleName::new(BEAT).unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    while store.tick(None, 0).await.unwrap().next.is_some() {
        assert!(Instant::now() < deadline, "the schedule cannot be paused");
        if store.set_schedule_state(None, &name, ScheduleState::Paused).await.is_err() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}
