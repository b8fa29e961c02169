//! The counts of jobs are exact after every commit, whatever changed the jobs.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use quell_conformance::harness::actors::act;
use quell_conformance::rig::{keyed, lease, plain};
use quell_core::{Counts, Key, NewTrigger, Outcome, QueueName, Store};
use quell_sqlite::settle_in;
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{AssertSqlSafe, Connection, SqliteConnection};
use tokio::task::JoinSet;

use crate::scene::Scene;

/// What the counts are, beside what all rows say; in one snapshot.
const WRONG: &str = "with counted as (
         select q.name as queue, t.name as task, j.state, count(*) as jobs
           from quell_job j
           join quell_lane l on l.id in (j.lane_id, j.lane_id >> 32)
           join quell_queue q on q.id = l.queue_id
           join quell_task t on t.id = l.task_id
          group by 1, 2, 3)
     select coalesce(group_concat(wrong, ' '), '') from (
         select 'kept ' || queue || ',' || task || ',' || state || ',' || jobs as wrong from (
             select * from quell_counts except select * from counted)
          union all
         select 'counted ' || queue || ',' || task || ',' || state || ',' || jobs from (
             select * from counted except select * from quell_counts))";

async fn fetch<T>(db: &mut SqliteConnection, sql: &'static str) -> T
where
    T: for<'r> sqlx::Decode<'r, sqlx::Sqlite> + sqlx::Type<sqlx::Sqlite> + Send + Unpin,
{
    sqlx::query_scalar(sql).fetch_one(db).await.unwrap()
}

/// Fails unless the counts are those of the rows; also where no runtime may be blocked.
pub(crate) fn expect_exact(file: &Path) {
    let options = SqliteConnectOptions::new().filename(file);
    let read = async move {
        let mut db = SqliteConnection::connect_with(&options).await.unwrap();
        fetch::<String>(&mut db, WRONG).await
    };
    let alone = move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.unwrap().block_on(read)
    };
    assert_eq!(std::thread::spawn(alone).join().unwrap(), "", "{}", file.display());
}

/// A folder whose file has the counts of its rows, whatever was done to it.
pub(crate) struct Kept(pub(crate) tempfile::TempDir);

impl Drop for Kept {
    fn drop(&mut self) {
        let file = self.0.path().join("quell.db");
        if !std::thread::panicking() && file.exists() {
            expect_exact(&file);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn counts_are_exact_at_every_moment_beside_any_changes() {
    let scene = Arc::new(Scene::new());
    let (mut actors, is_over) = (JoinSet::new(), Arc::new(AtomicBool::new(false)));
    for _ in 0..3 {
        let scene = Arc::clone(&scene);
        actors.spawn(async move {
            // As processes of their own would have it.
            let (store, mut db) = (scene.open().await, scene.caller().await);
            for _ in 0..100 {
                act(&store, &mut db).await;
            }
        });
    }
    let store = scene.open().await;
    let (mut reader, mut db) = (JoinSet::new(), scene.connect().await);
    let done = Arc::clone(&is_over);
    reader.spawn(async move {
        while !done.load(Ordering::Relaxed) {
            assert_eq!(fetch::<String>(&mut db, WRONG).await, "");
        }
    });
    while let Some(ended) = actors.join_next().await {
        ended.unwrap();
    }
    is_over.store(true, Ordering::Relaxed);
    reader.join_next().await.unwrap().unwrap();
    expect_exact(&scene.path());
    let counted: u64 = store.counts().await.unwrap().iter().map(|counts| counts.jobs).sum();
    let mut db = scene.connect().await;
    let rows: i64 = fetch(&mut db, "select count(*) from quell_job").await;
    // How many are left is chance: prunes take some.
    let made: i64 = fetch(&mut db, "select next_id from quell_meta").await;
    assert!(made > 20, "only {made} jobs were made");
    assert_eq!(counted, u64::try_from(rows).unwrap());
    assert_eq!(fetch::<i64>(&mut db, "select wrong from quell_recount").await, 0);
}

#[tokio::test]
async fn a_window_that_moves_to_another_queue_or_priority_is_counted_there() {
    let scene = Scene::new();
    let rig = scene.rig().await;
    rig.trigger(keyed("k")).await;
    let other = QueueName::new("other").unwrap();
    for trigger in [
        NewTrigger { queue: other.clone(), ..keyed("k") },
        NewTrigger { queue: other.clone(), priority: 3, ..keyed("k") },
        NewTrigger { queue: other.clone(), partition: Key::new("p").ok(), ..keyed("k") },
    ] {
        rig.trigger(trigger).await;
        expect_exact(&scene.path());
    }
    let counts = rig.store.counts().await.unwrap();
    assert!(
        matches!(&counts[..], [Counts { queue, jobs: 1, .. }] if *queue == other),
        "{counts:?}"
    );
    let sums = "select count(*) from quell_lane_counts";
    assert_eq!(fetch::<i64>(&mut scene.connect().await, sums).await, 1);
}

#[tokio::test]
async fn an_end_in_a_callers_transaction_is_counted_with_it_or_not_at_all() {
    let scene = Scene::new();
    let rig = scene.rig().await;
    let mut db = scene.connect().await;
    for end in ["rollback to s; commit", "rollback", "release s; commit"] {
        rig.trigger(plain("1")).await;
        let run = rig.claim_one().await;
        sqlx::raw_sql("begin immediate; savepoint s").execute(&mut db).await.unwrap();
        let location = rig.store.location().unwrap();
        settle_in(&mut db, location, &lease(&run), Some(rig.now()), None).await.unwrap();
        assert_eq!(fetch::<String>(&mut db, WRONG).await, "");
        sqlx::raw_sql(AssertSqlSafe(end)).execute(&mut db).await.unwrap();
        expect_exact(&scene.path());
        let _ended = rig.settle(lease(&run), Outcome::succeeded()).await;
    }
    let counts = rig.store.counts().await.unwrap();
    assert_eq!(counts.iter().map(|counts| counts.jobs).collect::<Vec<_>>(), [3]);
}

#[tokio::test]
async fn a_recount_corrects_what_hands_changed() {
    let scene = Scene::new();
    let rig = scene.rig().await;
    for _ in 0..8 {
        rig.trigger(plain("1")).await;
    }
    scene
        .execute("delete from quell_job where id = 3; update quell_job set state = 5 where id = 2")
        .await;
    let mut db = scene.connect().await;
    assert_eq!(fetch::<i64>(&mut db, "select sum(jobs) from quell_counts").await, 8);
    assert_eq!(fetch::<i64>(&mut db, "select wrong from quell_recount").await, 2);
    scene.execute("update quell_recount set wrong = 0").await;
    expect_exact(&scene.path());
    assert_eq!(fetch::<i64>(&mut db, "select wrong from quell_recount").await, 0);
    scene.execute("delete from quell_job; update quell_recount set wrong = 0").await;
    assert!(rig.store.counts().await.unwrap().is_empty());
}
