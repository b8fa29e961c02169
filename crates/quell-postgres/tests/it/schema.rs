//! Opening: one schema by many at once, schemas that are not Quell's, servers that are not there.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use quell_conformance::Rig;
use quell_conformance::rig::{fails, lease, plain};
use quell_core::{Batch, ErrorKind, Outcome, SettledAs, Settlement, Store};
use quell_postgres::{PostgresOptions, PostgresStore};
use sqlx::Connection;
use tokio::task::JoinSet;

use crate::scene::{Scene, jobs};

#[tokio::test]
async fn many_that_start_at_once_make_one_schema() {
    let scene = Scene::new();
    let mut openers = JoinSet::new();
    for _ in 0..8 {
        let url = scene.url.clone();
        openers.spawn(async move {
            let store = PostgresStore::open(&url).await?;
            store.enqueue(None, vec![Batch::one(plain("1"))]).await
        });
    }
    while let Some(opened) = openers.join_next().await {
        opened.unwrap().unwrap();
    }
    assert_eq!(jobs(&*scene.store().await).await, 8);
}

#[tokio::test]
async fn schemas_are_strangers_to_each_other() {
    let (one, other) = (Scene::new(), Scene::new());
    let (first, second) = (one.store().await, other.store().await);
    first.enqueue(None, vec![Batch::one(plain("1"))]).await.unwrap();
    assert_eq!((jobs(&*first).await, jobs(&*second).await), (1, 0));
}

#[tokio::test]
async fn a_schema_may_have_any_plain_name() {
    let scene = Scene::new();
    let name = format!("Order_{:x}", fastrand::u32(..));
    let options = PostgresOptions::from_url(scene.plain_url()).unwrap().schema(&name);
    let store = options.open().await.unwrap();
    store.enqueue(None, vec![Batch::one(plain("1"))]).await.unwrap();
    assert_eq!(scene.sql(&format!("select count(*) from \"{name}\".job")), "1");
    let refused = PostgresOptions::from_url(scene.plain_url()).unwrap().schema("a\"; drop").open();
    assert_eq!(refused.await.unwrap_err().field(), Some("schema"));
}

#[tokio::test]
async fn a_schema_of_a_newer_quell_is_left_alone() {
    let scene = Scene::new();
    drop(scene.store().await);
    scene.sql("update quell.meta set schema_version = 1000");
    let refused = PostgresStore::open(&scene.url).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Newer, "{refused}");
    let versions = format!("schema version 1000, this Quell knows up to {NEWEST}: update");
    assert!(refused.to_string().contains(&versions), "{refused}");
}

/// What a later version might change: it takes the locks that migrations take.
const LATER: &str = "alter table quell.job add column later text;
     alter table quell.ended add column later text;
     create table quell.afterwards (id bigint primary key)";

/// The version that this Quell makes.
const NEWEST: u32 = 4;

fn version(scene: &Scene) -> u32 {
    scene.sql("select schema_version from quell.meta").parse().unwrap()
}

#[tokio::test]
async fn a_schema_is_brought_forward_with_its_jobs_and_older_processes_go_on() {
    let scene = Scene::new();
    let old = scene.store().await;
    old.enqueue(None, vec![Batch::one(plain("1"))]).await.unwrap();
    let later = PostgresOptions::from_url(&scene.url).unwrap().later_version(LATER);
    let new = later.open().await.unwrap();
    assert_eq!(version(&scene), NEWEST + 1);
    old.enqueue(None, vec![Batch::one(plain("2"))]).await.unwrap();
    // Both take from both, end what they took, and move whole rows between the tables.
    for (store, outcome) in
        [(&new, Outcome::Succeeded { output: None }), (&*old, fails(Duration::ZERO, true))]
    {
        let claimed = store.claim(None, &Rig::claim_of(1)).await.unwrap();
        let settlement = Settlement { lease: lease(&claimed.jobs[0]), outcome };
        let settled = store.settle(None, vec![settlement]).await.unwrap();
        assert_ne!(settled[0].became, SettledAs::Refused);
    }
    assert_eq!(scene.sql("select count(*) from quell.ended"), "2");
    drop((old, new));
    let refused = PostgresStore::open(&scene.url).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Newer, "an older process does not start any more");
}

/// A report that reads for hours holds every table that it read.
pub(crate) async fn report(scene: &Scene) -> sqlx::PgConnection {
    let schema = scene.schema();
    let tables = ["job", "ended", "queue", "task", "inbox", "attempt"]
        .map(|table| format!("select count(*) from {schema}.{table}"));
    let mut db = scene.connect().await;
    let begin = format!("begin; {}", tables.join("; "));
    sqlx::raw_sql(sqlx::AssertSqlSafe(begin)).execute(&mut db).await.unwrap();
    db
}

/// So long a call may wait beside a migration. Each try of it waits 200 ms for a lock.
const HARDLY: Duration = Duration::from_secs(1);

#[tokio::test]
async fn r39_a_migration_holds_up_nobody_while_a_report_is_open() {
    let scene = Scene::new();
    drop(scene.store().await);
    let reading = report(&scene).await;
    let is_open = Arc::new(AtomicBool::new(true));
    let mut workers = JoinSet::new();
    for _ in 0..4 {
        let (is_open, mut db) = (Arc::clone(&is_open), scene.connect().await);
        let schema = scene.schema().to_owned();
        workers.spawn(async move {
            let mut longest = Duration::ZERO;
            while is_open.load(Ordering::Relaxed) {
                for table in ["job", "ended"] {
                    let began = Instant::now();
                    let call = format!("update {schema}.{table} set state = 3 where id = 0");
                    sqlx::raw_sql(sqlx::AssertSqlSafe(call)).execute(&mut db).await.unwrap();
                    longest = longest.max(began.elapsed());
                }
            }
            longest
        });
    }
    let options = PostgresOptions::from_url(&scene.url).unwrap().later_version(LATER);
    let mut opens = JoinSet::new();
    opens.spawn(async move { options.open().await.map(drop) });
    // It has tried again and again.
    let early = tokio::time::timeout(Duration::from_secs(5), opens.join_next()).await;
    assert!(early.is_err(), "it is not done while the report is open: {early:?}");
    reading.close().await.unwrap();
    let opened = tokio::time::timeout(Duration::from_secs(30), opens.join_next()).await;
    opened.expect("it is done after the report").unwrap().unwrap().unwrap();
    is_open.store(false, Ordering::Relaxed);
    while let Some(longest) = workers.join_next().await {
        assert!(longest.as_ref().unwrap() < &HARDLY, "a call waited {longest:?}");
    }
    assert_eq!(version(&scene), NEWEST + 1);
}

#[tokio::test]
async fn r39_a_migration_that_never_has_its_locks_says_so_and_changes_nothing() {
    let scene = Scene::new();
    drop(scene.store().await);
    let _reading = report(&scene).await;
    let options = PostgresOptions::from_url(&scene.url).unwrap().later_version(LATER);
    let refused = options.migration_timeout(Duration::from_secs(1)).open();
    let refused = tokio::time::timeout(Duration::from_secs(20), refused).await;
    let refused = refused.expect("it ends").unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Contention, "{refused}");
    assert!(refused.to_string().contains("pg_stat_activity"), "{refused}");
    assert_eq!(version(&scene), NEWEST);
}

#[tokio::test]
async fn a_schema_that_is_not_quells_is_left_alone() {
    let scene = Scene::new();
    let schema = scene.schema();
    scene.sql(&format!("create schema {schema}; create table {schema}.meta (id int)"));
    let refused = PostgresStore::open(&scene.url).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Foreign, "{refused}");
    assert_eq!(scene.sql(&format!("select count(*) from {schema}.meta")), "0");
}

#[tokio::test]
async fn what_is_wrong_with_a_url_is_told_and_its_password_is_not() {
    let scene = Scene::new();
    let port = scene.plain_url().rsplit(':').next().unwrap().split('/').next().unwrap();
    let table = [
        ("postgres://quell:secret@127.0.0.1:1/postgres".to_owned(), ErrorKind::Unavailable),
        (format!("postgres://quell:secret@127.0.0.1:{port}/nowhere"), ErrorKind::Invalid),
        (format!("postgres://stranger:secret@127.0.0.1:{port}/postgres"), ErrorKind::Invalid),
    ];
    for (url, kind) in table {
        let refused = PostgresStore::open(&url).await.unwrap_err();
        assert_eq!(refused.kind(), kind, "{refused}");
        assert!(!format!("{refused:?}").contains("secret"), "{refused:?}");
    }
}
