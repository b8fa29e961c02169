//! What an idle worker does ahead of its next job (R34), and which connections it leaves alone.

use std::sync::Arc;

use quell_conformance::Rig;
use quell_conformance::rig::{heartbeat, plain, task};
use quell_core::{Batch, Outcome, QueueName, Retention, Store};
use quell_postgres::{PostgresOptions, PostgresStore};
use quell_services::Postgres;

use crate::scene::{Scene, claim, end};

/// A server that counts how often it plans each statement, and a store on it.
async fn counting() -> (Postgres, Scene, PostgresStore) {
    let server = Postgres::start(&[
        "fsync=off",
        "autovacuum=off",
        "shared_preload_libraries=pg_stat_statements",
        "pg_stat_statements.track_planning=on",
    ])
    .unwrap();
    let scene = Scene { url: format!("{}?schema=warm", server.url()) };
    scene.sql("create extension pg_stat_statements");
    let store = scene.one_session().await;
    (server, scene, store)
}

/// How often the statements that a job needs were planned, and how often they ran.
fn planned(scene: &Scene) -> (u64, u64) {
    let counts = scene.sql(
        "select sum(plans), sum(calls) from pg_stat_statements
          where toplevel and query like 'with clock as materialized%'
            and query ~ 'insert into \"warm\".(delta|lease|ended)'",
    );
    let (plans, calls) = counts.split_once('|').unwrap();
    (plans.parse().unwrap(), calls.parse().unwrap())
}

/// As autovacuum does after a busy time.
fn analyze(scene: &Scene) {
    for table in ["job", "lease", "ended", "delta"] {
        scene.sql(&format!("analyze quell.{table}"));
    }
}

async fn run_one_job(store: &PostgresStore) {
    store.enqueue(None, vec![Batch::one(plain("1"))]).await.unwrap();
    let claimed = claim(store, None, 1).await;
    assert_eq!(claimed.jobs.len(), 1);
    end(store, None, &claimed, Outcome::succeeded()).await;
}

/// A worker's look at its queues, which finds nothing.
async fn look(store: &PostgresStore, queues: &[&str]) {
    let tasks = Arc::from([task("t")]);
    let queues: Vec<_> =
        queues.iter().map(|name| (QueueName::new(*name).unwrap(), Arc::clone(&tasks))).collect();
    store.peek(None, &queues).await.unwrap();
}

#[tokio::test]
async fn r34_the_first_job_of_an_idle_worker_is_planned_before_it_comes() {
    let (_server, scene, store) = counting().await;
    let queue = Rig::claim_of(1).queue;
    look(&store, &[queue.as_str(), "other"]).await;
    let (plans, before) = planned(&scene);
    run_one_job(&store).await;
    let (now, calls) = planned(&scene);
    assert_eq!((now, calls), (plans, before + 3), "plans and calls");
}

#[tokio::test]
async fn r34_after_an_analyze_an_idle_worker_plans_again_before_its_next_job() {
    let (_server, scene, store) = counting().await;
    let beat = heartbeat(&Rig::claim_of(1).worker, 1);
    run_one_job(&store).await;
    let idle = async || {
        store.heartbeat(None, &beat).await.unwrap();
        assert!(claim(&store, None, 1).await.jobs.is_empty());
    };
    idle().await;
    analyze(&scene);
    let (plans, _) = planned(&scene);
    run_one_job(&store).await;
    assert_eq!(planned(&scene).0, plans + 3, "no heartbeat came, so the job planned");
    analyze(&scene);
    idle().await;
    let (plans, before) = planned(&scene);
    run_one_job(&store).await;
    assert_eq!(planned(&scene), (plans, before + 3), "plans and calls");
}

/// Transactions that have written have a number.
#[tokio::test]
async fn r34_an_idle_worker_writes_nothing_to_keep_its_plans() {
    let (_server, scene, store) = counting().await;
    let beat = heartbeat(&Rig::claim_of(1).worker, 1);
    run_one_job(&store).await;
    let next = || scene.sql("select pg_snapshot_xmax(pg_current_snapshot())");
    // At a time of its own no claim promises later ones, which is a write, however long the test takes.
    let now = Some(claim(&store, None, 1).await.now);
    for _ in 0..3 {
        store.heartbeat(None, &beat).await.unwrap();
        let before = next();
        let (_, calls) = planned(&scene);
        assert!(claim(&store, now, 1).await.jobs.is_empty());
        assert_eq!(
            planned(&scene).1,
            calls + 4,
            "the claim, and three statements with nothing to do"
        );
        assert_eq!(next(), before, "no transaction had anything to write");
        assert!(claim(&store, now, 1).await.jobs.is_empty());
        assert_eq!(planned(&scene).1, calls + 5, "once for each heartbeat");
    }
}

/// A worker's upkeep may take long, and its connection has not planned what a job needs.
#[tokio::test]
async fn r34_upkeep_leaves_the_connection_that_jobs_use() {
    let scene = Scene::new();
    let options = PostgresOptions::from_url(&scene.url).unwrap();
    let store = options.connections(2).open().await.unwrap();
    let beat = heartbeat(&Rig::claim_of(1).worker, 1);
    // Both connect, as none is free.
    let (_, beaten) = tokio::join!(claim(&store, None, 1), store.heartbeat(None, &beat));
    beaten.unwrap();
    run_one_job(&store).await;
    // The newest statement was of the session that ran the job.
    let newest = scene.sql(&format!(
        "select pid, query_start from pg_stat_activity
          where application_name = '{0}' and query like '%\"{0}\".%'
          order by query_start desc limit 1",
        scene.schema()
    ));
    let (pid, _) = newest.split_once('|').unwrap();
    let of_jobs =
        || scene.sql(&format!("select pid, query_start from pg_stat_activity where pid = {pid}"));
    store.prune(None, &Retention::default(), 9).await.unwrap();
    store.heartbeat(None, &beat).await.unwrap();
    store.reap(None, 9).await.unwrap();
    store.tick(None, 9).await.unwrap();
    assert_eq!(of_jobs(), newest, "it ran nothing since");
}
