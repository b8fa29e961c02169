//! The newest server that is promised: every rule, random operations beside the model, and a queue of
//! notifications that is full, which only newer releases let anyone make small.

use std::sync::Arc;
use std::time::Duration;

use quell_conformance::rig::{lease, plain};
use quell_conformance::{Opened, Rig, oracle, report};
use quell_core::JobState;
use quell_postgres::{PostgresOptions, settle_in};
use quell_services::{Postgres, psql};
use sqlx::postgres::PgListener;
use sqlx::{Connection, PgConnection};

/// A schema of its own.
async fn opened(server: &Postgres) -> Opened {
    let url = format!("{}?schema=t{:016x}", server.url(), fastrand::u64(..));
    let store = PostgresOptions::from_url(&url).unwrap().open().await.unwrap();
    Opened { store: Arc::new(store), guard: Box::new(()) }
}

/// Fills the queue of a server whose slowest listener stays in a transaction, with notifications of
/// another program; the listener is returned.
async fn fill(server: &Postgres) -> PgConnection {
    let mut slow = PgConnection::connect(&server.url()).await.unwrap();
    for statement in ["listen others", "begin", "select 1"] {
        sqlx::raw_sql(statement).execute(&mut slow).await.unwrap();
    }
    let mut db = PgConnection::connect(&server.url()).await.unwrap();
    let text = "x".repeat(7_000);
    loop {
        let reported =
            sqlx::query("select pg_notify('others', $1)").bind(&text).execute(&mut db).await;
        match reported {
            Ok(_) => {}
            Err(full) => {
                assert!(full.to_string().contains("too many notifications"), "{full}");
                return slow;
            }
        }
    }
}

#[tokio::test]
async fn r04_r22_r39_a_full_queue_of_notifications_refuses_no_trigger_and_no_settlement() {
    let server = Postgres::start_18(&["max_notify_queue_pages=64"]).unwrap();
    let url = format!("{}?schema=quell", server.url());
    let store = Arc::new(PostgresOptions::from_url(&url).unwrap().open().await.unwrap());
    let mut rig = Rig::new(Opened { store, guard: Box::new(()) });
    let asked = |script: &str| {
        let said = psql(&server.url()).args(["--command", script]).output().unwrap();
        assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
    };
    // A job of the key runs, and the next waits for its end; a settlement notifies others of that end.
    let keyed =
        "select quell.trigger('t', '1', key => 'k', queue => 'q', min => '1 s', max => '9 s')";
    asked(keyed);
    rig.claim_none().await;
    let first = rig.at(10).claim_one().await;
    asked(keyed);
    rig.claim_none().await;

    let slow = fill(&server).await;
    let mut db = PgConnection::connect(&server.url()).await.unwrap();
    let usage = "select pg_notification_queue_usage()";
    let usage: f64 = sqlx::query_scalar(usage).fetch_one(&mut db).await.unwrap();
    assert!(usage > 0.9, "{usage}");
    // A process that starts now works, too.
    let _other = PostgresOptions::from_url(&url).unwrap().open().await.unwrap();
    asked("select quell.trigger('t', '2', queue => 'q')");
    rig.trigger(plain("3")).await;
    let mut tx = db.begin().await.unwrap();
    let location = rig.store.location().unwrap();
    settle_in(&mut tx, location, &lease(&first), Some(rig.now()), None).await.unwrap();
    tx.commit().await.unwrap();
    let next = rig.at(30).claim().await;
    assert_eq!(next.len(), 3);
    for job in &next {
        rig.succeed(job).await;
    }
    assert_eq!(rig.states().await, [JobState::Succeeded; 4]);

    // Once the listener has gone, others are notified again.
    slow.close().await.unwrap();
    let channel = "select substring(prosrc from 'quell_[0-9a-f]{16}') from pg_proc \
                    where pronamespace = 'quell'::regnamespace and proname = 'hint'";
    let channel: String = sqlx::query_scalar(channel).fetch_one(&mut db).await.unwrap();
    let mut listener = PgListener::connect(&server.url()).await.unwrap();
    listener.listen(&channel).await.unwrap();
    asked("select quell.trigger('t', '4', queue => 'q')");
    tokio::time::timeout(Duration::from_secs(20), async {
        // The store's own hints are of another origin.
        while !listener.recv().await.unwrap().payload().starts_with("0 ") {}
    })
    .await
    .expect("others are notified");
}

/// The whole suite and more random operations: `cargo xtask test --long` runs these.
mod long {
    use super::*;

    #[tokio::test]
    async fn r39_postgresql_18_passes_the_suite() {
        let server = Arc::new(Postgres::start_18(&[]).unwrap());
        let mut db = PgConnection::connect(&server.url()).await.unwrap();
        let about: String =
            sqlx::query_scalar("select version()").fetch_one(&mut db).await.unwrap();
        assert!(about.contains("PostgreSQL 18."), "{about}");
        let report = report::run("postgres", move || {
            let server = Arc::clone(&server);
            async move { opened(&server).await }
        })
        .await;
        assert_eq!(report.failures().count(), 0, "{report}");
    }

    #[test]
    fn the_store_answers_like_the_model_on_postgresql_18() {
        let server = Postgres::start_18(&[]).unwrap();
        let ran = oracle::run(|| opened(&server), oracle::COUNTED, 12, None);
        assert!(ran.is_ok(), "{}", ran.unwrap_err());
    }
}
