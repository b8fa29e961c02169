//! Roles with as few rights as their part needs, and what is said to those with fewer.

use quell_conformance::rig::{keyed, plain};
use quell_core::{Batch, ErrorKind, Store};
use quell_postgres::{PostgresStore, trigger_in};
use sqlx::{Connection, PgConnection};

use crate::scene::{Scene, jobs};

/// A role with the rights of a part, or none; its URLs, plain and of the store.
fn role(scene: &Scene, part: Option<&str>) -> (String, String) {
    let name = format!("r_{}", fastrand::u64(..));
    scene.sql(&format!("create role {name} login"));
    if let Some(part) = part {
        scene.sql(&format!("select quell.grant_part('{part}', '{name}')"));
    }
    let of = |url: &str| url.replace("quell@", &format!("{name}@"));
    (of(scene.plain_url()), of(&scene.url))
}

#[tokio::test]
async fn a_producer_may_trigger_and_nothing_else() {
    let scene = Scene::new();
    let store = scene.store().await;
    let (plain_url, _) = role(&scene, Some("producer"));
    let mut db = PgConnection::connect(&plain_url).await.unwrap();
    trigger_in(&mut db, store.location().unwrap(), &Batch::one(plain("1"))).await.unwrap();
    let run = async |db: &mut PgConnection, text: &str| {
        let text = text.replace("quell.", &format!("{}.", scene.schema()));
        sqlx::raw_sql(sqlx::AssertSqlSafe(text)).execute(db).await.map_err(|e| e.to_string())
    };
    run(&mut db, "select quell.trigger('t', '2')").await.unwrap();
    run(&mut db, "select quell.trigger_many('[{\"task\": \"t\"}]')").await.unwrap();
    for forbidden in [
        "select * from quell.job",
        "select * from quell.inbox",
        "insert into quell.inbox (triggers) values ('')",
        "delete from quell.job",
        "update quell.queue set settings = '{}'",
        "select quell.settle(1, 1, null)",
        "select quell.settle(1, 1, null, '1')",
        "select quell.tick(null, null)",
        "select quell.notify_in_transactions(false)",
    ] {
        let refused = run(&mut db, forbidden).await.unwrap_err();
        assert!(refused.contains("permission denied"), "{forbidden}: {refused}");
    }
    store.enqueue(None, vec![Batch::one(keyed("k"))]).await.unwrap();
    assert_eq!(jobs(&*store).await, 4);
}

#[tokio::test]
async fn a_worker_role_works_without_owning_the_schema() {
    let scene = Scene::new();
    drop(scene.store().await);
    let (_, url) = role(&scene, Some("worker"));
    let store = PostgresStore::open(&url).await.unwrap();
    store.enqueue(None, vec![Batch::one(keyed("k")), Batch::one(plain("1"))]).await.unwrap();
    let claim = quell_conformance::Rig::claim_of(9);
    let run = store.claim(None, &claim).await.unwrap().jobs.remove(0);
    let lease = quell_conformance::rig::lease(&run);
    let settlement = quell_core::Settlement { lease, outcome: quell_core::Outcome::succeeded() };
    let settled = store.settle(None, vec![settlement]).await.unwrap();
    assert_eq!(settled[0].became, quell_core::SettledAs::Succeeded);
}

#[tokio::test]
async fn r22_who_may_settle_may_settle_with_an_output() {
    let scene = Scene::new();
    drop(scene.store().await);
    let urls = ["worker", "producer"].map(|part| role(&scene, Some(part)).0);
    for (url, reported) in urls.iter().zip(["was lost", "permission denied"]) {
        let mut db = PgConnection::connect(url).await.unwrap();
        let text = format!("select {}.settle(1, 1, null, '1')", scene.schema());
        let refused = sqlx::raw_sql(sqlx::AssertSqlSafe(text)).execute(&mut db).await.unwrap_err();
        assert!(refused.to_string().contains(reported), "{refused}");
    }
}

#[tokio::test]
async fn missing_rights_are_told_at_the_start_and_nothing_is_half_done() {
    let scene = Scene::new();
    let (_, url) = role(&scene, None);
    // No schema yet, and no right to make one.
    let refused = PostgresStore::open(&url).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ReadOnly, "{refused}");
    let there = format!("select to_regnamespace('{}') is null", scene.schema());
    assert_eq!(scene.sql(&there), "t");
    drop(scene.store().await);
    // A schema, and no right to use it.
    let refused = PostgresStore::open(&url).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ReadOnly, "{refused}");
    assert!(refused.to_string().contains("grant it"), "{refused}");
}

#[tokio::test]
async fn a_reader_may_read_the_counts_and_a_worker_may_fold_them() {
    let scene = Scene::new();
    let store = scene.store().await;
    store.enqueue(None, vec![Batch::one(plain("1"))]).await.unwrap();
    let run = async |part: &str, text: &str| {
        let mut db = PgConnection::connect(&role(&scene, Some(part)).0).await.unwrap();
        let text = text.replace("quell.", &format!("{}.", scene.schema()));
        sqlx::raw_sql(sqlx::AssertSqlSafe(text)).execute(&mut db).await.map_err(|e| e.to_string())
    };
    run("reader", "select queue, task, state, jobs from quell.counts").await.unwrap();
    let refused = run("reader", "select quell.fold_counts(1)").await.unwrap_err();
    assert!(refused.contains("permission denied"), "{refused}");
    run("worker", "select quell.fold_counts(1)").await.unwrap();
    assert_eq!(scene.sql("select count(*) from quell.delta"), "0");
}
