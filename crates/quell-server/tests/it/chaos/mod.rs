//! Processes that are killed, stopped, locked out and starved at any moment lose nothing and run
//! nothing twice at once: rounds of faults on workers and callers that share one file, judged by
//! the store's rows, by every process's history and by the stamp witness.
//!
//! `cargo xtask chaos --rounds N --seed S` runs more of it.

mod crew;
mod judge;
mod plan;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use quell::sqlite::SqliteStore;
use quell::{ScheduleName, ScheduleState, Store};
use sqlx::{Connection, SqliteConnection};

use crew::{BEAT, Crew};
use plan::{Fault, plan};

/// Rounds in every test run.
const ROUNDS: usize = 120;

fn setting(name: &str, default: usize) -> usize {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

#[tokio::test]
async fn r01_r02_r11_r21_r29_r36_hold_through_rounds_of_chaos() {
    let rounds = setting("QUELL_CHAOS_ROUNDS", ROUNDS);
    let seed = setting("QUELL_CHAOS_SEED", 11);
    let folder = tempfile::tempdir().unwrap();
    let mut crew = Crew::start(folder.path());
    let mut outsider = first_connection(&crew).await;
    let (mut done, mut revived) = (BTreeMap::new(), 0);
    for (round, (wait, fault)) in plan(seed as u64, rounds).into_iter().enumerate() {
        tokio::time::sleep(wait).await;
        harm(&mut crew, &mut outsider, fault).await;
        revived += crew.revive();
        *done.entry(fault.name()).or_insert(0) += 1;
        if (round + 1) % 100 == 0 {
            eprintln!("{} of {rounds} rounds", round + 1);
        }
    }
    crew.hush();
    let url = crew.url();
    let store = SqliteStore::open(&url).await.unwrap();
    pause_schedule(&store).await;
    let deadline = Instant::now() + Duration::from_secs(60);
    let jobs = loop {
        crew.revive_workers();
        let jobs = judge::all_jobs(&store).await;
        if jobs.values().all(|job| job.state.is_ended()) {
            break jobs;
        }
        assert!(Instant::now() < deadline, "it does not come to rest: {jobs:#?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    crew.dismiss().await;
    let verdict = judge::judge(folder.path(), &url, &jobs);
    let beats = judge::each_tick_is_one_job(&store, &jobs).await;
    let sound: String =
        sqlx::query_scalar("pragma integrity_check").fetch_one(&mut outsider).await.unwrap();
    assert_eq!(sound, "ok");
    eprintln!("seed {seed}, {rounds} rounds: {done:?}, {revived} gave up and were started again");
    eprintln!("{verdict}, {beats} ticks, 0 violations");
    assert!(verdict.accepted > 4 * rounds, "too few triggers to mean anything: {verdict:?}");
    assert!(verdict.stamped > rounds, "too few stamps to mean anything: {verdict:?}");
    assert!(verdict.lapsed > rounds / 12, "too few lost leases to mean anything: {verdict:?}");
}

/// Nothing comes to rest while the clock triggers.
async fn pause_schedule(store: &SqliteStore) {
    let name = ScheduleName::new(BEAT).unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    while store.tick(None, 0).await.unwrap().next.is_some() {
        assert!(Instant::now() < deadline, "the schedule cannot be paused");
        if store.set_schedule_state(None, &name, ScheduleState::Paused).await.is_err() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

/// The first process makes the file.
async fn first_connection(crew: &Crew) -> SqliteConnection {
    drop(SqliteStore::open(&crew.url()).await.unwrap());
    crew.outsider().await
}

async fn harm(crew: &mut Crew, outsider: &mut SqliteConnection, fault: Fault) {
    match fault {
        Fault::KillWorker(index) => crew.kill_worker(index),
        Fault::KillCaller(index) => crew.kill_caller(index),
        Fault::Stop(index, length) => crew.stop_worker(index, length).await,
        Fault::Term(index) => crew.term_worker(index).await,
        Fault::Lock(length) => {
            let locked = outsider.begin_with("begin immediate").await.unwrap();
            tokio::time::sleep(length).await;
            locked.rollback().await.unwrap();
        }
        Fault::KillInCheckpoint(index) => {
            let checkpoint = sqlx::query("pragma wal_checkpoint(truncate)").execute(outsider);
            let (checkpointed, ()) = tokio::join!(checkpoint, async { crew.kill_worker(index) });
            checkpointed.unwrap();
        }
        Fault::FullForCaller(index, length) => crew.fill_disk_of_caller(index, length).await,
        Fault::FullForWorker(index, length) => crew.fill_disk_of_worker(index, length).await,
    }
}
