//! Processes that are killed, stopped, locked out and starved at any moment lose nothing and run
//! nothing twice at once: faults on workers and callers that share one file or server, and on the
//! server itself, judged by the store's rows, by every process's history and record, by the tables
//! beside the store and by the stamp witness.
//!
//! A run does harm until it has seen enough, so nothing depends on the machine's speed.
//! `cargo xtask chaos --store postgres --rounds N --seed S` does more of it.

mod cluster;
mod crowd;
mod fault;
mod gray;
mod ground;
mod judge;
mod lost;
mod operator;
mod outage;
mod payments;
mod plan;
mod processes;
mod run;
mod seen;
mod snapshot;
mod workload;

use std::time::Duration;

use ground::Ground;
pub(crate) use judge::{checked, checked_except};
use plan::{
    BEHIND_A_POOLER, BESIDE_A_SNAPSHOT, Deck, ON_FILE, ON_FILE_GENTLY, ON_GRAY, ON_POSTGRES,
    ON_POSTGRES_GENTLY, ON_REDIS, ON_REDIS_GENTLY,
};
use quell_conformance::effort::cases;
use run::{Run, hold};
use seen::Counts;
use snapshot::Snapshot;

/// `faults`: in a long run; a usual one ends once each kind of fault came and every judge has enough.
fn run(deck: Deck, faults: u64, longest_wait: u64) -> Run {
    let faults = usize::try_from(cases(deck.len() as u64, faults)).unwrap();
    Run { deck, faults, longest_wait: Duration::from_millis(longest_wait) }
}

/// Every judge had enough to judge.
fn assert_judged(counts: &Counts, has_books: bool) {
    let missing = counts.missing(&judge::needs(has_books));
    assert!(missing.is_empty(), "not enough was judged: {missing:?}");
}

#[tokio::test]
async fn r01_r02_r11_r19_r21_r22_r31_r33_hold_through_rounds_of_chaos_on_sqlite() {
    let folder = tempfile::tempdir().unwrap();
    let mut ground = Ground::sqlite(folder.path()).await;
    assert_judged(&hold(folder.path(), &mut ground, run(ON_FILE, 100, 60)).await, true);
}

#[tokio::test]
async fn r01_r02_r11_r19_r21_r22_r31_r33_r39_hold_through_rounds_of_chaos_on_postgres() {
    let folder = tempfile::tempdir().unwrap();
    let counts = hold(folder.path(), &mut Ground::postgres(), run(ON_POSTGRES, 50, 120)).await;
    assert_judged(&counts, true);
}

/// What ends or is deleted stays where claims, folds and removals walk, from the first trigger to the
/// verdict.
#[tokio::test]
async fn r01_r02_r11_r19_r21_r22_r31_r33_hold_beside_a_snapshot_in_rounds_of_chaos_on_postgres() {
    let folder = tempfile::tempdir().unwrap();
    let mut ground = Ground::postgres();
    let mut snapshot = Snapshot::open(&ground.server().url()).await;
    let counts = hold(folder.path(), &mut ground, run(BESIDE_A_SNAPSHOT, 25, 120)).await;
    assert_judged(&counts, true);
    let age = usize::try_from(snapshot.age().await).unwrap();
    assert!(age > counts.of("attempts"), "it lasted for {age} transactions");
}

#[tokio::test]
async fn r01_r02_r11_r19_r21_r31_r33_r39_hold_through_rounds_of_chaos_on_redis() {
    let folder = tempfile::tempdir().unwrap();
    let counts = hold(folder.path(), &mut Ground::redis(), run(ON_REDIS, 50, 120)).await;
    assert_judged(&counts, false);
}

#[tokio::test]
async fn r39_without_kills_all_is_judged_in_rounds_of_chaos_on_sqlite() {
    let folder = tempfile::tempdir().unwrap();
    let mut ground = Ground::sqlite(folder.path()).await;
    assert_judged(&hold(folder.path(), &mut ground, run(ON_FILE_GENTLY, 25, 120)).await, true);
}

#[tokio::test]
async fn r39_silent_peers_and_moved_addresses_only_delay_in_rounds_of_chaos_on_postgres() {
    let folder = tempfile::tempdir().unwrap();
    let run = run(ON_GRAY, 12, 120);
    assert_judged(&hold(folder.path(), &mut Ground::gray_postgres(), run).await, true);
}

#[tokio::test]
async fn r39_silent_peers_and_moved_addresses_only_delay_in_rounds_of_chaos_on_redis() {
    let folder = tempfile::tempdir().unwrap();
    let run = run(ON_GRAY, 12, 120);
    assert_judged(&hold(folder.path(), &mut Ground::gray_redis(), run).await, false);
}

#[tokio::test]
async fn r39_a_pooler_that_loses_its_server_only_delays_in_rounds_of_chaos_on_postgres() {
    let folder = tempfile::tempdir().unwrap();
    let run = run(BEHIND_A_POOLER, 8, 120);
    assert_judged(&hold(folder.path(), &mut Ground::pooled_postgres(), run).await, true);
}

/// In usual runs, chaos with silent peers is what kills no process on these servers.
mod long {
    use super::*;

    #[tokio::test]
    async fn r39_without_kills_all_is_judged_in_rounds_of_chaos_on_postgres() {
        let folder = tempfile::tempdir().unwrap();
        let counts =
            hold(folder.path(), &mut Ground::postgres(), run(ON_POSTGRES_GENTLY, 20, 120)).await;
        assert_judged(&counts, true);
    }

    #[tokio::test]
    async fn r39_without_kills_all_is_judged_in_rounds_of_chaos_on_redis() {
        let folder = tempfile::tempdir().unwrap();
        let counts = hold(folder.path(), &mut Ground::redis(), run(ON_REDIS_GENTLY, 20, 120)).await;
        assert_judged(&counts, false);
    }
}
