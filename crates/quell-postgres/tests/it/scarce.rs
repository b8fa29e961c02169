//! A server, or a process's own pool, that gives too little: each is a clear error, nothing is half
//! done, and all is well as soon as there is enough again.

use std::time::Duration;

use quell_conformance::Rig;
use quell_conformance::rig::{fails, keyed, lease, plain, until};
use quell_core::{
    Batch, Error, ErrorKind, NewTrigger, Outcome, Result, SettledAs, Settlement, Store,
};
use quell_postgres::{PostgresOptions, PostgresStore};
use quell_services::Postgres;
use sqlx::{Connection, PgConnection};

use crate::scene::{Scene, jobs};

/// How long calls wait for a connection here.
const SOON: Duration = Duration::from_millis(200);

async fn take(store: &PostgresStore, trigger: NewTrigger) -> Result<()> {
    store.enqueue(None, vec![Batch::one(trigger)]).await.map(drop)
}

/// A transaction of another program that holds what every call needs that writes; new connections
/// can still be made.
async fn lock(scene: &Scene) -> PgConnection {
    let mut db = scene.connect().await;
    let schema = scene.schema();
    let lock =
        format!("begin; lock table {schema}.job, {schema}.lease in share row exclusive mode");
    sqlx::raw_sql(sqlx::AssertSqlSafe(lock)).execute(&mut db).await.unwrap();
    db
}

fn is_unavailable(error: &Error, about: &str) {
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.is_retryable() && error.to_string().contains(about), "{error}");
}

#[tokio::test]
async fn r39_a_full_pool_is_told_and_goes_on_when_a_connection_is_free() {
    let scene = Scene::new();
    let options = PostgresOptions::from_url(&scene.url).unwrap();
    let store = options.connections(1).acquire_timeout(SOON).open().await.unwrap();
    take(&store, plain("1")).await.unwrap();
    let held = lock(&scene).await;
    let waits = format!(
        "select count(*) from pg_locks where not granted and relation = '{}.job'::regclass",
        scene.schema()
    );
    let (first, ()) = tokio::join!(take(&store, plain("2")), async {
        until("the first call waits", async || scene.sql(&waits) == "1").await;
        for trigger in [plain("3"), keyed("k")] {
            is_unavailable(&take(&store, trigger).await.unwrap_err(), "`connections`");
        }
        is_unavailable(&store.claim(None, &Rig::claim_of(9)).await.unwrap_err(), "`connections`");
        held.close().await.unwrap();
    });
    first.unwrap();
    assert_eq!(jobs(&store).await, 2, "what was refused was not taken");
    assert_eq!(store.claim(None, &Rig::claim_of(9)).await.unwrap().jobs.len(), 2);
}

#[tokio::test]
async fn r39_a_statement_that_times_out_is_told_and_changes_nothing() {
    let scene = Scene::new();
    let patient = scene.store().await;
    for trigger in [plain("1"), plain("2"), keyed("k")] {
        take(&patient, trigger).await.unwrap();
    }
    let mut runs = patient.claim(None, &Rig::claim_of(9)).await.unwrap().jobs;
    let (one, other) = (runs.remove(0), runs.remove(0));
    take(&patient, plain("3")).await.unwrap();
    let before = patient.jobs(&quell_core::JobFilter::default()).await.unwrap();
    let url = format!("{}&options[statement_timeout]=100", scene.url);
    let store = PostgresStore::open(&url).await.unwrap();
    let well = Settlement { lease: lease(&one), outcome: Outcome::succeeded() };
    let ill = Settlement { lease: lease(&other), outcome: fails(SOON, false) };
    let held = lock(&scene).await;
    let answers = [
        take(&store, plain("4")).await,
        take(&store, keyed("k")).await,
        store.claim(None, &Rig::claim_of(9)).await.map(drop),
        store.renew(None, &[lease(&one)], Rig::LEASE).await.map(drop),
        store.settle(None, vec![well.clone()]).await.map(drop),
        store.settle(None, vec![ill.clone()]).await.map(drop),
        store.cancel(None, one.id, "no more").await,
    ];
    for answer in answers {
        is_unavailable(&answer.unwrap_err(), "`statement_timeout`");
    }
    held.close().await.unwrap();
    assert_eq!(patient.jobs(&quell_core::JobFilter::default()).await.unwrap(), before);
    take(&store, plain("4")).await.unwrap();
    let settled = store.settle(None, vec![well, ill]).await.unwrap();
    let became: Vec<SettledAs> = settled.iter().map(|one| one.became).collect();
    assert!(
        matches!(became[..], [SettledAs::Succeeded, SettledAs::Scheduled { .. }]),
        "{became:?}"
    );
    assert_eq!(jobs(&store).await, 5);
}

#[tokio::test]
async fn r39_a_server_without_connections_left_is_told_at_the_start_and_at_a_call() {
    let server = Postgres::start(&["max_connections=12"]).unwrap();
    let open = || PostgresOptions::from_url(&server.url()).unwrap().acquire_timeout(SOON).open();
    // It has no connection yet but the one that listens.
    let store = open().await.unwrap();
    let mut taken = Vec::new();
    while let Ok(connection) = PgConnection::connect(&server.url()).await {
        taken.push(connection);
    }
    is_unavailable(&open().await.unwrap_err(), "`max_connections`");
    is_unavailable(&take(&store, plain("1")).await.unwrap_err(), "`max_connections`");
    is_unavailable(&store.claim(None, &Rig::claim_of(9)).await.unwrap_err(), "`max_connections`");
    for connection in taken {
        connection.close().await.unwrap();
    }
    until("there are connections again", async || take(&store, plain("2")).await.is_ok()).await;
    assert_eq!(jobs(&store).await, 1, "what was refused was not taken");
    until("others may open it again", async || open().await.is_ok()).await;
}

#[tokio::test]
async fn r39_a_server_that_is_away_is_told_at_the_start_and_at_a_call() {
    let mut server = Postgres::start(&["fsync=off"]).unwrap();
    let url = format!("{}?connections=1", server.url());
    let open = || PostgresOptions::from_url(&url).unwrap().acquire_timeout(SOON).open();
    let store = open().await.unwrap();
    take(&store, plain("1")).await.unwrap();
    server.stop().unwrap();
    is_unavailable(&open().await.unwrap_err(), "check that it runs");
    // The connection that it had breaks once; then there is none to be had.
    let broken = take(&store, plain("2")).await.unwrap_err();
    assert!(broken.is_unknown_outcome() || broken.is_retryable(), "{broken}");
    for trigger in [plain("3"), keyed("k")] {
        is_unavailable(&take(&store, trigger).await.unwrap_err(), "the server is away");
    }
    server.resume().unwrap();
    until("it goes on", async || take(&store, plain("4")).await.is_ok()).await;
    assert_eq!(jobs(&store).await, 2);
}
