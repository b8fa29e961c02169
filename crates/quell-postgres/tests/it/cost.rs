//! What a call reads must not grow with what waits, even where its plan was made while the tables
//! were empty: the statistics of a queue are always late.

use quell_conformance::Rig;
use quell_conformance::rig::{keyed, lease, plain};
use quell_core::dedup::Dedup;
use quell_core::{Batch, Key, NewTrigger, Outcome, Settlement, Store};
use quell_postgres::{PostgresOptions, PostgresStore};

use crate::scene::{Scene, until};

/// How many rows others have.
const OTHERS: u64 = 5_000;
/// How many calls are counted.
const CALLS: u64 = 20;
/// What a call may read.
const FEW: u64 = 50;

/// A store with one session, so that its plans are those of the first calls.
async fn open(scene: &Scene) -> PostgresStore {
    let options = PostgresOptions::from_url(&scene.url).unwrap();
    options.connections(1).open().await.unwrap()
}

async fn trigger(store: &PostgresStore, trigger: NewTrigger) {
    store.enqueue(None, vec![Batch::one(trigger)]).await.unwrap();
}

/// The rows of a table that were read, by any means, once all of these changes to it are counted.
async fn rows_read(scene: &Scene, store: PostgresStore, table: &str, changes: u64) -> u64 {
    // A session hands in its counts late, and all of them at its end.
    drop(store);
    let counted = |what: &str| {
        let count = scene.sql(&format!(
            "select {what} from pg_stat_all_tables
              where schemaname = '{}' and relname = '{table}'",
            scene.schema()
        ));
        count.parse::<u64>().unwrap()
    };
    until("all is counted", async || counted("n_tup_ins + n_tup_upd + n_tup_del") >= changes).await;
    counted("coalesce(seq_tup_read, 0) + coalesce(idx_tup_fetch, 0)")
}

#[tokio::test]
async fn r07_a_join_reads_its_own_window_and_no_other() {
    let scene = Scene::new();
    let store = open(&scene).await;
    // Its statistics say that there is nothing.
    scene.sql("analyze quell.job");
    trigger(&store, keyed("first")).await;
    trigger(&store, keyed("first")).await;
    scene.sql(&format!(
        "insert into quell.job (id, due_at, first_at, lane_id, task_id, key, shape, payload)
         select nextval('quell.job_id'), due_at, first_at, lane_id, task_id, 'k' || n, shape, payload
           from quell.job, generate_series(1, {OTHERS}) n"
    ));
    for n in 1..=CALLS {
        trigger(&store, keyed(&format!("k{n}"))).await;
    }
    let read = rows_read(&scene, store, "job", 1 + 1 + OTHERS + CALLS).await;
    assert!(read < CALLS * FEW, "{read} rows were read for {CALLS} joins");
}

#[tokio::test]
async fn r16_a_dedup_key_reads_its_own_hold_and_no_other() {
    let scene = Scene::new();
    let store = open(&scene).await;
    let with =
        |key: &str| NewTrigger { dedup: Some(Dedup::new(Key::new(key).unwrap())), ..plain("1") };
    trigger(&store, with("first")).await;
    trigger(&store, with("first")).await;
    scene.sql(&format!(
        "insert into quell.hold (job_id, expires_at, task_id, key, until)
         select job_id, expires_at, task_id, 'k' || n, until
           from quell.hold, generate_series(1, {OTHERS}) n"
    ));
    for n in 1..=CALLS {
        trigger(&store, with(&format!("new{n}"))).await;
    }
    let read = rows_read(&scene, store, "hold", 1 + OTHERS + CALLS).await;
    assert!(read < CALLS * FEW, "{read} rows were read for {CALLS} dedup keys");
}

#[tokio::test]
async fn r34_a_claim_and_its_settlement_read_their_own_jobs_and_no_other() {
    let scene = Scene::new();
    let store = open(&scene).await;
    let run = async |failing: bool| {
        let claimed = store.claim(None, &Rig::wish(1)).await.unwrap().jobs;
        let outcome = match failing {
            true => Outcome::Snoozed { delay: std::time::Duration::from_secs(3_600) },
            false => Outcome::Succeeded,
        };
        let ended =
            claimed.iter().map(|job| Settlement { lease: lease(job), outcome: outcome.clone() });
        store.settle(None, ended.collect()).await.unwrap();
        assert_eq!(claimed.len(), 1);
    };
    for n in 0..4 {
        trigger(&store, plain("1")).await;
        run(n % 2 == 0).await;
    }
    trigger(&store, plain("1")).await;
    scene.sql(&format!(
        "insert into quell.job (id, due_at, first_at, lane_id, task_id, payload)
         select nextval('quell.job_id'), due_at, first_at, lane_id, task_id, payload
           from quell.job, generate_series(1, {OTHERS}) n where starts = 0"
    ));
    for n in 0..CALLS {
        run(n % 2 == 0).await;
    }
    let read = rows_read(&scene, store, "job", 5 + 4 + 4 + OTHERS + 2 * CALLS).await;
    assert!(read < CALLS * FEW, "{read} rows were read for {CALLS} claims and settlements");
}
