//! The counts of jobs are exact at every moment, and reading them costs the same however many jobs
//! there are.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use quell_conformance::harness::actors::act;
use quell_conformance::rig::plain;
use quell_core::{Batch, Retention, Store};
use quell_postgres::PostgresStore;
use sqlx::{AssertSqlSafe, PgConnection};
use tokio::task::JoinSet;

use crate::scene::{Caller, Scene};

/// What the counts are, beside what all rows say; in one snapshot.
pub(crate) const WRONG: &str = "with kept as (select queue, task, state, jobs from quell.counts),
     counted as (
         select q.name as queue, t.name as task, j.state, count(*) as jobs
           from (select lane_id, state from quell.job
                 union all select lane_id, state from quell.ended) j
           join quell.lane l on l.id = j.lane_id
           join quell.queue q on q.id = l.queue_id
           join quell.task t on t.id = l.task_id
          group by 1, 2, 3)
     select concat(
         (select string_agg(w::text, ' ') from (table kept except table counted) w), ' for ',
         (select string_agg(w::text, ' ') from (table counted except table kept) w))";

pub(crate) fn expect_exact(scene: &Scene) {
    assert_eq!(scene.sql(WRONG), "for");
}

async fn run(scene: &Scene, db: &mut PgConnection, text: &str) {
    let text = text.replace("quell.", &format!("{}.", scene.schema()));
    sqlx::raw_sql(AssertSqlSafe(text)).execute(db).await.unwrap();
}

async fn fetch(scene: &Scene, db: &mut PgConnection, text: &str) -> String {
    let text = text.replace("quell.", &format!("{}.", scene.schema()));
    sqlx::query_scalar(AssertSqlSafe(text)).fetch_one(db).await.unwrap()
}

/// Any change that a caller, a worker or an operator makes, and what only this store has.
async fn change(scene: &Scene, store: &PostgresStore, caller: &mut Caller, db: &mut PgConnection) {
    match fastrand::u8(..14) {
        0 => {
            let undone = "begin; delete from quell.job; savepoint s; delete from quell.ended;
                          rollback to s; rollback";
            // It waits for rows, and may lose to another call that does.
            let text = undone.replace("quell.", &format!("{}.", scene.schema()));
            let limit = format!("set lock_timeout = '50ms'; {text}");
            if sqlx::raw_sql(AssertSqlSafe(limit)).execute(&mut *db).await.is_err() {
                run(scene, db, "rollback").await;
            }
            run(scene, db, "set lock_timeout = 0").await;
        }
        1 => run(scene, db, "select quell.fold_counts(1)").await,
        _ => act(store, caller).await,
    }
}

#[tokio::test]
async fn counts_are_exact_at_every_moment_beside_any_changes_and_folds() {
    let scene = Arc::new(Scene::new());
    let store = scene.store().await;
    let (mut actors, is_over) = (JoinSet::new(), Arc::new(AtomicBool::new(false)));
    for _ in 0..4 {
        let (scene, store) = (Arc::clone(&scene), Arc::clone(&store));
        actors.spawn(async move {
            let (mut caller, mut db) = (scene.caller().await, scene.connect().await);
            for _ in 0..60 {
                change(&scene, &store, &mut caller, &mut db).await;
            }
        });
    }
    let mut reader = JoinSet::new();
    let (of_reader, done) = (Arc::clone(&scene), Arc::clone(&is_over));
    reader.spawn(async move {
        let mut db = of_reader.connect().await;
        while !done.load(Ordering::Relaxed) {
            assert_eq!(fetch(&of_reader, &mut db, WRONG).await.trim(), "for");
            tokio::task::yield_now().await;
        }
    });
    while let Some(ended) = actors.join_next().await {
        ended.unwrap();
    }
    is_over.store(true, Ordering::Relaxed);
    reader.join_next().await.unwrap().unwrap();
    expect_exact(&scene);
    let counted: u64 = store.counts().await.unwrap().iter().map(|counts| counts.jobs).sum();
    let rows = "select (select count(*) from quell.job) + (select count(*) from quell.ended)";
    assert_eq!(counted.to_string(), scene.sql(rows));
    assert_eq!(scene.sql("select quell.recount()"), "0");
}

/// Enqueues the given number of jobs, which wait.
async fn fill(store: &PostgresStore, jobs: usize) {
    let triggers = (0..jobs).map(|_| plain("1")).collect();
    store.enqueue(None, vec![Batch { triggers, dedup: None }]).await.unwrap().remove(0).unwrap();
}

#[tokio::test]
async fn a_fold_leaves_what_transactions_wrote_that_had_not_ended() {
    let scene = Scene::new();
    let store = scene.store().await;
    fill(&store, 9).await;
    let mut db = scene.connect().await;
    for end in ["commit", "rollback"] {
        // One that has written before the fold, in a savepoint, and writes after it.
        run(&scene, &mut db, "begin; savepoint s; delete from quell.job where id in (select min(id) from quell.job); release s").await;
        fill(&store, 2).await;
        for _ in 0..3 {
            scene.sql("select quell.fold_counts(1)");
            expect_exact(&scene);
            fill(&store, 1).await;
        }
        run(&scene, &mut db, "delete from quell.job where id in (select max(id) from quell.job)")
            .await;
        run(&scene, &mut db, end).await;
        expect_exact(&scene);
        scene.sql("select quell.fold_counts(1)");
        expect_exact(&scene);
        assert_eq!(scene.sql("select count(*) from quell.delta"), "0");
    }
    // One that folds itself, between two changes.
    run(&scene, &mut db, "begin; delete from quell.job where id in (select max(id) from quell.job); select quell.fold_counts(1); delete from quell.job where id in (select min(id) from quell.job); commit").await;
    expect_exact(&scene);
    assert_eq!(scene.sql("select quell.recount()"), "0");
}

#[tokio::test]
async fn counts_are_right_after_a_restore_into_a_server_with_lower_transaction_numbers() {
    let scene = Scene::new();
    let store = scene.store().await;
    fill(&store, 3).await;
    scene.sql("select quell.fold_counts(1)");
    scene.sql("update quell.fold set upto = '9000000000000', open = '{7,8}'");
    fill(&store, 2).await;
    expect_exact(&scene);
    scene.sql("select quell.fold_counts(1)");
    fill(&store, 1).await;
    expect_exact(&scene);
    assert_eq!(scene.sql("select jobs from quell.counts"), "6");
}

#[tokio::test]
async fn counts_follow_what_is_written_by_hand_and_a_recount_corrects_what_triggers_did_not_see() {
    let scene = Scene::new();
    let store = scene.store().await;
    fill(&store, 8).await;
    scene.sql("update quell.job set state = 5 where id = 2; insert into quell.ended select * from quell.job where id = 2; delete from quell.job where id = 2");
    expect_exact(&scene);
    scene.sql("set session_replication_role = replica; delete from quell.job where id = 3");
    assert_eq!(scene.sql("select sum(jobs) from quell.counts"), "8", "no trigger saw it");
    assert_eq!(scene.sql("select quell.recount()"), "1");
    expect_exact(&scene);
    scene.sql("truncate quell.job");
    expect_exact(&scene);
    assert_eq!(scene.sql("select state, jobs from quell.counts"), "5|1");
}

/// The blocks that reading the counts touches.
fn blocks(scene: &Scene) -> u64 {
    let plan = scene.sql(
        "set enable_seqscan = off; set enable_bitmapscan = off; set enable_hashjoin = off;
         set enable_mergejoin = off; set jit = off;
         explain (analyze, buffers, summary off) select * from quell.counts",
    );
    let line = plan.lines().find(|line| line.contains("Buffers: ")).unwrap();
    let numbers = line.split([' ', '=']).filter_map(|word| word.parse::<u64>().ok());
    numbers.sum()
}

#[tokio::test]
async fn reading_the_counts_costs_the_same_before_any_number_of_jobs_and_beside_an_open_snapshot() {
    // Its own, as each transaction in flight on the server costs a look.
    let server = quell_services::Postgres::start(&["fsync=off"]).unwrap();
    let scene = Scene { url: format!("{}?schema=quell", server.url()) };
    let store = scene.store().await;
    fill(&store, 1_000).await;
    // The same states all along.
    scene.sql("update quell.job set state = 1 where id = 1000; select quell.fold_counts(1)");
    let few = blocks(&scene);
    fill(&store, 9_500).await;
    fill(&store, 9_500).await;
    scene.sql("select quell.fold_counts(1)");
    let many = blocks(&scene);
    assert!(many <= few + 3, "{few} blocks before 1,000 jobs, {many} before 20,000");
    let mut old = scene.connect().await;
    run(&scene, &mut old, "begin isolation level repeatable read; select from quell.job").await;
    scene.sql(
        "do $$ begin
             for n in 1..900 loop
                 update quell.job set state = 1 - state where id = n; commit;
                 update quell.job set state = 1 - state where id = n + 1000; commit;
                 perform quell.fold_counts(1); commit;
             end loop;
         end $$",
    );
    let beside = blocks(&scene);
    expect_exact(&scene);
    assert!(beside <= many + 10, "{many} blocks, {beside} beside a snapshot after 900 folds");
    // One that has written, which holds back the numbers of all that begin later.
    run(&scene, &mut old, "rollback; begin; delete from quell.job where id = 950").await;
    scene.sql(
        "do $$ begin
             for n in 1..900 loop
                 update quell.job set state = 1 - state where id = n; commit;
                 perform quell.fold_counts(1); commit;
             end loop;
         end $$",
    );
    let beside = blocks(&scene);
    assert!(beside <= many + 12, "{many} blocks, {beside} beside a transaction after 900 folds");
}

#[tokio::test]
async fn calls_fold_what_they_wrote_so_deltas_stay_few() {
    let scene = Scene::new();
    let store = scene.store().await;
    for _ in 0..2_200 {
        store.enqueue(None, vec![Batch::one(plain("1"))]).await.unwrap();
    }
    let left: u64 = scene.sql("select count(*) from quell.delta").parse().unwrap();
    assert!(left <= 1_000, "{left} deltas were left");
    expect_exact(&scene);
    store.prune(None, &Retention::default(), 10).await.unwrap();
    assert_eq!(scene.sql("select count(*) from quell.delta"), "0");
}
